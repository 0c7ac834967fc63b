"""The process that does the work of a task."""
