"""Drivers in a cluster, whatever manages it.

A driver is what its row in the state database says: the row stands before anything is submitted, and its id is in the
name of what the cluster runs, so that the next try of a task finds what a dead one has left. Success is what the row
says. The cluster's manager is asked only about drivers that have not begun, or are silent.
"""

from __future__ import annotations

import threading
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from typing import TYPE_CHECKING, Any

from airflow_provider_cdc import __version__
from airflow_provider_cdc.driver.launchers.cluster_manager import ClusterManager
from airflow_provider_cdc.driver.launchers.sealed_request import DriverSecret, new_key, seal
from airflow_provider_cdc.driver.spark_session import UI_LINE_PREFIX
from airflow_provider_cdc.model.errors import (
    REPORT_REMEDY,
    AlreadyRunningError,
    CdcError,
    NotReadyError,
    StreamStoppedError,
    TerminalError,
    TransientError,
    UnexpectedError,
    make_error,
)
from airflow_provider_cdc.model.supervision import LOST_AFTER_SECONDS, HeartbeatMonitor
from airflow_provider_cdc.system.failpoints import failpoint

if TYPE_CHECKING:
    from airflow_provider_cdc.driver.request import DriverRequest
    from airflow_provider_cdc.runtime.run_context import RunContext
    from airflow_provider_cdc.state import EpochRow, StateDatabase
    from airflow_provider_cdc.state.models import DriverRow

_POLL_SECONDS, _ASK_SECONDS = 1.0, 5.0
#: Seconds after which a driver is lost that does not write to its row while the manager does not answer: one that has
#: begun, and one that waits for its turn in the cluster.
_SILENT_SECONDS, _OUTAGE_SECONDS = 60.0, 3600.0
#: Seconds to end a driver when the task is killed: Airflow sends SIGKILL after 5 s.
_KILL_SECONDS = 4.0
#: Seconds of these for the state database, before the job is killed without it.
_ROW_SECONDS = 1.0
#: Seconds for a driver that has recorded its error to end.
_ERROR_SECONDS = 15.0
_TAIL_LINES = 40


