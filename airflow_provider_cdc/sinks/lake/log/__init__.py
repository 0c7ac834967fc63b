"""What the shared code needs of a table's log, and what a commit to it consists of.

``table_log.TableLog`` is one version of a table: live files, their dead rows, markers, properties. ``LiveFile`` is a
data file of this version, in whatever form the log of a format keeps it. ``file_commit.FileCommit`` is the change that
leads to the next version: files removed and added, and rows that die in files that stay, in the order in which the log
is to have them; and, if columns or properties change, their new definition in the format's own terms. Only the format
writes it, in one step with the markers. ``vector_codec`` has the bytes of a deletion vector, which several formats have
in common. Nothing here reads or writes. The room is called by ``sinks.lake``, ``sinks.lake.merge`` and the formats,
such as ``sinks.delta``.
"""
