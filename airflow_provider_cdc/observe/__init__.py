"""What people see: status, progress, lag, metrics, alerts, and how long the source keeps its binlog."""
