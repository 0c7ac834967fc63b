"""Re-snapshots: rows of the source are read again, and replace those in the copy while the stream continues.

1. *Trigger.* A user asks for a table or key ranges, ``verify`` for keys that differ, Airflow for a chunk group whose
   task was cleared. :mod:`.worker`, a thread of the stream, handles control requests, and tables that :mod:`.suspension`
   or :mod:`.membership` took out of the stream.
2. *Read* (:mod:`.read`). Take a start position and a number from one sequence, read chunks into staged slices, write
   their manifest, and request publication (:mod:`.staged_files`). All of this is a
   :class:`~airflow_provider_cdc.model.staged_read.StagedRead`. The process may then wait (:mod:`.wait`).
3. *Publish* (:mod:`.publish`). Between two batches, the stream's driver takes each read that it has passed. Either the
   read is of no use any more (``find_refusal`` has all reasons) and is dropped; or :mod:`.replay` brings its rows
   forward to the stream's position, and one commit replaces those in the copy. A whole table rejoins the stream there.

Of several reads of a table, the one that began last counts. The argument is in docs/correctness.md. Besides,
:mod:`.dropped_tables` empties copies of dropped tables, :mod:`.purged_binlog` replaces a whole snapshot, and
:mod:`.superseded_files` removes what is no longer used.
"""
