"""Reading MySQL's binlog: the connection, whole transactions, and the values of their rows."""
