"""Maintaining sink tables, and uninstalling a pipeline.

``table_maintenance.MaintenanceWorker`` is the stream's thread that compacts tables after they have changed, writes
checkpoints of their logs and deletes old files; ``maintain_tables`` does it once. What to compact, and how to commit
it, is up to the sink (``Compactable``). ``task.run_to_json`` is the work, and ``spark_job`` sends it to Spark's
workers, so no row passes through the driver. No batch waits for it, and a sink that is not ``Compactable`` is left
alone. ``uninstall.find_pipeline_data`` lists what a pipeline has left, and ``delete_pipeline`` deletes it. Called by
``stream``, ``driver`` and ``cli``.
"""
