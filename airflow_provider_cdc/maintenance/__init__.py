"""Maintaining sink tables, and uninstalling a pipeline."""
