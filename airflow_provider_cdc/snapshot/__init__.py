"""The snapshot: claim, read and publish chunk groups; its progress; how long the source keeps its binlog."""
