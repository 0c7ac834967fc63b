"""Start drivers: processes in their own session that receive their request, including secrets, on standard input."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_provider_cdc.config.connections import environment_without_airflow
from airflow_provider_cdc.model.errors import (
    REPORT_REMEDY,
    AlreadyRunningError,
    StreamStoppedError,
    TerminalError,
    TransientError,
    UnexpectedError,
    make_error,
)
from airflow_provider_cdc.system.processes import describe_exit, end_session, rotated_log
from airflow_provider_cdc.system.temp_dirs import temporary_folder

if TYPE_CHECKING:
    from airflow_provider_cdc.driver.request import DriverRequest
    from airflow_provider_cdc.state import EpochRow

#: ``-P`` prevents imports from the driver's working folder, where other users may be able to write.
_COMMAND = [sys.executable, "-P", "-m", "airflow_provider_cdc.driver.main"]
#: Seconds for a driver to end before it is killed, and number of stream log files to keep.
_GRACE_SECONDS, _KEEP_LOGS = 10.0, 20
#: Signals of crashes in machine code; the driver's log then contains a traceback.
_CRASH_SIGNALS = (signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGABRT)


class DriverProcess:
    """A driver that lives no longer than the caller.

    :param process: the driver, leader of its session.
    :param result: file to which it writes its result.
    """

    def __init__(self, process: subprocess.Popen[bytes], result: Path) -> None:
        self._process, self._result = process, result

    def output_lines(self) -> Iterator[str]:
        """Yield the lines that the driver writes, until it ends."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            yield line.decode(errors="replace").rstrip()

    def wait_for_outcome(self) -> dict[str, Any]:
        """Wait for the driver to end, and return its outcome.

        :raises CdcError: as raised in the driver.
        :raises UnexpectedError: if it was killed, or crashed.
        """
        return read_outcome(self._result, self._process.wait())

    def terminate(self) -> None:
        """End the driver and everything that it has started."""
        end_session(self._process.pid, _GRACE_SECONDS)


@contextmanager
def start_attached(request: DriverRequest) -> Iterator[DriverProcess]:
    """Start a driver that ends when the block ends or this process dies.

    :param request: the request; its ``result`` is set here.
    """
    with temporary_folder() as folder:
        result = folder / "result.json"
        process = _start(replace(request, result=str(result)), folder, subprocess.PIPE)
        driver = DriverProcess(process, result)
        try:
            yield driver
        finally:
            driver.terminate()
            process.wait()


def start_detached(request: DriverRequest, log: Path) -> subprocess.Popen[bytes]:
    """Start a driver that outlives this process after :func:`detach_driver`.

    :param request: the request; its ``result`` and ``log`` are files in the folder of ``log``.
    :param log: file for all output of the driver; only its owner may read it.
    """
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        return _start(request, log.parent, output)
    finally:
        os.close(output)


def _start(request: DriverRequest, folder: Path, output: int) -> subprocess.Popen[bytes]:
    """Start a driver in a folder, and send it the request.

    :param output: file descriptor for all that it writes.
    """
    process = subprocess.Popen(
        _COMMAND,
        stdin=subprocess.PIPE,
        stdout=output,
        stderr=subprocess.STDOUT,
        cwd=folder,
        env=environment_without_airflow(),
        start_new_session=True,
    )
    assert process.stdin is not None
    try:
        with suppress(BrokenPipeError):  # it died at once: read_outcome() raises the error
            process.stdin.write(request.to_line().encode())
            process.stdin.flush()  # it stays open as the driver's lifeline
    except BaseException:  # such as a signal to this task
        end_session(process.pid, _GRACE_SECONDS)
        process.wait()
        raise
    return process


def detach_driver(process: subprocess.Popen[bytes]) -> None:
    """Let a driver that :func:`start_detached` has started outlive this process."""
    from airflow_provider_cdc.driver.main import RELEASE_LINE

    assert process.stdin is not None
    with suppress(BrokenPipeError), process.stdin as pipe:
        pipe.write(RELEASE_LINE.encode())


