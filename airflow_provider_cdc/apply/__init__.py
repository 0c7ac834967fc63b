"""Copy changes from the binlog to the sink tables exactly once: plan, stage and apply batches, and follow DDL.

``batch_planner.BatchPlanner`` finds where the next batch ends: between transactions, and before a DDL.
``task.StreamJob.stage_range`` runs in Spark's workers: it decodes (start, end] and stages the changes of each table,
and returns a manifest. ``applier.Applier.apply`` runs in the driver: for each table the last change of each key,
minus what the snapshot or the marker covers, in one commit under the epoch's fence; then the resume point.
``fencing`` keeps older runs from committing. ``follow_ddl`` records a new definition and alters the copy. Called by
``stream``, and by ``resnapshot`` and ``verify`` to replay a range.
"""
