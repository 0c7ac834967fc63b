"""Exact chunks of a table: planning them, and correcting the SELECT between two watermarks by the binlog."""
