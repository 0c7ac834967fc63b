"""Chunks: planned, read between two watermarks, corrected from the binlog."""
