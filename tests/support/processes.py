"""Servers that a test starts: each command leads a session of its own, and none outlives this process.

A small guard process watches over them: when this process ends, however it ends, the guard ends the sessions that are
still running and removes their folders. Sessions that their children have opened for themselves are left alone, as a
stream that a task has detached.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

_GRACE_OF_GUARD = 3.0


def free_port() -> int:
    """Return a loopback port nobody listens on, below those that the kernel hands to outgoing connections."""
    while True:
        port = random.randint(20_000, 32_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def wait_for(what: str, condition: Callable[[], object], seconds: float = 60, pause: float = 0.1) -> None:
    """Wait until `condition` returns something true.

    :raise TimeoutError: after `seconds`, naming `what`.
    """
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {seconds:.0f} s: {what}")
        time.sleep(pause)


def tail(log: Path, lines: int = 30) -> str:
    """Return the end of a log file."""
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:]) if log.exists() else ""


# ---------------------------------------------------------------- one session


class Session:
    """A command that leads a session of its own; its output goes to a log file (appended).

    :param user: run as this user id (and group id); only root may.
    :param children: also count the children of the leader that opened sessions of their own: PostgreSQL's do.
    """

    def __init__(
        self,
        command: Sequence[str | Path],
        log: Path,
        *,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        user: tuple[int, int] | None = None,
        children: bool = False,
    ) -> None:
        self.log = log
        self._children = children
        self._asked_to_end = False
        identity = {"user": user[0], "group": user[1], "extra_groups": []} if user else {}
        with log.open("ab") as output:
            self._process: subprocess.Popen[bytes] = subprocess.Popen(  # type: ignore[call-overload]
                [str(word) for word in command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=None if env is None else dict(env),
                cwd=cwd,
                start_new_session=True,
                **identity,
            )
        _guard.own("session", [self.pid, children])

    @property
    def pid(self) -> int:
        """Process id of the leader, and number of the session."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the leader runs (a stopped one does)."""
        return self._process.poll() is None

    @property
    def exit_code(self) -> int | None:
        """Exit code of the leader, negative for a signal; None while it runs."""
        return self._process.poll()

    def members(self) -> list[int]:
        """Process ids of all that still run in the session, the leader among them."""
        self._process.poll()
        return members(self.pid, self._children)

    def kill(self) -> None:
        """SIGKILL to the leader alone, as ``kill -9 <pid>`` does. What it has started may live on."""
        self._process.kill()
        self._process.wait()

    def kill_all(self) -> None:
        """SIGKILL to everything in the session, as when its host is lost."""
        # The leader may die first and leave children that no longer look like its own.
        found = set(self.members())
        deadline = time.monotonic() + 10
        while found:
            for pid in found:
                _signal(pid, signal.SIGKILL)
            self._process.poll()
            found = {pid for pid in found if _stat(pid) is not None} | set(self.members())
            if time.monotonic() > deadline:
                raise TimeoutError(f"processes {sorted(found)} survive SIGKILL")
            time.sleep(0.02)
        self._process.wait()
        _guard.disown("session", [self.pid, self._children])

    def stop(self) -> None:
        """SIGSTOP to everything in the session: it stands still until :meth:`cont`."""
        for pid in self.members():
            _signal(pid, signal.SIGSTOP)

    def cont(self) -> None:
        """SIGCONT to everything in the session."""
        for pid in self.members():
            _signal(pid, signal.SIGCONT)

    def terminate(self, sig: signal.Signals = signal.SIGTERM) -> None:
        """Ask the leader to end, once (a second signal makes some give up what they are closing), and do not wait."""
        if self.alive:
            self.cont()
            if not self._asked_to_end:
                _signal(self.pid, sig)
            self._asked_to_end = True

    def end(self, grace: float = 20, sig: signal.Signals = signal.SIGTERM) -> None:
        """Ask the leader to end, wait, and kill what is left of the session. Doing so twice is allowed.

        :param grace: seconds until SIGKILL.
        """
        self.terminate(sig)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(grace)
        self.kill_all()


