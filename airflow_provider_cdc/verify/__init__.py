"""Comparison of source and copy, and repair.

``run.verify_tables`` compares table by table while writers continue. ``compare.TableComparer`` brings both sides to one
position and compares sums of row hashes per bucket; where sums differ, ``row_diff`` compares the rows.
``source_scan.TableSource`` reads the source chunk by chunk, and ``task.SinkScan`` reads the copy, in threads or as
Spark tasks (``spark_job``). ``last_changes`` searches the binlog for the last change of a row. ``repair.repair_tables``
re-snapshots the keys that differ. ``worker.VerifyWorker`` does both on request in a running stream. ``report`` decides
how the command ends, and records the verdicts. The result of a table is ``model.comparison.TableComparison``. The room
is called by ``cli``, ``driver`` and ``stream``.
"""
