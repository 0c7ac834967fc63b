"""Processes, permissions, temporary folders and failpoints."""
