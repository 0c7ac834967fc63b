"""A chunk group: its tasks, its Spark job, its manifest, and its publication."""
