"""Re-snapshots of tables and key ranges: staged reads, the overwrite of their rows, suspension, membership."""
