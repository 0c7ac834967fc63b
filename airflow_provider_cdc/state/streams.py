"""Streams in the state database: their runs (epochs) and batches."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sqlalchemy import Select, Update, and_, select, update
from sqlalchemy.orm import Session

from airflow_provider_cdc.model.errors import NotReadyError, StreamStoppedError
from airflow_provider_cdc.model.supervision import is_superseded_by
from airflow_provider_cdc.state.database import Database, execute_update
from airflow_provider_cdc.state.events import add_event_row, name_event_source
from airflow_provider_cdc.state.models import BatchRow, ControlRequestRow, EpochRow, PipelineRow, storable_text, utc_now
from airflow_provider_cdc.state.pruning import prune_batches, prune_history, sum_batches
from airflow_provider_cdc.state.values import BatchTotals, HeartbeatReply

#: Number of batches of a run after which old batches are pruned.
_PRUNE_EVERY = 100
#: States of requests that a stream must handle.
_UNFINISHED_STATES = ("open", "taken")


class StreamRecords(Database):
    """Reads and writes streams."""

    def begin_epoch(
        self,
        pipeline: str,
        newest_in_sink: int,
        host: str,
        pid: int,
        pid_started: float,
        *,
        refuse_if_alive: Callable[[EpochRow | None], None] = lambda _: None,
        details: Mapping[str, Any] | None = None,
    ) -> int:
        """Begin a run of the stream.

        Older runs that never ended are marked as failed and asked to stop. The new run is paused if the newest one was
        and has not been resumed.

        :param newest_in_sink: highest epoch found in the sink.
        :param host: host of the driver.
        :param pid: process id of the driver.
        :param pid_started: when that process started (seconds), because process ids are reused.
        :param refuse_if_alive: called with the newest run inside the transaction; raises if that run is alive.
        :param details: ``mode`` (``continuous`` or ``catch_up``); ``log``, the driver's log file, unless it writes to a
            terminal; ``ui``, the address of Spark's web UI; ``supervisor``, the task that starts it; ``machine``, the
            scope in which ``pid`` is unique; ``settings``, digests of the run's settings.
        :return: an epoch above all others.
        :raises NotReadyError: if the pipeline is not registered.
        :raises StreamStoppedError: if a user has asked the stream to stop since it was started.
        """
        with self._write_session() as session:
            row = lock_pipeline(session, pipeline)
            newest = session.scalars(select_newest_epoch(pipeline)).first()
            refuse_if_alive(newest)
            if row.stop_requested_by is not None:
                raise StreamStoppedError(
                    f"{row.stop_requested_by} has asked the stream of {pipeline} to stop before it began",
                    "To start it, clear its task, trigger its DAG, or run `airflow-cdc stream`",
                )
            row.epoch = epoch = max(row.epoch, newest_in_sink) + 1
            older = update(EpochRow).filter_by(pipeline=pipeline, state="running")
            error = f"epoch {epoch} has taken over"
            was_lost = execute_update(
                session, older.values(state="failed", desired_state="stop", error=error, ended_at=EpochRow.heartbeat_at)
            )
            run = _new_epoch_row(pipeline, epoch, host, pid, pid_started, details or {})
            if newest is not None and newest.paused_by is not None:
                run.desired_state, run.paused_by, run.paused_at = "pause", newest.paused_by, newest.paused_at
            session.add(run)
            _add_begin_events(session, run, newest, was_lost)
            session.flush()
            prune_history(session, pipeline, utc_now())
            return epoch

    def restore_epoch(
        self, pipeline: str, epoch: int, host: str, pid: int, pid_started: float, details: Mapping[str, Any]
    ) -> None:
        """Restore a live run of the stream that is missing because the state database was lost."""
        with self._write_session() as session:
            row = session.get(PipelineRow, pipeline, with_for_update=True)
            if row is not None and row.epoch < epoch:
                row.epoch, row.stop_requested_by = epoch, None  # it could not have begun otherwise
                session.add(_new_epoch_row(pipeline, epoch, host, pid, pid_started, details))

    def record_heartbeat(self, pipeline: str, epoch: int, progress: bool) -> HeartbeatReply | None:
        """Record that the stream is alive.

        :param progress: whether the stream has made progress since the last heartbeat.
        :return: its row and the control requests; ``None`` if the state database does not know this run.
        """
        unfinished_requests = and_(
            ControlRequestRow.pipeline == EpochRow.pipeline, ControlRequestRow.state.in_(_UNFINISHED_STATES)
        )
        query = (
            select(EpochRow, ControlRequestRow)
            .outerjoin(ControlRequestRow, unfinished_requests)
            .where(EpochRow.pipeline == pipeline, EpochRow.epoch == epoch)
            .order_by(ControlRequestRow.id)
        )
        values = {key: utc_now() for key in ("heartbeat_at", *(["progress_at"] if progress else []))}
        with self._write_session() as session:
            execute_update(session, update_epoch(pipeline, epoch).values(values))
            rows = session.execute(query).all()
        return HeartbeatReply(rows[0][0], [request for _, request in rows if request is not None]) if rows else None

    def record_supervision(self, pipeline: str, epoch: int, supervisor: str) -> EpochRow | None:
        """Record that a task supervises the stream, and return the newest run.

        The trigger of a task that was cleared may continue for a moment in parallel with the next try. In that case the
        next try stays recorded.

        :param supervisor: human-readable name of the task.
        :return: the newest run, or ``None``.
        """
        with self._write_session() as session:
            # Locked, so that no other try comes between read and write.
            row = session.scalars(select_newest_epoch(pipeline).with_for_update()).first()
            if row is not None and is_superseded_by(supervisor, row.supervisor):
                supervisor = row.supervisor or supervisor
            elif row is not None and row.epoch == epoch and row.supervisor is None:
                name_event_source(
                    session, pipeline, ("stream_started", "stream_restarted"), f"{_epoch_text(epoch)} ", supervisor
                )
            values = {"supervisor": supervisor, "supervised_at": utc_now()}
            execute_update(session, update_epoch(pipeline, epoch).values(values))
            return session.scalars(select_newest_epoch(pipeline).execution_options(populate_existing=True)).first()

    def probe_newest_epoch(self, pipeline: str) -> EpochRow | None:
        """Return the newest run, or ``None``, and prove that the database is writable for the run's heartbeats.

        For heartbeats, a database that answers but is read-only (a standby, a full disk) is as good as unavailable.
        """
        with self._write_session() as session:
            row = session.scalars(select_newest_epoch(pipeline)).first()
            if row is not None:
                execute_update(session, update_epoch(pipeline, row.epoch).values(pid=EpochRow.pid))
            return row

    def request_stop(self, pipeline: str, epoch: int | None = None, by: str | None = None) -> int | None:
        """Ask the running stream to stop.

        :param epoch: ask only if this epoch is running; ``None`` for any.
        :param by: the requesting task; ``None`` for a user, whom a task never overrules. A user's stop also ends a
            pause.
        :return: the epoch that was asked, or ``None`` if no stream, or another epoch, is running.
        """
        with self._write_session() as session:
            running = select_newest_epoch(pipeline).filter_by(state="running").with_for_update()
            row = session.scalars(running).first()
            if row is None or epoch not in (None, row.epoch):
                return None
            if row.desired_state != "stop" or by is None:
                row.desired_state, row.stop_by = "stop", by
            if by is None:
                row.paused_by = row.paused_at = None
            return row.epoch

    def update_settings(self, pipeline: str, epoch: int, settings: Mapping[str, str]) -> None:
        """Record settings of a run that changed after it was started.

        :param settings: digests of the changed settings, by key.
        """
        with self._write_session() as session:
            run = session.get(EpochRow, (pipeline, epoch), with_for_update=True)
            if run is not None and run.settings is not None:
                run.settings = {**run.settings, **settings}

    def end_epoch(
        self,
        pipeline: str,
        epoch: int,
        state: str,
        error: str | None = None,
        error_kind: str | None = None,
        request_counts: Mapping[str, int] | None = None,
    ) -> None:
        """Record the end of a run.

        :param state: ``caught_up``, ``stopped`` or ``failed``.
        :param error: why it failed; must not contain secrets.
        :param error_kind: class of the error.
        :param request_counts: object-store request counts of the run, if it uses an object store.
        """
        kind = error_kind and error_kind[:32]  # may be any library's class
        values: dict[str, Any] = {"state": state, "error": storable_text(error), "error_kind": kind}
        values |= {"traffic": request_counts} if request_counts is not None else {}
        with self._write_session() as session:
            ended = update_epoch(pipeline, epoch).filter_by(state="running")
            if execute_update(session, ended.values(values | {"ended_at": utc_now()})):
                _add_end_event(session, session.get_one(EpochRow, (pipeline, epoch)))
            else:  # a newer run has taken over, and has recorded the end
                execute_update(session, update_epoch(pipeline, epoch).values(values))

    def newest_epoch(self, pipeline: str) -> EpochRow | None:
        """Return the newest run in any state, or ``None``."""
        return self._read_first(select_newest_epoch(pipeline))

    def epoch_row(self, pipeline: str, epoch: int) -> EpochRow | None:
        """Return one run in any state, or ``None`` if the state database does not have it."""
        return self._read_row(EpochRow, pipeline, epoch)

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
        index_bytes_used: tuple[int, int] | None = None,
        request_counts: tuple[Mapping[str, int], Mapping[str, int]] | None = None,
    ) -> None:
        """Record a batch that was applied to the sink. Recording a batch again replaces the earlier record.

        :param start_offset: where the batch began; JSON.
        :param end_offset: where the batch ended; JSON.
        :param changes: number of changes applied.
        :param bytes: bytes of binlog of the batch.
        :param seconds: time that the batch took.
        :param lag_p50_ms: median time from the source's commit to the sink's, in milliseconds; likewise p95 and max.
        :param index_bytes_used: bytes that the key index uses now, in memory and on disk.
        :param request_counts: object-store request counts of the batch, and of the run so far.
        """
        traffic, epoch_traffic = request_counts or (None, None)
        with self._write_session() as session:
            before, run = session.get(BatchRow, (pipeline, epoch, batch_id)), session.get(EpochRow, (pipeline, epoch))
            if run is not None:
                run.batches += before is None
                run.changes += changes - (before.changes if before else 0)
                run.bytes += bytes - (before.bytes if before else 0)
                run.start_offset = start_offset if run.start_offset is None else run.start_offset
                run.end_offset, run.traffic = end_offset, epoch_traffic
                run.index_bytes, run.index_disk_bytes = index_bytes_used or (None, None)
            session.merge(
                BatchRow(
                    pipeline=pipeline,
                    epoch=epoch,
                    batch_id=batch_id,
                    start_offset=start_offset,
                    end_offset=end_offset,
                    changes=changes,
                    bytes=bytes,
                    seconds=seconds,
                    lag_p50_ms=lag_p50_ms,
                    lag_p95_ms=lag_p95_ms,
                    lag_max_ms=lag_max_ms,
                    committed_at=utc_now(),
                    traffic=traffic,
                )
            )
        if batch_id % _PRUNE_EVERY == 0:
            with self._write_session() as session:
                prune_batches(session, pipeline)

    def last_batches(self, pipeline: str, limit: int) -> list[BatchRow]:
        """Return the last ``limit`` batches, the newest first. Older ones are pruned."""
        newest = select(BatchRow).filter_by(pipeline=pipeline)
        return self._read_rows(newest.order_by(BatchRow.epoch.desc(), BatchRow.batch_id.desc()).limit(limit))

    def batch_totals(self, pipeline: str) -> BatchTotals:
        """Return totals over all batches, including removed ones."""
        recent = sum_batches(EpochRow.pipeline == pipeline)
        removed = select(PipelineRow.past_batches, PipelineRow.past_changes).where(PipelineRow.name == pipeline)
        with self._read_session() as session:
            totals = [*session.execute(recent), *session.execute(removed)]
        return BatchTotals(*(sum(int(total[i]) for total in totals) for i in range(2)))


def _add_begin_events(session: Session, run: EpochRow, newest: EpochRow | None, was_lost: bool) -> None:
    """Add the events of a run that begins. Catch-ups that follow each other as they should are no news."""
    if was_lost and newest is not None:
        detail = f"epoch {newest.epoch} ended without giving a reason: its driver on {newest.host} was lost"
        add_event_row(session, run.pipeline, "stream_lost", detail, by=newest.supervisor)
    is_restart = newest is not None and newest.state in ("running", "failed")
    if not is_restart and run.mode == "catch_up":
        return
    detail = f"{_epoch_text(run.epoch)} began on {run.host}"
    if newest is None or not is_restart:
        add_event_row(session, run.pipeline, "stream_started", detail, by=run.supervisor)
    else:
        reason = "was lost" if was_lost else "had failed"
        detail += f", because epoch {newest.epoch} {reason}"
        add_event_row(session, run.pipeline, "stream_restarted", detail, by=run.supervisor)


def _epoch_text(epoch: int) -> str:
    return f"epoch {epoch} of the stream"


def _add_end_event(session: Session, run: EpochRow) -> None:
    """Add the event of a run that has ended."""
    if run.state == "failed":
        detail = f"epoch {run.epoch} of the stream failed: {run.error or run.error_kind or 'for an unknown reason'}"
        add_event_row(session, run.pipeline, "stream_failed", " ".join(detail.split()), by=run.supervisor)
    elif run.state == "stopped":
        by = run.stop_user or run.stop_by
        add_event_row(session, run.pipeline, "stream_stopped", f"epoch {run.epoch} of the stream has stopped", by=by)


def lock_pipeline(session: Session, pipeline: str) -> PipelineRow:
    """Return the row of a pipeline, locked until the transaction ends.

    :raises NotReadyError: if the pipeline is not registered.
    """
    row = session.get(PipelineRow, pipeline, with_for_update=True)
    if row is None:
        raise NotReadyError(f"pipeline {pipeline} is not in the state database", "Run `airflow-cdc snapshot` first")
    return row


def update_epoch(pipeline: str, epoch: int) -> Update:
    """Return an update of one run of a stream, without its values."""
    return update(EpochRow).filter_by(pipeline=pipeline, epoch=epoch)


def _new_epoch_row(
    pipeline: str, epoch: int, host: str, pid: int, pid_started: float, details: Mapping[str, Any]
) -> EpochRow:
    run = EpochRow(pipeline=pipeline, epoch=epoch, host=host, pid=pid, pid_started=pid_started, **details)
    run.started_at = run.heartbeat_at = utc_now()
    return run


def select_newest_epoch(pipeline: str) -> Select[EpochRow]:
    """Select the newest run of a pipeline's stream."""
    return select(EpochRow).filter_by(pipeline=pipeline).order_by(EpochRow.epoch.desc()).limit(1)
