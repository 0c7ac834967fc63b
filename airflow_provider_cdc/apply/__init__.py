"""Copying changes to the sink tables exactly once: planning, staging and applying batches, and following DDL.

``batch_planner.BatchPlanner`` finds where the next batch ends: always between two transactions, and before any DDL.
``task.StreamJob.stage_range`` runs in Spark's workers: it decodes the range (start, end], stages the changes of each
table, and returns a manifest. ``applier.Applier.apply`` runs in the driver. For each table, it takes the last change of
each key, omits what the snapshot or the marker covers, and commits the rest under the epoch's fence. Then it commits
the resume point. ``fencing`` keeps older runs from committing. ``follow_ddl`` records a new definition and alters the
copy. The room is called by ``stream``, and by ``resnapshot`` and ``verify`` to replay a range.
"""