def members(session: int, children: bool = False) -> list[int]:
    """Process ids of a session, without those that have ended and wait to be collected."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit() and (stat := _stat(int(entry))) is not None:
            parent, its_session = stat
            if its_session == session or (children and parent == session):
                found.append(int(entry))
    return found


def _stat(pid: int) -> tuple[int, int] | None:
    """Parent and session of a running process."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in (b"Z", b"X") else (int(fields[1]), int(fields[3]))


def _signal(pid: int, sig: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, sig)


# ---------------------------------------------------------------- folders


def temporary_folder(prefix: str) -> Path:
    """Make a private folder that :func:`remove_folder` or, should this process be killed, the guard removes."""
    folder = Path(tempfile.mkdtemp(prefix=prefix))
    _guard.own("folder", str(folder))
    return folder


def remove_folder(folder: Path) -> None:
    """Remove a folder of :func:`temporary_folder`."""
    shutil.rmtree(folder, ignore_errors=True)
    _guard.disown("folder", str(folder))


class StartedProcesses:
    """Processes that are started by a ``with`` statement, and closed at its end."""

    def start(self) -> Self:
        """Start them and wait until they work; they are closed if they do not."""
        try:
            self._begin()
        except BaseException:
            self.close()
            raise
        return self

    def _begin(self) -> None:
        """Start them and wait until they work."""
        raise NotImplementedError

    def close(self) -> None:
        """End them and remove what they have left. Doing so twice is allowed."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


# ---------------------------------------------------------------- the guard


class _Guard:
    """This side of the guard process: tells it what is owned. It runs only while something is."""

    def __init__(self) -> None:
        self._owned: list[object] = []
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self._pid = 0

    def own(self, kind: str, what: object) -> None:
        with self._lock:
            if self._process is None or self._pid != os.getpid():
                self._owned, self._pid = [], os.getpid()
                command = [sys.executable, "-I", "-S", __file__]
                self._process = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
            self._owned.append([kind, what])
            self._tell("own", kind, what)

    def disown(self, kind: str, what: object) -> None:
        with self._lock:
            if self._process is None or self._pid != os.getpid() or [kind, what] not in self._owned:
                return
            self._owned.remove([kind, what])
            self._tell("disown", kind, what)
            if not self._owned and self._process.stdin is not None:
                self._process.stdin.close()
                self._process.wait()
                self._process = None

    def _tell(self, *words: object) -> None:
        assert self._process is not None and self._process.stdin is not None
        self._process.stdin.write(json.dumps(words).encode() + b"\n")
        self._process.stdin.flush()


_guard = _Guard()


def _watch() -> None:
    """The guard: end of input means that the other side has ended."""
    for sig in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(sig, signal.SIG_IGN)
    owned: list[tuple[str, object]] = []
    for line in sys.stdin:
        word, kind, what = json.loads(line)
        if word == "own":
            owned.append((kind, what))
        elif (kind, what) in owned:
            owned.remove((kind, what))
    sessions = [what for kind, what in owned if kind == "session" and isinstance(what, list)]

    def running() -> set[int]:
        return {pid for session, children in sessions for pid in members(session, children)}

    seen = running()
    for pid in seen:
        _signal(pid, signal.SIGCONT)
    for session, _ in sessions:
        _signal(session, signal.SIGINT)  # in good order if they can: PostgreSQL gives back its shared memory
    deadline = time.monotonic() + _GRACE_OF_GUARD
    while running() and time.monotonic() < deadline:
        time.sleep(0.05)
    while left := running() | {pid for pid in seen if _stat(pid) is not None}:
        for pid in left:
            _signal(pid, signal.SIGKILL)
        time.sleep(0.05)
    for kind, what in owned:
        if kind == "folder":
            shutil.rmtree(str(what), ignore_errors=True)


if __name__ == "__main__":
    _watch()