class ClusterDriver:
    """A driver that was submitted. It implements both kinds of drivers of :mod:`.launcher`.

    :param store: the state database.
    :param manager: manager of the cluster.
    :param driver: id of the driver.
    """

    def __init__(self, store: StateDatabase, manager: ClusterManager, driver: str) -> None:
        self._store, self._manager, self._driver = store, manager, driver
        self._monitor = HeartbeatMonitor(LOST_AFTER_SECONDS)
        self._row: DriverRow | None = None
        self._asked_at, self._known_at = float("-inf"), time.monotonic()
        #: Since when the manager has answered that it does not know the driver.
        self._unknown_since: float | None = None
        self._released = self._is_ended_here = self._is_silent = self._has_other_owner = False
        #: The try of the task that the driver works for; only that try may end it. The launcher sets it.
        self.owner: str | None = None
        #: Why the state database does not answer; empty if it does.
        self._outage = ""
        #: What the manager last said.
        self._manager_says = ""

    @property
    def description(self) -> str:
        """Id of the driver, and of its job if that is known; where its log is, or what is waited for."""
        row = self._row
        text = f"{self._manager.name}: {(row and row.handle) or 'not submitted yet'}, driver {self._driver}"
        if self._outage:
            return f"{text}: waiting for the state database. {self._outage}"
        if row is not None and row.state in ("running", "ended"):
            silence = f". No sign of life for {LOST_AFTER_SECONDS:g} s. {self._manager_says}" if self._is_silent else ""
            return f"{text}: {row.state}, log: {row.log}{silence}".rstrip()
        return f"{text}: waiting. {self._manager_says}".rstrip()

    @property
    def log(self) -> str | None:
        """Address of the driver's log."""
        return self._row.log if self._row is not None else None

    def look(self) -> DriverRow | None:
        """Read the driver's row. If the driver is over according to the manager but not according to its row, end it.

        :returns: the row; ``None`` if the state database does not answer.
        :raises UnexpectedError: if the state database does not know the driver.
        """
        try:
            row = self._end_if_over(self._store.driver(self._driver))
        except UnexpectedError:
            raise
        except TransientError as error:
            self._monitor = HeartbeatMonitor(LOST_AFTER_SECONDS)  # the driver could not write either
            self._outage = error.message
            return None
        self._row, self._outage = row, ""
        return row

    def _end_if_over(self, row: DriverRow | None) -> DriverRow:
        self._is_silent = False
        if row is not None and row.state != "ended":
            is_alive = row.state == "running" and self._monitor.observe(row.heartbeat_at, time.monotonic()) is not False
            self._is_silent = row.state == "running" and not is_alive
            if is_alive:
                self._known_at = time.monotonic()
            elif time.monotonic() - self._asked_at > _ASK_SECONDS:
                self._asked_at = time.monotonic()
                self._ask_manager(row)
                row = self._store.driver(self._driver)
        if row is None:
            raise UnexpectedError(
                f"the state database does not know driver {self._driver} any more", "Run the task again"
            )
        return row

    def confirm(self) -> bool:
        """Confirm that the driver is wanted, if its job exists. Before that, it does not begin.

        :returns: whether the job exists and is not over.
        :raises CdcError: if the manager or the state database does not answer.
        """
        job = self._manager.find_job(self._driver)
        if job is None or job.is_over:
            return False
        self._store.record_submission(self._driver, job.id, job.link, job.log)
        row = self.look()
        return row is not None and row.state != "ended"

    def take_over(self, owner: str) -> None:
        """Let it work for another try of its task. An earlier one, should it still exist, can no longer end it.

        :param owner: the try.
        """
        self.owner = owner
        self._store.change_driver_owner(self._driver, owner)

    def can_be_adopted(self) -> bool:
        """Return whether another try of the task can continue with it."""
        return self.confirm()

    def _ask_manager(self, row: DriverRow) -> None:
        """Record what the manager says of a driver that does not speak for itself."""
        now = time.monotonic()
        try:
            job = self._manager.find_job(self._driver)
        except CdcError as error:
            may_wait = row.state != "running" and isinstance(error, TransientError)
            self._manager_says, self._unknown_since = str(error), None
            if now - self._known_at > (_OUTAGE_SECONDS if may_wait else _SILENT_SECONDS):
                self._end_as_lost()
            return
        if job is None:
            self._manager_says = f"{self._manager.name} does not know it"
            self._unknown_since = now if self._unknown_since is None else self._unknown_since
            if now - max(self._unknown_since, self._known_at) >= self._manager.unknown_seconds:
                self._end_as_lost()
            return
        self._manager_says, self._unknown_since = str(job), None
        self._known_at = time.monotonic()
        if row.handle is None or (row.log is None and job.log is not None):
            self._store.record_submission(self._driver, job.id, job.link, job.log)
        if job.is_over:
            remedy = f"See its log: {row.log or job.log or job.link}"
            self._end(UnexpectedError(f"the Spark driver ended without a result: {job}", remedy))

    def _end_as_lost(self) -> None:
        self._end(UnexpectedError(f"the Spark driver was lost: {self._manager_says}", "Run the task again"))

    def _end(self, error: CdcError) -> None:
        self._is_ended_here = True
        self._store.end_driver(self._driver, {"error": error.to_json()})

    def output_lines(self) -> Iterator[str]:
        """Yield what happens to the driver, the address of its page, what it last wrote to its log, and at its end the
        last lines of the log.
        """
        said, last_line = "", None
        while True:
            row = self.look()
            if row is not None and row.state == "ended":
                break
            news = self.description
            if news != said:
                yield news
                if row is not None and row.link and row.state == "running":
                    yield f"{UI_LINE_PREFIX}{row.link}"
                said = news
            if row is not None and row.last_line not in (None, last_line):
                yield (last_line := row.last_line)
            time.sleep(_POLL_SECONDS)
        lines = self._manager.tail_log(self.log, _TAIL_LINES)
        if lines:
            yield f"the end of the driver's log, {self.log}:"
        yield from lines

    def wait_for_outcome(self) -> dict[str, Any]:
        """Wait for the driver to end, and return its outcome."""
        while (row := self.look()) is None or row.state != "ended":
            time.sleep(_POLL_SECONDS)
        result: dict[str, Any] = row.outcome or {}
        if "error" in result:
            raise make_error(**result["error"])
        outcome: dict[str, Any] = result["outcome"]
        return outcome

    def terminate(self) -> None:
        """End the driver: its row first, so that it cannot begin any more, then its job.

        If the state database does not answer, its job is killed at once, and the other way round. A driver that
        another try of the task has taken over is left alone.
        """
        has_ended = threading.Event()
        threads = [
            threading.Thread(target=work, args=(has_ended,), name="driver-end", daemon=True)
            for work in (self._end_with_task, self._kill_job)
        ]
        deadline = time.monotonic() + _KILL_SECONDS
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _end_with_task(self, has_ended: threading.Event) -> None:
        error = TransientError("the driver was ended with its task", "Clear the task to run it again")
        with suppress(CdcError):
            if self._store.end_driver(self._driver, {"error": error.to_json()}, owner=self.owner):
                self._is_ended_here = True
            else:
                row = self._store.driver(self._driver)
                self._has_other_owner = row is not None and row.owner != self.owner
        has_ended.set()

    def _kill_job(self, has_ended: threading.Event) -> None:
        has_ended.wait(_ROW_SECONDS)  # the row should say who has ended the driver
        with suppress(CdcError):
            job = self._manager.find_job(self._driver)
            if job is not None and job.is_active and not self._has_other_owner:
                self._manager.kill(job.id)

    def has_ended(self) -> bool:
        """Return whether the driver has ended."""
        row = self.look()
        return row is not None and row.state == "ended"

    def has_begun(self, epoch: EpochRow) -> bool:
        """Return whether an epoch writes to the log of this driver."""
        return self.log is not None and epoch.log == self.log

    def raise_error(self) -> None:
        """Raise the error that ended the driver, unless it gave way to another stream or a user's request to stop."""
        try:
            self.wait_for_outcome()
        except (AlreadyRunningError, StreamStoppedError):
            return
        raise TerminalError("the Spark driver ended without a stream", f"See its log above, and {REPORT_REMEDY}")

    def release(self) -> None:
        """Let it outlive the task."""
        self._released = True

    def end_unless_released(self) -> None:
        """End the driver if it still runs, unless it was released."""
        if self._released:
            return
        row = self._row
        if row is None or row.handle is None or row.state != "ended" or self._is_ended_here:
            self.terminate()
        elif "outcome" in (row.outcome or {}):
            with suppress(CdcError):
                self._manager.clean_up(row.handle)
        else:
            self._end_after_error()

    def _end_after_error(self) -> None:
        """Wait for a driver that has recorded its error to end: what is left of it in the cluster has its log."""
        deadline = time.monotonic() + _ERROR_SECONDS
        with suppress(CdcError):
            while (job := self._manager.find_job(self._driver)) is not None and not job.is_over:
                if time.monotonic() > deadline:
                    self._manager.kill(job.id)
                    return
                time.sleep(_POLL_SECONDS)


