"""Positions in the binlog: watermarks, start, resume, failover, lag."""
