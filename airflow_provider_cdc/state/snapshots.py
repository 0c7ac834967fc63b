"""Snapshots in the state database: their plans, groups and chunks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, cast

from sqlalchemy import ColumnElement, Table, Update, and_, bindparam, case, exc, func, insert, or_, select, update
from sqlalchemy.orm import Session

from airflow_provider_cdc.model.errors import NotReadyError
from airflow_provider_cdc.state.database import Database, execute_update
from airflow_provider_cdc.state.event_kinds import MAX_FAILED_GROUPS, MAX_GROUP_EVENTS
from airflow_provider_cdc.state.events import add_event_row, resolve_events
from airflow_provider_cdc.state.models import (
    PUBLISHED_STATES,
    TAKEN_OVER,
    ChunkGroupRow,
    ChunkRow,
    EventRow,
    PlannedTableRow,
    SnapshotRow,
    utc_now,
)
from airflow_provider_cdc.state.pruning import prune_snapshots
from airflow_provider_cdc.state.values import GroupProgress, TableProgress

_ROWS_PER_INSERT = 10_000
#: Maximum number of numbers in one list of a query.
_NUMBERS_PER_QUERY = 500
#: Values recorded for a chunk that was read; see ``_RESULT_COLUMNS``. LW and HW are JSON, ``corrected`` counts keys,
#: and ``seconds`` is the time that the read took.
ChunkResult = tuple[int, int, Any, Any, int, int, int, float]
_RESULT_COLUMNS = ("chunk_no", "attempt", "lw", "hw", "rows", "bytes", "corrected", "seconds")
#: Joins chunks with their groups.
IS_SAME_GROUP = and_(
    ChunkGroupRow.pipeline == ChunkRow.pipeline,
    ChunkGroupRow.generation == ChunkRow.generation,
    ChunkGroupRow.group_no == ChunkRow.group_no,
)


class SnapshotRecords(Database):
    """Reads and writes snapshots."""

    # Plans

    def write_plan(
        self,
        pipeline: str,
        generation: int,
        tables: Iterable[Mapping[str, Any]],
        groups: Iterable[Mapping[str, Any]],
        chunks: Iterable[Mapping[str, Any]],
    ) -> bool:
        """Write the plan of a snapshot, once. If there is one already, nothing changes.

        :param pipeline: name of the pipeline.
        :param generation: number of the snapshot.
        :param tables: ``database``, ``name``, ``rows_estimate``.
        :param groups: ``group_no``, ``tables`` (list of ``[database, table]``).
        :param chunks: ``chunk_no`` (unique in the generation), ``group_no``, ``database``, ``table_name``.
        :return: whether this call wrote the plan.
        """
        common: dict[str, Any] = {"pipeline": pipeline, "generation": generation}
        # Built before the transaction begins, because the rows may come from a slow generator.
        pending = common | {"state": "pending", "attempt": 0}
        table_rows = [common | dict(row) for row in tables]
        group_rows, chunk_rows = [pending | dict(row) for row in groups], [pending | dict(row) for row in chunks]
        if unplanned := {row["group_no"] for row in chunk_rows} - {row["group_no"] for row in group_rows}:
            raise ValueError(f"chunks of groups that are not planned: {sorted(unplanned)}")
        try:
            with self._write_session() as session:
                if session.get(SnapshotRow, (pipeline, generation)) is not None:
                    return False
                rows_estimate = sum(row["rows_estimate"] for row in table_rows)
                size = {"tables": len(table_rows), "rows_estimate": rows_estimate}
                session.add(SnapshotRow(**common, **size, state="running", created_at=utc_now()))
                session.flush()
                for model, rows in ((PlannedTableRow, table_rows), (ChunkGroupRow, group_rows), (ChunkRow, chunk_rows)):
                    for start in range(0, len(rows), _ROWS_PER_INSERT):
                        session.connection().execute(
                            insert(cast(Table, model.__table__)), rows[start : start + _ROWS_PER_INSERT]
                        )
                prune_snapshots(session, pipeline, generation)
                sizes = f"{len(table_rows)} tables, {len(chunk_rows)} chunks in {len(group_rows)} groups"
                add_event_row(session, pipeline, "snapshot_planned", f"snapshot {generation} was planned: {sizes}")
                return True
        except exc.IntegrityError:
            if self.snapshot(pipeline, generation) is None:
                raise  # not a race: the rows themselves conflict
            return False

    def snapshot(self, pipeline: str, generation: int | None = None) -> SnapshotRow | None:
        """Return a snapshot, by default the newest; ``None`` if there is none."""
        query = select(SnapshotRow).filter_by(pipeline=pipeline).order_by(SnapshotRow.generation.desc())
        return self._read_first(query if generation is None else query.filter_by(generation=generation))

    def groups(self, pipeline: str, generation: int) -> list[ChunkGroupRow]:
        """Return the chunk groups, ordered by number."""
        query = select(ChunkGroupRow).filter_by(pipeline=pipeline, generation=generation)
        return self._read_rows(query.order_by(ChunkGroupRow.group_no))

    # The snapshot's work

    def group(self, pipeline: str, generation: int, group_no: int) -> ChunkGroupRow:
        """Return a chunk group.

        :raises NotReadyError: if there is no such group.
        """
        with self._read_session() as session:
            return _planned_group(session, pipeline, generation, group_no)

    def probe_group(self, pipeline: str, generation: int, group_no: int) -> ChunkGroupRow:
        """Return a chunk group, and prove that the database is writable, so that readers can write heartbeats."""
        with self._write_session() as session:
            row = _planned_group(session, pipeline, generation, group_no)
            execute_update(session, _update_group(pipeline, generation, group_no).values(attempt=ChunkGroupRow.attempt))
            return row

    def claim_group(
        self,
        pipeline: str,
        generation: int,
        group_no: int,
        expected_attempt: int | None = None,
        newest_in_sink: int = 0,
        *,
        holder: str | None = None,
        readers: int | None = None,
        state: str | None = None,
    ) -> int:
        """Begin a new attempt at a group, even if another attempt holds it. That attempt can then no longer finish it.

        :param expected_attempt: attempt number that the caller has read; the claim fails if it has changed since.
        :param newest_in_sink: highest attempt that left anything in the sink; the new attempt is above it.
        :param holder: identity of the claiming process.
        :param readers: number of chunks that it reads at the same time.
        :param state: ``running``, or ``rereading`` for a published group; if given, a finished group can be claimed.
        :return: number of the new attempt, from 1; 0 if the group is done, or if another process has claimed it since
            ``expected_attempt`` was read.
        :raises NotReadyError: if there is no such group.
        """
        with self._write_session() as session:
            row = _planned_group(session, pipeline, generation, group_no)
            if (row.state == "done" and state is None) or (
                expected_attempt is not None and row.attempt != expected_attempt
            ):
                return 0
            # The update compares again: in databases other than SQLite, two processes can get here.
            claim = _update_claimed_group(pipeline, generation, group_no, row.attempt).filter_by(state=row.state)
            attempt = max(row.attempt, newest_in_sink) + 1
            values = {"state": state or "running", "attempt": attempt, "started_at": utc_now()}
            values |= {"holder": holder, "readers": readers, "heartbeat_at": utc_now() if holder else None}
            return attempt if execute_update(session, claim.values(values)) else 0

    def record_group_heartbeat(self, pipeline: str, generation: int, group_no: int, attempt: int) -> bool:
        """Record that an attempt is still being read.

        :return: ``False`` if a newer attempt has taken over. The loss of the state database does not stop an attempt.
        """
        heartbeat = _update_claimed_group(pipeline, generation, group_no, attempt).values(heartbeat_at=utc_now())
        with self._write_session() as session:
            if execute_update(session, heartbeat):
                return True
            row = session.get(ChunkGroupRow, (pipeline, generation, group_no))
            return row is None or row.attempt <= attempt

    def release_group(
        self, pipeline: str, generation: int, group_no: int, attempt: int, error: str | None = None
    ) -> None:
        """Record that an attempt is no longer being read, so that the next process need not wait for it.

        :param error: why it has failed; must not contain secrets.
        """
        released = _update_claimed_group(pipeline, generation, group_no, attempt).values(heartbeat_at=None)
        with self._write_session() as session:
            if not execute_update(session, released) or error is None:
                return
            open_events = select(func.count()).select_from(EventRow)
            open_events = open_events.filter_by(pipeline=pipeline, needs_attention=True, kind="group_failed")
            if (session.scalar(open_events) or 0) < MAX_FAILED_GROUPS:
                row = _planned_group(session, pipeline, generation, group_no)
                detail = f"{_group_text(group_no)} could not be read (attempt {attempt}): {' '.join(error.split())}"
                add_event_row(session, pipeline, "group_failed", detail, by=holder_name(row.holder))

    def finish_group(self, pipeline: str, generation: int, group_no: int, attempt: int, rows: int) -> bool:
        """Mark a group as done.

        :param attempt: number of the attempt that read it.
        :param rows: rows that the attempt read.
        :return: ``False`` if a newer attempt holds the group; then nothing changes.
        """
        values = {"state": "done", "rows": rows, "finished_at": utc_now(), "heartbeat_at": None}
        finished = _update_claimed_group(pipeline, generation, group_no, attempt).values(values)
        with self._write_session() as session:
            if not execute_update(session, finished):
                return False
            resolve_events(session, pipeline, ["group_failed"], detail_prefix=f"{_group_text(group_no)} ")
            if (
                session.get(ChunkGroupRow, (pipeline, generation, MAX_GROUP_EVENTS)) is None
            ):  # of a snapshot with more groups, each would be an event too many
                holder = _planned_group(session, pipeline, generation, group_no).holder
                detail = f"{_group_text(group_no)} was published (attempt {attempt}): {rows} rows"
                add_event_row(session, pipeline, "group_published", detail, by=holder_name(holder))
            return True

    def mark_groups_taken_over(self, pipeline: str, generation: int, numbers: Iterable[int]) -> None:
        """Mark groups that have nothing left to read, because their tables no longer come from the snapshot."""
        unmarked = update(ChunkGroupRow).filter_by(pipeline=pipeline, generation=generation)
        unmarked = unmarked.where(ChunkGroupRow.state != TAKEN_OVER)
        listed = sorted(numbers)
        with self._write_session() as session:
            for start in range(0, len(listed), _NUMBERS_PER_QUERY):
                in_bulk = ChunkGroupRow.group_no.in_(listed[start : start + _NUMBERS_PER_QUERY])
                execute_update(session, unmarked.where(in_bulk).values(state=TAKEN_OVER, heartbeat_at=None))

    def record_group_request_counts(
        self, pipeline: str, generation: int, group_no: int, traffic: Mapping[str, int]
    ) -> None:
        """Record the object-store request counts of reading and publishing a group."""
        self._update(_update_group(pipeline, generation, group_no).values(traffic=traffic))

    def record_published_group(
        self, pipeline: str, generation: int, group_no: int, expected_attempt: int, attempt: int, rows: int
    ) -> bool:
        """Record what the sink has of a published group, without a claim, so that a process reading it continues.

        A group that is being re-snapshotted keeps that state.

        :param expected_attempt: attempt number that the caller has read; nothing changes if it has changed since.
        :param attempt: the published attempt.
        :param rows: rows that it read.
        :return: whether the group was updated.
        """
        group = _update_claimed_group(pipeline, generation, group_no, expected_attempt)
        group = group.values(rows=rows, attempt=max(expected_attempt, attempt))
        finished_at = func.coalesce(ChunkGroupRow.finished_at, utc_now())
        with self._write_session() as session:
            return execute_update(session, group.where(ChunkGroupRow.state == "rereading")) or execute_update(
                session, group.where(ChunkGroupRow.state != "rereading").values(state="done", finished_at=finished_at)
            )

    def record_read_chunks(self, pipeline: str, generation: int, results: Iterable[ChunkResult]) -> None:
        """Record chunks that are in finished files but not published yet.

        Published chunks, and those that a newer attempt has read, are left alone.
        """
        table = cast(Table, ChunkRow.__table__)
        may_write = and_(table.c.state != "done", table.c.attempt <= bindparam("b_attempt"))
        self._write_chunks(pipeline, generation, "read", may_write, results)

    def record_published_chunks(self, pipeline: str, generation: int, results: Iterable[ChunkResult]) -> None:
        """Record chunks as the sink has them, from the published attempt.

        Only chunks that a later attempt published are left alone; chunks that were read but not published are replaced.
        """
        table = cast(Table, ChunkRow.__table__)
        may_write = or_(table.c.state != "done", table.c.attempt <= bindparam("b_attempt"))
        self._write_chunks(pipeline, generation, "done", may_write, results)

    def reset_unpublished_chunks(self, pipeline: str, generation: int, group_no: int) -> None:
        """Reset the chunks of a group that were read but not published. The caller then records those to be reused."""
        empty = dict.fromkeys(_RESULT_COLUMNS[2:]) | {"state": "pending", "attempt": 0}
        unpublished = update(ChunkRow).filter_by(
            pipeline=pipeline, generation=generation, group_no=group_no, state="read"
        )
        self._update(unpublished.values(empty))

    def _write_chunks(
        self, pipeline: str, generation: int, state: str, may_write: ColumnElement[bool], results: Iterable[ChunkResult]
    ) -> None:
        rows = [dict(zip(("b_chunk_no", "b_attempt", *_RESULT_COLUMNS[2:]), result, strict=True)) for result in results]
        table = cast(Table, ChunkRow.__table__)
        statement = (
            update(table)
            .where(table.c.pipeline == pipeline, table.c.generation == generation)
            .where(table.c.chunk_no == bindparam("b_chunk_no"), may_write)
            .values(
                {name: bindparam(name) for name in _RESULT_COLUMNS[2:]}
                | {"attempt": bindparam("b_attempt"), "state": state}
            )
        )
        if rows:
            with self._write_session() as session:
                session.connection().execute(statement, rows)

    def finish_snapshot(self, pipeline: str, generation: int) -> bool:
        """Mark a snapshot as done if all of its groups are published.

        :return: whether the snapshot is done.
        """
        groups = select(ChunkGroupRow.group_no).filter_by(pipeline=pipeline, generation=generation)
        unfinished = groups.where(ChunkGroupRow.state.not_in(PUBLISHED_STATES))
        with self._write_session() as session:
            row = session.get(SnapshotRow, (pipeline, generation))
            if row is None or session.scalars(unfinished.limit(1)).first() is not None:
                return False
            if row.state != "done":
                row.state, row.finished_at = "done", utc_now()
                add_event_row(session, pipeline, "snapshot_finished", f"snapshot {generation} is complete")
            return True

    def table_progress(self, pipeline: str, generation: int) -> list[TableProgress]:
        """Return the progress of each table of a snapshot, ordered by name, with one query."""
        query = (
            select(
                ChunkRow.database,
                ChunkRow.table_name,
                func.count(),
                func.sum(case((ChunkRow.state != "pending", 1), else_=0)),
                *(func.coalesce(func.sum(c), 0) for c in (ChunkRow.rows, ChunkRow.bytes, ChunkRow.corrected)),
                func.coalesce(func.sum(ChunkRow.seconds), 0.0),
            )
            .where(ChunkRow.pipeline == pipeline, ChunkRow.generation == generation)
            .group_by(ChunkRow.database, ChunkRow.table_name)
            .order_by(ChunkRow.database, ChunkRow.table_name)
        )
        with self._read_session() as session:
            totals = session.execute(query).all()
        return [
            TableProgress(d, t, int(n), int(k), int(r), int(b), int(c), float(s)) for d, t, n, k, r, b, c, s in totals
        ]

    def group_progress(self, pipeline: str, generation: int) -> list[GroupProgress]:
        """Return the progress of each group of a snapshot, ordered by number, with one query."""
        is_done = ChunkRow.state != "pending"
        by_newest_attempt = is_done & (ChunkRow.attempt == ChunkGroupRow.attempt)
        query = (
            select(
                ChunkRow.group_no,
                func.count(),
                func.sum(case((is_done, 1), else_=0)),
                *(func.coalesce(func.sum(c), 0) for c in (ChunkRow.rows, ChunkRow.corrected)),
                func.sum(case((by_newest_attempt, 1), else_=0)),
                func.coalesce(func.sum(case((by_newest_attempt, ChunkRow.rows), else_=0)), 0),
            )
            .join(ChunkGroupRow, IS_SAME_GROUP)
            .where(ChunkRow.pipeline == pipeline, ChunkRow.generation == generation)
            .group_by(ChunkRow.group_no)
            .order_by(ChunkRow.group_no)
        )
        with self._read_session() as session:
            return [GroupProgress(*(int(n) for n in row)) for row in session.execute(query)]


def _group_text(group_no: int) -> str:
    return f"group {group_no}"


def holder_name(holder: str | None) -> str | None:
    """Return the name of the process that holds a group, without its host and process id."""
    return None if holder is None else holder.partition(" [")[0]


def _planned_group(session: Session, pipeline: str, generation: int, group_no: int) -> ChunkGroupRow:
    row = session.get(ChunkGroupRow, (pipeline, generation, group_no))
    if row is None:
        message = f"pipeline {pipeline}: group {group_no} of snapshot {generation} is not planned"
        raise NotReadyError(message, "Run `airflow-cdc snapshot`, which plans it")
    return row


def _update_claimed_group(pipeline: str, generation: int, group_no: int, attempt: int) -> Update:
    return _update_group(pipeline, generation, group_no).filter_by(attempt=attempt)


def _update_group(pipeline: str, generation: int, group_no: int) -> Update:
    return update(ChunkGroupRow).filter_by(pipeline=pipeline, generation=generation, group_no=group_no)
