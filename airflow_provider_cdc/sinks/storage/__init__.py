"""Where files lie: a local folder or an object store."""