def new_log_file(folder: Path) -> Path:
    """Return the path of a new log file in a folder, and remove the oldest log files."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for old in sorted(folder.glob("stream-*.log"), key=lambda p: p.stat().st_mtime)[:-_KEEP_LOGS]:
        for path in (old, rotated_log(old), result_file(old)):
            path.unlink(missing_ok=True)
    return folder / f"stream-{uuid.uuid4().hex[:12]}.log"


def result_file(log: Path) -> Path:
    """Return the path of the result file of the driver that writes to a log."""
    return log.with_suffix(".json")


def read_outcome(result: Path, code: int) -> dict[str, Any]:
    """Return the outcome of a driver that has ended.

    :param result: file to which it writes its result.
    :param code: its exit code; negative for a signal.
    :raises CdcError: as raised in the driver.
    :raises UnexpectedError: if it was killed, or failed unexpectedly.
    """
    from airflow_provider_cdc.sinks.storage.local_storage import LocalStorage
    from airflow_provider_cdc.sinks.storage.storage import read_json

    stored = read_json(LocalStorage(result.parent), result.name)
    if stored is None:
        remedy = "check its last lines and the memory of the host"
        if -code in _CRASH_SIGNALS:
            remedy = f"its last lines show where it crashed: {REPORT_REMEDY}"
        raise UnexpectedError(
            f"the Spark driver ended {describe_exit(code)} and left no result",
            f"Run it again. If this happens again, {remedy}",
        )
    if "error" in stored:
        raise make_error(**stored["error"])
    outcome: dict[str, Any] = stored["outcome"]
    return outcome


class LocalStreamDriver:
    """A process on this host that runs a stream. Until it is released, it ends together with this process.

    :param process: the process.
    :param log: its log file.
    """

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self._process, self._log = process, log

    @property
    def description(self) -> str:
        """Process id and log file."""
        return f"process {self._process.pid}, log {self._log}"

    @property
    def log(self) -> str:
        """Its log file."""
        return str(self._log)

    def has_ended(self) -> bool:
        """Return whether the process has ended."""
        return self._process.poll() is not None

    def has_begun(self, epoch: EpochRow) -> bool:
        """Return whether an epoch writes to the log of this driver."""
        return epoch.log == self.log

    def raise_error(self) -> None:
        """Raise the error that ended the driver, unless it gave way to another stream or a user's request to stop."""
        try:
            read_outcome(result_file(self._log), self._process.wait())
        except (AlreadyRunningError, StreamStoppedError):
            return
        except UnexpectedError:
            raise
        except TransientError:  # it is in the task's log; during a long outage these logs would displace older ones
            for path in (self._log, result_file(self._log)):
                path.unlink(missing_ok=True)
            raise
        raise TerminalError("the Spark driver ended without a stream", f"See its log above, and {REPORT_REMEDY}")

    def release(self) -> None:
        """Let it outlive this process."""
        detach_driver(self._process)


class LocalLauncher:
    """Starts drivers as processes on this host.

    :param log_folder: folder for the logs of streams.
    """

    def __init__(self, log_folder: Path) -> None:
        self._log_folder = log_folder

    def run(
        self, request: DriverRequest, requester: str, is_killed: Callable[[], bool]
    ) -> AbstractContextManager[DriverProcess]:
        """Start a driver that ends when the block ends or this process dies; nothing is left of an earlier try."""
        return start_attached(request)

    @contextmanager
    def start_stream(
        self, request: DriverRequest, requester: str, is_killed: Callable[[], bool]
    ) -> Iterator[LocalStreamDriver]:
        """Start a driver that ends when the block ends or this process dies, unless it was released."""
        log = new_log_file(self._log_folder)
        process = start_detached(replace(request, result=str(result_file(log)), log=str(log)), log)
        assert process.stdin is not None
        try:
            yield LocalStreamDriver(process, log)
        finally:
            with suppress(OSError):  # a driver that was not released ends when its standard input closes
                process.stdin.close()
