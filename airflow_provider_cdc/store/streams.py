"""Reads and writes of the bookkeeping database that concern streams: their runs (epochs) and batches."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sqlalchemy import func, select, update

from airflow_provider_cdc.exceptions import NotReadyError
from airflow_provider_cdc.store.database import Database, changed
from airflow_provider_cdc.store.models import BatchRow, BatchTotals, EpochTotals, PipelineRow, StreamRow, clean, now


class StreamStore(Database):
    """The bookkeeping of streams."""

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
            not somebody's terminal; ``ui``, the address of Spark's own page; ``machine``, what ``pid`` is told within.
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
            changed(session, older.values(state="failed", desired_state="stop", error=error))
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

    def heartbeat(self, pipeline: str, epoch: int, progress: bool) -> StreamRow | None:
        """Say that the stream is alive.

        :param progress: whether it has also got further.
        :return: its row, with what is asked of it; ``None`` if the bookkeeping does not know of this run.
        """
        values = {key: now() for key in ("heartbeat_at", *(["progress_at"] if progress else []))}
        with self._write() as session:
            changed(session, _stream(pipeline, epoch).values(values))
            return session.get(StreamRow, (pipeline, epoch))

    def supervise(self, pipeline: str, epoch: int, supervisor: str) -> None:
        """Say that a task looks after the stream.

        :param supervisor: the task, as people know it.
        """
        with self._write() as session:
            changed(session, _stream(pipeline, epoch).values(supervisor=supervisor, supervised_at=now()))

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

        :param state: ``caught_up``, ``stopped`` or ``failed``.
        :param error: why it failed; holds no secret.
        :param error_kind: class of the error.
        """
        with self._write() as session:
            changed(session, _stream(pipeline, epoch).values(state=state, error=clean(error), error_kind=error_kind))

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

    def epoch_totals(self, pipeline: str, epoch: int) -> EpochTotals:
        """What one run of the stream has applied."""
        mine = BatchRow.pipeline == pipeline, BatchRow.epoch == epoch
        ends = func.min(BatchRow.batch_id), func.max(BatchRow.batch_id)
        with self._read() as session:
            count, changes, first, last = session.execute(
                select(func.count(), func.coalesce(func.sum(BatchRow.changes), 0), *ends).where(*mine)
            ).one()
            if not count:
                return EpochTotals(0, 0, None, None)
            start, end = (session.get_one(BatchRow, (pipeline, epoch, number)) for number in (first, last))
            return EpochTotals(int(count), int(changes), start.start_offset, end.end_offset)


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
