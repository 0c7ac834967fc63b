"""Compiled kernels that walk events and decode rows, GTIDs and JSON documents.

``walk_kernel.walk_packets`` walks a block of the binlog protocol from event to event, and ends at the first one that
is not ordinary. ``row_kernel.read_rows`` decodes row images into the buffers of Arrow columns; each table is
described by numbers, so no code is compiled per table. ``gtid_kernel``, ``json_kernel``, ``packed_values``,
``payloads`` and ``checksum`` do the same for their part. ``walk_state`` names the fields that Python and machine code
share. Every read is checked against the end of the packet by hand. Bytes go in, filled buffers come out. Called by
``mysql.binlog.walk`` only; drivers never load it.
"""
