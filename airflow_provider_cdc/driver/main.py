"""The process that runs Spark for a scheduler's task.

It runs one chunk group, a re-snapshot, the stream, maintenance or a comparison. The request, including the
connections, is one line of JSON on standard input, so that no secret is ever on a command line, in the environment or
in a file. The result is written to a file that the request names; all other output goes to standard error.

A driver lives as long as its task: the pipe stays open, and when it closes, the whole session ends. A stream's driver
is released by :data:`RELEASE_LINE` when its task has found its epoch in the state database. From then on it runs
independently, and a task supervises it through that database.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

from airflow_provider_cdc.driver.carry_out import carry_out
from airflow_provider_cdc.driver.request import DriverRequest
from airflow_provider_cdc.sinks.storage.local_storage import LocalStorage
from airflow_provider_cdc.sinks.storage.storage import write_json
from airflow_provider_cdc.system.processes import kill_session, rotate_log

#: The line with which a task releases the driver of a stream.
RELEASE_LINE = "release\n"
#: Seconds between two checks of the size of a stream's log.
_LOG_SECONDS = 10.0


def main() -> int:
    """Carry out the request on standard input.

    :returns: exit code, as of the command line.
    """
    faulthandler.enable()  # crashes in machine code leave a traceback in the log
    request = DriverRequest.from_line(sys.stdin.readline())
    threading.Thread(target=_end_with_task, name="task-lifeline", daemon=True).start()
    if request.log is not None:
        rotation = Path(request.log), request.log_bytes
        rotate_log(*rotation)
        threading.Thread(target=_rotate_log, args=rotation, name="log-rotation", daemon=True).start()
    code, result = carry_out(request)
    _write_result(request, result)
    return code


def _write_result(request: DriverRequest, value: dict[str, Any]) -> None:
    """Write the result for the task, which runs on this host. This file is unrelated to the sink's storage."""
    path = Path(request.result)
    write_json(LocalStorage(path.parent), path.name, value)


def _end_with_task() -> None:
    """End the driver and everything that it has started when the task closes standard input or dies.

    This does not apply after the task has released the driver. A stream that has just begun ends at a transaction
    boundary.
    """
    if sys.stdin.readline() == RELEASE_LINE:
        return
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        kill_session(os.getsid(0))
    os.kill(os.getpid(), signal.SIGTERM)


def _rotate_log(log: Path, limit: int) -> None:
    while True:
        time.sleep(_LOG_SECONDS)
        rotate_log(log, limit)


if __name__ == "__main__":
    sys.exit(main())
