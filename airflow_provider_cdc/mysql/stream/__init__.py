"""The binlog as the stream reads it: cut into batches, and the changes of each table."""
