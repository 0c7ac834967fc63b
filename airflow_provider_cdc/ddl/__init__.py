"""Statements of the binlog: which tables they affect, and what becomes of a definition. No I/O."""