class ClusterLauncher(ABC):
    """Starts drivers in a cluster.

    :param context: the pipeline.
    :param manager: manager of the cluster.
    """

    def __init__(self, context: RunContext, manager: ClusterManager) -> None:
        self._context, self._manager = context, manager

    @abstractmethod
    def _submit(self, store: StateDatabase, secret: DriverSecret, what: str) -> ClusterDriver:
        """Submit a driver whose row has been written.

        :param secret: what the driver must know.
        :param what: its work, in human-readable form.
        :raises CdcError: if the cluster does not accept it.
        """

    def _known_driver(self, store: StateDatabase, driver: str) -> ClusterDriver:
        """Return a driver that another process may have submitted."""
        return ClusterDriver(store, self._manager, driver)

    @contextmanager
    def run(self, request: DriverRequest, requester: str, is_killed: Callable[[], bool]) -> Iterator[ClusterDriver]:
        """Start a driver that ends with the block, or continue with the one that a dead try has left."""
        owner = uuid.uuid4().hex
        with closing(self._open_state()) as store:
            driver = self._adopt(store, request, requester, owner)
            driver = driver or self._start(store, request, requester, owner, is_killed)
            try:
                yield driver
            finally:
                driver.end_unless_released()

    @contextmanager
    def start_stream(
        self, request: DriverRequest, requester: str, is_killed: Callable[[], bool]
    ) -> Iterator[ClusterDriver]:
        """Start a driver that ends with the block unless it was released, or continue with one that is starting."""
        with self.run(request, requester, is_killed) as driver:
            yield driver

    def _open_state(self) -> StateDatabase:
        if self._context.state_url is None or self._context.state_url.get_backend_name() == "sqlite":
            raise NotReadyError(
                "the Spark connection has deploy-mode cluster, and the state database is a file on one host",
                "Set state.conn_id to a PostgreSQL or MySQL database that Airflow and the cluster can reach",
            )
        return self._context.open_state_database()

    def _adopt(self, store: StateDatabase, request: DriverRequest, requester: str, owner: str) -> ClusterDriver | None:
        """Return the driver that an earlier try of the task has left, if it does what is asked and is alive.

        Other drivers of the task are ended.
        """
        pipeline, adopted = self._context.pipeline.name, None
        newest = store.newest_epoch(pipeline) if request.is_stream else None
        for row in store.live_drivers(pipeline):
            if row.requester != requester:
                continue
            driver = self._known_driver(store, row.id)
            driver.take_over(owner)
            # A stream whose epoch has begun is supervised through its epoch; here, that is over or lost.
            is_spent = newest is not None and row.log is not None and newest.log == row.log
            if adopted is None and not is_spent and row.what == request.description and driver.can_be_adopted():
                adopted = driver
            else:
                driver.terminate()
        return adopted

    def _start(
        self,
        store: StateDatabase,
        request: DriverRequest,
        requester: str,
        owner: str,
        is_killed: Callable[[], bool],
    ) -> ClusterDriver:
        pipeline, number, key = self._context.pipeline, uuid.uuid4().hex, new_key()
        assert pipeline.state.conn_id is not None
        secret = DriverSecret(number, key, request.connections[pipeline.state.conn_id], __version__)
        sealed = seal(request.to_line(), number, key)
        what = request.description
        store.create_driver(number, pipeline.name, what=what, requester=requester, sealed=sealed, owner=owner)
        failpoint("driver.row_written")
        driver = self._known_driver(store, number)
        driver.owner = owner
        try:
            driver = self._submit(store, secret, what)
            driver.owner = owner
            failpoint("driver.submitted")
            if is_killed():  # it does not begin unless the submission is confirmed
                raise TransientError("the task was ended while it started a Spark driver", "Clear it to run it again")
            driver.confirm()
        except BaseException:
            driver.terminate()
            raise
        return driver
