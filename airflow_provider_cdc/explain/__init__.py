"""Explaining one row: when it was read, what changed it, and whether source and copy agree."""
