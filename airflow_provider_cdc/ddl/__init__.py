"""Statements in the binlog: the tables that they affect, and the definitions that result. No I/O."""
