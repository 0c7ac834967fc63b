"""The Delta sink: tables, slices, resume points and maintenance. No other package depends on Delta.

``sink.DeltaSink`` implements ``PipelineSink``. ``table.DeltaSinkTable`` is one table: ``commit_edit`` decides based on
the markers of the newest version, has ``sinks.delta.merge`` prepare the files, writes the next version, and starts over
if another commit came first. ``change_staging`` and ``slice_staging`` let tasks write rows as files of the table before
any version lists them. ``resume_point`` is the table ``_cdc_progress``. ``definition_changes`` follows DDL by changing
only the log. ``compaction`` and ``maintenance`` merge small files and delete old ones. ``adoption`` and
``table_metadata`` decide whether a table may be written to. The room is loaded by ``sinks.registry`` only.
"""
