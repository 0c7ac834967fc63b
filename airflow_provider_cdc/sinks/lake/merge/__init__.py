"""Merging changes into a table: key index, copy-on-write, deletion vectors, partitions, retained rows.

``change_merger.ChangeMerger`` takes a change, as ``sinks.protocol`` defines it, and the newest version, and determines
which rows of which files become dead, and which files are added: a ``TableEdit``. ``key_lookup`` and ``key_index`` find
rows by key; ``key_hashes`` hashes keys. ``table_edit`` turns the edit into a ``FileCommit``:
``prepare_deletion_vectors``, or ``prepare_copy_on_write``, which rewrites the files. ``partitions`` sorts rows into
folders, and ``soft_deletes`` and ``retained_rows`` keep rows that the source has deleted. Arrow tables of changes go
in, and operations on files come out, which each format encodes for its log. The room is called by ``sinks.lake``, and
by formats for the names of files and partitions.
"""
