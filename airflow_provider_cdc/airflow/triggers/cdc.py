"""Triggers that poll the state database in a thread, so that they never block the event loop."""

from __future__ import annotations

import asyncio
import socket
import time
from abc import abstractmethod
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_provider_cdc.airflow.triggers.state_database import SerializedFields, SharedStateDatabase, run_in_thread
from airflow_provider_cdc.airflow.triggers.stats import STATS_SECONDS, send_stats
from airflow_provider_cdc.airflow.triggers.stream_reports import StreamReporter
from airflow_provider_cdc.model.errors import CdcError, NotReadyError, embed_error, error_kind, make_error
from airflow_provider_cdc.model.supervision import EpochWatch, WatchOutcome, is_superseded_by
from airflow_provider_cdc.observe.alerts import has_alert_changes
from airflow_provider_cdc.observe.log_lines import relay_log_lines

if TYPE_CHECKING:
    from airflow_provider_cdc.runtime.run_context import RunContext
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


@dataclass(kw_only=True, eq=False, repr=False)
class StateDatabaseTrigger(SerializedFields, BaseTrigger):
    """Base class of triggers that poll the state database.

    :param pipeline: name of the pipeline.
    :param state_conn_id: connection of the state database, or ``None`` for the SQLite file ``state_path``.
    :param state_path: path of that file.
    :param poll_seconds: seconds between two checks.
    """

    pipeline: str
    state_conn_id: str | None
    state_path: str
    poll_seconds: float

    #: Fields that are part of each event.
    _event_fields: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        self._state_db = SharedStateDatabase.shared(self.state_conn_id, self.state_path)
        self._began = time.monotonic()
        self._stats_sent_at = float("-inf")
        self._was_seen = self._was_lost = False
        self._outage = ""

    @classmethod
    def for_pipeline(cls, run_context: RunContext, **arguments: Any) -> Self:
        """Create a trigger that polls the state database of a pipeline.

        :param arguments: all other arguments of the class.
        """
        pipeline, path = run_context.pipeline, str(run_context.local_files.state_database)
        return cls(pipeline=pipeline.name, state_conn_id=pipeline.state.conn_id, state_path=path, **arguments)

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Poll until there is an event, and fire it, but not too soon after the start."""
        self._began = time.monotonic()
        try:
            payload = await self._wait_for_event()
        except CdcError as error:
            payload = {"unseen": embed_error(error)}
        await asyncio.sleep(max(0.0, self._began + _SETTLE_SECONDS - time.monotonic()))
        yield TriggerEvent({**{name: getattr(self, name) for name in self._event_fields}, **payload})  # type: ignore[no-untyped-call]

    @abstractmethod
    async def _wait_for_event(self) -> dict[str, Any]:
        """Poll until there is an event, and return its payload.

        :raises CdcError: if the subject has never been seen.
        """

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

    async def _send_stats(self) -> None:
        """Send the metrics of the pipeline to Airflow's stats, if it is time to."""
        if time.monotonic() - self._stats_sent_at > STATS_SECONDS:
            self._stats_sent_at = time.monotonic()
            await self._state_db.query_or_none(partial(send_stats, pipeline=self.pipeline))


@dataclass(kw_only=True, eq=False, repr=False)
class CdcSnapshotTrigger(StateDatabaseTrigger):
    """Fires when the snapshot of a pipeline is complete, or when the state database no longer knows the snapshot.

    :param generation: number of the snapshot.
    """

    generation: int

    async def _wait_for_event(self) -> dict[str, Any]:
        logged_at, subject = time.monotonic(), f"snapshot {self.generation} of {self.pipeline}"
        while True:
            snapshot = await self._query(lambda store: store.snapshot(self.pipeline, self.generation), subject)
            if self._was_lost or (snapshot is not None and snapshot.state == "done"):
                return {"complete": not self._was_lost}
            if snapshot is not None and time.monotonic() - logged_at > _LOG_SECONDS:
                logged_at = time.monotonic()
                await self._log_progress()
            if snapshot is not None:
                await self._send_stats()
            await asyncio.sleep(self.poll_seconds)

    async def _log_progress(self) -> None:
        tables = await self._state_db.query_or_none(lambda store: store.table_progress(self.pipeline, self.generation))
        if tables:
            done, total = sum(t.done for t in tables), sum(t.chunks for t in tables)
            self.log.info("%s of %s chunks, %s rows", done, total, sum(t.rows for t in tables))


@dataclass(kw_only=True, eq=False, repr=False)
class CdcStreamEndTrigger(StateDatabaseTrigger):
    """Fires when an epoch is over, or when the time to wait for that is up.

    :param epoch: the epoch.
    :param until: when to give up, in seconds since 1970.
    """

    epoch: int
    until: float

    _event_fields = ("epoch",)

    async def _wait_for_event(self) -> dict[str, Any]:
        watch, subject = EpochWatch(self.epoch), f"epoch {self.epoch} of the stream of {self.pipeline}"
        while True:
            row = await self._query(lambda store: store.probe_newest_epoch(self.pipeline), subject)
            verdict = watch.observe(row, time.monotonic())
            if verdict is not None or time.time() > self.until:
                return {"verdict": verdict and str(verdict)}
            await asyncio.sleep(self.poll_seconds)


