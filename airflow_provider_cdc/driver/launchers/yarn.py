"""Drivers as applications of a YARN cluster.

A driver is what its row in the state database says: the row stands before anything is submitted, and its id is in the
application's tag, so that the next try of a task finds what a dead one has left. Success is what the row says. The
ResourceManager is asked only about drivers that have not begun, or are silent.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from typing import TYPE_CHECKING, Any

from airflow_provider_cdc import __version__
from airflow_provider_cdc.config.spark_conf import YarnCluster
from airflow_provider_cdc.driver.launchers.sealed_request import DriverSecret, new_key, seal
from airflow_provider_cdc.driver.launchers.yarn_submission import driver_tag, submit
from airflow_provider_cdc.driver.main import UI_LINE_PREFIX
from airflow_provider_cdc.model.errors import (
    REPORT_REMEDY,
    AlreadyRunningError,
    CdcError,
    NotReadyError,
    TerminalError,
    TransientError,
    UnexpectedError,
    make_error,
)
from airflow_provider_cdc.model.supervision import LOST_AFTER_SECONDS, HeartbeatMonitor
from airflow_provider_cdc.spark.resource_manager import Application, ResourceManager, tail_driver_log
from airflow_provider_cdc.system.failpoints import failpoint

if TYPE_CHECKING:
    from airflow_provider_cdc.driver.main import DriverRequest
    from airflow_provider_cdc.runtime.run_context import RunContext
    from airflow_provider_cdc.state import EpochRow, StateDatabase
    from airflow_provider_cdc.state.models import DriverRow

_POLL_SECONDS, _ASK_SECONDS = 1.0, 5.0
#: Seconds after which a driver is lost that neither writes to its row nor is known to an answering ResourceManager.
_UNKNOWN_SECONDS = 60.0
#: Seconds to end a driver when the task is killed: Airflow sends SIGKILL after 5 s.
_KILL_SECONDS = 4.0
_TAIL_LINES = 40


class YarnDriver:
    """A driver that was submitted. It implements both kinds of drivers of :mod:`.launcher`.

    :param store: the state database.
    :param manager: the ResourceManager.
    :param driver: id of the driver.
    """

    def __init__(self, store: StateDatabase, manager: ResourceManager, driver: str) -> None:
        self._store, self._manager, self._driver = store, manager, driver
        self._monitor = HeartbeatMonitor(LOST_AFTER_SECONDS)
        self._row: DriverRow | None = None
        self._asked_at, self._known_at = float("-inf"), time.monotonic()
        self._released = False
        #: What the ResourceManager last said.
        self._manager_says = ""

    @property
    def description(self) -> str:
        """Id of the driver, and its application if that is known."""
        handle = self._row.handle if self._row is not None else None
        return f"YARN application {handle or 'not known yet'}, tag {driver_tag(self._driver)}"

    @property
    def log(self) -> str | None:
        """Page of the logs of the driver's container."""
        return self._row.log if self._row is not None else None

    def look(self) -> DriverRow | None:
        """Read the driver's row. If the driver is over according to YARN but not according to its row, end it.

        :returns: the row; ``None`` if the state database does not answer.
        :raises UnexpectedError: if the state database does not know the driver.
        """
        try:
            row = self._end_if_over(self._store.driver(self._driver))
        except UnexpectedError:
            raise
        except TransientError:
            self._monitor = HeartbeatMonitor(LOST_AFTER_SECONDS)  # the driver could not write either
            return None
        self._row = row
        return row

    def _end_if_over(self, row: DriverRow | None) -> DriverRow:
        if row is not None and row.state != "ended":
            is_alive = row.state == "running" and self._monitor.observe(row.heartbeat_at, time.monotonic()) is not False
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
        """Confirm that the driver is wanted, if its application exists. Before that, it does not begin.

        :returns: whether the application exists and is not over.
        :raises CdcError: if YARN or the state database does not answer.
        """
        app = self._manager.find_application(driver_tag(self._driver))
        if app is None or app.is_over:
            return False
        self._store.record_submission(self._driver, app.id, self._manager.page(app.id), app.log)
        row = self.look()
        return row is not None and row.state != "ended"

    def _ask_manager(self, row: DriverRow) -> None:
        """Record what the ResourceManager says of a driver that does not speak for itself."""
        app: Application | None = None
        try:
            app = self._manager.find_application(driver_tag(self._driver))
            self._manager_says = str(app) if app is not None else "YARN does not know the application"
        except CdcError as error:
            self._manager_says = str(error)
        if app is not None:
            self._known_at = time.monotonic()
            if row.handle is None or (row.log is None and app.log is not None):
                self._store.record_submission(self._driver, app.id, self._manager.page(app.id), app.log)
        if app is not None and app.is_over:
            remedy = f"See its log {row.log or app.log or self._manager.page(app.id)}"
            self._end(UnexpectedError(f"the Spark driver ended without a result: {app}", remedy))
        elif time.monotonic() - self._known_at > _UNKNOWN_SECONDS:
            self._end(UnexpectedError(f"the Spark driver was lost: {self._manager_says}", "Run the task again"))

    def _end(self, error: CdcError) -> None:
        self._store.end_driver(self._driver, {"error": error.to_json()})

    def output_lines(self) -> Iterator[str]:
        """Yield what happens to the driver, the address of its page, and at its end the last lines of its log."""
        said = ""
        while True:
            row = self.look()
            if row is not None and row.state == "ended":
                break
            news = f"{self.description}: waiting. {self._manager_says}".rstrip()
            if row is not None and row.state == "running":
                news = f"{self.description}: running, log {row.log}"
            if news != said and row is not None:
                yield news
                if row.link and row.state == "running":
                    yield f"{UI_LINE_PREFIX}{row.link}"
                said = news
            time.sleep(_POLL_SECONDS)
        lines = tail_driver_log(self.log, _TAIL_LINES)
        if lines:
            yield f"the end of the driver's log {self.log}:"
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
        """End the driver: its row first, so that it cannot begin any more, then its application."""
        thread = threading.Thread(target=self._terminate, name="driver-end", daemon=True)
        thread.start()
        thread.join(_KILL_SECONDS)

    def _terminate(self) -> None:
        with suppress(CdcError):
            self._end(TransientError("the driver was ended with its task", "Clear the task to run it again"))
        with suppress(CdcError):
            app = self._manager.find_application(driver_tag(self._driver))
            if app is not None and not app.is_over:
                self._manager.kill(app.id)

    def has_ended(self) -> bool:
        """Return whether the driver has ended."""
        row = self.look()
        return row is not None and row.state == "ended"

    def has_begun(self, epoch: EpochRow) -> bool:
        """Return whether an epoch writes to the log of this driver."""
        return self.log is not None and epoch.log == self.log

    def raise_error(self) -> None:
        """Raise the error that ended the driver, unless it gave way to another stream."""
        try:
            self.wait_for_outcome()
        except AlreadyRunningError:
            return
        raise TerminalError("the Spark driver ended without a stream", f"See its log above, and {REPORT_REMEDY}")

    def release(self) -> None:
        """Let it outlive the task."""
        self._released = True

    def end_unless_released(self) -> None:
        """End the driver if it still runs, unless it was released."""
        if self._released or (self._row is not None and self._row.state == "ended"):
            return
        self.terminate()


