"""Compiled code: a cache of compiled functions, buffers, and primitives that work on memory.

``compile.compiled`` is the decorator of all machine code: numba compiles a Python function once per machine, and the
result is kept in the user's cache folder, or came with the Python environment. ``buffers`` are arrays that machine
code fills and that become Arrow columns without a copy. ``primitives`` copy bytes and compute dates; they check no
bounds, so their callers must. ``siphash`` hashes columns, for the key index and ``verify``; ``hmac_sha256`` hashes
them with a secret key. If no cache folder is safe from other users, each process compiles the functions again. The
room is called by ``transforms``, ``mysql.resultset``, ``mysql.binlog.kernels``, ``mysql.binlog.walk`` and ``sinks``.
It knows nothing about MySQL or tables.
"""
