"""Places in the binlog: where to start, resume, look back, and go on at another server."""
