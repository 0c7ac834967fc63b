"""Decoders in plain Python: the reference for the compiled kernels, and the fallback for what they do not handle.

``row_decoder.decode_rows`` takes the bytes of a rows event and the ``TableMap`` before it, and returns the values of
its rows. ``values`` unpacks decimals, dates and times, ``jsonb.json_text`` prints binary JSON as the server does, and
``mariadb_values`` has the types that only MariaDB has. The code follows the description of the format line by line
and favors clarity over speed: the tests compare the kernels with it, value by value and on mangled input. Called by
``mysql.binlog.kernels`` for values that machine code leaves, and by ``mysql.binlog.walk``. A new type is written here
first, then compiled.
"""
