"""The binlog as it comes over a connection: events and whole transactions."""
