"""Positions in the binlog: watermarks, start, resume, failover, lag.

``watermarks.Watermarks`` takes the low and the high watermark of a chunk, in a way that the server supports. ``p0``
finds the position at which a snapshot begins, and ``start`` finds a start position if there is no snapshot. Before a
stream continues, ``resume.check_resume_offset`` verifies that the current binlog is the one it was reading.
``failover.fail_over`` finds the position on another server by GTIDs. ``xa_lookback`` searches backward for the rows of
prepared XA transactions. ``offset_walk.OffsetWalk`` walks from offset to offset without decoding rows. ``binlog_files``
says how far an offset is behind the end of the binlog, and how long the server keeps its files. The room is called by
``mysql.chunks``, ``stream``, ``snapshot``, ``resnapshot`` and ``observe``.
"""
