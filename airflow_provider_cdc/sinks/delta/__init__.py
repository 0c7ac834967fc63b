"""The Delta sink: tables, resume points and maintenance. No other package depends on the Delta library.

``sink.DeltaSink`` implements ``PipelineSink``. ``table.DeltaSinkTable`` is one table: ``commit_edit`` decides based on
the markers of the newest version, has ``sinks.lake.merge`` prepare the files, writes the next version, and starts over
if another commit came first. ``resume_point`` is the table ``_cdc_progress``. ``definition_changes`` follows DDL by
changing only the log. ``change_data_feed`` records which rows a commit changes. ``maintenance`` writes checkpoints and
deletes old files. ``adoption`` and ``table_metadata`` decide whether a table may be written to. The room is loaded by
``sinks.registry`` only.
"""
