"""Sinks: the protocol that each kind implements, and shared code.

``protocol`` is everything that the phases know about a sink. ``PipelineSink`` opens tables, change staging and the
resume point. ``SinkTable.commit(decide, markers, fence)`` is the one way to change rows: ``decide`` sees the markers
and returns ``Upsert``, ``MultisetChange``, ``Truncate``, ``PublishSlices`` or ``OverwriteRange``, or ``None`` if the
work is already in the table. Rows, markers and fence are committed together. ``Feature`` names what a sink may or may
not support. ``registry.open_sink`` loads a kind by its name in ``config.sink_kinds``. ``scan_tasks`` and ``row_hashes``
read tables back for ``verify``. A new kind of sink gets its own room ``sinks.<kind>``. The room is called by all
phases, which never need to know which sink it is.
"""
