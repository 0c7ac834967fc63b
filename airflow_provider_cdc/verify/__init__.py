"""Comparison of source and copy, and repair."""
