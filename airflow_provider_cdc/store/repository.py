"""All reads and writes of the bookkeeping database.

Every method is one short transaction, and any number of processes may call them at once: what two could do at the same
time is a compare-and-set on (state, attempt). A database that is away is a :class:`TransientError`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

from sqlalchemy import CursorResult, Table, bindparam, case, delete, exc, func, insert, select, update
from sqlalchemy.orm import Session

from airflow_provider_cdc.exceptions import NotReadyError
from airflow_provider_cdc.store.database import Database
from airflow_provider_cdc.store.models import (
    BatchRow,
    BatchTotals,
    ChunkRow,
    EventRow,
    GroupRow,
    LineageRow,
    PipelineRow,
    Segment,
    SnapshotRow,
    StreamRow,
    TableProgress,
    TableRow,
    clean,
    now,
)

_BULK = 10_000


class Store(Database):
    """The bookkeeping of all pipelines that share a database."""

    # Pipelines

    def register(self, pipeline: str, server_uuid: str) -> str:
        """Make a pipeline known. One that is known already is left as it is.

        :param pipeline: name of the pipeline.
        :param server_uuid: identity of the server it reads.
        :return: the identity on record, which may be another one.
        """
        try:
            with self._write() as session:
                row = session.get(PipelineRow, pipeline)
                if row is None:
                    row = PipelineRow(name=pipeline, server_uuid=server_uuid, created_at=now(), epoch=0)
                    session.add(row)
                return row.server_uuid
        except exc.IntegrityError:  # another process was faster
            return self.server_uuid(pipeline) or server_uuid

    def server_uuid(self, pipeline: str) -> str | None:
        """Identity of the server that a pipeline reads, or ``None`` if the pipeline is not known."""
        with self._read() as session:
            row = session.get(PipelineRow, pipeline)
            return row.server_uuid if row else None

    # Plans

    def write_plan(
        self,
        pipeline: str,
        generation: int,
        plan: Mapping[str, Any],
        tables: Iterable[Mapping[str, Any]],
        groups: Iterable[Mapping[str, Any]],
        chunks: Iterable[Mapping[str, Any]],
    ) -> bool:
        """Write the plan of a snapshot, once. If there is one already, nothing is changed.

        :param pipeline: name of the pipeline.
        :param generation: number of the snapshot.
        :param plan: everything else that is decided once; JSON.
        :param tables: ``database``, ``name``, ``schema`` (JSON), ``fingerprint``, ``rows_estimate``.
        :param groups: ``group_no``, ``tables`` (list of ``[database, table]``).
        :param chunks: ``chunk_no`` (unique in the generation), ``group_no``, ``database``, ``table_name``, ``lower``,
            ``upper`` (JSON; ``None`` for no bound).
        :return: whether this plan is the one that was written.
        """
        common: dict[str, Any] = {"pipeline": pipeline, "generation": generation}
        # Made before the transaction begins: the rows may come from a generator that takes its time.
        fresh = common | {"state": "pending", "attempt": 0}
        table_rows = [common | dict(row) for row in tables]
        group_rows, chunk_rows = [fresh | dict(row) for row in groups], [fresh | dict(row) for row in chunks]
        if stray := {row["group_no"] for row in chunk_rows} - {row["group_no"] for row in group_rows}:
            raise ValueError(f"chunks of groups that are not planned: {sorted(stray)}")
        try:
            with self._write() as session:
                if session.get(SnapshotRow, (pipeline, generation)) is not None:
                    return False
                session.add(SnapshotRow(**common, state="running", plan=dict(plan), created_at=now()))
                session.flush()
                for model, rows in ((TableRow, table_rows), (GroupRow, group_rows), (ChunkRow, chunk_rows)):
                    for start in range(0, len(rows), _BULK):
                        session.connection().execute(insert(cast(Table, model.__table__)), rows[start : start + _BULK])
                return True
        except exc.IntegrityError:
            if self.plan(pipeline, generation) is None:
                raise  # not a race: the rows themselves are at odds
            return False

    def snapshot(self, pipeline: str, generation: int | None = None) -> SnapshotRow | None:
        """A snapshot, by default the newest; ``None`` if there is none."""
        query = select(SnapshotRow).where(SnapshotRow.pipeline == pipeline).order_by(SnapshotRow.generation.desc())
        if generation is not None:
            query = query.where(SnapshotRow.generation == generation)
        with self._read() as session:
            return session.scalars(query.limit(1)).first()

    def plan(self, pipeline: str, generation: int) -> dict[str, Any] | None:
        """The plan as it was written, or ``None``."""
        row = self.snapshot(pipeline, generation)
        return row.plan if row else None

    def tables(self, pipeline: str, generation: int) -> list[TableRow]:
        """Planned tables, by name."""
        return self._planned(TableRow, pipeline, generation, TableRow.database, TableRow.name)

    def groups(self, pipeline: str, generation: int) -> list[GroupRow]:
        """Chunk groups, by number."""
        return self._planned(GroupRow, pipeline, generation, GroupRow.group_no)

    def chunks(self, pipeline: str, generation: int, group_no: int) -> list[ChunkRow]:
        """Chunks of a group, by number."""
        query = select(ChunkRow).where(ChunkRow.pipeline == pipeline, ChunkRow.generation == generation)
        with self._read() as session:
            return list(session.scalars(query.where(ChunkRow.group_no == group_no).order_by(ChunkRow.chunk_no)))

    def _planned(self, model: type[Any], pipeline: str, generation: int, *order: Any) -> list[Any]:
        query = select(model).where(model.pipeline == pipeline, model.generation == generation).order_by(*order)
        with self._read() as session:
            return list(session.scalars(query))

    # The snapshot's work

    def group(self, pipeline: str, generation: int, group_no: int) -> GroupRow:
        """A chunk group.

        :raises NotReadyError: if there is no such group.
        """
        with self._read() as session:
            return _planned_group(session, pipeline, generation, group_no)

    def claim_group(
        self,
        pipeline: str,
        generation: int,
        group_no: int,
        seen: int | None = None,
        at_least: int = 0,
        *,
        holder: str | None = None,
        state: str | None = None,
    ) -> int:
        """Begin a new attempt at a group, also at one that another attempt holds: that one can no longer finish it.

        :param seen: attempt number that the caller has read; the claim fails if it has changed since.
        :param at_least: highest attempt that left anything in the sink; the new one is above it.
        :param holder: who claims it, for people and for those who wait for it.
        :param state: ``running``, or ``rereading`` for a group that is published; then also one that is done is taken.
        :return: number of the new attempt, from 1; 0 if the group is done, or was taken by another since ``seen``.
        :raises NotReadyError: if there is no such group.
        """
        with self._write() as session:
            row = _planned_group(session, pipeline, generation, group_no)
            if (row.state == "done" and state is None) or (seen is not None and row.attempt != seen):
                return 0
            # Compared again by the update: databases other than SQLite let two get here.
            claim = _group(pipeline, generation, group_no).where(
                GroupRow.state == row.state, GroupRow.attempt == row.attempt
            )
            attempt = max(row.attempt, at_least) + 1
            values = {"state": state or "running", "attempt": attempt, "started_at": now()}
            values |= {"holder": holder, "heartbeat_at": now() if holder else None}
            return attempt if _changed(session, claim.values(values)) else 0

    def group_heartbeat(self, pipeline: str, generation: int, group_no: int, attempt: int) -> bool:
        """Say that an attempt is being read.

        :return: ``False`` if a newer one has taken over; a bookkeeping that was lost does not stop an attempt.
        """
        with self._write() as session:
            if _changed(session, _claimed(pipeline, generation, group_no, attempt).values(heartbeat_at=now())):
                return True
            row = session.get(GroupRow, (pipeline, generation, group_no))
            return row is None or row.attempt <= attempt

    def release_group(self, pipeline: str, generation: int, group_no: int, attempt: int) -> None:
        """Say that nobody reads an attempt any more: who comes next need not wait for it."""
        with self._write() as session:
            _changed(session, _claimed(pipeline, generation, group_no, attempt).values(heartbeat_at=None))

    def finish_group(
        self,
        pipeline: str,
        generation: int,
        group_no: int,
        attempt: int,
        rows: int,
        min_lw: Any,
        max_hw: Any,
        finished_for: str | None = None,
    ) -> bool:
        """Mark a group as done.

        :param attempt: the claim that did it.
        :param rows: rows that the attempt read.
        :param min_lw: lowest low watermark of its chunks; JSON.
        :param max_hw: highest high watermark of its chunks; JSON.
        :param finished_for: the task that asked for it, if one did.
        :return: ``False`` if a newer attempt holds the group; nothing is changed then.
        """
        values = {"state": "done", "rows": rows, "min_lw": min_lw, "max_hw": max_hw, "finished_at": now()}
        values |= {"heartbeat_at": None, "finished_for": finished_for}
        with self._write() as session:
            return _changed(session, _claimed(pipeline, generation, group_no, attempt).values(values))

    def adopt_group(
        self,
        pipeline: str,
        generation: int,
        group_no: int,
        seen: int,
        attempt: int,
        rows: int,
        min_lw: Any,
        max_hw: Any,
        finished_for: str | None = None,
    ) -> bool:
        """Write down what the sink says of a published group, without a claim: those who read it go on.

        A group that is being read again stays so, and so does the name of the task that wants it.

        :param seen: attempt number that the caller has read; nothing is changed if it is another one by now.
        :param attempt: the published attempt; the others as in :meth:`finish_group`.
        :param finished_for: the task for which this is enough; ``None`` leaves the one that is there.
        :return: whether it was written.
        """
        values: dict[str, Any] = {"rows": rows, "min_lw": min_lw, "max_hw": max_hw, "attempt": max(seen, attempt)}
        own = {"state": "done", "finished_at": func.coalesce(GroupRow.finished_at, now())}
        if finished_for is not None:
            own["finished_for"] = finished_for
        group = _claimed(pipeline, generation, group_no, seen)
        with self._write() as session:
            return _changed(session, group.where(GroupRow.state == "rereading").values(values)) or _changed(
                session, group.where(GroupRow.state != "rereading").values(values | own)
            )

    def chunks_done(
        self, pipeline: str, generation: int, done: Iterable[tuple[int, int, Any, Any, int, int, int, float]]
    ) -> None:
        """Mark chunks as read. The result of an older attempt never replaces that of a newer one.

        :param done: (chunk_no, attempt, LW, HW, rows, bytes, corrected, seconds) of each chunk; LW and HW are JSON.
        """
        names = ("b_chunk_no", "b_attempt", "lw", "hw", "rows", "bytes", "corrected", "seconds")
        rows = [dict(zip(names, chunk, strict=True)) for chunk in done]
        table = cast(Table, ChunkRow.__table__)
        statement = (
            update(table)
            .where(table.c.pipeline == pipeline, table.c.generation == generation)
            .where(table.c.chunk_no == bindparam("b_chunk_no"), table.c.attempt <= bindparam("b_attempt"))
            .values(
                {name: bindparam(name) for name in names[2:]} | {"attempt": bindparam("b_attempt"), "state": "done"}
            )
        )
        if rows:
            with self._write() as session:
                session.connection().execute(statement, rows)

    def finish_snapshot(self, pipeline: str, generation: int) -> bool:
        """Mark a snapshot as done, if all of its groups are.

        :return: whether it is done.
        """
        left = select(GroupRow.group_no).where(
            GroupRow.pipeline == pipeline,
            GroupRow.generation == generation,
            GroupRow.state.not_in(("done", "rereading")),  # what is read again is published all the while
        )
        with self._write() as session:
            row = session.get(SnapshotRow, (pipeline, generation))
            if row is None or session.scalars(left.limit(1)).first() is not None:
                return False
            if row.state != "done":
                row.state, row.finished_at = "done", now()
            return True

    def progress(self, pipeline: str, generation: int) -> list[TableProgress]:
        """How far each table of a snapshot is, by name; one query."""
        query = (
            select(
                ChunkRow.database,
                ChunkRow.table_name,
                func.count(),
                func.sum(case((ChunkRow.state == "done", 1), else_=0)),
                *(func.coalesce(func.sum(c), 0) for c in (ChunkRow.rows, ChunkRow.bytes, ChunkRow.corrected)),
                func.coalesce(func.sum(ChunkRow.seconds), 0.0),
            )
            .where(ChunkRow.pipeline == pipeline, ChunkRow.generation == generation)
            .group_by(ChunkRow.database, ChunkRow.table_name)
            .order_by(ChunkRow.database, ChunkRow.table_name)
        )
        with self._read() as session:
            found = session.execute(query).all()
        return [
            TableProgress(d, t, int(n), int(k), int(r), int(b), int(c), float(s)) for d, t, n, k, r, b, c, s in found
        ]

    # Streams

    def new_epoch(
        self,
        pipeline: str,
        at_least: int,
        host: str,
        pid: int,
        pid_started: float,
        *,
        refuse: Callable[[StreamRow | None], None] = lambda _: None,
        details: Mapping[str, str | None] | None = None,
    ) -> int:
        """Begin a run of the stream. Older runs that were never ended count as failed and are told to stop.

        :param at_least: highest epoch found in the sink.
        :param host: host of the driver; ``pid``: its process id.
        :param pid_started: when that process started (seconds): process ids come around again.
        :param refuse: called with the newest run inside of the transaction; raises if that one is alive.
        :param details: ``mode`` (``continuous`` or ``catch_up``); ``log``, the file that the driver writes to, if it is
            not somebody's terminal; ``ui``, the address of Spark's own page.
        :return: an epoch above all others.
        :raises NotReadyError: if the pipeline is not registered.
        """
        with self._write() as session:
            row = session.get(PipelineRow, pipeline, with_for_update=True)
            if row is None:
                raise NotReadyError(
                    f"pipeline {pipeline} is not in the bookkeeping", "Run `airflow-cdc snapshot` first"
                )
            refuse(session.scalars(_newest(pipeline)).first())
            row.epoch = epoch = max(row.epoch, at_least) + 1
            older = update(StreamRow).where(StreamRow.pipeline == pipeline, StreamRow.state == "running")
            error = f"epoch {epoch} has taken over"
            _changed(session, older.values(state="failed", desired_state="stop", error=error))
            session.add(_run(pipeline, epoch, host, pid, pid_started, details or {}))
            return epoch

    def restore_epoch(
        self, pipeline: str, epoch: int, host: str, pid: int, pid_started: float, details: Mapping[str, str | None]
    ) -> None:
        """Write down a run of the stream again that is alive, but that a lost bookkeeping does not know of."""
        with self._write() as session:
            row = session.get(PipelineRow, pipeline, with_for_update=True)
            if row is not None and row.epoch < epoch:
                row.epoch = epoch
                session.add(_run(pipeline, epoch, host, pid, pid_started, details))

    def heartbeat(self, pipeline: str, epoch: int, progress: bool) -> str | None:
        """Say that the stream is alive.

        :param progress: whether it has also got further.
        :return: the desired state: ``run`` or ``stop``; ``None`` if the bookkeeping does not know of this run.
        """
        values = {key: now() for key in ("heartbeat_at", *(["progress_at"] if progress else []))}
        with self._write() as session:
            _changed(session, _stream(pipeline, epoch).values(values))
            row = session.get(StreamRow, (pipeline, epoch))
            return row.desired_state if row else None

    def supervise(self, pipeline: str, epoch: int, supervisor: str) -> None:
        """Say that a task looks after the stream.

        :param supervisor: the task, as people know it.
        """
        with self._write() as session:
            _changed(session, _stream(pipeline, epoch).values(supervisor=supervisor, supervised_at=now()))

    def request_stop(self, pipeline: str, epoch: int | None = None, by: str | None = None) -> int | None:
        """Ask the running stream to end.

        :param epoch: only if this one is running; any when ``None``.
        :param by: the task that asks; ``None`` for a person, who is never overruled by a task.
        :return: its epoch, or ``None`` if none (or another) is running.
        """
        with self._write() as session:
            row: StreamRow | None = session.scalars(_newest(pipeline).where(StreamRow.state == "running")).first()
            if row is None or epoch not in (None, row.epoch):
                return None
            if row.desired_state != "stop" or by is None:
                row.desired_state, row.stop_by = "stop", by
            return row.epoch

    def end_stream(
        self, pipeline: str, epoch: int, state: str, error: str | None = None, error_kind: str | None = None
    ) -> None:
        """Record the end of a run.

        :param state: ``stopped`` or ``failed``.
        :param error: why it failed; holds no secret.
        :param error_kind: class of the error.
        """
        with self._write() as session:
            _changed(session, _stream(pipeline, epoch).values(state=state, error=clean(error), error_kind=error_kind))

    def current_stream(self, pipeline: str) -> StreamRow | None:
        """The newest run, in whatever state, or ``None``."""
        with self._read() as session:
            return session.scalars(_newest(pipeline)).first()

    def record_batch(
        self,
        pipeline: str,
        epoch: int,
        batch_id: int,
        *,
        start_offset: Any,
        end_offset: Any,
        changes: int,
        bytes: int,
        seconds: float,
        lag_p50_ms: float | None = None,
        lag_p95_ms: float | None = None,
        lag_max_ms: float | None = None,
    ) -> None:
        """Record a batch that the sink has taken; one that is recorded again replaces the first.

        :param start_offset: where it began, ``end_offset``: where it ended; JSON.
        :param changes: changes applied, from ``bytes`` bytes of binlog in ``seconds`` seconds.
        :param lag_p50_ms: median time from the source's commit to the sink's, in milliseconds; the others alike.
        """
        row = BatchRow(pipeline=pipeline, epoch=epoch, batch_id=batch_id, start_offset=start_offset)
        row.end_offset, row.changes, row.bytes, row.seconds = end_offset, changes, bytes, seconds
        row.lag_p50_ms, row.lag_p95_ms, row.lag_max_ms = lag_p50_ms, lag_p95_ms, lag_max_ms
        row.committed_at = now()
        with self._write() as session:
            session.merge(row)

    def recent_batches(self, pipeline: str, n: int) -> list[BatchRow]:
        """The last ``n`` batches, the newest first."""
        newest = select(BatchRow).where(BatchRow.pipeline == pipeline)
        with self._read() as session:
            return list(session.scalars(newest.order_by(BatchRow.epoch.desc(), BatchRow.batch_id.desc()).limit(n)))

    def batch_totals(self, pipeline: str) -> BatchTotals:
        """Sums over all batches."""
        sums = [func.coalesce(func.sum(c), 0) for c in (BatchRow.changes, BatchRow.bytes, BatchRow.seconds)]
        query = select(func.count(), *sums, func.max(BatchRow.lag_max_ms)).where(BatchRow.pipeline == pipeline)
        with self._read() as session:
            batches, changes, size, seconds, lag = tuple(session.execute(query).one())
        return BatchTotals(int(batches), int(changes), int(size), float(seconds), lag)

    # Lineage and events

    def set_lineage(self, pipeline: str, segments: Sequence[Segment]) -> None:
        """Replace the lineage of a pipeline.

        :param segments: all of them, the oldest first.
        """
        with self._write() as session:
            session.execute(delete(LineageRow).where(LineageRow.pipeline == pipeline))
            session.add_all(
                LineageRow(pipeline=pipeline, segment_no=number, **Segment(*segment)._asdict())
                for number, segment in enumerate(segments)
            )

    def lineage(self, pipeline: str) -> list[Segment]:
        """Lineage of a pipeline, the oldest segment first."""
        query = select(LineageRow).where(LineageRow.pipeline == pipeline).order_by(LineageRow.segment_no)
        with self._read() as session:
            rows = session.scalars(query).all()
        return [Segment(row.server, row.start_file, row.start_position, row.base_ordinal) for row in rows]

    def event(self, pipeline: str, kind: str, detail: str) -> None:
        """Note something that a person may want to know later.

        :param detail: one line; holds no secret.
        """
        with self._write() as session:
            session.add(EventRow(pipeline=pipeline, at=now(), kind=kind, detail=clean(detail)))

    def events(self, pipeline: str, n: int) -> list[EventRow]:
        """The last ``n`` events, the newest first."""
        newest = select(EventRow).where(EventRow.pipeline == pipeline).order_by(EventRow.id.desc())
        with self._read() as session:
            return list(session.scalars(newest.limit(n)))


def _changed(session: Session, statement: Any) -> bool:
    """Run an update; whether it found a row."""
    result = session.execute(statement, execution_options={"synchronize_session": False})
    return cast("CursorResult[Any]", result).rowcount > 0


def _planned_group(session: Session, pipeline: str, generation: int, group_no: int) -> GroupRow:
    row = session.get(GroupRow, (pipeline, generation, group_no))
    if row is None:
        message = f"pipeline {pipeline}: group {group_no} of snapshot {generation} is not planned"
        raise NotReadyError(message, "Run `airflow-cdc snapshot`, which plans it")
    return row


def _claimed(pipeline: str, generation: int, group_no: int, attempt: int) -> Any:
    return _group(pipeline, generation, group_no).where(GroupRow.attempt == attempt)


def _group(pipeline: str, generation: int, group_no: int) -> Any:
    return update(GroupRow).where(
        GroupRow.pipeline == pipeline, GroupRow.generation == generation, GroupRow.group_no == group_no
    )


def _stream(pipeline: str, epoch: int) -> Any:
    return update(StreamRow).where(StreamRow.pipeline == pipeline, StreamRow.epoch == epoch)


def _run(
    pipeline: str, epoch: int, host: str, pid: int, pid_started: float, details: Mapping[str, str | None]
) -> StreamRow:
    run = StreamRow(pipeline=pipeline, epoch=epoch, host=host, pid=pid, pid_started=pid_started, **details)
    run.started_at = run.heartbeat_at = now()
    return run


def _newest(pipeline: str) -> Any:
    return select(StreamRow).where(StreamRow.pipeline == pipeline).order_by(StreamRow.epoch.desc()).limit(1)
