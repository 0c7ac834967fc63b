"""The demo: a database that is written to all the time is copied into Delta, and the copy is proved equal.

Everything in it is real: a MySQL server, writers in processes of their own, and the command ``airflow-cdc``. Only the
proof is independent of the project: it reads both sides whole and compares every value (``tests/oracle.py``).

Exit codes: 0 equal, 1 different or failed, 130 interrupted.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402

from airflow_provider_cdc.core.offset import Position  # noqa: E402
from airflow_provider_cdc.sinks.progress import Progress  # noqa: E402
from airflow_provider_cdc.store import Store  # noqa: E402
from tests.oracle import check_ledger, compare_all  # noqa: E402
from tests.servers import MySQLServer, ServerUnavailable  # noqa: E402
from tests.workload import Counters, Writers, make_shop  # noqa: E402

NAME, CONN_ID, DATABASE, USER = "demo", "cdc_demo", "shop", "cdc_demo"
TABLES = ("customer", "customer_address", "orders", "ledger")
#: Seconds after which waiting for the pipeline is given up, and between two looks at it.
PATIENCE, PAUSE = 600.0, 0.5
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

PIPELINE = """\
name: {name}
source:
  conn_id: {conn_id}        # the address and the password come from the environment
  tables: ['{database}\\..*']
sink:
  path: {path}
