"""The Iceberg format, versions 2 and 3. Bytes and JSON come in and go out: nothing here reads or writes files.

``types`` has the types, and what they are in Arrow; ``values`` encodes single values. ``schema`` identifies columns by
field ids, and ``schema_changes`` changes them without touching a file.
``partition_spec`` and ``transforms`` compute the partitions of Arrow tables, and ``partition_values`` their text.
``table_metadata`` is a version of a table, ``snapshots`` has its snapshots and says which of them expire, and
``table_updates`` leads to the next version, in the terms of the REST catalog. ``manifests`` and ``manifest_list`` are
the Avro files (``avro_files``, ``manifest_schemas``) that list data files and deletion vectors; ``puffin`` has the
files that contain these. Names are those of the specification. Members of JSON objects that are not understood are
retained, so that nothing is lost of what other programs have written. The room is called by ``sinks.iceberg``.
"""
