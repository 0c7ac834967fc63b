"""Storage of files: a local folder or an object store."""
