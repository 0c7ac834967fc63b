"""Processes and sessions in Linux, and the log files of processes.

All processes that a driver starts (the JVM, and Spark's Python workers, which create their own process groups) stay in
the driver's session, so sessions are observed and ended as a whole.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import time
from contextlib import suppress
from functools import cache
from pathlib import Path


def process_start_time(pid: int) -> float:
    """Return the start time of a living process in clock ticks since boot, or 0 if there is none.

    Process ids alone are reused.
    """
    fields = _stat_fields(pid)
    return float(fields[19]) if fields and fields[0] != "Z" else 0.0


@cache
def pid_scope_id() -> str:
    """Return an id of the scope of process ids: the boot of a kernel, and a PID namespace.

    Containers may share a host name, and each has a process 1. Empty if the kernel does not provide the id.
    """
    try:
        return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()}/{os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:
        return ""


def is_on_this_machine(host: str, other_machine: str | None) -> bool:
    """Return whether process ids on a host with this :func:`pid_scope_id` are valid here."""
    return host == socket.gethostname() and other_machine == pid_scope_id() != ""


def has_died_here(host: str, machine: str | None, pid: int, started: float) -> bool:
    """Return whether a process on this host has ended; ``False`` for other hosts, whose processes are not visible.

    :param machine: its :func:`pid_scope_id`.
    :param started: its :func:`process_start_time`.
    """
    return is_on_this_machine(host, machine) and process_start_time(pid) != started


def describe_exit(code: int) -> str:
    """Return how a process has ended, such as ``by signal 9 (Killed)`` or ``with exit code 1``.

    :param code: its exit code; negative for a signal.
    """
    return f"by signal {-code} ({signal.strsignal(-code) or 'unknown'})" if code < 0 else f"with exit code {code}"


def session_members(session: int) -> list[int]:
    """Return the ids of the living processes of a session."""
    pids = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            fields = _stat_fields(int(entry.name))
            if fields and fields[0] != "Z" and int(fields[3]) == session:
                pids.append(int(entry.name))
    return pids


def end_session(session: int, patience: float) -> None:
    """End all processes of a session: send SIGTERM to its leader, and SIGKILL to the rest after a while.

    :param session: id of the session, which is that of its leader.
    :param patience: seconds for the leader to end its own children.
    """
    deadline = time.monotonic() + patience
    with suppress(ProcessLookupError):
        os.kill(session, signal.SIGTERM)
    while process_start_time(session) and time.monotonic() < deadline:
        time.sleep(0.05)
    kill_session(session)


def kill_session(session: int) -> None:
    """Send SIGKILL to all processes of a session, with the calling process last if it is one of them."""
    own_pid = os.getpid()
    pids = session_members(session)
    for pid in [p for p in pids if p != own_pid] + [p for p in pids if p == own_pid]:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def rotated_log(log: Path) -> Path:
    """Return the file with a log's older part, which was moved there by the last rotation."""
    return log.with_name(f"{log.name}.1")


def rotate_log(log: Path, limit: int) -> None:
    """Move the content of a log to :func:`rotated_log` if it has more than ``limit`` bytes.

    The content is copied and the log then truncated, because processes such as the JVM have it open. They append, so
    they continue at its beginning.
    """
    with suppress(OSError), open(log, "r+b") as source:
        if os.fstat(source.fileno()).st_size <= limit:
            return
        copy = log.with_name(f"{log.name}.2")
        with open(os.open(copy, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as target:
            shutil.copyfileobj(source, target)
        os.replace(copy, rotated_log(log))
        source.truncate(0)


def tail_log(log: str | Path | None, lines: int) -> list[str]:
    """Return the last lines of a log and of its :func:`rotated_log`; empty if they cannot be read from here."""
    collected: list[str] = []
    for path in (Path(log), rotated_log(Path(log))) if log else ():
        with suppress(OSError), open(path, "rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - 400 * lines))
            collected = file.read().decode(errors="replace").splitlines() + collected
        if len(collected) >= lines:
            break
    return collected[-lines:]


def _stat_fields(pid: int) -> list[str]:
    """Return the fields of ``/proc/<pid>/stat`` from the state on; empty if there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (OSError, ValueError):
        return []
