"""Files of a sink: Parquet files, names on disk, staged changes, and signals between processes.

``layout.Layout`` has the name of every file below ``sink.path``, and ``read_plan``, which joins the plan with its
amendments. ``parquet`` is the only module that reads or writes Parquet: ``write_file``, ``read_row_groups`` and
``ChangeFileWriter``; a ``DataFile`` describes what was written. ``stored_columns`` finds the columns of a table in a
file, by field id or by name. ``change_staging.FileChangeStaging`` keeps the changes of a batch range until the batch is
applied; a sink may use it or have its own. ``attempt_signals`` lets the driver of a chunk group talk to its readers.
The room uses ``sinks.storage``, and depends on no kind of sink. The room is called by ``sinks``, ``sinks.lake``,
``chunk_groups``, ``apply`` and ``resnapshot``.
"""
