"""Chunk groups: their Spark tasks, manifests and publication.

``chunk_group.ChunkGroup`` is one attempt at a group: it hands out the slices that are missing, writes the manifest, and
publishes the rows with one commit per table (``publish``), whose marker names the attempt. ``read_coverage`` tells the
stream which high watermark each chunk has. ``task.SnapshotJob`` is the work that is sent to the workers: it reads
chunks through ``mysql.chunks``, stages each slice in the sink, and writes the slice's manifest once.
``spark_job.spark_runner`` runs it as a Spark job, and ``task.run_in_threads`` runs it without Spark. The room is called
by ``snapshot`` and ``resnapshot``; ``apply`` and ``stream`` read the coverage.
"""