class YarnLauncher:
    """Starts drivers in a YARN cluster.

    :param context: the pipeline.
    :param cluster: the cluster.
    """

    def __init__(self, context: RunContext, cluster: YarnCluster) -> None:
        self._context, self._manager = context, ResourceManager(cluster.resource_manager)

    @contextmanager
    def run(self, request: DriverRequest, requester: str) -> Iterator[YarnDriver]:
        """Start a driver that ends with the block, or continue with the one that a dead try has left."""
        with closing(self._open_state()) as store:
            driver = self._adopt(store, request, requester) or self._start(store, request, requester)
            try:
                yield driver
            finally:
                driver.end_unless_released()

    @contextmanager
    def start_stream(self, request: DriverRequest, requester: str) -> Iterator[YarnDriver]:
        """Start a driver that ends with the block unless it was released, or continue with one that is starting."""
        with self.run(request, requester) as driver:
            yield driver

    def _open_state(self) -> StateDatabase:
        if self._context.state_url is None or self._context.state_url.get_backend_name() == "sqlite":
            raise NotReadyError(
                "the Spark connection has deploy-mode cluster, and the state database is a file on one host",
                "Set state.conn_id to a PostgreSQL or MySQL database that Airflow and the cluster can reach",
            )
        return self._context.open_state_database()

    def _adopt(self, store: StateDatabase, request: DriverRequest, requester: str) -> YarnDriver | None:
        """Return the driver that an earlier try of the task has left, if it does what is asked and is alive.

        Other drivers of the task are ended.
        """
        pipeline, adopted = self._context.pipeline.name, None
        newest = store.newest_epoch(pipeline) if request.is_stream else None
        for row in store.live_drivers(pipeline):
            if row.requester != requester:
                continue
            driver = YarnDriver(store, self._manager, row.id)
            # A stream whose epoch has begun is supervised through its epoch; here, that is over or lost.
            is_spent = newest is not None and row.log is not None and newest.log == row.log
            if adopted is None and not is_spent and row.what == request.description and driver.confirm():
                adopted = driver
            else:
                driver.terminate()
        return adopted

    def _start(self, store: StateDatabase, request: DriverRequest, requester: str) -> YarnDriver:
        pipeline, number, key = self._context.pipeline, uuid.uuid4().hex, new_key()
        assert pipeline.state.conn_id is not None
        secret = DriverSecret(number, key, request.connections[pipeline.state.conn_id], __version__)
        sealed = seal(request.to_line(), number, key)
        store.create_driver(number, pipeline.name, what=request.description, requester=requester, sealed=sealed)
        driver = YarnDriver(store, self._manager, number)
        failpoint("driver.row_written")
        try:
            submit(pipeline.name, self._context.spark_config[1], secret)
            failpoint("driver.submitted")
            driver.confirm()
        except BaseException:
            driver.terminate()
            raise
        return driver
