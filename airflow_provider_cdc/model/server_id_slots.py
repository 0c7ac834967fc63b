"""Slots: which of a pipeline's replication server ids each of its binlog readers uses.

A server disconnects a reader as soon as another one registers with the same server id. So readers of a pipeline that
may run at the same time have different slots. :meth:`Pipeline.replica_ids` turns a slot into a server id and a UUID.
Slots 93 to 99, 105 to 109, 190 to 199 and 1000 are free.
"""

from __future__ import annotations

#: The stream's driver: it finds the position where the stream begins, then plans its batches.
STREAM = 0
#: The stream's driver, while it examines a DDL.
DDL = 1
#: The stream's driver, while it replays the binlog onto staged chunk groups.
REPLAY = 2
#: ``verify``, which reads the changes that either side lacks.
VERIFY = 100
#: ``status``, which measures the lag.
LAG = 101
#: The planner of a snapshot, which also finds the position where the stream will begin.
PLAN = 102
#: A driver that records the lag once a minute.
LAG_SAMPLE = 103
#: ``explain``, which searches for the changes of a row.
EXPLAIN = 104
#: The highest slot.
LAST_SLOT = 1000

#: Highest ``snapshot.parallelism`` and ``stream.parallelism``.
MAX_PARALLELISM = 64
#: Copies of a Spark task that may run at the same time.
MAX_TASK_COPIES = 4

#: Slots of the chunk readers of ``verify``, which limit their number.
VERIFY_READERS = range(174, 190)

_GUARDS = range(3, 93)
_BATCH_READERS = range(110, 110 + MAX_PARALLELISM)
_WORKERS = range(200, 1000)
# Both exceed the highest parallelism and are chosen so that three attempts in a row share no slot.
_ATTEMPT_STRIDE, _COPY_STRIDE = 66, 199


def binlog_guard_slot(group: int) -> int:
    """Return the slot of a chunk group's binlog guard, which finds out when binlog files were begun.

    Groups whose numbers differ by a multiple of 90 share a slot.

    :param group: number of the group.
    """
    return _GUARDS[group % len(_GUARDS)]


def batch_reader_slots(parallelism: int) -> range:
    """Return the slots of the tasks that read a batch of the stream, one per task.

    :param parallelism: number of tasks.
    """
    return _BATCH_READERS[:parallelism]


def chunk_worker_slots(group: int, attempt: int, parallelism: int) -> list[list[int]]:
    """Return the slots of the workers that read a chunk group: :data:`MAX_TASK_COPIES` for each worker.

    No slot may be shared by groups that are read at the same time, by an attempt and an earlier one that still runs, or
    by two copies of a task. With more than 800 workers in all groups together, two groups may share one.

    :param group: number of the group.
    :param attempt: number of the attempt.
    :param parallelism: workers per group.
    :returns: for each worker, the slots of its copies.
    """
    first = group * parallelism + _ATTEMPT_STRIDE * (attempt % 3)
    return [
        [_WORKERS[(first + worker + _COPY_STRIDE * copy) % len(_WORKERS)] for copy in range(MAX_TASK_COPIES)]
        for worker in range(parallelism)
    ]


def resnapshot_worker_slots(earlier_reads: int, parallelism: int) -> list[list[int]]:
    """Return the slots of the workers that re-snapshot a table or key ranges, as :func:`chunk_worker_slots` does.

    They are counted from the other end, so the first re-snapshots share no slot with the first groups.

    :param earlier_reads: number of re-snapshots that were started earlier.
    :param parallelism: workers of each.
    """
    return chunk_worker_slots(-1 - earlier_reads, 0, parallelism)
