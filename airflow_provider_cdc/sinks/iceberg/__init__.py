"""Tables in the Apache Iceberg format."""
