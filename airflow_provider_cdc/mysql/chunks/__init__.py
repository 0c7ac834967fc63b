"""A chunk of a table, exactly: the plan of chunks, and the SELECT between two watermarks corrected by the binlog."""