"""


class DemoFailed(Exception):
    """The demo cannot go on; the message says why."""


class Screen:
    """Says what is being done, with the seconds since the start, and keeps how long each phase took."""

    def __init__(self) -> None:
        self.console = Console(highlight=False)
        self.phases: list[tuple[str, float]] = []
        self._start = time.monotonic()

    def say(self, text: str, style: str = "") -> None:
        elapsed = time.monotonic() - self._start
        self.console.print(f"{elapsed:6.1f} s  {text}", style=style, markup=False, soft_wrap=True)

    @contextmanager
    def phase(self, name: str, text: str) -> Iterator[None]:
        self.say(text, "bold")
        began = time.monotonic()
        yield
        self.phases.append((name, time.monotonic() - began))


class Command:
    """The command ``airflow-cdc`` for one pipeline file.

    :param folder: working folder; ``pipeline.yaml`` lies in it, and Spark's own files go there.
    :param uri: the source, as an Airflow connection; handed over in the environment, never on a command line.
    """

    def __init__(self, screen: Screen, folder: Path, uri: str) -> None:
        self._screen, self._folder = screen, folder
        paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        self._environment = {
            **os.environ,
            f"AIRFLOW_CONN_{CONN_ID.upper()}": uri,
            "PYTHONPATH": os.pathsep.join(paths),
            "SPARK_LOCAL_DIRS": str(folder / "spark"),
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
            assert self.running
            if self.running.poll() is not None:
                self._shown.join(5)
                raise DemoFailed(f"airflow-cdc run ended with exit code {self.running.returncode}")
            if hint() and (found := self.status()) and reached(found):
                return found
            time.sleep(PAUSE)
        raise DemoFailed(f"nothing came of it in {PATIENCE:g} s")

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

    :param customers: rows of the largest table; the two related ones have a twentieth and a fifth as many.
    :param seconds: how long the stream goes on after it has caught up with the writers.
    :param rate: transactions a second of all writers together.
    """

    def __init__(self, screen: Screen, folder: Path, customers: int, seconds: float, rate: float) -> None:
        self.screen, self.folder, self.sink = screen, folder, folder / "lake"
        self.customers, self.seconds, self.rate = customers, seconds, rate
        self.progress = self.sink / "_cdc_progress" / NAME
        self.server = MySQLServer()

    def run(self) -> bool:
        """All of it; whether the copy is equal."""
        phase, rate = self.screen.phase, f"{self.rate:g} transactions/s"
        with ExitStack() as stack:
            try:
                with phase("MySQL", "Starting a MySQL server"):
                    stack.enter_context(self.server)
                version = self.server.execute("SELECT VERSION()")[0][0]
                self.screen.say(f"MySQL {version} answers on {self.server.host}:{self.server.port}")
                with phase("shop", f"Making the shop: {self.customers:,} customers, their addresses and orders"):
                    self._make_shop(stack)
                command = self._command()
                with phase("snapshot", f"Two writers begin ({rate}), and so does: airflow-cdc run -f pipeline.yaml"):
                    writers = stack.enter_context(Writers(self.server.connect_args(), rate=self.rate))
                    stack.callback(command.close)
                    command.start()
                    command.wait(
                        self.progress.exists, lambda s: s["snapshot"]["complete"] and s["phase"] == "streaming"
                    )
                with phase("catch-up", "The snapshot is complete; the stream takes what was written meanwhile"):
                    for _ in range(2):  # the second time for what came during the first
                        self._catch_up(command)
                steady = self._end()
                with phase("stream", f"The stream has caught up; it follows the writers for {self.seconds:g} s"):
                    time.sleep(self.seconds)
                with phase("end", "The writers stop, the stream takes the last changes: airflow-cdc stop"):
                    done = writers.stop()
                    status = self._catch_up(command)
                    if code := command.finish():
                        raise DemoFailed(f"airflow-cdc run ended with exit code {code} after airflow-cdc stop")
                with phase("proof", "Comparing every value of every row in source and sink"):
                    equal = self._prove()
                with phase("verify", "The project's own check says: airflow-cdc verify -f pipeline.yaml"):
                    equal &= command.call("verify") == 0
                self._tell(done, status, steady)
                return equal
            finally:
                _ignore_signals()  # a second Ctrl-C during the clean-up would leave processes behind

    def _make_shop(self, stack: ExitStack) -> None:
        if not self.server.controllable:
            if self.server.execute("SHOW DATABASES LIKE %s", (DATABASE,)):
                raise DemoFailed(f"the server given has a database {DATABASE} already: drop it, or name another server")
            stack.callback(self.server.execute, f"DROP USER IF EXISTS {USER}@'%'")
            stack.callback(self.server.execute, f"DROP DATABASE IF EXISTS {DATABASE}")
        with closing(self.server.connect()) as connection:
            make_shop(connection, DATABASE, self.customers, addresses=self.customers // 20, orders=self.customers // 5)

    def _command(self) -> Command:
        """A user with the least grants, the pipeline file, and the command for both."""
        user = self.server.create_cdc_user(USER, databases=DATABASE)
        text = PIPELINE.format(name=NAME, conn_id=CONN_ID, database=DATABASE, path=json.dumps(str(self.sink)))
        (self.folder / "pipeline.yaml").write_text(text)
        self.screen.console.print("\n" + text, markup=False, soft_wrap=True)
        return Command(self.screen, self.folder, self.server.uri(**user))

    def _end(self) -> Position:
        """Where the server's binlog ends now."""
        file, position = self.server.execute("SHOW BINARY LOG STATUS")[0][:2]
        return Position(str(file), int(position))

    def _catch_up(self, command: Command) -> dict[str, Any]:
        """Wait until the sink has everything that the server has now."""
        end, progress = self._end(), Progress(self.progress, NAME)
        return command.wait(
            lambda: (offset := progress.read()) is not None and end <= offset.at,
            lambda status: end <= _position(status["offset"]),
        )

    def _prove(self) -> bool:
        equal = True
        with closing(self.server.connect()) as connection:
            for table in TABLES:
                differences = compare_all(connection, DATABASE, self.sink, [table])
                rows = self.server.execute(f"SELECT COUNT(*) FROM {DATABASE}.{table}")[0][0]
                self.screen.say("".join(map(str, differences)) or f"{DATABASE}.{table}: {rows:,} rows, all equal")
                equal &= not differences
        problems = check_ledger(self.sink, DATABASE)
        self.screen.say("; ".join(problems) or "the ledger has every number of every writer once")
        return equal and not problems

    def _tell(self, done: Counters, status: dict[str, Any], steady: Position) -> None:
        tables = Table(caption="corrected: rows that the binlog changed while their chunk was read")
        tables.add_column("table")
        for name in ("rows now", "snapshot rows", "chunks", "corrected"):
            tables.add_column(name, justify="right")
        for row in status["tables"]:
            rows = self.server.execute(f"SELECT COUNT(*) FROM {row['table']}")[0][0]
            tables.add_row(
                row["table"], *(f"{n:,}" for n in (rows, row["rows"], row["chunks_total"], row["corrected"]))
            )
        self.screen.console.print()
        self.screen.console.print(tables)
        taken, flow = status["snapshot"], status["stream"]
        store = Store.open(f"sqlite:///{self.sink}/_cdc/{NAME}/bookkeeping.db", migrate=False)
        with closing(store):
            batches: list[Any] = store.recent_batches(NAME, 100_000)
        late = [b for b in batches if b.changes and steady <= _position(b.start_offset)]
        facts = Table(show_header=False)
        facts.add_row(
            "snapshot", f"{taken['rows']:,} rows, {taken['rows_per_second']:,} rows/s from plan to last commit"
        )
        facts.add_row("stream", f"{flow['changes']:,} changes applied in {flow['batches']} batches")
        facts.add_row(
            "lag, from commit in MySQL\nto commit in Delta",
            f"p50 {_lag(late, 'lag_p50_ms', 0.5)} s, p95 {_lag(late, 'lag_p95_ms', 0.95)} s "
            f"over the {len(late)} batches after the catch-up\n"
            "(approximate: percentiles of the batches' own percentiles, weighted by changes)",
        )
        facts.add_row(
            "writers", f"{done.transactions:,} transactions, {done.rows:,} rows, {done.rollbacks:,} rolled back"
        )
        spent = [f"{name} {seconds:.0f}" for name, seconds in self.screen.phases]
        facts.add_row("seconds", f"{', '.join(spent)}; sum {sum(seconds for _, seconds in self.screen.phases):.0f}")
        facts.add_row("machine", f"{os.cpu_count()} cores, load {', '.join(f'{n:.1f}' for n in os.getloadavg())}")
        self.screen.console.print(facts)


def _position(offset: dict[str, Any]) -> Position:
    return Position(offset["file"], offset["position"])


def _lag(batches: list[Any], name: str, share: float) -> str:
    """A percentile over batches, each counted as often as it has changes; seconds."""
    pairs = sorted((getattr(b, name), b.changes) for b in batches)
    left = share * sum(count for _, count in pairs)
    for lag, count in pairs:
        left -= count
        if left <= 0:
            return f"{lag / 1000:.1f}"
    return "-"


def _end_by_signal(number: int, _: object) -> NoReturn:
    sys.exit(128 + number)


def _ignore_signals() -> None:
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def main() -> int:
    parser = argparse.ArgumentParser(description="Copy a live MySQL database into Delta and prove the copy equal.")
    parser.add_argument("--customers", type=int, default=1_000_000, help="rows of the largest table (%(default)s)")
    parser.add_argument("--seconds", type=float, default=30, help="how long to stream after the catch-up (%(default)s)")
    parser.add_argument("--rate", type=float, default=100, help="transactions a second of the writers (%(default)s)")
    parser.add_argument("--keep", action="store_true", help="keep the Delta tables and say where they are")
    parser.add_argument("--out", type=Path, help="where to make and keep them; a folder that does not exist yet")
    options = parser.parse_args()
    for number in SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup does
            signal.signal(number, _end_by_signal)
    keep = options.keep or options.out is not None
    if options.out is None:
        folder = Path(tempfile.mkdtemp(prefix="cdc-demo-"))
    else:
        folder = options.out.absolute()
        try:
            folder.mkdir(parents=True)
        except OSError as error:
            parser.error(f"--out {folder}: {error.strerror}")
    screen = Screen()
    try:
        equal = Demo(screen, folder, options.customers, options.seconds, options.rate).run()
        keep = keep or not equal
        verdict = "EQUAL: every sink table is its source, row by row" if equal else "DIFFERENT"
        screen.say(verdict, "bold green" if equal else "bold red")
        return 0 if equal else 1
    except (DemoFailed, ServerUnavailable, RuntimeError, subprocess.TimeoutExpired) as error:
        screen.say(f"FAILED: {error}", "bold red")
        return 1
    except SystemExit:
        screen.say("Interrupted; everything that was started has been ended")
        raise
    finally:
        if keep:
            screen.say(f"The pipeline file and the Delta tables are kept in {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
