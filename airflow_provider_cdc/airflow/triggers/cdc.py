"""Triggers that poll the state database in a thread, so that they never block the event loop."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_provider_cdc.airflow.triggers.state_database import SharedStateDatabase, run_in_thread
from airflow_provider_cdc.airflow.triggers.stats import STATS_SECONDS, send_stats
from airflow_provider_cdc.airflow.triggers.stream_reports import StreamReporter
from airflow_provider_cdc.model.errors import CdcError, NotReadyError, embed_error, error_kind, make_error
from airflow_provider_cdc.model.supervision import EpochWatch, WatchOutcome, is_superseded_by
from airflow_provider_cdc.observe.alerts import has_alert_changes

if TYPE_CHECKING:
    from airflow_provider_cdc.state import EpochRow, StateDatabase

T = TypeVar("T")

#: Seconds between two log lines about a running snapshot.
_LOG_SECONDS = 60.0
#: Seconds between two attempts to request a stop, and how long before Airflow's own limit on_kill gives up.
_RETRY_SECONDS, _MARGIN_SECONDS = 1.0, 2.0
#: Seconds from a trigger's start to the first event it may fire. If a task resumes while its worker process is still
#: ending (which has taken 5 s), Airflow's scheduler assumes that it ended in a wrong state, and fails it.
_SETTLE_SECONDS = 10.0
#: Seconds within which the subject must have been seen once. After that, the cause is not an outage but a state
#: database on another host, or another file.
_FIRST_ANSWER_SECONDS = 180.0


class StateDatabaseTrigger(BaseTrigger):
    """Base class of triggers that poll the state database.

    :param kwargs: arguments of the class, including ``state_conn_id`` and ``state_path``.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._kwargs = kwargs
        self._state_db = SharedStateDatabase.shared(kwargs["state_conn_id"], kwargs["state_path"])
        self._began = time.monotonic()
        self._was_seen = self._was_lost = False
        self._outage = ""

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class path and the arguments."""
        return f"{type(self).__module__}.{type(self).__qualname__}", self._kwargs

    async def _query(self, read: Callable[[StateDatabase], T | None], subject: str) -> T | None:
        """Query the state database. Log when it becomes unavailable, with the reason, and when it is back.

        :param subject: what is looked for, for messages.
        :returns: the answer, or ``None`` if there was none or the state database does not have the subject.
        :raises CdcError: if the subject has never been seen, for longer than an outage would explain.
        """
        missing: CdcError | None
        try:
            answer = await self._state_db.query(read)
            missing = None if answer is not None else NotReadyError(f"the state database has no {subject}")
            self._was_lost = answer is None and self._was_seen
        except CdcError as error:
            answer, missing = None, error
        if str(missing or "") != self._outage:
            self._outage = str(missing or "")
            self.log.warning("%s", missing or "the state database is back")
        self._was_seen = self._was_seen or missing is None
        if missing is not None and not self._was_seen and time.monotonic() - self._began > _FIRST_ANSWER_SECONDS:
            raise make_error(
                error_kind(missing),
                f"the triggerer on {socket.gethostname()} has not found {subject} within "
                f"{_FIRST_ANSWER_SECONDS:g} s: {missing.message}",
                "Workers and triggerer must use the same state database: set state.conn_id, run both on the host that "
                "has the SQLite file, or set deferrable=False",
            )
        return answer

    async def _make_event(self, payload: dict[str, Any]) -> TriggerEvent:
        """Return an event to fire, but not too soon after the start."""
        await asyncio.sleep(max(0.0, self._began + _SETTLE_SECONDS - time.monotonic()))
        return TriggerEvent(payload)  # type: ignore[no-untyped-call]


class CdcSnapshotTrigger(StateDatabaseTrigger):
    """Fires when the snapshot of a pipeline is complete, or when the state database no longer knows the snapshot.

    :param pipeline: name of the pipeline.
    :param generation: number of the snapshot.
    :param state_conn_id: connection of the state database, or ``None`` for the SQLite file ``state_path``.
    :param state_path: path of that file.
    :param poll_seconds: seconds between two checks.
    """

    def __init__(
        self, *, pipeline: str, generation: int, state_conn_id: str | None, state_path: str, poll_seconds: float
    ) -> None:
        super().__init__(
            pipeline=pipeline,
            generation=generation,
            state_conn_id=state_conn_id,
            state_path=state_path,
            poll_seconds=poll_seconds,
        )

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Poll until there is an event to fire."""
        k = self._kwargs
        self._began = logged_at = time.monotonic()
        subject, stats_sent_at = f"snapshot {k['generation']} of {k['pipeline']}", float("-inf")
        while True:
            try:
                snapshot = await self._query(lambda store: store.snapshot(k["pipeline"], k["generation"]), subject)
            except CdcError as error:
                yield await self._make_event({"complete": False, "unseen": embed_error(error)})
                return
            if self._was_lost or (snapshot is not None and snapshot.state == "done"):
                yield await self._make_event({"complete": not self._was_lost})
                return
            if snapshot is not None and time.monotonic() - logged_at > _LOG_SECONDS:
                logged_at = time.monotonic()
                await self._log_progress()
            if snapshot is not None and time.monotonic() - stats_sent_at > STATS_SECONDS:
                stats_sent_at = time.monotonic()
                await self._state_db.query_or_none(partial(send_stats, pipeline=k["pipeline"]))
            await asyncio.sleep(k["poll_seconds"])

    async def _log_progress(self) -> None:
        k = self._kwargs
        tables = await self._state_db.query_or_none(lambda store: store.table_progress(k["pipeline"], k["generation"]))
        if tables:
            done, total = sum(t.done for t in tables), sum(t.chunks for t in tables)
            self.log.info("%s of %s chunks, %s rows", done, total, sum(t.rows for t in tables))


