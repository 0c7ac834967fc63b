"""Starting the driver of a stream: from its process to its epoch in the bookkeeping."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_provider_cdc.airflow.operators.base import log_driver_tail, make_driver_request
from airflow_provider_cdc.model.errors import (
    REPORT_REMEDY,
    AlreadyRunningError,
    TerminalError,
    TransientError,
    UnexpectedError,
)

if TYPE_CHECKING:
    from airflow_provider_cdc.runtime.run_context import RunContext
    from airflow_provider_cdc.state import EpochRow, StateDatabase

_POLL_SECONDS = 1.0


@contextmanager
def start_stream(
    run_context: RunContext,
    store: StateDatabase,
    logger: Any,
    is_killed: Callable[[], bool],
    *,
    catch_up: bool,
    lease: float | None,
) -> Iterator[EpochRow | None]:
    """Start a driver and wait for its epoch; ``None`` if another stream was faster.

    The driver is let go where the block ends. Until then it ends with this process, or with an error in the block.

    :param logger: the task's.
    :param is_killed: whether the task is to end.
    :param catch_up: whether the stream ends at the position that the source has now.
    :param lease: seconds after which a stream that no task supervises ends itself.
    :raises CdcError: what made it end before it had an epoch.
    :raises TransientError: if the task is killed before.
    """
    from airflow_provider_cdc.driver.launch import new_log_file, release_driver, result_file, start_detached

    log = new_log_file(run_context.local_files.log_folder)
    request = make_driver_request(
        run_context.pipeline, result=str(result_file(log)), log=str(log), catch_up=catch_up, lease=lease
    )
    process = start_detached(request, log)
    assert process.stdin is not None
    try:
        logger.info("started the Spark driver, process %s, log %s", process.pid, log)
        run = _wait_for_epoch(process, log, run_context, store, logger, is_killed)
        yield run
        if run is not None:
            release_driver(process)
    finally:
        with suppress(OSError):  # one that was not let go ends with its standard input
            process.stdin.close()


def _wait_for_epoch(
    process: subprocess.Popen[bytes],
    log: Path,
    run_context: RunContext,
    store: StateDatabase,
    logger: Any,
    is_killed: Callable[[], bool],
) -> EpochRow | None:
    while not is_killed():
        code = process.poll()  # before the look, so that an epoch that ended at once is not missed
        run = None
        with suppress(TransientError):  # the driver lives: an outage of the bookkeeping is no reason to give up
            run = store.newest_epoch(run_context.pipeline.name)
        if run is not None and run.log == str(log):
            logger.info("stream epoch %s has begun; its page: %s", run.epoch, run.ui or "none")
            return run
        if code is not None:
            if run is None or run_context.liveness.is_alive(run) is False:
                log_driver_tail(logger, str(log))
                _raise_driver_error(log, code)
            return None
        time.sleep(_POLL_SECONDS)
    raise TransientError("the task was stopped while the stream was starting", "Clear it to run it again")


def _raise_driver_error(log: Path, code: int) -> None:
    """Raise what a driver without an epoch ended with, unless it saw another stream, which has ended since."""
    from airflow_provider_cdc.driver.launch import read_outcome, result_file

    try:
        read_outcome(result_file(log), code)
    except AlreadyRunningError:
        return
    except UnexpectedError:
        raise
    except TransientError:  # the task's log has it; in a long outage it would push out older ones
        for path in (log, result_file(log)):
            path.unlink(missing_ok=True)
        raise
    raise TerminalError("the Spark driver ended without a stream", f"See its log above, and {REPORT_REMEDY}")
