"""Places in the binlog: watermarks, start, resume, failover, lag."""
