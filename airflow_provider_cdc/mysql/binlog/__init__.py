"""Reading the MySQL binlog: the connection, whole transactions, and the values of their rows."""
