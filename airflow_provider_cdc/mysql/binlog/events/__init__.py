"""The binlog as received over a connection: events and whole transactions.

``binlog_stream.BinlogStream`` registers as a replica, asks for the binlog from a given position onward, and yields
events whose length, checksum and position were checked. ``transactions.TransactionAssembler`` turns them into whole
``Transaction``s: it drops what is rolled back, and gives XA rows the position of their commit (``xa``). ``table_map``
and ``table_metadata`` compare each table map with the definition that is valid at its position. ``statement_guard``
stops at statements that change a captured table without row events. Anything that is not understood raises an error
with its position. The room is called by ``mysql.binlog.walk``, which passes on what its machine code does not accept,
and by readers that need no rows.
"""
