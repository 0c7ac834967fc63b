"""Read-only queries across all pipelines of a state database, and those that display a single pipeline.

Queries that run every few seconds cost a few index lookups per pipeline, however long its history is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Any, NamedTuple

from sqlalchemy import Select, and_, func, select
from sqlalchemy.orm import Session

from airflow_provider_cdc.state.chunk_reader import ChunkReader
from airflow_provider_cdc.state.models import (
    PUBLISHED_STATES,
    BatchRow,
    ChunkGroupRow,
    EpochRow,
    EventRow,
    LagSampleRow,
    PipelineRow,
    SnapshotRow,
    TableStateRow,
    utc_now,
)
from airflow_provider_cdc.state.state_database import StateDatabase
from airflow_provider_cdc.state.streams import select_newest_epoch
from airflow_provider_cdc.state.table_reader import TableStateReader

#: Number of newest batches from which the current rate and lag are computed.
RECENT_BATCHES = 30
#: Seconds without a commit after which the newest batches no longer describe the current state.
_SILENT_SECONDS = 60.0
#: Number of steps of the lag line of an overview, and the length of each: together the last hour.
LAG_LINE_STEPS, LAG_LINE_STEP = 30, timedelta(minutes=2)
#: Tables of which an overview has the newest row of each pipeline, and the columns that order their rows.
_NEWEST_ROWS: tuple[tuple[Any, Any], ...] = (
    (SnapshotRow, SnapshotRow.generation),
    (EpochRow, EpochRow.epoch),
    (LagSampleRow, LagSampleRow.at),
)


class Throughput(NamedTuple):
    """Throughput over the newest batches of a run.

    It has the changes per second, the highest p95 lag in milliseconds, and the time of the last commit.
    """

    changes_per_second: float
    lag_p95_ms: float | None
    committed_at: datetime | None = None


class UnfinishedGroup(NamedTuple):
    """A chunk group that was begun but not finished. ``heartbeat_at`` is ``None`` if no process is reading it."""

    group_no: int
    state: str
    attempt: int
    heartbeat_at: datetime | None


class ChunkGroupCounts(NamedTuple):
    """Chunk groups of a snapshot: their number, the number that is published, and those that are being read."""

    total: int
    done: int
    unfinished: tuple[UnfinishedGroup, ...] = ()
    by_state: Mapping[str, int] = MappingProxyType({})


class TableCount(NamedTuple):
    """Number of tables with the same state, kind of suspension, and result of the last comparison."""

    state: str
    kind: str | None
    verified_equal: bool | None
    tables: int


class OpenEvents(NamedTuple):
    """Number of events of one kind that need attention, and the newest of them."""

    events: int
    newest: EventRow


class PipelineOverview(NamedTuple):
    """Summary of one pipeline.

    ``table_counts`` counts the tables whose state a driver has recorded. ``source`` is the human-readable server.
    ``open_events`` has one entry for each kind of event that needs attention.
    """

    name: str
    server: str
    snapshot: SnapshotRow | None
    chunk_groups: ChunkGroupCounts | None
    newest_epoch: EpochRow | None
    throughput: Throughput | None
    last_sample: LagSampleRow | None = None
    table_counts: Sequence[TableCount] = ()
    source: Mapping[str, Any] | None = None
    lag_line: Sequence[float | None] = ()
    open_events: Sequence[OpenEvents] = ()

    @property
    def tables(self) -> int:
        """Number of planned tables."""
        return 0 if self.snapshot is None else self.snapshot.tables

    @property
    def table_state_counts(self) -> dict[str, int]:
        """Number of tables by state."""
        counts: Counter[str] = Counter()
        for group in self.table_counts:
            counts[group.state] += group.tables
        return dict(counts)


class StateDatabaseReader(ChunkReader, TableStateReader, StateDatabase):
    """Adds the queries of status displays across the pipelines of a database."""

    def read_overview(self) -> list[PipelineOverview]:
        """Return a summary of all pipelines, ordered by name, with a constant number of queries."""
        with self._read_session() as session:
            pipelines = session.execute(
                select(PipelineRow.name, PipelineRow.server_uuid, PipelineRow.source).order_by(PipelineRow.name)
            ).all()
            snapshots, streams, samples = (
                {row.pipeline: row for row in session.scalars(_select_newest(model, order))}
                for model, order in _NEWEST_ROWS
            )
            groups = _group_counts_by_pipeline(session)
            batch_sums, states = _recent_batch_sums(session), _table_counts(session)
            lag_lines, open_events = _lag_lines(session), _open_events(session)
        return [
            PipelineOverview(
                name,
                server,
                snapshots.get(name),
                groups.get(name),
                streams.get(name),
                _throughput_of(streams.get(name), batch_sums.get(name)),
                samples.get(name),
                states.get(name, ()),
                source,
                lag_lines.get(name, ()),
                open_events.get(name, ()),
            )
            for name, server, source in pipelines
        ]

    def newest_epochs(self, pipeline: str, n: int, before: int | None = None) -> list[EpochRow]:
        """Return the ``n`` newest runs of the stream, the newest first.

        :param before: only runs with a lower epoch.
        """
        newest = select_newest_epoch(pipeline).limit(n)
        return self._read_rows(newest if before is None else newest.where(EpochRow.epoch < before))

    def throughput(self, epoch_row: EpochRow) -> Throughput | None:
        """Return the current throughput of one run of a stream."""
        with self._read_session() as session:
            return _throughput_of(epoch_row, _recent_batch_sums(session, epoch_row.pipeline).get(epoch_row.pipeline))

    # Batches

    def batches_since(self, pipeline: str, since: datetime, n: int) -> list[Any]:
        """Return those of the newest ``n`` batches that were committed after ``since``, the oldest first.

        Each has ``epoch``, ``batch_id``, ``committed_at``, ``changes``, ``bytes``, ``seconds``, ``lag_p50_ms`` and
        ``lag_p95_ms``.
        """
        names = ("epoch", "batch_id", "committed_at", "changes", "bytes", "seconds", "lag_p50_ms", "lag_p95_ms")
        newest = (
            select(*(getattr(BatchRow, name) for name in names))
            .where(BatchRow.pipeline == pipeline)
            .order_by(BatchRow.epoch.desc(), BatchRow.batch_id.desc())
            .limit(n)
        )
        with self._read_session() as session:
            rows = session.execute(newest).all()
        return [row for row in reversed(rows) if row.committed_at > since]


def _select_newest(model: Any, order: Any, *columns: Any) -> Select[Any]:
    """Select the newest row of each pipeline.

    :param model: table with a column ``pipeline``.
    :param order: column that orders the rows of a pipeline.
    :param columns: columns to select; by default the whole row.
    """
    # One look into the index for each pipeline, however many rows it has.
    newest = select(func.max(order)).where(model.pipeline == PipelineRow.name).correlate(PipelineRow).scalar_subquery()
    is_newest = and_(model.pipeline == PipelineRow.name, order == newest)
    return select(*(columns or [model])).select_from(PipelineRow).join(model, is_newest)


def _select_of_newest_snapshot(model: Any, *columns: Any) -> Select[Any]:
    newest = _select_newest(SnapshotRow, SnapshotRow.generation, SnapshotRow.pipeline, SnapshotRow.generation)
    newest_snapshots = newest.subquery()
    is_newest = and_(model.pipeline == newest_snapshots.c.pipeline, model.generation == newest_snapshots.c.generation)
    return select(model.pipeline, *columns).join(newest_snapshots, is_newest)


def _group_counts_by_pipeline(session: Session) -> dict[str, ChunkGroupCounts]:
    columns = [getattr(ChunkGroupRow, name) for name in UnfinishedGroup._fields]
    unfinished: dict[str, list[UnfinishedGroup]] = {}
    query = _select_of_newest_snapshot(ChunkGroupRow, *columns)
    for name, *values in session.execute(query.where(ChunkGroupRow.state.in_(("running", "rereading")))):
        unfinished.setdefault(name, []).append(UnfinishedGroup(*values))
    states: dict[str, dict[str, int]] = {}
    query = _select_of_newest_snapshot(ChunkGroupRow, ChunkGroupRow.state, func.count())
    for name, state, n in session.execute(query.group_by(ChunkGroupRow.pipeline, ChunkGroupRow.state)):
        states.setdefault(name, {})[state] = int(n)
    return {
        name: ChunkGroupCounts(
            sum(by_state.values()),
            sum(n for state, n in by_state.items() if state in PUBLISHED_STATES),
            tuple(unfinished.get(name, ())),
            by_state,
        )
        for name, by_state in states.items()
    }


def _recent_batch_sums(session: Session, pipeline: str | None = None) -> dict[str, Any]:
    """Return sums over the newest batches of the newest run of each pipeline."""
    newest = _select_newest(EpochRow, EpochRow.epoch, EpochRow.pipeline, EpochRow.epoch)
    runs = (newest if pipeline is None else newest.where(EpochRow.pipeline == pipeline)).subquery()
    last_batch = select(func.max(BatchRow.batch_id)).where(
        BatchRow.pipeline == runs.c.pipeline, BatchRow.epoch == runs.c.epoch
    )
    recent = and_(
        BatchRow.pipeline == runs.c.pipeline,
        BatchRow.epoch == runs.c.epoch,
        BatchRow.batch_id > last_batch.correlate(runs).scalar_subquery() - RECENT_BATCHES,
    )
    at = BatchRow.committed_at
    sums = func.sum(BatchRow.changes), func.min(at), func.max(at), func.max(BatchRow.lag_p95_ms), func.count()
    query = select(runs.c.pipeline, *sums).select_from(runs).join(BatchRow, recent).group_by(runs.c.pipeline)
    return {row[0]: row[1:] for row in session.execute(query)}


def _throughput_of(run: EpochRow | None, sums: Any) -> Throughput | None:
    if run is None or sums is None:
        return None
    changes, first_commit, last_commit, lag, _ = sums
    # Both times come from the clock of the stream's host.
    silent = (run.heartbeat_at - last_commit).total_seconds()
    if run.state != "running" or silent > _SILENT_SECONDS:
        return Throughput(0.0, None if silent > _SILENT_SECONDS else lag, last_commit)
    seconds = max((max(run.heartbeat_at, last_commit) - first_commit).total_seconds(), 1.0)
    return Throughput(float(changes) / seconds, lag, last_commit)


def _table_counts(session: Session) -> dict[str, list[TableCount]]:
    row = TableStateRow
    columns = row.pipeline, row.state, row.kind, row.verified_equal
    counts: dict[str, list[TableCount]] = {}
    for name, state, kind, is_equal, n in session.execute(select(*columns, func.count()).group_by(*columns)):
        counts.setdefault(name, []).append(TableCount(state, kind, is_equal, int(n)))
    return counts


def _open_events(session: Session) -> dict[str, list[OpenEvents]]:
    row = EventRow
    # For each pipeline, this reads a part of one index.
    is_open = and_(row.pipeline == PipelineRow.name, row.needs_attention.is_(True))
    query = select(row.pipeline, row.kind, func.count().label("events"), func.max(row.id).label("newest"))
    kinds = query.select_from(PipelineRow).join(row, is_open).group_by(row.pipeline, row.kind).subquery()
    open_events: dict[str, list[OpenEvents]] = {}
    for n, newest in session.execute(select(kinds.c.events, row).join(row, row.id == kinds.c.newest)):
        open_events.setdefault(newest.pipeline, []).append(OpenEvents(int(n), newest))
    return open_events


def _lag_lines(session: Session) -> dict[str, list[float | None]]:
    """Return the highest lag of each step of the last hour, the oldest first, by pipeline."""
    end = utc_now().replace(second=0, microsecond=0)
    begin = end - LAG_LINE_STEP * LAG_LINE_STEPS
    row = LagSampleRow
    # For each pipeline, this reads the end of its index.
    newest = select(PipelineRow.name.label("name")).subquery()
    is_recent = and_(row.pipeline == newest.c.name, row.at >= begin)
    query = select(row.pipeline, row.at, row.lag_seconds).select_from(newest).join(row, is_recent)
    lines: dict[str, list[float | None]] = {}
    for name, at, lag in session.execute(query):
        line = lines.setdefault(name, [None] * LAG_LINE_STEPS)
        step = min(max(int((at - begin) / LAG_LINE_STEP), 0), LAG_LINE_STEPS - 1)
        if lag is not None:
            line[step] = max(round(lag, 3), line[step] or 0.0)
    return lines
