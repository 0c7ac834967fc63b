"""Row changes as Arrow record batches: the Python side that drives the compiled kernels over a range of the binlog.

``binlog_reader.BinlogReader`` reads consecutive ranges (start, end], over new connections if one breaks, and returns
the changes of each captured table with ``_cdc_seq``, ``_cdc_op`` and ``_cdc_ts``. ``walker.BinlogWalker`` lets the
kernels walk ordinary transactions, and hands everything else to ``mysql.binlog.events``. ``change_buffers`` collects
the rows by table, ``changes.read_changes`` yields them in order with TRUNCATE and DDL in between, and ``column_plan``
says how each type of column is read and converted. The same range always gives the same changes. The room is called by
``apply.task`` for batches, ``mysql.chunks`` for the window of a chunk, ``explain`` and ``data_source``.
"""
