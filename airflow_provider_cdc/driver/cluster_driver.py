"""A driver that a cluster runs: it fetches its request, and records its outcome in its row.

The driver's first act in the state database is to take its row. One that comes too late, because its task has given up
or another process has begun as the same driver, ends without doing anything.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from contextlib import closing
from dataclasses import replace
from typing import Any

from airflow_provider_cdc import __version__
from airflow_provider_cdc.config.connections import ResolvedConnection, database_url
from airflow_provider_cdc.driver.carry_out import carry_out
from airflow_provider_cdc.driver.launchers.sealed_request import DriverSecret, unseal
from airflow_provider_cdc.driver.request import DriverRequest
from airflow_provider_cdc.model.errors import CdcError, NotReadyError, TransientError
from airflow_provider_cdc.model.supervision import HEARTBEAT_SECONDS
from airflow_provider_cdc.observe.log_lines import LOGGER_NAME
from airflow_provider_cdc.runtime.background import BackgroundLoop
from airflow_provider_cdc.runtime.outages import tolerate_outage
from airflow_provider_cdc.state import StateDatabase

#: Seconds that a driver waits for its task to confirm the submission, and between two looks.
_CONFIRM_SECONDS, _POLL_SECONDS = 120.0, 0.5
#: Seconds for which a driver that has finished tries to record its outcome.
_RECORD_SECONDS, _RETRY_SECONDS = 300.0, 2.0
#: Seconds for the state database when the cluster ends the driver.
_LAST_WORD_SECONDS = 5.0


def run_cluster_driver(secret: DriverSecret, address: str | None, parent: int | None = None) -> int:
    """Fetch the request of this driver, carry it out, and record the outcome in its row.

    :param secret: what the launcher has handed over.
    :param address: address of this driver's log.
    :param parent: process id of the JVM that has started this process; ``None`` if something else has.
    :returns: exit code, which decides only what the cluster shows.
    :raises CdcError: if the state database does not answer.
    """
    url = database_url(ResolvedConnection.from_json(secret.state))
    with closing(StateDatabase.open(url, migrate=False)) as store:
        sealed = _take(store, secret.driver, address)
        if sealed is None:
            logging.getLogger(LOGGER_NAME).warning(
                "driver %s ends: its task no longer waits for it, or it has begun elsewhere", secret.driver
            )
            return 0
        if parent is None:  # the first process of a container ignores SIGTERM unless it has a handler
            signal.signal(signal.SIGTERM, lambda *_: _end_at_once(store, secret.driver))
        code, result = _carry_out(secret, sealed, address, store, parent)
        _record(store, secret.driver, result)
        return code


def _end_at_once(store: StateDatabase, driver: str) -> None:
    """End this process because the cluster wants that. A stream that has begun has its own handler."""
    error = TransientError(
        "the cluster has ended the driver: it was deleted, evicted or preempted, or its node was drained",
        "Run the task again",
    )
    thread = threading.Thread(target=store.end_driver, args=(driver, {"error": error.to_json()}), daemon=True)
    thread.start()  # this thread may be using the state database already
    thread.join(_LAST_WORD_SECONDS)
    os._exit(128 + signal.SIGTERM)


def _take(store: StateDatabase, driver: str, log: str | None) -> str | None:
    """Take the driver's row. Wait until the task has confirmed the submission: if it was killed, nobody wants this.

    :returns: the sealed request, or ``None``.
    """
    deadline = time.monotonic() + _CONFIRM_SECONDS
    while (sealed := store.take_driver(driver, log)) is None:
        row = store.driver(driver)
        if row is None or row.state != "wanted" or time.monotonic() > deadline:
            return None
        time.sleep(_POLL_SECONDS)
    return sealed


def _carry_out(
    secret: DriverSecret, sealed: str, address: str | None, store: StateDatabase, parent: int | None
) -> tuple[int, dict[str, Any]]:
    if secret.version != __version__:
        error = NotReadyError(
            f"the cluster has airflow-provider-cdc {__version__}, and Airflow has {secret.version}",
            "Install the same version in the cluster (its image, its archive, or spark.pyspark.python)",
        )
        return 1, {"error": error.to_json()}
    try:
        request = DriverRequest.from_line(unseal(sealed, secret.driver, secret.key))
    except CdcError as error:
        return 1, {"error": error.to_json()}
    last_line = LastLine()
    logging.getLogger(LOGGER_NAME).addHandler(last_line)
    with DriverHeartbeat(store, secret.driver, last_line, parent, needs_row=not request.is_stream):
        return carry_out(replace(request, log=address))


class LastLine(logging.Handler):
    """Remembers the last line that this driver has written to its log.

    :param text: the line, without time and level; ``None`` at first.
    """

    def __init__(self) -> None:
        super().__init__()
        self.text: str | None = None

    def emit(self, record: logging.LogRecord) -> None:
        """Remember the line of a record."""
        self.text = record.getMessage()


class DriverHeartbeat(BackgroundLoop):
    """Records that this driver is alive, and ends it when it is no longer wanted or its JVM has ended.

    :param driver: id of the driver.
    :param last_line: last line of its log.
    :param parent: process id of the JVM that has started this process; ``None`` if something else has.
    :param needs_row: whether to end if the state database has lost the driver's row. A stream restores its epoch.
    """

    def __init__(
        self, store: StateDatabase, driver: str, last_line: LastLine, parent: int | None, *, needs_row: bool
    ) -> None:
        super().__init__("driver-heartbeat", HEARTBEAT_SECONDS)
        self._store, self._driver, self._last_line = store, driver, last_line
        self._parent, self._needs_row = parent, needs_row
        self._is_ending = False

    def _step(self) -> None:
        if self._parent not in (None, os.getppid()):  # the container was killed, and this process was left over
            os._exit(1)
        is_wanted: bool | None = True
        with tolerate_outage():
            is_wanted = self._store.record_driver_heartbeat(self._driver, self._last_line.text)
        if is_wanted or (is_wanted is None and not self._needs_row) or self._is_ending:
            return
        self._is_ending = True
        logging.getLogger(LOGGER_NAME).warning("driver %s is not wanted any more: ending", self._driver)
        if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            os._exit(1)
        os.kill(os.getpid(), signal.SIGTERM)  # a stream ends at a transaction boundary


def _record(store: StateDatabase, driver: str, result: dict[str, Any]) -> None:
    """Record the outcome. During an outage of the state database, try again for some time."""
    deadline = time.monotonic() + _RECORD_SECONDS
    while True:
        try:
            store.end_driver(driver, result)
            return
        except TransientError:
            if time.monotonic() > deadline:
                raise
            threading.Event().wait(_RETRY_SECONDS)
