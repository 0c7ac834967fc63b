"""Asking a stream to end when the task that supervises it is about to be killed."""

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

#: Seconds that the bookkeeping has to take the request: Airflow sends SIGKILL 5 s after it has told a task to end.
_REQUEST_SECONDS = 3.0


def request_stop(run_context: RunContext, run: EpochRow, by: str, log: Any) -> None:
    """Ask a run of the stream to end, whatever the caller is in the middle of; it may be a signal handler.

    So all is done in threads, over a connection of their own. A driver on this host that cannot be asked through the
    bookkeeping gets SIGTERM, which ends it at a transaction boundary as well.

    :param by: the task that asks.
    """
    requester = threading.Thread(target=_request_stop_in_thread, args=(run_context, run, by, log), daemon=True)
    requester.start()
    requester.join(_REQUEST_SECONDS + 1)


def _request_stop_in_thread(run_context: RunContext, run: EpochRow, by: str, log: Any) -> None:
    requested = threading.Event()

    def ask() -> None:
        with suppress(Exception), closing(run_context.open_state_database()) as store:
            store.request_stop(run.pipeline, run.epoch, by=by)
            requested.set()

    threading.Thread(target=ask, daemon=True).start()
    if requested.wait(_REQUEST_SECONDS):
        log.info("epoch %s was asked to stop", run.epoch)
    elif is_on_this_machine(run.host, run.machine) and process_start_time(run.pid) == run.pid_started:
        log.warning("the bookkeeping does not answer; the driver of epoch %s gets SIGTERM", run.epoch)
        os.kill(run.pid, signal.SIGTERM)
    else:
        log.error(
            "the bookkeeping does not answer, so epoch %s could not be asked to stop: it runs on, on %s. Run "
            "`airflow-cdc stop` when the bookkeeping is back; with lease_seconds it ends by itself",
            run.epoch,
            run.host,
        )
