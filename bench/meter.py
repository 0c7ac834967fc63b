"""Processor time of a running pipeline, by what uses it."""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path

from tests.support.cli import session_processes

#: What the server's time is called.
SERVER = "MySQL"


class Meter:
    """Processor time of the processes of a session and of a server, by what they are.

    :param session: its leader, the driver of a stream.
    :param server: the server, if its process is known.
    """

    def __init__(self, session: int, server: int | None) -> None:
        self._session, self._server = session, server
        self._seen: dict[int, tuple[str, float]] = {}
        self._marked: dict[int, float] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._go)

    def __enter__(self) -> Meter:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _go(self) -> None:
        while not self._over.wait(0.2):
            self._look()

    def _look(self) -> None:
        for pid in [*session_processes(self._session), *([self._server] if self._server else [])]:
            with contextlib.suppress(OSError):
                used = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                # The name each time: a process of Spark's begins as a shell.
                self._seen[pid] = self._name(pid), sum(map(int, used[11:13])) / os.sysconf("SC_CLK_TCK")

    def _name(self, pid: int) -> str:
        command = Path(f"/proc/{pid}/cmdline").read_text()
        if pid == self._server:
            return SERVER
        if pid == self._session:
            return "driver: merges"
        if "java" in command.partition("\0")[0]:
            return "Spark's JVM"
        return "planner" if "streaming_source_runner" in command else "tasks: decode, compact"

    def mark(self) -> None:
        """Count from here."""
        self._look()
        self._marked = {pid: used for pid, (_, used) in self._seen.items()}

    def used(self) -> dict[str, float]:
        """Seconds since then, by what used them."""
        found: dict[str, float] = {}
        for pid, (name, used) in self._seen.items():
            found[name] = found.get(name, 0.0) + used - self._marked.get(pid, 0.0)
        return found
