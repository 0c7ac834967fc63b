"""Processes, their sessions, as Linux shows them, and what they left in their logs.

Everything a driver starts (the JVM, Spark's Python workers, which make process groups of their own) stays in the
driver's session, so the session is what is looked at and ended.
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
    """Start time of a living process in clock ticks since boot, 0 if there is none. Ids alone come around again."""
    fields = _stat_fields(pid)
    return float(fields[19]) if fields and fields[0] != "Z" else 0.0


@cache
def machine_id() -> str:
    """Within what process ids are told: the boot of a kernel, and a PID namespace.

    Containers may share the name of a host, and each has a process 1. Empty where the kernel does not tell.
    """
    try:
        return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()}/{os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:
        return ""


def is_on_this_machine(host: str, other_machine: str | None) -> bool:
    """Whether the process ids of a host and :func:`machine` mean here what they mean there."""
    return host == socket.gethostname() and other_machine == machine_id() != ""


def has_died_here(host: str, machine: str | None, pid: int, started: float) -> bool:
    """Whether a process of this host is gone; ``False`` for those of other hosts, of which nothing is known.

    :param machine: its :func:`machine`.
    :param started: its :func:`start_time`.
    """
    return is_on_this_machine(host, machine) and process_start_time(pid) != started


def session_members(session: int) -> list[int]:
    """Ids of the living processes of a session."""
    pids = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            fields = _stat_fields(int(entry.name))
            if fields and fields[0] != "Z" and int(fields[3]) == session:
                pids.append(int(entry.name))
    return pids


def end_session(session: int, patience: float) -> None:
    """End all processes of a session: its leader by SIGTERM first, what is left after a while by SIGKILL.

    :param session: id of the session, which is that of its leader.
    :param patience: seconds that the leader is given to end its own children.
    """
    deadline = time.monotonic() + patience
    with suppress(ProcessLookupError):
        os.kill(session, signal.SIGTERM)
    while process_start_time(session) and time.monotonic() < deadline:
        time.sleep(0.05)
    kill_session(session)


def kill_session(session: int) -> None:
    """Send SIGKILL to all processes of a session; to the calling one, if it is among them, at the end."""
    own_pid = os.getpid()
    pids = session_members(session)
    for pid in [p for p in pids if p != own_pid] + [p for p in pids if p == own_pid]:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def rotated_log(log: Path) -> Path:
    """File with what a log held before it was emptied the last time."""
    return log.with_name(f"{log.name}.1")


def rotate_log(log: Path, limit: int) -> None:
    """Move what a log holds into its :func:`older_part`, if that is more than so many bytes.

    It is copied and then emptied: those who write to it have it open, the JVM among them. They append, so they go on at
    its beginning.
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
    """The last lines of a log file and of its :func:`older_part`; empty if they cannot be read from here."""
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
    """Fields of ``/proc/<pid>/stat`` from the state on; empty if there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (OSError, ValueError):
        return []
