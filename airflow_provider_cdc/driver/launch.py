"""Starting drivers: processes of their own session that get their request, secrets and all, on standard input."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_provider_cdc.config.connections import environment_without_airflow
from airflow_provider_cdc.model.errors import REPORT_REMEDY, UnexpectedError, make_error
from airflow_provider_cdc.system.processes import end_session, rotated_log
from airflow_provider_cdc.system.temp_dirs import temporary_folder

if TYPE_CHECKING:
    from airflow_provider_cdc.driver.main import DriverRequest

#: ``-P``: nothing is imported from the folder that the driver works in, where others may be able to write.
_COMMAND = [sys.executable, "-P", "-m", "airflow_provider_cdc.driver.main"]
#: Seconds that a driver is given to end by itself, and log files of streams that are kept.
_GRACE_SECONDS, _KEEP_LOGS = 10.0, 20
#: Signals of machine code that went wrong; a driver says then where it was.
_CRASH_SIGNALS = (signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGABRT)


class DriverProcess:
    """A driver that lives as long as the caller.

    :param process: leader of its session.
    :param result: file that it writes at its end.
    """

    def __init__(self, process: subprocess.Popen[str], result: Path) -> None:
        self._process, self._result = process, result

    def output_lines(self) -> Iterator[str]:
        """What the driver says, until it ends."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            yield line.rstrip()

    def wait_for_outcome(self) -> dict[str, Any]:
        """What it came to.

        :raises CdcError: as the driver itself raised it.
        :raises TransientError: if it was killed.
        """
        return read_outcome(self._result, self._process.wait())

    def terminate(self) -> None:
        """End it with everything it has started."""
        end_session(self._process.pid, _GRACE_SECONDS)


@contextmanager
def start_attached(request: DriverRequest) -> Iterator[DriverProcess]:
    """Start a driver that ends when the block ends or this process dies.

    :param request: its ``result`` is set here.
    """
    with temporary_folder() as folder:
        result = folder / "result.json"
        process = subprocess.Popen(
            _COMMAND,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            cwd=folder,
            env=environment_without_airflow(),
            start_new_session=True,
        )
        driver = DriverProcess(process, result)
        try:
            assert process.stdin is not None
            with suppress(BrokenPipeError):  # it died at once: its outcome says so
                process.stdin.write(replace(request, result=str(result)).to_line())
                process.stdin.flush()  # and stays open: see the driver's lifeline
            yield driver
        finally:
            driver.terminate()
            process.wait()


def start_detached(request: DriverRequest, log: Path) -> subprocess.Popen[bytes]:
    """Start a driver that outlives this process, once :func:`release` has let it go.

    :param request: its ``result`` and ``log`` name files beside ``log``.
    :param log: file for everything it says; only its owner may read it.
    """
    process = subprocess.Popen(
        _COMMAND,
        stdin=subprocess.PIPE,
        stdout=(out := os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)),
        stderr=out,
        cwd=log.parent,
        env=environment_without_airflow(),
        start_new_session=True,
    )
    os.close(out)
    assert process.stdin is not None
    with suppress(BrokenPipeError):  # it died at once: its outcome says so
        process.stdin.write(request.to_line().encode())
        process.stdin.flush()  # and stays open: see the driver's lifeline
    return process


def release_driver(process: subprocess.Popen[bytes]) -> None:
    """Let go of a driver that :func:`detach` has started."""
    from airflow_provider_cdc.driver.main import RELEASE_LINE

    assert process.stdin is not None
    with suppress(BrokenPipeError), process.stdin as pipe:
        pipe.write(RELEASE_LINE.encode())


def new_log_file(folder: Path) -> Path:
    """Name of a fresh log file in a folder; the oldest ones are removed."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for old in sorted(folder.glob("stream-*.log"), key=lambda p: p.stat().st_mtime)[:-_KEEP_LOGS]:
        for path in (old, rotated_log(old), result_file(old)):
            path.unlink(missing_ok=True)
    return folder / f"stream-{uuid.uuid4().hex[:12]}.log"


def result_file(log: Path) -> Path:
    """File with the outcome of the driver that writes to a log."""
    return log.with_suffix(".json")


def read_outcome(result: Path, code: int) -> dict[str, Any]:
    """What a driver that has ended came to.

    :param result: file that it writes at its end.
    :param code: its exit code; negative for a signal.
    :raises CdcError: as the driver itself raised it.
    :raises UnexpectedError: if it was killed, or failed in an unexpected way.
    """
    from airflow_provider_cdc.sinks.storage.local_storage import LocalStorage
    from airflow_provider_cdc.sinks.storage.storage import read_json

    stored = read_json(LocalStorage(result.parent), result.name)
    if stored is None:
        how, remedy = f"with exit code {code}", "look at its last lines and at the memory of the host"
        if code < 0:
            how = f"by signal {-code} ({signal.strsignal(-code) or 'unknown'})"
        if -code in _CRASH_SIGNALS:
            remedy = f"its last lines say where it crashed: {REPORT_REMEDY}"
        raise UnexpectedError(
            f"the Spark driver ended {how} and left no result", f"Run it again; if that recurs, {remedy}"
        )
    if "error" in stored:
        raise make_error(**stored["error"])
    outcome: dict[str, Any] = stored["outcome"]
    return outcome
