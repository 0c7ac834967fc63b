"""Asks a stream to stop when the task that supervises it is about to be killed."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any

from airflow_provider_cdc.system.processes import is_on_this_machine, process_start_time

if TYPE_CHECKING:
    from airflow_provider_cdc.runtime.run_context import RunContext
    from airflow_provider_cdc.state import EpochRow

#: Seconds to wait for the state database: Airflow sends SIGKILL 5 s after it has told a task to end.
_REQUEST_SECONDS = 3.0


def request_stop(run_context: RunContext, run: EpochRow, by: str, log: Any) -> None:
    """Ask a run of the stream to stop. The caller may be a signal handler that interrupted any code.

    All work is therefore done in threads over a separate connection. If the state database cannot be reached and the
    driver is on this host, the driver gets SIGTERM, which also ends it at a transaction boundary.

    :param by: the task that asks.
    """
    requester = threading.Thread(
        target=_request_stop_in_thread, args=(run_context, run, by, log), name="stop-request", daemon=True
    )
    requester.start()
    requester.join(_REQUEST_SECONDS + 1)


def _request_stop_in_thread(run_context: RunContext, run: EpochRow, by: str, log: Any) -> None:
    requested = threading.Event()

    def ask() -> None:
        with suppress(Exception), closing(run_context.open_state_database()) as store:
            store.request_stop(run.pipeline, run.epoch, by=by)
            requested.set()

    threading.Thread(target=ask, name="stop-request-write", daemon=True).start()
    if requested.wait(_REQUEST_SECONDS):
        log.info("epoch %s was asked to stop", run.epoch)
    elif is_on_this_machine(run.host, run.machine) and process_start_time(run.pid) == run.pid_started:
        log.warning("the state database does not answer; sending SIGTERM to the driver of epoch %s", run.epoch)
        os.kill(run.pid, signal.SIGTERM)
    else:
        log.error(
            "the state database does not answer, so epoch %s could not be stopped and is still running on %s. Run "
            "`airflow-cdc stop` when the state database is back; with lease_seconds the epoch ends on its own",
            run.epoch,
            run.host,
        )
