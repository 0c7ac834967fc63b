"""The snapshot: claim, read and publish chunk groups; its progress; how long the source keeps its binlog.

``run.run_group`` is one Airflow task: it claims the group (``claims``), takes over finished files, has
``chunk_groups`` read the rest, and publishes, or stages the rows for the stream if one has begun.
``run.run_snapshot`` does this for all groups. ``adopt_published_groups`` reads from the sink what is published, so
the state database may be lost. ``replan_table`` plans a table again that is altered meanwhile. ``retention_guard``
ends a read that would outlive the source's binlog. ``progress`` adds up what is done. Called by ``driver``, ``cli``
and the planner and sensor of ``airflow``.
"""
