"""Processes, permissions, temporary folders and failpoints: what every room may use of the operating system."""
