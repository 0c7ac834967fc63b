"""Result sets of SELECTs, read directly into Arrow columns.

``reader.query_arrow_batches`` takes a connection and a SELECT, runs it over the binary protocol, and yields Arrow
record batches with the exact values of the server; ``query_arrow`` returns them at once. ``columns`` has the buffers,
one kind for each type of column, and ``row_kernel`` is the machine code that decodes the rows of every table. The
column definitions are compared with the planned schema before a row is read. A value that cannot be represented stops
the read with the name of its column. The room is called by ``mysql.chunks`` only. The binlog has other encodings: see
``mysql.binlog.kernels``.
"""
