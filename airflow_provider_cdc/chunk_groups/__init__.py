"""Chunk groups: their Spark tasks, manifests and publication.

``chunk_group.ChunkGroup`` is one attempt at a group: it hands out the slices that are missing, writes the manifest,
and publishes the rows with one commit per table (``publish``), whose marker names the attempt. ``read_coverage``
tells the stream which high watermark each chunk has. ``task.SnapshotJob`` is the work itself, and travels to the
workers: read chunks by ``mysql.chunks``, stage each slice in the sink, write its manifest once.
``spark_job.spark_runner`` runs it as a Spark job, ``task.run_in_threads`` without Spark. Called by ``snapshot`` and
``resnapshot``; ``apply`` and ``stream`` read the coverage.
"""
