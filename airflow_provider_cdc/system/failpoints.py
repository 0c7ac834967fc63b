"""Named places where a test may kill the whole run, as a crash would.

``CDC_FAILPOINT=name`` (or ``name:n`` for the n-th time in one process) sends SIGKILL to every process of the session
that reaches the place: the command, the JVM, the Spark workers. Without the variable a failpoint costs one look-up.
"""

from __future__ import annotations

import os
from collections import Counter

from airflow_provider_cdc.system.processes import kill_session

#: Those of the snapshot, in the order in which a run comes by.
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
#: Those of the stream.
STREAM = (
    "batch.before_read",
    "batch.after_read",
    "table.before_commit",
    "table.after_commit",
    "progress.before_commit",
    "progress.after_commit",
)
#: Those of a DDL that the stream follows.
SCHEMA_CHANGES = (
    "definition.before_write",
    "definition.after_write",
    "definition.before_alter",
    "definition.after_alter",
)
#: Those of a table that is suspended, and of one that rejoins.
SUSPENSION = (
    "suspend.before_write",
    "suspend.after_write",
    "rejoin.before_write",
    "rejoin.after_write",
    "rejoin.before_exchange",
    "rejoin.after_exchange",
)
#: Those of a table that was dropped, and whose copy is emptied.
DROPPED_TABLE = ("drop.before_commit", "drop.after_commit")
#: Those of a table that is added to a plan.
ADDED_TABLE = ("add.before_write", "add.after_write")
#: Those of something that people want of a running stream.
REQUESTS = ("request.after_take", "request.before_end")
#: Every failpoint that a whole run comes by; the tests walk through this list.
RUN_FAILPOINTS = (*SNAPSHOT, *STREAM)
#: Those that only a group that is read again comes by.
RESNAPSHOT = ("reread.after_stage", "reread.before_commit", "reread.after_commit")
#: Those of the outcome of a table, or of ranges, that were read again.
RESNAPSHOT_OUTCOME = ("reread.before_outcome", "reread.after_outcome")
#: Those of a pipeline that begins again since binlogs were purged.
NEXT_SNAPSHOT = ("next_snapshot.after_fence", "next_snapshot.after_plan", "next_snapshot.after_switch")
#: Those of a pipeline that is forgotten.
FORGET = ("forget.after_table", "forget.before_plan", "forget.before_books")
ENV_VARIABLE = "CDC_FAILPOINT"
_hits: Counter[str] = Counter()


def failpoint(name: str) -> None:
    """Die here if the failpoint is armed.

    :param name: one of :data:`NAMES`, :data:`REREAD`, :data:`NEXT_SNAPSHOT` or :data:`FORGET`.
    """
    armed = os.environ.get(ENV_VARIABLE)
    if not armed:
        return
    wanted, _, count = armed.partition(":")
    if wanted == name:
        _hits[name] += 1
        if _hits[name] == int(count or 1):
            kill_session(os.getsid(0))
