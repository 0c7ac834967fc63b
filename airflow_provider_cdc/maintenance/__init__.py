"""Maintenance of sink tables, and uninstalling a pipeline."""
