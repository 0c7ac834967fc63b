"""Read-only queries across all pipelines of a state database, and those that display a single pipeline.

Queries that run every few seconds cost a few index lookups per pipeline, however long its history is.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime
from types import MappingProxyType
from typing import Any, NamedTuple

from sqlalchemy import BigInteger, ColumnElement, Select, and_, case, cast, func, select
from sqlalchemy.orm import Session

from airflow_provider_cdc.state.models import (
    PUBLISHED_STATES,
    BatchRow,
    ChunkGroupRow,
    ChunkRow,
    EpochRow,
    EventRow,
    LagSampleRow,
    PipelineRow,
    PlannedTableRow,
    SnapshotRow,
    TableStateRow,
)
from airflow_provider_cdc.state.snapshots import IS_SAME_GROUP
from airflow_provider_cdc.state.state_database import StateDatabase
from airflow_provider_cdc.state.streams import select_newest_epoch

#: Number of newest batches from which the current rate and lag are computed.
RECENT_BATCHES = 30
#: Seconds without a commit after which the newest batches no longer describe the current state.
_SILENT_SECONDS = 60.0
#: Names of the codes in the result of :meth:`StateDatabaseReader.chunk_state_runs`.
CHUNK_STATES = ("waiting", "reading", "read", "published", "corrected", "retried", "failed")
_STATE_CODES = {name: number for number, name in enumerate(CHUNK_STATES)}
#: Tables of which an overview has the newest row of each pipeline, and the columns that order their rows.
_NEWEST_ROWS: tuple[tuple[Any, Any], ...] = (
    (SnapshotRow, SnapshotRow.generation),
    (EpochRow, EpochRow.epoch),
    (EventRow, EventRow.id),
    (LagSampleRow, LagSampleRow.at),
)


class Throughput(NamedTuple):
    """Throughput over the newest batches of a run: changes per second, and the highest p95 lag in milliseconds."""

    changes_per_second: float
    lag_p95_ms: float | None


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


class PipelineOverview(NamedTuple):
    """Summary of one pipeline. ``table_state_counts`` only counts tables whose state a driver has recorded."""

    name: str
    server: str
    snapshot: SnapshotRow | None
    tables: int
    chunk_groups: ChunkGroupCounts | None
    newest_epoch: EpochRow | None
    throughput: Throughput | None
    last_event: EventRow | None
    last_sample: LagSampleRow | None = None
    table_state_counts: Mapping[str, int] = MappingProxyType({})


class StateDatabaseReader(StateDatabase):
    """Adds the queries of status displays across the pipelines of a database."""

    def read_overview(self) -> list[PipelineOverview]:
        """Return a summary of all pipelines, ordered by name, with a constant number of queries."""
        with self._read_session() as session:
            pipelines = session.execute(
                select(PipelineRow.name, PipelineRow.server_uuid).order_by(PipelineRow.name)
            ).all()
            snapshots, streams, events, samples = (
                {row.pipeline: row for row in session.scalars(_select_newest(model, order))}
                for model, order in _NEWEST_ROWS
            )
            tables, groups = _table_count_by_pipeline(session), _group_counts_by_pipeline(session)
            batch_sums, states = _recent_batch_sums(session), _table_state_counts(session)
        return [
            PipelineOverview(
                name,
                server,
                snapshots.get(name),
                tables.get(name, 0),
                groups.get(name),
                streams.get(name),
                _throughput_of(streams.get(name), batch_sums.get(name)),
                events.get(name),
                samples.get(name),
                states.get(name, {}),
            )
            for name, server in pipelines
        ]

    def newest_epochs(self, pipeline: str, n: int) -> list[EpochRow]:
        """Return the ``n`` newest runs of the stream, the newest first."""
        return self._read_rows(select_newest_epoch(pipeline).limit(n))

    def throughput(self, epoch_row: EpochRow) -> Throughput | None:
        """Return the current throughput of one run of a stream."""
        with self._read_session() as session:
            return _throughput_of(epoch_row, _recent_batch_sums(session, epoch_row.pipeline).get(epoch_row.pipeline))

    def table_names(self, pipeline: str, generation: int) -> list[tuple[str, str, int]]:
        """Return the planned tables, ordered by name: database, name, and estimated number of rows."""
        query = select(PlannedTableRow).filter_by(pipeline=pipeline, generation=generation)
        planned = self._read_rows(query.order_by(PlannedTableRow.database, PlannedTableRow.name))
        return [(table.database, table.name, table.rows_estimate) for table in planned]

    # Chunks

    def chunk_ranges_by_table(self, pipeline: str, generation: int) -> list[tuple[str, str, int, int]]:
        """Return the tables with chunks: database, name, number of the first chunk, and number of chunks."""
        query = (
            select(ChunkRow.database, ChunkRow.table_name, func.min(ChunkRow.chunk_no), func.count())
            .where(ChunkRow.pipeline == pipeline, ChunkRow.generation == generation)
            .group_by(ChunkRow.database, ChunkRow.table_name)
            .order_by(func.min(ChunkRow.chunk_no))
        )
        with self._read_session() as session:
            return [(database, name, int(first), int(n)) for database, name, first, n in session.execute(query)]

    def chunk_state_runs(
        self, pipeline: str, generation: int, groups: Collection[int] | None = None, lost: Collection[int] = ()
    ) -> list[tuple[int, int, int]]:
        """Return the states of chunks as runs of equal states, in order.

        The database computes the runs, so the size of the result depends on the number of runs, not of chunks.

        :param groups: only chunks of these groups; by default all.
        :param lost: groups that were begun and that no process is reading any more.
        :returns: for each run, the number of its first chunk, the number of chunks, and the index of their state in
            :data:`CHUNK_STATES`.
        """
        where = [ChunkRow.pipeline == pipeline, ChunkRow.generation == generation]
        if groups is not None:
            where.append(ChunkRow.group_no.in_(groups))
        coded = (
            select(ChunkRow.chunk_no.label("no"), _state_code(lost).label("code"))
            .join(ChunkGroupRow, IS_SAME_GROUP)
            .where(*where)
            .subquery()
        )
        # For consecutive numbers of one state, the number minus its rank in the state is constant. MySQL's ranks are
        # unsigned, and so would be the difference.
        rank = cast(func.row_number().over(partition_by=coded.c.code, order_by=coded.c.no), BigInteger)
        ranked = select(coded.c.no, coded.c.code, (coded.c.no - rank).label("island")).subquery()
        first = func.min(ranked.c.no)
        query = select(first, func.count(), ranked.c.code).group_by(ranked.c.code, ranked.c.island).order_by(first)
        with self._read_session() as session:
            return [(int(no), int(n), int(code)) for no, n, code in session.execute(query)]

    def chunk_with_group(self, pipeline: str, generation: int, chunk_no: int) -> tuple[ChunkRow, ChunkGroupRow] | None:
        """Return one chunk and its group."""
        same = ChunkRow.pipeline == pipeline, ChunkRow.generation == generation, ChunkRow.chunk_no == chunk_no
        query = select(ChunkRow, ChunkGroupRow).join(ChunkGroupRow, IS_SAME_GROUP).where(*same)
        with self._read_session() as session:
            row = session.execute(query).first()
            return None if row is None else (row[0], row[1])

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


def _state_code(lost: Collection[int]) -> ColumnElement[int]:
    """Return an expression for the displayed state of a chunk, which also depends on the state of its group."""
    published = case(
        (ChunkRow.corrected > 0, _STATE_CODES["corrected"]),
        (ChunkRow.attempt > 1, _STATE_CODES["retried"]),
        else_=_STATE_CODES["published"],
    )
    waiting = case(
        (ChunkRow.group_no.in_(lost), _STATE_CODES["failed"]),
        (ChunkGroupRow.state != "pending", _STATE_CODES["reading"]),
        else_=_STATE_CODES["waiting"],
    )
    return case((ChunkRow.state == "done", published), (ChunkRow.state == "read", _STATE_CODES["read"]), else_=waiting)


def _select_newest(model: Any, order: Any, *columns: Any) -> Select[Any]:
    """Select the newest row of each pipeline.

    :param model: table with a column ``pipeline``.
    :param order: column that orders the rows of a pipeline.
    :param columns: columns to select; by default the whole row.
    """
    newest = select(model.pipeline, func.max(order).label("newest")).group_by(model.pipeline).subquery()
    is_newest = and_(model.pipeline == newest.c.pipeline, order == newest.c.newest)
    return select(*(columns or [model])).join(newest, is_newest)


def _select_of_newest_snapshot(model: Any, *columns: Any) -> Select[Any]:
    newest = _select_newest(SnapshotRow, SnapshotRow.generation, SnapshotRow.pipeline, SnapshotRow.generation)
    newest_snapshots = newest.subquery()
    is_newest = and_(model.pipeline == newest_snapshots.c.pipeline, model.generation == newest_snapshots.c.generation)
    return select(model.pipeline, *columns).join(newest_snapshots, is_newest)


def _table_count_by_pipeline(session: Session) -> dict[str, int]:
    query = _select_of_newest_snapshot(PlannedTableRow, func.count()).group_by(PlannedTableRow.pipeline)
    return {name: int(n) for name, n in session.execute(query)}


def _group_counts_by_pipeline(session: Session) -> dict[str, ChunkGroupCounts]:
    done = func.sum(case((ChunkGroupRow.state.in_(PUBLISHED_STATES), 1), else_=0))
    columns = [getattr(ChunkGroupRow, name) for name in UnfinishedGroup._fields]
    unfinished: dict[str, list[UnfinishedGroup]] = {}
    query = _select_of_newest_snapshot(ChunkGroupRow, *columns)
    for name, *values in session.execute(query.where(ChunkGroupRow.state.in_(("running", "rereading")))):
        unfinished.setdefault(name, []).append(UnfinishedGroup(*values))
    query = _select_of_newest_snapshot(ChunkGroupRow, func.count(), done).group_by(ChunkGroupRow.pipeline)
    counts = session.execute(query)
    return {name: ChunkGroupCounts(int(total), int(n), tuple(unfinished.get(name, ()))) for name, total, n in counts}


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
        return Throughput(0.0, None if silent > _SILENT_SECONDS else lag)
    seconds = max((max(run.heartbeat_at, last_commit) - first_commit).total_seconds(), 1.0)
    return Throughput(float(changes) / seconds, lag)


def _table_state_counts(session: Session) -> dict[str, dict[str, int]]:
    columns = TableStateRow.pipeline, TableStateRow.state
    counts: dict[str, dict[str, int]] = {}
    for name, state, n in session.execute(select(*columns, func.count()).group_by(*columns)):
        counts.setdefault(name, {})[state] = int(n)
    return counts
