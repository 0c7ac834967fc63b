"""The canary: a password that nobody else has must appear nowhere, in no form, whatever goes wrong."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import secrets
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus

import pytest

from tests.support.cli import Cli, session_processes
from tests.support.processes import wait_for
from tests.support.servers import MySQLServer


def forms(secret: str) -> dict[str, bytes]:
    """The secret in the forms in which it might get out."""
    found = {
        "plain": secret,
        "percent": quote(secret, safe=""),
        "percent, slashes kept": quote(secret),
        "plus": quote_plus(secret),
        "json": json.dumps(secret)[1:-1],
        "repr": repr(secret)[1:-1],
        "hex": secret.encode().hex(),
    }
    encoded = {name: text.encode() for name, text in found.items()}
    encoded["utf-16"] = secret.encode("utf-16-le")
    for shift in range(3):  # base64 of a longer text: what it holds depends on where the secret begins
        whole = base64.b64encode(b"\0" * shift + secret.encode())
        encoded[f"base64, {shift} bytes before"] = whole[(shift * 8 + 5) // 6 : len(whole) - 4]
    return encoded


def leaks(where: str, data: bytes, secret: str) -> list[str]:
    lower = data.lower()
    return [f"{name} in {where}" for name, form in forms(secret).items() if form in data or form.lower() in lower]


class Watch:
    """Reads command lines and environments of a process's whole session for as long as it lives.

    The process itself may hold the secret in its environment: that is where its user put it. What it starts may not.
    """

    def __init__(self, process: subprocess.Popen[str], secret: str) -> None:
        self.found: set[str] = set()
        self.seen: set[str] = set()
        self._process, self._secret = process, secret
        self._thread = threading.Thread(target=self._loop)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join()

    def _loop(self) -> None:
        own = b""
        while self._process.poll() is None:
            for pid in session_processes(self._process.pid):
                with contextlib.suppress(OSError):
                    command = Path(f"/proc/{pid}/cmdline").read_bytes()
                    self.found |= set(leaks(f"the command line of {command[:80]!r}", command, self._secret))
                    if pid == self._process.pid:
                        own = command
                        continue
                    if command in (own, b""):
                        continue  # between fork and exec it is still a copy of the process itself
                    self.seen.add(os.path.basename(command.split(b"\0")[0]).decode())
                    environment = Path(f"/proc/{pid}/environ").read_bytes()
                    self.found |= set(leaks(f"the environment of {command[:80]!r}", environment, self._secret))
            time.sleep(0.05)


class Canary:
    """A pipeline whose files all lie in one folder: sink, working folder, HOME and temporary files."""

    def __init__(self, folder: Path, server: MySQLServer, database: str, password: str) -> None:
        self.folder, self.password = folder, password
        user = server.create_cdc_user(f"canary_{secrets.token_hex(4)}", password=password)
        self.cli = Cli(folder / "work", server, rf"{database}\..*", name=database, user=user)
        self.env = {
            "HOME": str(folder / "home"),
            "TMPDIR": str(folder / "tmp"),
            "SPARK_LOCAL_DIRS": str(folder / "spark"),
        }
        # Files of Spark are looked at as it leaves them, so it must not tidy up what was written on the way.
        for path in self.env.values():
            Path(path).mkdir(parents=True)

    def start(self, *args: str) -> subprocess.Popen[str]:
        return self.cli.start(*args, **self.env, JAVA_TOOL_OPTIONS=f"-Djava.io.tmpdir={self.folder / 'tmp'}")

    def files(self) -> list[str]:
        found = []
        for path in self.folder.rglob("*"):
            found += leaks(f"the name {path}", str(path).encode(), self.password)
            if path.is_file():
                with contextlib.suppress(OSError):
                    found += leaks(str(path.relative_to(self.folder)), path.read_bytes(), self.password)
        return found


#: Percent signs, slashes, quotes and an umlaut: every one of them has been left unescaped by somebody.
PASSWORD = "C4n4ry/%s:@?#&'\"\\ é+" + secrets.token_hex(12)


@pytest.fixture
def canary(mysql_server: MySQLServer, database: str, tmp_path: Path) -> Canary:
    mysql_server.execute(f"CREATE TABLE `{database}`.t (id INT PRIMARY KEY, v VARCHAR(20))")
    mysql_server.execute(f"INSERT INTO `{database}`.t VALUES (1, 'a'), (2, 'b')")
    return Canary(tmp_path, mysql_server, database, PASSWORD)


def test_the_search_finds_what_it_looks_for() -> None:
    for shift in range(6):
        text = b"x" * shift + PASSWORD.encode() + b"y"
        for form in (text, base64.b64encode(text), quote(text, safe="").encode(), text.hex().encode()):
            assert leaks("here", b"before " + form + b" after", PASSWORD)
    assert leaks("here", PASSWORD.encode().hex().upper().encode(), PASSWORD)
    assert not leaks("here", b"nothing of the kind", PASSWORD)


@pytest.mark.parametrize("command", ["check", "plan", "run", "verify", "status"])
def test_wrong_password(canary: Canary, command: str, mysql_server: MySQLServer) -> None:
    """Not even the wrong one is shown: it is often the right one of another account."""
    wrong = f"{PASSWORD}wrong"
    user = "nobody"
    canary.cli.env = {"AIRFLOW_CONN_CDC_SOURCE": mysql_server.uri(user, wrong)}
    result = canary.cli.call(command)
    assert result.code in (2, 3)
    assert leaks("the output", (result.out + result.err).encode(), PASSWORD) == []
    assert canary.files() == []


def test_errors_without_a_handler(canary: Canary, monkeypatch: pytest.MonkeyPatch) -> None:
    """An unexpected error is scrubbed too, and so is its traceback, which quotes arguments."""

    def fail(args: Any) -> None:
        raise ValueError(f"cannot use {dict(args)} or {quote(PASSWORD, safe='')} or {PASSWORD}")

    monkeypatch.setattr("airflow_provider_cdc.preflight.run.connect", fail)
    monkeypatch.setenv("CDC_DEBUG", "1")
    result = canary.cli.call("check")
    assert result.code == 1 and "unexpected ValueError" in result.err and "***" in result.err
    assert leaks("the output", result.err.encode(), PASSWORD) == []


@pytest.mark.spark
def test_a_whole_run(canary: Canary, mysql_server: MySQLServer, database: str) -> None:
    process = canary.start("run", "--catch-up")
    with Watch(process, PASSWORD) as watch, _kept(canary.folder, PASSWORD) as spilled:
        out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    assert any("java" in name for name in watch.seen), watch.seen
    assert any("python" in name for name in watch.seen), watch.seen
    assert watch.found == set()
    assert leaks("the output", (out + err).encode(), PASSWORD) == []
    assert canary.files() == [] and spilled.found == set()
    assert {"spark", "tmp", "work"} <= spilled.folders, "files were seen while they were there"
    # Commands that only look.
    for command in ("status", "verify", "check", "plan", "stop"):
        result = canary.cli.call(command)
        assert result.code == 0
        assert leaks(command, (result.out + result.err).encode(), PASSWORD) == []
    assert canary.cli.rows(database, "t").num_rows == 2


@dataclass
class Kept:
    """What was found in files, and the folders that files were seen in."""

    found: set[str] = field(default_factory=set)
    folders: set[str] = field(default_factory=set)


@contextlib.contextmanager
def _kept(folder: Path, secret: str) -> Iterator[Kept]:
    """Looks into short-lived files of a folder while they are there."""
    kept = Kept()
    over = threading.Event()

    def look() -> None:
        while not over.wait(0.05):
            for parent, _, names in os.walk(folder):  # not rglob(), which fails where a folder goes meanwhile
                for path in map(Path(parent).joinpath, names):
                    with contextlib.suppress(OSError):
                        if path.is_file():
                            kept.found.update(leaks(str(path), path.read_bytes(), secret))
                            kept.folders.add(path.relative_to(folder).parts[0])

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield kept
    finally:
        over.set()
        thread.join()


@pytest.mark.spark
@pytest.mark.long
def test_a_server_that_dies_in_the_middle(tmp_path: Path) -> None:
    """The errors of drivers, Spark and Python that follow hold no secret; the command tries again until it is back."""
    with MySQLServer() as server:
        server.execute("CREATE DATABASE d")
        server.execute("CREATE TABLE d.t (id INT PRIMARY KEY)")
        server.execute("INSERT INTO d.t VALUES (1)")
        canary = Canary(tmp_path, server, "d", PASSWORD)
        process = canary.start("run")
        with Watch(process, PASSWORD) as watch, _killed(process), _kept(canary.folder, PASSWORD) as spilled:
            end = time.monotonic() + 120
            offset, n = None, 1
            while offset is None:
                assert process.poll() is None and time.monotonic() < end, "the stream applied nothing"
                n += 1
                server.execute(f"INSERT INTO d.t VALUES ({n})")
                time.sleep(0.3)
                found = canary.cli.call("status", "--json")
                offset = json.loads(found.out)["offset"] if found.code == 0 else None
            server.kill()
            with canary.cli.opened() as (context, store):
                name = context.pipeline.name
                wait_for("the failure", lambda: (run := store.newest_epoch(name)) and run.state == "failed", 120)
            time.sleep(5)  # for another try
            server.start()
            while "was asked to stop" not in canary.cli.call("stop").out:  # none runs while the next try is waited for
                assert process.poll() is None and time.monotonic() < end + 120, "the stream does not go on"
                time.sleep(0.5)
            out, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
        assert "The stream restarts in " in err and "Traceback" not in err
        assert watch.found == set()
        assert leaks("the output", (out + err).encode(), PASSWORD) == []
        assert canary.files() == [] and spilled.found == set()
        canary.cli.catch_up()
        assert sorted(canary.cli.rows("d", "t")["id"].to_pylist()) == list(range(1, n + 1))


@contextlib.contextmanager
def _killed(process: subprocess.Popen[str]) -> Iterator[None]:
    """At the end of the block nothing of a process's group is left."""
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
