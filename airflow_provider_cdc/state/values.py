"""Plain values that the bookkeeping takes and gives, beside its rows."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple

from airflow_provider_cdc.state.models import ControlRequestRow, EpochRow


class TimelineSegment(NamedTuple):
    """A stretch of one server's binlogs.

    :param server: identity of the server.
    :param start_file: first binlog file.
    :param start_position: first position in it.
    :param base_ordinal: ordinal of that file in the lineage.
    """

    server: str
    start_file: str
    start_position: int
    base_ordinal: int


class HeartbeatReply(NamedTuple):
    """What a run of the stream hears when it says that it is alive: its row, and what people want of it that is not
    done yet, the oldest first.
    """

    epoch_row: EpochRow
    requests: Sequence[ControlRequestRow] = ()


class TableStatus(NamedTuple):
    """How a table stands; the fields as of :class:`TableStateRow`. ``since``: ``None`` for when it was first seen."""

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
    """The last compaction of a table: when it was over, and how many seconds it took."""

    finished_at: datetime
    seconds: float


class TableCounts(NamedTuple):
    """What has happened to the copy of a table since the bookkeeping was made.

    :param inserts: changes that streams have applied; ``updates`` and ``deletes`` alike.
    :param position: up to which the copy had everything when that was written.
    :param updated_at: when that was.
    :param last_overwrite_event: id of the last event that says that rows were exchanged otherwise; 0 for none.
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
    """How far the snapshot of one table is; ``seconds`` is the sum over its chunks, which are read side by side."""

    database: str
    table: str
    chunks: int
    done: int
    rows: int
    bytes: int
    corrected: int
    seconds: float


class GroupProgress(NamedTuple):
    """How far a chunk group is; ``fresh``: what its newest attempt has read."""

    group_no: int
    chunks: int
    done: int
    rows: int
    corrected: int
    fresh_chunks: int
    fresh_rows: int


class EpochTotals(NamedTuple):
    """Sums over all batches of one run of a stream, and the offsets (JSON) where they begin and end."""

    batches: int
    changes: int
    start: Any | None
    end: Any | None


class BatchTotals(NamedTuple):
    """Sums over all batches of a pipeline."""

    batches: int
    changes: int
    bytes: int
    seconds: float
    lag_max_ms: float | None
