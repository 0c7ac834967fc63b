"""Values without I/O: positions and offsets, schemas, plans and their history, staged reads, errors.

``offset`` has ``Position``, ``Offset`` and ``Timeline``, which turns positions of all servers into the one number
``_cdc_seq``; ``gtid`` has GTID sets. ``schema`` has ``TableSchema`` and ``Column`` with the Arrow type of each value.
``plan`` (``Plan``, ``Chunk``) says what the snapshot reads, and ``plan_history`` (amendments) what happens to tables
later. ``definition_history`` says which definition is valid at which position. ``changes``, ``multiset`` and
``bucket_sums`` work on Arrow tables of rows. ``errors`` has every error of the project: ``TransientError`` is worth a
retry, ``TerminalError`` is not. Nothing here reads a file, a clock or a socket (a test checks it). Every other room
uses it.
"""
