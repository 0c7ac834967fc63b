"""Plain values that the state database accepts and returns, in addition to its rows."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple

from airflow_provider_cdc.state.models import ControlRequestRow, EpochRow


class HeartbeatReply(NamedTuple):
    """Reply to the heartbeat of a run of the stream: its row, and the unfinished control requests, the oldest first."""

    epoch_row: EpochRow
    requests: Sequence[ControlRequestRow] = ()


class TableStatus(NamedTuple):
    """State of a table; see :class:`TableStateRow`. A ``since`` of ``None`` means when the state was first seen."""

    database: str
    name: str
    state: str
    position: str | None = None
    since: datetime | None = None
    kind: str | None = None
    reason: str | None = None
    remedy: str | None = None
    chunks_done: int = 0
    chunks_total: int = 0
    definitions: Sequence[Any] = ()


class LastCompaction(NamedTuple):
    """The last compaction of a table: when it finished, and how many seconds it took."""

    finished_at: datetime
    seconds: float


class TableCounts(NamedTuple):
    """What has happened to the copy of a table since the state database was created.

    :param inserts: number of inserts that streams have applied; likewise ``updates`` and ``deletes``.
    :param position: position up to which the copy was complete when this was recorded.
    :param updated_at: when this was recorded.
    :param last_overwrite_event: id of the last event that reports replaced rows; 0 for none.
    """

    database: str
    name: str
    inserts: int
    updates: int
    deletes: int
    position: str | None
    updated_at: datetime
    last_overwrite_event: int = 0


class TableProgress(NamedTuple):
    """Progress of the snapshot of one table. ``seconds`` is the sum over its chunks, which are read in parallel."""

    database: str
    table: str
    chunks: int
    done: int
    rows: int
    bytes: int
    corrected: int
    seconds: float


class GroupProgress(NamedTuple):
    """Progress of a chunk group. The ``fresh_`` fields count what its newest attempt has read."""

    group_no: int
    chunks: int
    done: int
    rows: int
    corrected: int
    fresh_chunks: int
    fresh_rows: int


class BatchTotals(NamedTuple):
    """Totals over all batches of a pipeline."""

    batches: int
    changes: int
