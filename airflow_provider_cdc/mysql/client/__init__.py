"""Connections to a server and queries about it: identity, product, catalog, character sets, load.

``session.connect`` opens a connection that resets every session variable that matters, and ``translate_errors`` turns
the database driver's errors into the project's own; ``verified_connection`` sends a password only to a server that has
proved its identity. ``catalog.read_captured_schemas`` returns the ``TableSchema`` of each captured table. ``identity``
says which server this is. ``product`` has the statements that differ between MySQL and MariaDB. ``key_sql`` writes the
SQL of keys and key ranges: only the server orders or compares keys. ``charsets`` decodes text as the server does, and
``throttle`` waits while the server is busy. The room is called by all other rooms of ``mysql``, and by every phase that
queries the source.
"""
