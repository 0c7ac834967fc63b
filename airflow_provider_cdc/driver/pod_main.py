"""The main program of a driver in a pod: it waits for what its task hands over, and starts Spark itself."""

from __future__ import annotations

import faulthandler
import logging
import os
import select
import sys
import tempfile
import time
from pathlib import Path

from airflow_provider_cdc.driver.cluster_driver import run_cluster_driver
from airflow_provider_cdc.driver.launchers.sealed_request import DriverSecret
from airflow_provider_cdc.model.errors import CdcError, NotReadyError, TransientError
from airflow_provider_cdc.observe.log_lines import LOGGER_NAME, log_to_standard_error
from airflow_provider_cdc.spark.kubernetes_pods import log_command
from airflow_provider_cdc.spark.pod_spec import REQUEST_PIPE
from airflow_provider_cdc.spark.session import DRIVER_POD_VARIABLE

#: Seconds that a pod waits for its request.
_WAIT_SECONDS = 600.0
_CHUNK_BYTES = 1 << 16


def main() -> int:
    """Carry out the request of this driver.

    :returns: exit code, which decides only what the cluster shows.
    """
    faulthandler.enable()
    log_to_standard_error(logging.INFO)
    os.environ.setdefault("AIRFLOW_CDC_STATE_DIR", os.path.join(tempfile.gettempdir(), "airflow-cdc"))
    try:
        if DRIVER_POD_VARIABLE not in os.environ:
            raise NotReadyError("this is not the pod of a driver", "Start drivers by their operators only")
        address = log_command(*os.environ[DRIVER_POD_VARIABLE].split("/"))
        return run_cluster_driver(wait_for_secret(Path(REQUEST_PIPE)), address)
    except CdcError as error:
        logging.getLogger(LOGGER_NAME).error("%s", error)
        return 1


def wait_for_secret(pipe: Path, seconds: float = _WAIT_SECONDS) -> DriverSecret:
    """Create a pipe that only this user can open, and wait for a line in it.

    :raises TransientError: if nothing has come in time.
    """
    os.mkfifo(pipe, 0o600)
    deadline, text = time.monotonic() + seconds, b""
    # Open for writing as well: otherwise, the end of a writer would be the end of the pipe.
    end = os.open(pipe, os.O_RDWR | os.O_NONBLOCK)
    try:
        while (left := deadline - time.monotonic()) > 0:
            if select.select([end], [], [], left)[0]:
                text += os.read(end, _CHUNK_BYTES)
            if text.endswith(b"\n"):
                return DriverSecret.from_bytes(text)
        raise TransientError("no task has handed over a request", "Clear the task that has created this pod")
    finally:
        os.close(end)
        pipe.unlink()


if __name__ == "__main__":
    sys.exit(main())
