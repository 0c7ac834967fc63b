"""Re-snapshots of tables and key ranges: staged reads, overwrites, suspension and table membership."""
