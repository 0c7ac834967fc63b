"""The main program of a driver in a pod: it waits for what its task hands over, and starts Spark itself.

It is the first process of its container, so SIGTERM has no effect unless there is a handler. That is installed before
anything that takes a second to import.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import select
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from airflow_provider_cdc.driver.launchers.sealed_request import DriverSecret

#: Seconds that a pod waits for its request.
_WAIT_SECONDS = 600.0
_CHUNK_BYTES = 1 << 16


def main() -> int:
    """Carry out the request of this driver.

    :returns: exit code, which decides only what the cluster shows.
    """
    signal.signal(signal.SIGTERM, lambda *_: os._exit(128 + signal.SIGTERM))
    faulthandler.enable()
    os.environ.setdefault("AIRFLOW_CDC_STATE_DIR", os.path.join(tempfile.gettempdir(), "airflow-cdc"))
    from airflow_provider_cdc.spark.pod_spec import REQUEST_PIPE, read_log_command

    # Before the other imports: with a small share of a core they take half a minute, and the task waits for the pipe.
    pipe = Path(REQUEST_PIPE)
    end = open_pipe(pipe)
    from airflow_provider_cdc.driver.cluster_driver import run_cluster_driver
    from airflow_provider_cdc.model.errors import CdcError
    from airflow_provider_cdc.observe.log_lines import LOGGER_NAME, log_to_standard_error

    log_to_standard_error(logging.INFO)
    try:
        return run_cluster_driver(wait_for_secret(pipe, end), read_log_command(os.environ))
    except CdcError as error:
        logging.getLogger(LOGGER_NAME).error("%s", error)
        return 1


def open_pipe(pipe: Path) -> int:
    """Create a pipe that only this user can open, and return its end. What is written into it is kept."""
    os.mkfifo(pipe, 0o600)
    # Open for writing as well: otherwise, the end of a writer would be the end of the pipe.
    return os.open(pipe, os.O_RDWR | os.O_NONBLOCK)


def wait_for_secret(pipe: Path, end: int, seconds: float = _WAIT_SECONDS) -> DriverSecret:
    """Wait for a line in a pipe, and remove the pipe.

    :param end: its end, which is closed.
    :raises TransientError: if nothing has come in time.
    """
    from airflow_provider_cdc.driver.launchers.sealed_request import DriverSecret
    from airflow_provider_cdc.model.errors import TransientError

    deadline, text = time.monotonic() + seconds, b""
    try:
        while (left := deadline - time.monotonic()) > 0:
            if select.select([end], [], [], left)[0]:
                text += os.read(end, _CHUNK_BYTES)
            if b"\n" in text:  # a task that could not see that it succeeded has written the line again
                return DriverSecret.from_bytes(text.partition(b"\n")[0])
        raise TransientError("no task has handed over a request", "Clear the task that has created this pod")
    finally:
        os.close(end)
        pipe.unlink()


if __name__ == "__main__":
    sys.exit(main())
