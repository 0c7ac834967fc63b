"""The Delta sink: the encoder of its commits, definitions, resume points and maintenance. Only this room knows Delta.

``sink.DeltaSink`` implements ``PipelineSink``. ``table.DeltaSinkTable`` is a ``LakeTable`` (``sinks.lake``) over the
Delta log (``sinks.delta.log``). ``commit_encoder`` turns what a commit does to files into actions of this log, and
``change_data_feed`` records which rows it changes. ``definition_changes`` follows DDL by changing only the log;
``table_metadata`` and ``table_format`` say what a table and its files look like. ``resume_point`` is the table
``_cdc_progress``. ``maintenance`` writes checkpoints and deletes old files, and ``adoption`` decides whether a table of
other software may become the copy. The room is loaded by ``sinks.registry`` only.
"""