#: Pending stop requests. An event loop keeps only weak references to its tasks.
_stop_requests: set[asyncio.Future[None]] = set()


class CdcStreamTrigger(StateDatabaseTrigger):
    """Watches one epoch of a stream. Fires when it has ended, was lost, was superseded, or has a new alert.

    :param pipeline: name of the pipeline.
    :param epoch: the epoch.
    :param found: whether the task found it running, rather than started it.
    :param state_conn_id: connection of the state database, or ``None`` for the SQLite file ``state_path``.
    :param state_path: path of that file.
    :param supervisor: human-readable name of the task.
    :param poll_seconds: seconds between two checks.
    :param alerts: the alerts to look for. When there is a new one, the trigger fires and the task calls the hooks.
    :param report_seconds: seconds between two reports in the task's log and XCom.
    """

    def __init__(
        self,
        *,
        pipeline: str,
        epoch: int,
        found: bool,
        state_conn_id: str | None,
        state_path: str,
        supervisor: str,
        poll_seconds: float,
        alerts: dict[str, Any] | None = None,
        report_seconds: float = 60.0,
    ) -> None:
        super().__init__(
            pipeline=pipeline,
            epoch=epoch,
            found=found,
            state_conn_id=state_conn_id,
            state_path=state_path,
            supervisor=supervisor,
            poll_seconds=poll_seconds,
            alerts=alerts,
            report_seconds=report_seconds,
        )
        self._cancelled = False
        self._reports = StreamReporter(report_seconds)

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Watch the epoch until it is over or has a new alert."""
        try:
            async for event in self._watch():
                yield event
        except asyncio.CancelledError:
            self._cancelled = True
            raise

    async def cleanup(self) -> None:
        """Stop the epoch if the trigger was canceled.

        Airflow before 3.3 has no :meth:`on_kill`. There, marking or clearing a task cancels its trigger.
        """
        if self._cancelled and not hasattr(BaseTrigger, "on_kill"):
            await self.on_kill()

    async def _watch(self) -> AsyncIterator[TriggerEvent]:
        k = self._kwargs
        # Not at once: otherwise an alert whose notification cannot be recorded would be repeated all the time.
        stats_sent_at, alerts_checked_at = float("-inf"), time.monotonic()
        watch, subject = EpochWatch(k["epoch"]), f"epoch {k['epoch']} of the stream of {k['pipeline']}"
        self._began = time.monotonic()

        def read_run(store: StateDatabase) -> EpochRow | None:
            row = store.record_supervision(k["pipeline"], k["epoch"], k["supervisor"])
            return row if row is not None and row.epoch >= k["epoch"] else None

        while True:
            try:
                row = await self._query(read_run, subject)
            except CdcError as error:
                yield await self._make_event({"epoch": k["epoch"], "found": k["found"], "unseen": embed_error(error)})
                return
            verdict: WatchOutcome | None = watch.observe(row, time.monotonic())
            if verdict is not None:
                yield await self._make_event({"epoch": k["epoch"], "found": k["found"], "verdict": str(verdict)})
                return
            if row is not None and self._reports.is_due:
                await self._push_report(row)
            if row is not None and time.monotonic() - stats_sent_at > STATS_SECONDS:
                stats_sent_at = time.monotonic()
                await self._state_db.query_or_none(partial(send_stats, pipeline=k["pipeline"]))
            if row is not None and k["alerts"] and time.monotonic() - alerts_checked_at > STATS_SECONDS:
                alerts_checked_at = time.monotonic()
                if await self._state_db.query_or_none(
                    partial(has_alert_changes, pipeline=k["pipeline"], request=k["alerts"])
                ):
                    yield await self._make_event({"epoch": k["epoch"], "found": k["found"], "alerts": True})
                    return
            await asyncio.sleep(k["poll_seconds"])

    async def _push_report(self, row: EpochRow) -> None:
        report = await self._state_db.query_or_none(partial(self._reports.make_report, run=row))
        if report is not None:
            for line in report[1]:
                self.log.info("%s", line)
            await run_in_thread(self._reports.push_xcom, report[0], self.task_instance, self.log)

    async def on_kill(self) -> None:
        """Stop the epoch at a transaction boundary, if the task really is no longer deferred.

        This is also called when this triggerer merely lost the trigger to another one. Airflow repeats the cancellation
        every second, which would end this method as well. It gives up after a while, which may be too early: on a busy
        triggerer the first query has taken more than half a minute. The stop request therefore continues in a task of
        its own.
        """
        stop_request, until = asyncio.ensure_future(self._stop_unless_deferred()), time.monotonic() + _on_kill_seconds()
        _stop_requests.add(stop_request)
        stop_request.add_done_callback(_stop_requests.discard)
        while not stop_request.done() and (left := until - time.monotonic()) > 0:
            with suppress(asyncio.CancelledError):
                await asyncio.wait({stop_request}, timeout=left)
        if not stop_request.done():
            self.log.error(
                "epoch %s could not be asked to stop within [triggerer] on_kill_timeout. It is still running, and will "
                "be asked as soon as Airflow and the state database answer. If this triggerer ends before that, run "
                "`airflow-cdc stop`; with lease_seconds the epoch ends on its own",
                self._kwargs["epoch"],
            )

    async def _stop_unless_deferred(self) -> None:
        k = self._kwargs
        state = await self._ended_task_state()
        if state == "deferred":
            self.log.info("the task is still deferred: another triggerer supervises the stream")
            return
        # A list, so that "no run to stop" differs from "no answer".
        while (stopped := await self._state_db.query_or_none(self._request_stop)) is None:
            text = "the task is %s, but the state database cannot be reached to stop epoch %s: trying again"
            self.log.error(text, state, k["epoch"])
            await asyncio.sleep(_RETRY_SECONDS)
        self.log.info(
            "the task is %s: epoch %s %s", state, k["epoch"], "was asked to stop" if stopped[0] else "has ended"
        )

    def _request_stop(self, store: StateDatabase) -> list[int | None]:
        k = self._kwargs
        return [store.request_stop(k["pipeline"], k["epoch"], by=k["supervisor"])]

    async def _ended_task_state(self) -> str | None:
        """Return the state of the task whose trigger was ended. It is ``deferred`` only if this try still is.

        Repeats the query if Airflow or the state database does not answer, so that an outage does not leave the stream
        running.
        """
        k = self._kwargs
        while True:
            try:
                state = await run_in_thread(read_task_state, self.task_instance)
                if state == "deferred":  # this try, or the next one after a clear
                    run = await self._state_db.query(lambda store: store.newest_epoch(k["pipeline"]))
                    if run is not None and is_superseded_by(k["supervisor"], run.supervisor):
                        return "cleared"
                return state
            except Exception as error:
                self.log.warning("could not find out whether the task of epoch %s is deferred: %s", k["epoch"], error)
                await asyncio.sleep(_RETRY_SECONDS)


class CdcPauseTrigger(BaseTrigger):
    """Fires after a while. A stream that is to be restarted waits here without a worker.

    :param seconds: how long to wait, in seconds.
    """

    def __init__(self, *, seconds: float) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._seconds = seconds

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class path and the arguments."""
        return f"{type(self).__module__}.{type(self).__qualname__}", {"seconds": self._seconds}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Wait, then fire."""
        await asyncio.sleep(max(self._seconds, _SETTLE_SECONDS))
        yield TriggerEvent({})  # type: ignore[no-untyped-call]


def _on_kill_seconds() -> float:
    """Return how long the trigger of a marked or cleared task may try to stop its stream."""
    from airflow.configuration import conf

    return max(conf.getint("triggerer", "on_kill_timeout", fallback=30) - _MARGIN_SECONDS, 1.0)


def read_task_state(ti: Any) -> str | None:
    """Return the current state of a task instance. This blocks, so a trigger calls it in a thread."""
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

    if ti is None:
        return None
    index = ti.map_index if ti.map_index is not None and ti.map_index >= 0 else None
    states = RuntimeTaskInstance.get_task_states(
        dag_id=ti.dag_id, task_ids=[ti.task_id], run_ids=[ti.run_id], map_index=index
    )
    known_states = [state for of_run in states.values() for state in of_run.values()]
    return str(known_states[0]) if known_states and known_states[0] is not None else None
