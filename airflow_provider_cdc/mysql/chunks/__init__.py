"""Exact chunks of a table: planning them, and correcting the SELECT between two watermarks by the binlog.

``planner.make_plan`` takes the captured schemas and returns the chunks of all tables, in groups. ``chunk.read_chunk``
takes one chunk: low watermark, SELECT (``select_rows``), high watermark, then the changes in between, replayed onto
the rows. It returns rows that are exact as of the high watermark. ``window_reader.WindowReader`` reads the binlog
forward for many chunks over one connection. ``keyless.read_keyless`` reads a table without a usable key, in a view
that was opened while nothing wrote to the table. Called by ``chunk_groups.task`` in Spark's workers, by ``verify``
for the source's side, and by ``resnapshot``.
"""
