"""Maintaining sink tables, and uninstalling a pipeline.

``table_maintenance.MaintenanceWorker`` is the stream's thread that compacts tables after they have changed, writes
checkpoints of their logs and deletes old files; ``maintain_tables`` does the same once. What to compact, and how to
commit it, is up to the sink (``Compactable``). Compactions run in threads (``task``) or in Spark's workers
(``spark_job``), so no row passes through the driver. No batch waits for maintenance, and a sink that is not
``Compactable`` is left alone. ``uninstall.find_pipeline_data`` lists what a pipeline has left behind, and
``delete_pipeline`` deletes it. The room is called by ``stream``, ``driver`` and ``cli``.
"""
