"""Values without I/O: positions and offsets, schemas, plans and their history, staged reads, errors."""
