"""A table of a lakehouse, whatever its format: staged files, compaction and reading back.

``change_staging`` and ``slice_staging`` let tasks write rows as files of the table before any version lists them.
``compaction`` chooses small files, and files with many dead rows, and merges them while the stream runs: only the commit
looks at the current state of the table. ``file_scan`` reads a version back, one task per data file. What a change does
to the files is decided in ``sinks.lake.merge``. The room is called by ``sinks.delta``, whose log it still uses: a table
of another format has another log, and the same files, keys and dead rows. Tasks on other hosts use what is here, so
that all of it can be pickled, and nothing holds a connection.
"""
