"""Files of a sink: Parquet, names on disk, staged files, notes."""
