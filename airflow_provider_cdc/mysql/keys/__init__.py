"""Keys: where to cut tables into chunks, and which chunk owns a key.

``chunk_bounds.ChunkBounds`` cuts a table at keys that the server returns, guided by the server's row estimates;
``midpoints`` proposes where to cut. ``ownership.find_owning_chunks`` takes the keys of changed rows and returns the
chunk of each: integers by bisection, all other keys by asking the server. ``ownership.changes_after_snapshot`` drops
the changes that the snapshot already covers. ``ranges`` turns a user's condition on keys into chunks. Python compares
only integers, because it does not know collations. The room is called by ``mysql.chunks``, ``apply``, ``resnapshot``
and ``verify``.
"""
