"""Files of a sink: Parquet files, names on disk, staged changes, and signals between processes."""
