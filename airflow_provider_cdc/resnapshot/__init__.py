"""Re-snapshots: rows of the source are read again, and replace those in the copy while the stream continues.

1. *Trigger.* A user asks for a table or key ranges, ``verify`` for keys that differ, or Airflow for a chunk group. The
   stream's :mod:`.worker` serves requests, and reads tables that :mod:`.suspension` or :mod:`.membership` left out.
2. *Read* (:mod:`.read`). Take a start position and a number, read chunks into staged slices, and ask for their
   publication (:mod:`.staged_files`). The result is a
   :class:`~airflow_provider_cdc.model.staged_read.StagedRead`. The process may :mod:`.wait` for the stream.
3. *Publish* (:mod:`.publish`). Between two batches, the stream's driver takes each read whose positions it has passed.
   A read that is no longer of use (``find_refusal`` has all reasons) is dropped. Otherwise, :mod:`.replay` brings its
   rows to the stream's position, and one commit replaces those in the copy. A whole table then rejoins the stream.

Of several reads of a table, the one that began last counts. docs/correctness.md explains why this is correct. Two
modules do not use staged reads: :mod:`.dropped_tables` empties copies, and :mod:`.purged_binlog` replaces a whole
snapshot.
"""
