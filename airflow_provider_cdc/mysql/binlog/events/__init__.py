"""The binlog as received over a connection: events and whole transactions."""
