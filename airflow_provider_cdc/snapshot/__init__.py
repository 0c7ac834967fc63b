"""The snapshot: claiming, reading and publishing chunk groups, measuring progress, and watching the binlog's retention.

``run.run_group`` claims a group (``claims``), takes over finished files, has ``chunk_groups`` read the rest, and
publishes the rows, or stages them for the stream if one has begun. ``run_groups`` is one Airflow task: it finds out
which of its groups are published, and reads the others one after the other. ``run.run_snapshot`` does this for all
groups. ``adopt_published_groups`` finds out from the sink which groups are published, so that losing the state
database does no harm. ``replan_table`` makes a new plan for a table that was altered during the snapshot.
``retention_guard`` ends a read that would take longer than the source keeps its binlog. ``progress`` adds up what is
done. The room is called by ``driver``, ``cli`` and the planner and sensor of ``airflow``.
"""
