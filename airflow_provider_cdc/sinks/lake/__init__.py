"""A table of a lakehouse, whatever its format: commits, staged files, compaction, reading back.

A format supplies two things. Its **log** (``sinks.lake.log.TableLog``) tells the live files with their bounds,
partitions and dead rows, the markers and the properties of the newest version. Its **encoder** is a subclass of
``lake_table.LakeTable``: ``_write_commit`` turns a ``FileCommit`` (files added and removed, dead rows, definition) into
its next version, or reports that another writer was faster; other methods make a changed definition in its terms.
``LakeTable`` decides on the newest markers, checks the fence, has ``sinks.lake.merge`` prepare the files, and decides
again after a conflict. ``table_checks`` refuses foreign tables by their properties. ``change_staging`` and
``slice_staging`` write rows as files before any version lists them, ``compaction`` merges files while others write, and
``file_scan`` reads a version, one task per file; ``resume_point`` keeps the stream's resume point in such a table. No
format is known here; ``sinks.delta`` and ``sinks.iceberg`` have one each.
"""
