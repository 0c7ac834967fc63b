"""A chunk group: its Spark tasks, its manifest and its publication."""
