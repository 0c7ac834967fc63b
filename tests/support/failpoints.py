"""The names of all failpoints, in the order in which a run reaches them."""

from __future__ import annotations

#: Failpoints of the snapshot.
SNAPSHOT = (
    "plan.after_write",
    "claim.after_write",
    "chunk.before_lw",
    "chunk.after_lw",
    "chunk.after_select",
    "chunk.after_hw",
    "file.before_write",
    "file.after_write",
    "manifest.after_write",
    "group.before_commit",
    "group.after_commit",
    "books.after_chunks",
    "books.after_group",
)
#: Failpoints of the stream.
STREAM = (
    "batch.before_read",
    "batch.after_read",
    "table.before_commit",
    "table.after_commit",
    "progress.before_commit",
    "progress.after_commit",
)
#: Failpoints while the stream follows a DDL.
SCHEMA_CHANGES = (
    "definition.before_write",
    "definition.after_write",
    "definition.before_alter",
    "definition.after_alter",
)
#: Failpoints while a table is suspended or rejoins.
SUSPENSION = (
    "suspend.before_write",
    "suspend.after_write",
    "rejoin.before_write",
    "rejoin.after_write",
    "rejoin.before_exchange",
    "rejoin.after_exchange",
)
#: Failpoints while the copy of a dropped table is emptied.
DROPPED_TABLE = ("drop.before_commit", "drop.after_commit")
#: Failpoints while a copy of several tables gets the columns of one of them.
SHARED_COPY = ("columns.before_add", "columns.after_add")
#: Failpoints while a table is added to a plan.
ADDED_TABLE = ("add.before_write", "add.after_write")
#: Failpoints while a running stream handles a control request.
REQUESTS = ("request.after_take", "request.before_end")
#: Failpoints in the commit of an Iceberg table.
ICEBERG = (
    "iceberg.after_vectors",
    "iceberg.after_manifest",
    "iceberg.after_list",
    "iceberg.before_swap",
    "iceberg.after_swap",
)
#: All failpoints that a complete run reaches; tests iterate over them.
RUN_FAILPOINTS = (*SNAPSHOT, *STREAM)
#: Failpoints that only the re-snapshot of a group reaches.
RESNAPSHOT = ("reread.after_stage", "reread.before_commit", "reread.after_commit")
#: Failpoints around the outcome of a re-snapshot of a table or key ranges.
RESNAPSHOT_OUTCOME = ("reread.before_outcome", "reread.after_outcome")
#: Failpoints while a pipeline starts a new snapshot because binlogs were purged.
NEXT_SNAPSHOT = ("next_snapshot.after_fence", "next_snapshot.after_plan", "next_snapshot.after_switch")
#: Failpoints while a pipeline is forgotten.
FORGET = ("forget.after_table", "forget.before_plan", "forget.before_books")
#: Failpoints of a task that starts a driver in a cluster.
CLUSTER = ("driver.row_written", "driver.submitted")
