"""Compiled kernels that walk events and decode rows, GTIDs and JSON documents.

``walk_kernel.walk_packets`` walks a block of the binlog protocol from event to event, and stops at the first event that
is not ordinary. ``row_kernel.read_rows`` decodes row images into the buffers of Arrow columns; each table is described
by numbers, so no code is compiled per table. ``gtid_kernel``, ``json_kernel``, ``packed_values``, ``payloads`` and
``checksum`` do the same for other parts of the format. ``walk_state`` names the fields that Python and machine code
share. The code of each read checks explicitly that it stays within the packet. Bytes go in, and filled buffers come
out. The room is called by ``mysql.binlog.walk`` only; drivers never load it.
"""
