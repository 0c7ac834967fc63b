"""Statements in the binlog: which tables they affect, and the definitions that result. No I/O."""
