"""The demo of the command line: a database that is written to all the time is copied, and the copy is proved equal.

Everything in it is real: a MySQL server, writers in processes of their own, and the command ``airflow-cdc``. Only the
proof is independent of the project: it reads both sides whole and compares every value (``tests/support/oracle.py``).

With ``--stay`` the writers begin again after the proof and the stream goes on, until Ctrl-C; then both sides are
compared again.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from bench.lake import Lake, opened
from bench.screen import PATIENCE, PAUSE, DemoFailed, Screen, ignore_signals, parser, perform, wait_for_interrupt
from bench.shop import DATABASE, Shop, position

ROOT = Path(__file__).resolve().parent.parent
NAME, CONN_ID = "demo", "cdc_demo"

PIPELINE = """\
name: {name}
source:
  conn_id: {conn_id}        # the address and the password come from the environment
  tables: ['{database}\\..*']
sink:{sink}
"""


class Command:
    """The command ``airflow-cdc`` for one pipeline file.

    :param folder: working folder; ``pipeline.yaml`` lies in it, and temporary files go there: they go with it even
        when the command is killed.
    :param uri: the source, as an Airflow connection; handed over in the environment, never on a command line.
    :param more: what else goes into the environment.
    """

    def __init__(self, screen: Screen, folder: Path, uri: str, more: Mapping[str, str]) -> None:
        self._screen, self._folder = screen, folder
        paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        temporary = folder / "tmp"
        temporary.mkdir()
        self._environment = {
            **os.environ,
            **more,
            f"AIRFLOW_CONN_{CONN_ID.upper()}": uri,
            "PYTHONPATH": os.pathsep.join(paths),
            "TMPDIR": str(temporary),
            "SPARK_LOCAL_DIRS": str(temporary),
        }
        self.running: subprocess.Popen[str] | None = None

    def _popen(self, *arguments: str, stderr: int = subprocess.STDOUT) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "airflow_provider_cdc", *arguments, "-f", "pipeline.yaml"],
            cwd=self._folder,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            # A session of its own: Ctrl-C is for the demo alone, which then ends all of the session's processes.
            start_new_session=True,
        )

    def _show(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout
        for line in process.stdout:
            self._screen.say(f"| {line.rstrip()}", "dim")

    def start(self) -> None:
        """Start ``run``; its progress is shown as it comes."""
        self.running = self._popen("run")
        self._shown = threading.Thread(target=self._show, args=(self.running,), daemon=True)
        self._shown.start()

    def call(self, *arguments: str) -> int:
        """Run a command to its end, show what it says, and return its exit code."""
        process = self._popen(*arguments)
        try:
            self._show(process)
            return process.wait()
        finally:
            end_session(process)

    def status(self) -> dict[str, Any] | None:
        """What ``status --json`` says; ``None`` while there is nothing to say."""
        process = self._popen("status", "--json", stderr=subprocess.DEVNULL)
        try:
            text, _ = process.communicate(timeout=PATIENCE)
        finally:
            end_session(process)
        return dict(json.loads(text)) if process.returncode == 0 else None

    def wait(self, hint: Callable[[], bool], reached: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Wait until the status is as wished.

        :param hint: a cheap sign that it may be so: each look at the status is a process that takes time from others.
        :raises DemoFailed: when ``run`` ends before, or nothing comes of it.
        """
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            self.check_running()
            if hint() and (found := self.status()) and reached(found):
                return found
            time.sleep(PAUSE)
        raise DemoFailed(f"nothing came of it in {PATIENCE:g} s")

    def check_running(self) -> None:
        """Check that ``run`` has not ended.

        :raises DemoFailed: if it has.
        """
        assert self.running
        if self.running.poll() is not None:
            self._shown.join(5)
            raise DemoFailed(f"airflow-cdc run ended with exit code {self.running.returncode}")

    def finish(self) -> int:
        """Ask ``run`` to stop and return its exit code."""
        assert self.running
        if code := self.call("stop"):
            raise DemoFailed(f"airflow-cdc stop ended with exit code {code}")
        code = self.running.wait(PATIENCE)
        self._shown.join(5)
        return code

    def close(self) -> None:
        """End everything that ``run`` has started."""
        if self.running is not None:
            end_session(self.running)


def end_session(process: subprocess.Popen[str]) -> None:
    """End a process that leads a session with all of the session: in good order, after 10 s by force.

    Not its process group only: Spark puts its Python workers into a group of their own. The leader comes first, since
    it ends its own children best; then those that outlived it.
    """
    for number, seconds in ((signal.SIGTERM, 10), (signal.SIGTERM, 10), (signal.SIGKILL, 10)):
        deadline = time.monotonic() + seconds
        first = process.poll() is None and number == signal.SIGTERM
        for pid in [process.pid] if first else _session(process.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, number)
        while time.monotonic() < deadline and (process.poll() is None if first else _session(process.pid)):
            time.sleep(0.05)
    process.wait()


