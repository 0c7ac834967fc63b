"""Status, table state, lag, metrics and alerts."""
