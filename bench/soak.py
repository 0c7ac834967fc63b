"""An hour of everything at once: are the copies equal in the end, and how far do memory, handles, files and lag rise?

One source, whose clients reach it through an address that moves to its replica and back (failovers), and two
pipelines, ``airflow-cdc run`` into Delta and into Iceberg tables, as users start them. Writers write all the time;
columns come and go; binlogs rotate; drivers are killed. In the last third of the time nothing is killed and nothing
fails over, while all else goes on: there the measured lines must not rise by more than a limit.

    make soak             MINUTES=n (60), CDC_SOAK_RATE=n transactions a second (40), CDC_SOAK_ROWS=n customers (100000)

The limit: of the samples of a pipeline's last driver since its first batch, without their first third, the mean of
the second half is at most a tenth above that of the first half, plus what :data:`ALLOWED` says. It finds what grows
fast, and no slow leak. Memory is the share of each process (PSS): forked workers have pages in common. *Staged files*
are those of changes that no commit names. The number of all files of a sink is shown and not judged: replaced ones stay
for readers, for an hour or longer.

The exit code is 0 if both copies equal the source, row by row, the ledger has no gap and no double, no driver has ended
by itself with an error, and no line rises above the limit.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from airflow_provider_cdc.runtime.run_context import RunContext
from airflow_provider_cdc.sinks.lake.merge.table_edit import CHANGES_FOLDER
from airflow_provider_cdc.sinks.lake.transactional_table import TransactionalTable
from airflow_provider_cdc.state.models import utc_now
from airflow_provider_cdc.system.processes import kill_session
from bench.snapshot import machine
from tests import ROOT
from tests.support.cli import Cli, session_processes
from tests.support.oracle import check_ledger, compare_all
from tests.support.processes import wait_for
from tests.support.proxy import Proxy
from tests.support.servers import MySQLServer
from tests.support.workload import Writers, make_shop

DATABASE, USER, PASSWORD = "shop", "soak", "soak-of-this-run"
KINDS = ("delta", "iceberg")
SAMPLE_SECONDS = 5.0
#: What a line may rise by besides a tenth: in MB, in handles and files, and in seconds.
ALLOWED = {"driver MB": 24, "JVM MB": 128, "workers MB": 48, "handles": 24, "live files": 40, "staged files": 40}
ALLOWED["lag s"] = 5
#: Actions a minute, at most: how many there are of each follows from the time that there is.
_DDL, _ROTATE, _KILL, _FAILOVER = 1.0, 2.0, 0.5, 0.12


class Source:
    """Two servers, of which the second follows the first, and the address at which clients reach the one in charge."""

    def __init__(self, stack: ExitStack, rows: int) -> None:
        variables = {"innodb_buffer_pool_size": "256M", "gtid_mode": "ON", "enforce_gtid_consistency": "ON"}
        self.primary, self.replica = (
            stack.enter_context(MySQLServer({**variables, "server_id": str(number)})) for number in (101, 102)
        )
        self.proxy = stack.enter_context(Proxy(self.primary.port))
        for server in (self.primary, self.replica):
            server.execute(f"CREATE USER {USER}@'%' IDENTIFIED BY '{PASSWORD}'")
            server.execute(f"GRANT ALL ON *.* TO {USER}@'%' WITH GRANT OPTION")
            server.execute("RESET BINARY LOGS AND GTIDS")
        self._follow()
        with closing(self.primary.connect()) as connection:
            make_shop(connection, DATABASE, rows, addresses=rows // 20, orders=rows // 5)
        self._wait_for_replica()

    @property
    def connection(self) -> dict[str, Any]:
        """How clients connect."""
        return {"host": "127.0.0.1", "port": self.proxy.port, "user": USER, "password": PASSWORD}

    @property
    def uri(self) -> str:
        """The same as an Airflow connection."""
        return f"mysql://{USER}:{PASSWORD}@127.0.0.1:{self.proxy.port}/"

    def _follow(self) -> None:
        to = f"SOURCE_HOST = '127.0.0.1', SOURCE_PORT = {self.primary.port}, SOURCE_USER = '{USER}'"
        options = "SOURCE_AUTO_POSITION = 1, GET_SOURCE_PUBLIC_KEY = 1, SOURCE_CONNECT_RETRY = 1"
        self.replica.execute(f"CHANGE REPLICATION SOURCE TO {to}, SOURCE_PASSWORD = '{PASSWORD}', {options}")
        self.replica.execute("START REPLICA")

    def _wait_for_replica(self) -> None:
        ((executed,),) = self.primary.execute("SELECT @@global.gtid_executed")
        ((timed_out,),) = self.replica.execute("SELECT WAIT_FOR_EXECUTED_GTID_SET(%s, 600)", [executed])
        assert not timed_out, "the replica does not follow"

    def fail_over(self) -> None:
        """Cut all clients off, and let the replica take their place when it has everything."""
        self.proxy.down()
        time.sleep(1)  # in which transactions of lost connections end
        self._wait_for_replica()
        self.replica.execute("STOP REPLICA")
        self.replica.execute("RESET REPLICA ALL")
        self.primary, self.replica = self.replica, self.primary
        self._follow()
        self.proxy.lead_to(self.primary.port)
        self.proxy.up()


@dataclass
class Sample:
    """What a pipeline takes at a moment.

    :param life: number of its driver.
    :param is_streaming: whether that has applied a batch.
    :param values: by the names of :data:`ALLOWED`.
    """

    at: float
    life: int
    is_streaming: bool
    values: dict[str, float]


@dataclass
class Pipeline:
    """A pipeline whose driver is started again whenever it ends.

    :param ended: exit codes of the drivers that ended by themselves.
    """

    kind: str
    cli: Cli
    process: subprocess.Popen[bytes] | None = None
    life: int = 0
    ended: list[int] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)

    @classmethod
    def make(cls, kind: str, folder: Path, source: Source) -> Pipeline:
        sink = {"kind": kind} if kind != "delta" else {}
        stream = {"on_table_error": "suspend", "reread": "auto"}
        cli = Cli(folder / kind, source.primary, rf"{DATABASE}\..*", name=f"soak_{kind}", sink=sink, stream=stream)
        cli.env = {"AIRFLOW_CONN_CDC_SOURCE": source.uri}
        return cls(kind, cli)

    @property
    def name(self) -> str:
        return str(self.cli.value["name"])

    def start(self) -> None:
        """Start a driver."""
        self.life += 1
        command = [sys.executable, "-m", "airflow_provider_cdc", "run", "-f", str(self.cli.file)]
        environment = {**os.environ, **self.cli.env, "PYTHONPATH": str(ROOT)}
        with (self.cli.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                command, cwd=self.cli.folder, env=environment, stdout=log, stderr=log, start_new_session=True
            )

    def tend(self) -> None:
        """Start another driver if the last one has ended, or was killed."""
        if self.process is not None and (code := self.process.poll()) is not None:
            self.ended.append(code)
            kill_session(self.process.pid)
            self.process = None
        if self.process is None:
            self.start()

    def kill(self) -> None:
        """Kill the driver with all that it has started."""
        if self.process is not None:
            has_ended = self.process.poll() is not None
            kill_session(self.process.pid)
            self.process.wait()
            self.process = self.process if has_ended else None

    def stop(self) -> int:
        """Ask the driver to stop; its exit code."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(300)
        finally:
            kill_session(self.process.pid)

    def look(self, began: float) -> None:
        """Take a sample."""
        if self.process is None or self.process.poll() is not None:
            return
        memory, handles = dict.fromkeys(("driver MB", "JVM MB", "workers MB"), 0.0), 0
        for pid in session_processes(self.process.pid):
            with contextlib.suppress(OSError, IndexError, ValueError):
                command = Path(f"/proc/{pid}/cmdline").read_text().partition("\0")[0]
                name = "driver MB" if pid == self.process.pid else "JVM MB" if "java" in command else "workers MB"
                share = re.search(r"^Pss:\s+(\d+) kB$", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.MULTILINE)
                memory[name] += int(share[1]) / 1024 if share else 0.0
                handles += len(os.listdir(f"/proc/{pid}/fd"))
        values = {**memory, "handles": float(handles)}
        is_streaming = False
        with contextlib.suppress(Exception), self.cli.opened() as (context, store):
            run = store.newest_epoch(self.name)
            is_streaming = run is not None and run.state == "running" and run.batches > 0
            sizes = [row.files for row in store.table_states(self.name) if row.files is not None]
            values["live files"] = float(sum(sizes))
            if (batches := store.last_batches(self.name, 1)) and batches[0].lag_p95_ms is not None:
                quiet = (utc_now() - batches[0].committed_at).total_seconds()
                values["lag s"] = batches[0].lag_p95_ms / 1000 + max(0.0, quiet - SAMPLE_SECONDS)
            values["staged files"] = float(self._staged(context))
        self.samples.append(Sample(time.monotonic() - began, self.life, is_streaming, values))

    def _staged(self, context: RunContext) -> int:
        """Files of changes that are not, and were not until recently, part of a table."""
        folders = self.cli.sink.glob("_cdc/*/staging")  # tables without a key
        count = sum(len(files) for top in folders for _, _, files in os.walk(top))
        for table in context.plans.require().tables:
            target = context.sink.table(table)
            assert isinstance(target, TransactionalTable)
            names = [name for name, _ in target.storage.list(CHANGES_FOLDER)]  # before the commits are read
            log = target.open_log()
            log.refresh()
            count += sum(not log.references(name) for name in names)
        return count

    def files(self) -> int:
        """All files of the sink."""
        return sum(len(files) for _, _, files in os.walk(self.cli.sink))

    def rising(self) -> Iterator[str]:
        """The lines that rise above the limit in the last life."""
        life = [sample for sample in self.samples if sample.life == self.life and sample.is_streaming]
        life = life[len(life) // 3 :]
        for name, allowed in ALLOWED.items():
            line = [sample.values[name] for sample in life if name in sample.values]
            if len(line) < 8:
                yield f"{self.kind}: {name}: only {len(line)} samples of the last driver"
                continue
            before, after = (statistics.mean(part) for part in (line[: len(line) // 2], line[len(line) // 2 :]))
            if after > before * 1.1 + allowed:
                yield f"{self.kind}: {name} rises from {before:.1f} to {after:.1f}"


def due(per_minute: float, minutes: float, until: float) -> list[float]:
    """Moments at which something is done, in seconds: at least one."""
    number = max(1, int(per_minute * minutes * until))
    return [(n + 0.7) * minutes * 60 * until / number for n in range(number)]


def soak(minutes: float, source: Source, pipelines: list[Pipeline]) -> dict[str, int]:
    """Let everything happen; how often each thing did."""
    draw, began, columns = random.Random(1), time.monotonic(), list[str]()
    done = dict.fromkeys(("DDL", "rotations", "kills", "failovers"), 0)

    def ddl() -> None:
        done["DDL"] += 1
        if len(columns) > 2:
            statement = f"DROP COLUMN {columns.pop(0)}"
        else:
            columns.append(f"soak_{done['DDL']}")
            statement = f"ADD COLUMN {columns[-1]} INT"
        source.primary.execute(f"ALTER TABLE {DATABASE}.orders {statement}")
        if columns:
            source.primary.execute(f"UPDATE {DATABASE}.orders SET {columns[-1]} = {done['DDL']} LIMIT 200")

    def rotate() -> None:
        done["rotations"] += 1
        source.primary.execute("FLUSH BINARY LOGS")

    def kill() -> None:
        pipelines[done["kills"] % len(pipelines)].kill()
        done["kills"] += 1

    def fail_over() -> None:
        done["failovers"] += 1
        source.fail_over()

    calm = 2 / 3
    plan: list[tuple[float, Callable[[], None]]] = [
        *((at, ddl) for at in due(_DDL, minutes, 1.0)),
        *((at, rotate) for at in due(_ROTATE, minutes, 1.0)),
        *((at, kill) for at in due(_KILL, minutes, calm)),
        *((at, fail_over) for at in due(_FAILOVER, minutes, calm)),
    ]
    plan = sorted(plan, key=lambda step: (step[0], draw.random()))
    sampled, shown, every = began, began, max(20.0, minutes * 60 / 30)
    while (now := time.monotonic() - began) < minutes * 60:
        while plan and plan[0][0] <= now:
            plan.pop(0)[1]()
        for pipeline in pipelines:
            pipeline.tend()
        if time.monotonic() - sampled >= SAMPLE_SECONDS:
            sampled = time.monotonic()
            for pipeline in pipelines:
                pipeline.look(began)
        if time.monotonic() - shown >= every:
            shown = time.monotonic()
            show(pipelines, now, done)
        time.sleep(0.2)
    return done


def show(pipelines: list[Pipeline], now: float, done: dict[str, int]) -> None:
    """One row of the table for each pipeline."""
    for pipeline in pipelines:
        values = pipeline.samples[-1].values if pipeline.samples else {}
        cells = " | ".join(f"{values[name]:,.1f}" if name in values else "-" for name in ALLOWED)
        happened = ", ".join(f"{number} {name}" for name, number in done.items())
        row = f"| {now / 60:.1f} | {pipeline.kind} | {pipeline.life} | {cells} | {pipeline.files():,} | {happened} |"
        print(row, flush=True)


def catch_up(pipeline: Pipeline) -> bool:
    """Take what is left, and compare as the project does itself; whether both went well."""
    for arguments in (("stream", "--catch-up"), ("verify",)):
        found = pipeline.cli.run(*arguments, timeout=1800)
        if found.code:
            print(f"{pipeline.kind}: {arguments[0]} ended with exit code {found.code}: {found.err[-2000:]}")
            return False
    return True


def main() -> int:
    minutes, rate = float(os.environ.get("MINUTES", "60")), float(os.environ.get("CDC_SOAK_RATE", "40"))
    rows = int(os.environ.get("CDC_SOAK_ROWS", "100000"))
    problems: list[str] = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="cdc-soak-")))
        source = Source(stack, rows)
        pipelines = [Pipeline.make(kind, folder, source) for kind in KINDS]
        for pipeline in pipelines:
            stack.callback(pipeline.kill)
        print(f"{minutes:g} minutes, {rows:,} customers, {rate:g} transactions/s; logs in {folder}\n")
        print(f"| min | sink | driver | {' | '.join(ALLOWED)} | files | so far |")
        print("|--:|---|--:|" + "--:|" * len(ALLOWED) + "--:|---|", flush=True)
        with Writers(source.connection, "shop", database=DATABASE, rate=rate) as writers:
            for pipeline in pipelines:
                pipeline.start()
            for pipeline in pipelines:
                wait_for("the snapshot", lambda one=pipeline: (one.tend(), streams(one))[1], 1200)  # type: ignore[misc]
            done = soak(minutes, source, pipelines)
            written = writers.stop()
        codes = [pipeline.stop() for pipeline in pipelines]
        print(
            f"\nwriters: {written}; {done}; exit codes of drivers that ended by themselves:"
            f" {[p.ended for p in pipelines]}, at the end {codes}"
        )
        for pipeline, last in zip(pipelines, codes, strict=True):
            problems += [f"{pipeline.kind}: a driver ended with {code}" for code in (*pipeline.ended, last) if code]
        with closing(source.primary.connect()) as connection:
            for pipeline in pipelines:
                problems += [] if catch_up(pipeline) else [f"{pipeline.kind}: no comparison"]
                problems += map(str, compare_all(connection, DATABASE, pipeline.cli.sink))
                problems += map(str, check_ledger(pipeline.cli.sink, DATABASE))
                problems += pipeline.rising()
        (mysql,) = source.primary.execute("SELECT VERSION()")[0]
    print("\n".join(problems) or "both copies equal the source, and no line rises above the limit")
    machine(str(mysql))
    return int(bool(problems))


def streams(pipeline: Pipeline) -> bool:
    """Whether its stream has applied a batch."""
    with contextlib.suppress(Exception), pipeline.cli.opened() as (_, store):
        return bool(store.last_batches(pipeline.name, 1))
    return False


if __name__ == "__main__":
    sys.exit(main())