def _session(leader: int) -> list[int]:
    """Living processes of a session."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, _, _, session = path.read_text().rpartition(")")[2].split()[:4]
            if int(session) == leader and state != "Z":
                found.append(int(path.parent.name))
    return found


class Demo:
    """One run of the demo.

    :param seconds: how long the stream goes on after it has caught up with the writers.
    :param stay: whether all goes on after the proof, until Ctrl-C.
    """

    def __init__(self, shop: Shop, folder: Path, seconds: float, stay: bool) -> None:
        self.shop, self.screen, self.folder, self.seconds, self.stay = shop, shop.screen, folder, seconds, stay

    def run(self) -> bool:
        """All of it; whether the copy is equal."""
        shop, phase = self.shop, self.screen.phase
        rate = f"{shop.rate:g} transactions/s"
        with ExitStack() as stack:
            try:
                command = self._command(shop.open(stack))
                with phase("snapshot", f"Two writers begin ({rate}), and so does: airflow-cdc run -f pipeline.yaml"):
                    writers = stack.enter_context(shop.writers())
                    stack.callback(command.close)
                    command.start()
                    command.wait(
                        shop.sink.resume_point().exists,
                        lambda s: s["snapshot"]["complete"] and s["phase"] == "streaming",
                    )
                with phase("catch-up", "The snapshot is complete; the stream takes what was written meanwhile"):
                    for _ in range(2):  # the second time for what came during the first
                        self._catch_up(command)
                steady = shop.end()
                with phase("stream", f"The stream has caught up; it follows the writers for {self.seconds:g} s"):
                    time.sleep(self.seconds / 2)
                    shop.alter()
                    self._catch_up(command)
                    shop.show_new_column()
                    time.sleep(self.seconds / 2)
                with phase("end", "The writers stop, the stream takes the last changes"):
                    done = writers.stop()
                    self._catch_up(command)
                    if not self.stay:
                        self._finish(command)
                equal = self._prove()
                if not self.stay:  # with it the stream goes on, and old files go
                    with phase("readers", "Comparing what other programs read of it"):
                        equal &= shop.prove_for_others()
                with phase("verify", "The project's own check says: airflow-cdc verify -f pipeline.yaml"):
                    equal &= command.call("verify") == 0
                shop.tell(done, steady)
                shop.show_reader_commands(stays=self.stay)
                return equal & self._hold(command, equal) if self.stay else equal
            finally:
                ignore_signals()

    def _hold(self, command: Command, equal: bool) -> bool:
        """Let writers and stream go on until Ctrl-C; whether the copy is equal after that."""
        self.screen.verdict(equal)
        with self.shop.writers() as writers:
            text = "The writers have begun again, and the stream follows them until you press Ctrl-C"
            self.screen.say(f"{text}. The pipeline is in {self.folder}", "bold")
            wait_for_interrupt(command.check_running)
            self.screen.say("The writers stop, the stream takes the last changes (Ctrl-C again: end at once)", "bold")
            writers.stop()
            self._catch_up(command)
        self._finish(command)
        return self._prove()

    def _finish(self, command: Command) -> None:
        self.screen.say("The stream stops: airflow-cdc stop")
        if code := command.finish():
            raise DemoFailed(f"airflow-cdc run ended with exit code {code} after airflow-cdc stop")

    def _prove(self) -> bool:
        with self.screen.phase("proof", "Comparing every value of every row in source and sink"):
            return self.shop.prove()

    def _command(self, user: dict[str, str]) -> Command:
        """The pipeline file, and the command for it."""
        text = pipeline_text(self.shop.lake)
        (self.folder / "pipeline.yaml").write_text(text)
        self.screen.console.print("\n" + text, markup=False, soft_wrap=True)
        return Command(self.screen, self.folder, self.shop.server.uri(**user), self.shop.lake.environment)

    def _catch_up(self, command: Command) -> None:
        """Wait until the sink has everything that the server has now."""
        end = self.shop.end()
        command.wait(lambda: self.shop.applied(end), lambda status: end <= position(status["offset"]))


def pipeline_text(lake: Lake) -> str:
    """The pipeline's file."""
    sink = "".join(f"\n  {name}: {json.dumps(value)}" for name, value in lake.settings.items())
    return PIPELINE.format(name=NAME, conn_id=CONN_ID, database=DATABASE, sink=sink)


def main() -> int:
    made = parser("Copy a live MySQL database and prove the copy equal.", customers=1_000_000, rate=100)

    def demo(screen: Screen, folder: Path, options: argparse.Namespace) -> bool:
        with ExitStack() as stack:
            lake = opened(options.sink, screen, folder, stack)
            shop = Shop(screen, lake, NAME, options.customers, options.rate)
            return Demo(shop, folder, options.seconds, options.stay).run()

    return perform(made, demo)


if __name__ == "__main__":
    sys.exit(main())
