"""Apache Iceberg tables as a sink: ``sink.IcebergSink`` has one table per captured table, in a catalog.

``table.IcebergSinkTable`` adds to the shared ``sinks.lake.lake_table.LakeTable`` what is different in this format: the
encoder of commits (``commit_encoder``), creation and adoption, and changes of columns by their field ids
(``definition_changes``). ``table_format`` says how rows are stored: data files have field ids and all columns, and the
files of a compaction also the row ids of their rows. Tasks that stage files take the ids from the table's metadata.
``snapshot_expiry`` lets snapshots expire after commits, and ``upkeep`` deletes their files, if ``log.folder_owner``
says that the folder belongs to the table. ``resume_point`` keeps the stream's resume point in a table of its own.
Deleted rows are in deletion vectors (format version 3), or their files are rewritten (version 2); equality deletes are
neither written nor supported.
"""
