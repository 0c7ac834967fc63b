"""The process that a task starts: it runs Spark."""
