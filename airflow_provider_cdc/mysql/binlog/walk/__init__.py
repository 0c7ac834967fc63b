"""Row changes as Arrow tables: what drives the machine code over a stretch of the binlog."""
