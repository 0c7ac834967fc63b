"""Upkeep of the copies, and the end of a pipeline."""
