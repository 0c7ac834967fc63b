"""Slots: which of a pipeline's replication server ids each of its binlog readers takes.

A server throws out a reader as soon as another one registers with the same server id. So all readers of a pipeline that
may be at work at the same time have slots of their own. :meth:`Pipeline.replica` turns a slot into a server id and a
uuid. Slots 93 to 99, 105 to 109, 190 to 199 and 1000 are free.
"""

from __future__ import annotations

#: The stream's driver: it looks for the place where the stream begins, then plans its batches.
STREAM = 0
#: The stream's driver, while it looks at a DDL.
DDL = 1
#: The stream's driver, while it replays the binlog onto chunk groups that were read again.
REPLAY = 2
#: ``verify``, which reads what its two sides lack.
VERIFY = 100
#: ``status``, which asks how far the source is ahead.
LAG = 101
#: Whoever plans a snapshot, and looks for the place where the stream is to begin.
PLAN = 102
#: A driver that writes down once a minute how far the source is ahead.
LAG_SAMPLE = 103
#: ``explain``, which looks for the changes of a row.
EXPLAIN = 104
#: The highest slot.
LAST_SLOT = 1000

#: Highest ``snapshot.parallelism`` and ``stream.parallelism``.
MAX_PARALLELISM = 64
#: Copies of a Spark task that may be at work at the same time.
MAX_TASK_COPIES = 4

#: The readers of the chunks that ``verify`` compares; there are no more of them.
VERIFY_READERS = range(174, 190)

_GUARDS = range(3, 93)
_BATCH_READERS = range(110, 110 + MAX_PARALLELISM)
_WORKERS = range(200, 1000)
# Both larger than the highest parallelism, and so chosen that no two slots of three attempts in a row are the same.
_ATTEMPT_STRIDE, _COPY_STRIDE = 66, 199


def binlog_guard_slot(group: int) -> int:
    """The retention guard of a chunk group, which looks when binlog files were begun. Groups 90 apart share one.

    :param group: number of the group.
    """
    return _GUARDS[group % len(_GUARDS)]


def batch_reader_slots(parallelism: int) -> range:
    """The tasks that read a batch of the stream, one slot each.

    :param parallelism: how many there are.
    """
    return _BATCH_READERS[:parallelism]


def chunk_worker_slots(group: int, attempt: int, parallelism: int) -> list[list[int]]:
    """The workers that read a chunk group: for each, a slot for each of its :data:`COPIES`.

    Groups that are read at the same time must not share any, nor an attempt with one before it that still goes on, nor
    two copies of a task. With more than 800 workers in all groups together, two groups may.

    :param group: number of the group.
    :param attempt: number of the attempt.
    :param parallelism: workers of each group.
    """
    first = group * parallelism + _ATTEMPT_STRIDE * (attempt % 3)
    return [
        [_WORKERS[(first + worker + _COPY_STRIDE * copy) % len(_WORKERS)] for copy in range(MAX_TASK_COPIES)]
        for worker in range(parallelism)
    ]


def resnapshot_worker_slots(earlier_reads: int, parallelism: int) -> list[list[int]]:
    """The same of a table, or of ranges, that is read again. They count from the other end, so that the first ones
    share none with the first groups.

    :param earlier_reads: how many readings were begun before it.
    :param parallelism: workers of each.
    """
    return chunk_worker_slots(-1 - earlier_reads, 0, parallelism)
