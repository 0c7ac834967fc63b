"""Exact chunks of a table: planning chunks, and correcting the rows of each with the changes between its watermarks.

``planner.make_plan`` takes the captured schemas and returns the chunks of all tables, in groups. ``chunk.read_chunk``
reads one chunk: it takes the low watermark, runs the SELECT (``select_rows``), takes the high watermark, and replays
the changes in between onto the rows. It returns rows that are exact as of the high watermark.
``window_reader.WindowReader`` reads the binlog forward for many chunks over one connection. ``keyless.read_keyless``
reads a table without a usable key in a read view that was opened while nothing wrote to the table. The room is called
by ``chunk_groups.task`` in Spark's workers, by ``verify`` for the source's side, and by ``resnapshot``.
"""