#: Pending stop requests. An event loop keeps only weak references to its tasks.
_stop_requests: set[asyncio.Future[None]] = set()


@dataclass(kw_only=True, eq=False, repr=False)
class CdcStreamTrigger(StateDatabaseTrigger):
    """Watches one epoch of a stream. Fires when it has ended, was lost, was superseded, or has a new alert.

    :param epoch: the epoch.
    :param found: whether the task found it running, rather than started it.
    :param supervisor: human-readable name of the task.
    :param alerts: the alerts to look for. When there is a new one, the trigger fires and the task calls the hooks.
    :param report_seconds: seconds between two reports in the task's log and XCom.
    """

    epoch: int
    found: bool
    supervisor: str
    alerts: dict[str, Any] | None = None
    report_seconds: float = 60.0

    _event_fields = ("epoch", "found")

    def __post_init__(self) -> None:
        super().__post_init__()
        self._cancelled = False
        self._reports = StreamReporter(self.report_seconds)

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Watch the epoch until it is over or has a new alert."""
        try:
            async for event in super().run():
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

    async def _wait_for_event(self) -> dict[str, Any]:
        # Not at once: otherwise an alert whose notification cannot be recorded would be repeated all the time.
        alerts_checked_at = time.monotonic()
        watch, subject = EpochWatch(self.epoch), f"epoch {self.epoch} of the stream of {self.pipeline}"

        def read_run(store: StateDatabase) -> EpochRow | None:
            row = store.record_supervision(self.pipeline, self.epoch, self.supervisor)
            return row if row is not None and row.epoch >= self.epoch else None

        while True:
            row = await self._query(read_run, subject)
            verdict: WatchOutcome | None = watch.observe(row, time.monotonic())
            if verdict is not None:
                return {"verdict": str(verdict)}
            if row is not None and self._reports.is_due:
                await self._push_report(row)
            if row is not None:
                await self._send_stats()
            if row is not None and self.alerts and time.monotonic() - alerts_checked_at > STATS_SECONDS:
                alerts_checked_at = time.monotonic()
                find_alerts = partial(has_alert_changes, pipeline=self.pipeline, request=self.alerts)
                if await self._state_db.query_or_none(find_alerts):
                    return {"alerts": True}
            await asyncio.sleep(self.poll_seconds)

    async def _push_report(self, row: EpochRow) -> None:
        report = await self._state_db.query_or_none(partial(self._reports.make_report, run=row))
        if report is not None:
            relay_log_lines(report[1], self.log)
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
                self.epoch,
            )

    async def _stop_unless_deferred(self) -> None:
        state = await self._ended_task_state()
        if state == "deferred":
            self.log.info("the task is still deferred: another triggerer supervises the stream")
            return
        # A list, so that "no run to stop" differs from "no answer".
        while (stopped := await self._state_db.query_or_none(self._request_stop)) is None:
            text = "the task is %s, but the state database cannot be reached to stop epoch %s: trying again"
            self.log.error(text, state, self.epoch)
            await asyncio.sleep(_RETRY_SECONDS)
        self.log.info(
            "the task is %s: epoch %s %s", state, self.epoch, "was asked to stop" if stopped[0] else "has ended"
        )

    def _request_stop(self, store: StateDatabase) -> list[int | None]:
        return [store.request_stop(self.pipeline, self.epoch, by=self.supervisor)]

    async def _ended_task_state(self) -> str | None:
        """Return the state of the task whose trigger was ended. It is ``deferred`` only if this try still is.

        Repeats the query if Airflow or the state database does not answer, so that an outage does not leave the stream
        running.
        """
        while True:
            try:
                state = await run_in_thread(read_task_state, self.task_instance)
                if state == "deferred":  # this try, or the next one after a clear
                    run = await self._state_db.query(lambda store: store.newest_epoch(self.pipeline))
                    if run is not None and is_superseded_by(self.supervisor, run.supervisor):
                        return "cleared"
                return state
            except Exception as error:
                self.log.warning("could not find out whether the task of epoch %s is deferred: %s", self.epoch, error)
                await asyncio.sleep(_RETRY_SECONDS)


@dataclass(kw_only=True, eq=False, repr=False)
class CdcPauseTrigger(SerializedFields, BaseTrigger):
    """Fires after a while. A stream that is to be restarted waits here without a worker.

    :param seconds: how long to wait, in seconds.
    """

    seconds: float

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Wait, then fire."""
        await asyncio.sleep(max(self.seconds, _SETTLE_SECONDS))
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
