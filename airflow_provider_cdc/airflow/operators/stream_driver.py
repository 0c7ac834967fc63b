"""Starts the driver of a stream and waits until its epoch has begun. Asks it to stop when its task is killed."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from typing import TYPE_CHECKING, Any

from airflow_provider_cdc.airflow.operators.base import log_driver_tail, make_driver_request
from airflow_provider_cdc.model.errors import TransientError
from airflow_provider_cdc.system.processes import is_on_this_machine, process_start_time

if TYPE_CHECKING:
    from airflow_provider_cdc.driver.launchers.launcher import StreamDriver
    from airflow_provider_cdc.runtime.run_context import RunContext
    from airflow_provider_cdc.state import EpochRow, StateDatabase

_POLL_SECONDS = 1.0
#: Seconds to wait for the state database: Airflow sends SIGKILL 5 s after it has told a task to end.
_STOP_REQUEST_SECONDS = 3.0


@contextmanager
def start_stream(
    run_context: RunContext,
    store: StateDatabase,
    logger: Any,
    is_killed: Callable[[], bool],
    *,
    requester: str,
    catch_up: bool,
    lease: float | None,
) -> Iterator[EpochRow | None]:
    """Start a driver and wait for its epoch. Yield ``None`` if another stream started first, or a user stops it.

    The driver is released at the end of the block. Until then it ends on an error in the block, and a process on this
    host ends together with this process.

    :param logger: the task's logger.
    :param is_killed: returns whether the task is being killed.
    :param requester: identity of the task, the same for all its tries.
    :param catch_up: whether the stream ends at the source's current position.
    :param lease: seconds after which a stream that no task supervises ends itself.
    :raises CdcError: the error that ended the driver before it had an epoch.
    :raises TransientError: if the task is killed first.
    """
    from airflow_provider_cdc.driver.launchers.launcher import make_launcher

    request = make_driver_request(run_context.pipeline, catch_up=catch_up, lease=lease)
    logger.info("starting a Spark driver")
    with make_launcher(run_context).start_stream(request, requester, is_killed) as driver:
        logger.info("started the Spark driver, %s", driver.description)
        run = _wait_for_epoch(driver, run_context, store, logger, is_killed)
        yield run
        if run is not None:
            driver.release()


def _wait_for_epoch(
    driver: StreamDriver,
    run_context: RunContext,
    store: StateDatabase,
    logger: Any,
    is_killed: Callable[[], bool],
) -> EpochRow | None:
    described = driver.description
    while not is_killed():
        has_ended = driver.has_ended()  # asked first, so that an epoch that ended at once is not missed
        if driver.description != described:
            described = driver.description
            logger.info("%s", described)
        run, is_stopped = None, False
        with suppress(TransientError):  # the driver is alive: an outage of the state database is no reason to give up
            run = store.newest_epoch(run_context.pipeline.name)
            is_stopped = store.stop_requester(run_context.pipeline.name) is not None
        if run is not None and driver.has_begun(run):
            logger.info("stream epoch %s has begun; Spark UI: %s", run.epoch, run.ui or "none")
            return run
        if is_stopped:  # it could not begin, and might wait for its turn in a cluster for hours
            return None
        if has_ended:
            if run is None or run_context.liveness.is_alive(run) is False:
                log_driver_tail(run_context, logger, driver.log)
                driver.raise_error()
            return None
        time.sleep(_POLL_SECONDS)
    raise TransientError("the task was stopped while the stream was starting", "Clear it to run it again")


def request_stop(run_context: RunContext, run: EpochRow, by: str, log: Any) -> None:
    """Ask a run of the stream to stop. The caller may be a signal handler that interrupted any code.

    All work is therefore done in threads over a separate connection. If the state database cannot be reached and the
    driver is on this host, the driver gets SIGTERM, which also ends it at a transaction boundary. A driver in a cluster
    is killed by the cluster's manager: the next one continues from the last batch that was applied.

    :param by: the task that asks.
    """
    requester = threading.Thread(
        target=_request_stop_in_thread, args=(run_context, run, by, log), name="stop-request", daemon=True
    )
    requester.start()
    requester.join(_STOP_REQUEST_SECONDS + 1)


def _request_stop_in_thread(run_context: RunContext, run: EpochRow, by: str, log: Any) -> None:
    requested = threading.Event()

    def ask() -> None:
        with suppress(Exception), closing(run_context.open_state_database()) as store:
            store.request_stop(run.pipeline, run.epoch, by=by)
            requested.set()

    from airflow_provider_cdc.driver.launchers.launcher import kill_stream

    threading.Thread(target=ask, name="stop-request-write", daemon=True).start()
    if requested.wait(_STOP_REQUEST_SECONDS):
        log.info("epoch %s was asked to stop", run.epoch)
    elif _send_sigterm(run):
        log.warning("the state database does not answer; the driver of epoch %s got SIGTERM", run.epoch)
    elif kill_stream(run_context, run.log):
        log.warning("the state database does not answer; the application of epoch %s was killed", run.epoch)
    else:
        log.error(
            "the state database does not answer, so epoch %s could not be stopped and is still running on %s. Run "
            "`airflow-cdc stop` when the state database is back; with lease_seconds the epoch ends on its own",
            run.epoch,
            run.host,
        )


def _send_sigterm(run: EpochRow) -> bool:
    """Send SIGTERM to the driver of a run, if it is a process on this host that this user may end."""
    if not is_on_this_machine(run.host, run.machine) or process_start_time(run.pid) != run.pid_started:
        return False
    try:
        os.kill(run.pid, signal.SIGTERM)
    except OSError:  # on a node of a cluster, it may be another user's
        return False
    return True
