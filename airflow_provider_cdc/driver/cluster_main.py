"""The main program of a driver that a cluster runs: it fetches its request, and records its outcome in its row.

Spark has started this process, and expects a Spark session from it at once. The driver's first act in the state
database is to take its row. One that comes too late, because its task has given up or another process has begun as
the same driver, ends without doing anything.
"""

from __future__ import annotations

import faulthandler
import getpass
import logging
import os
import signal
import threading
import time
from contextlib import closing, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from airflow_provider_cdc import __version__
from airflow_provider_cdc.config.connections import ResolvedConnection, database_url
from airflow_provider_cdc.driver.launchers.sealed_request import ALIAS, DriverSecret, unseal
from airflow_provider_cdc.driver.main import DriverRequest, carry_out
from airflow_provider_cdc.model.errors import CdcError, NotReadyError, TransientError
from airflow_provider_cdc.model.supervision import HEARTBEAT_SECONDS
from airflow_provider_cdc.observe.log_lines import LOGGER_NAME, log_to_standard_error
from airflow_provider_cdc.runtime.background import BackgroundLoop
from airflow_provider_cdc.runtime.outages import tolerate_outage
from airflow_provider_cdc.spark.session import open_cluster_session
from airflow_provider_cdc.state import StateDatabase

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Seconds that a driver waits for its task to confirm the submission, and between two looks.
_CONFIRM_SECONDS, _POLL_SECONDS = 120.0, 0.5
#: Seconds for which a driver that has finished tries to record its outcome.
_RECORD_SECONDS, _RETRY_SECONDS = 300.0, 2.0


def main() -> int:
    """Carry out the request of this driver.

    :returns: exit code, which decides only what the cluster shows.
    """
    faulthandler.enable()
    log_to_standard_error(logging.INFO)
    log = logging.getLogger(LOGGER_NAME)
    # The home folder of a container may not exist; nothing in this folder is needed after the container.
    os.environ.setdefault("AIRFLOW_CDC_STATE_DIR", os.path.join(os.getcwd(), "airflow-cdc"))
    parent = os.getppid()
    spark = open_cluster_session()
    try:
        secret = _read_secret(spark)
        url = database_url(ResolvedConnection.from_json(secret.state))
        with closing(StateDatabase.open(url, migrate=False)) as store:
            address = _log_address()
            sealed = _take(store, secret.driver, address)
            if sealed is None:
                log.warning("driver %s is not wanted: its task has given up, or it has begun elsewhere", secret.driver)
                return 0
            code, result = _carry_out(secret, sealed, address, store, parent)
            _record(store, secret.driver, result)
            return code
    except CdcError as error:
        log.error("%s", error)
        return 1
    finally:
        with suppress(Exception):  # the work has stopped it already
            spark.stop()


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
    secret: DriverSecret, sealed: str, address: str | None, store: StateDatabase, parent: int
) -> tuple[int, dict[str, Any]]:
    if secret.version != __version__:
        error = NotReadyError(
            f"the cluster has airflow-provider-cdc {__version__}, and Airflow has {secret.version}",
            "Install the same version in the cluster (spark.pyspark.python, or the archive that it is in)",
        )
        return 1, {"error": error.to_json()}
    try:
        request = DriverRequest.from_line(unseal(sealed, secret.driver, secret.key))
    except CdcError as error:
        return 1, {"error": error.to_json()}
    with DriverHeartbeat(store, secret.driver, parent, needs_row=not request.is_stream):
        return carry_out(replace(request, log=address))


class DriverHeartbeat(BackgroundLoop):
    """Records that this driver is alive, and ends it when it is no longer wanted or its JVM has ended.

    :param driver: id of the driver.
    :param parent: process id of the JVM that has started this process.
    :param needs_row: whether to end if the state database has lost the driver's row. A stream restores its epoch.
    """

    def __init__(self, store: StateDatabase, driver: str, parent: int, *, needs_row: bool) -> None:
        super().__init__("driver-heartbeat", HEARTBEAT_SECONDS)
        self._store, self._driver, self._parent, self._needs_row = store, driver, parent, needs_row
        self._is_ending = False

    def _step(self) -> None:
        if os.getppid() != self._parent:  # the container was killed, and this process was left over
            os._exit(1)
        is_wanted: bool | None = True
        with tolerate_outage():
            is_wanted = self._store.record_driver_heartbeat(self._driver)
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


def _read_secret(spark: SparkSession) -> DriverSecret:
    """Return the secret in the credentials of the application.

    :raises NotReadyError: if there is none: something else has started this program.
    """
    jvm: Any = spark.sparkContext._jvm
    credentials = jvm.org.apache.hadoop.security.UserGroupInformation.getCurrentUser().getCredentials()
    secret = credentials.getSecretKey(jvm.org.apache.hadoop.io.Text(ALIAS))
    if secret is None:
        raise NotReadyError("the application's credentials have no request", "Start drivers by their operators only")
    return DriverSecret.from_bytes(bytes(secret))


def _log_address() -> str | None:
    """Return the page of the logs of this container, from what YARN sets for each container."""
    node, port, container = (os.environ.get(name) for name in ("NM_HOST", "NM_HTTP_PORT", "CONTAINER_ID"))
    if not (node and port and container):
        return None
    user = os.environ.get("USER") or getpass.getuser()
    return f"http://{node}:{port}/node/containerlogs/{container}/{user}"
