"""Explaining one row: when it was read, what changed it, and whether source and copy agree.

``run.explain_row`` takes a table and a key, and returns an ``explanation.Explanation``, as JSON or as text.
``read_history`` finds the chunks and re-snapshots that have read the key, from the manifests in the sink.
``row_changes`` searches the binlog for the changes of this one row; the memory that it needs does not grow with the
changes of other rows. ``row_lookup`` reads the row on both sides; the server decides which keys are equal. The room
writes nothing, and needs no Spark. The room is called by the command ``airflow-cdc explain`` only. It shows row values,
so neither the page nor a task calls it.
"""
