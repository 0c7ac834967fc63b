"""Values and JSON documents in plain Python: the fallback for what the compiled kernels do not handle.

``values`` unpacks decimals, dates and times, ``jsonb.json_text`` prints binary JSON as the server does, and
``mariadb_values`` has the types that only MariaDB has. The code follows the description of the format line by line, and
favors clarity over speed. The tests compare the kernels with it and with the plain decoder of row images
(``tests/support/binlog/row_decoder.py``), value by value and on mangled input. The room is called by
``mysql.binlog.kernels`` and ``mysql.binlog.walk`` for values that machine code does not handle. A new type is written
here or in that plain decoder first, then compiled.
"""
