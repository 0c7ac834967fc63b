"""Re-snapshots of tables and key ranges: staged reads, overwrites, suspension and table membership.

``suspension`` takes a table out of the stream, ``whole_table`` reads it again, and ``overwrite`` replaces its rows,
so that it rejoins. ``staged_reads`` does this for a cleared chunk group and ``key_ranges`` for a part of the keys;
``staged_files`` numbers the reads and records their outcome. ``worker.ResnapshotWorker`` is the stream's thread that
reads tables while batches continue. ``membership`` adds and removes tables by the pipeline's patterns,
``dropped_tables`` empties copies, and ``purged_binlog`` begins a new snapshot. Readers write files into the sink;
only the stream's driver publishes them. Called by ``stream``, ``driver``, ``cli`` and ``snapshot``.
"""
