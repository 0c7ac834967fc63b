"""The snapshot: groups are claimed, read and published, and planned again where a table was altered."""
