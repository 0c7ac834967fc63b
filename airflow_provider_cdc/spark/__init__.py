"""The Spark jobs, and what they need of the machine: a Java runtime and an unmixed pyspark."""
