"""What a pipeline of thousands of tables costs: the planner, the driver, the bookkeeping, the stream's start, the page.

All of it is the product's own code, on real tables of a real server; only rows are few. Each table has 20 rows, each
of which is a chunk, and what tasks leave for a chunk is written as if it had 100,000 rows: 5,000 tables are 100,000
chunks of 10 billion rows. Printed for each step: seconds of CPU, the peak of the process's memory, statements at the
source and at the state database, files opened below the sink, and bytes by which the files of the sink and the state
database, which is a SQLite file there, grew.

    make bench-scale      CDC_BENCH_TABLES=n,n,... (500, 1,000, 5,000)

``python -m bench.scale PIPELINE`` is the process that is measured.
"""

from __future__ import annotations

import json
import os
import re
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, event, make_url

from airflow_provider_cdc.chunk_groups.chunk_group import open_sink_tables, read_coverage
from airflow_provider_cdc.config import Pipeline
from airflow_provider_cdc.mysql.client.verified_connection import VerifiedConnection
from airflow_provider_cdc.observe.status import read_status
from airflow_provider_cdc.runtime.run_context import RunContext
from airflow_provider_cdc.snapshot.run import adopt_published_groups, run_snapshot
from airflow_provider_cdc.state.table_reader import TableQuery
from airflow_provider_cdc.stream.run import begin_epoch
from airflow_provider_cdc.ui import table_views
from airflow_provider_cdc.ui.state_databases import PageDatabase, ShownPipeline
from airflow_provider_cdc.ui.task_names import TaskNames
from airflow_provider_cdc.ui.views import PipelineViews
from bench.snapshot import machine
from tests import ROOT
from tests.support.cli import Cli
from tests.support.servers import MySQLServer
from tests.support.written_slices import write_slices

#: Chunks of a table, rows that a chunk is said to have, chunks of a group as with the default settings, and tables that
#: the batch of the stream changes.
CHUNKS, ROWS, IN_GROUP, CHANGED = 20, 100_000, 494, 50
#: Name of the state database below the sink, and the pattern of all of its files.
_STATE_DATABASE, _STATE_FILES = "bookkeeping.db", "bookkeeping.db*"


@dataclass
class Step:
    """What a step took.

    :param cpu: seconds; ``peak`` in MB.
    :param source: statements at the source; ``state`` those at the state database.
    :param opened: files opened below the sink; ``written`` those of them for writing.
    :param grew: bytes by which the files below the sink grew, without those of the state database.
    :param state_grew: bytes by which the state database grew.
    """

    name: str
    cpu: float = 0.0
    peak: int = 0
    source: int = 0
    state: int = 0
    opened: int = 0
    written: int = 0
    grew: int = 0
    state_grew: int = 0


@dataclass
class Meter:
    """Counts what steps do. One at a time in a process, which it changes for good."""

    sink: str
    steps: list[Step] = field(default_factory=list)

    def __post_init__(self) -> None:
        query = VerifiedConnection.query

        def counted(connection: Any, *args: Any, **kw: Any) -> Any:
            self.steps[-1].source += 1
            return query(connection, *args, **kw)

        def opened(name: str, args: tuple[Any, ...]) -> None:
            if name == "open" and self.steps and isinstance(args[0], str) and args[0].startswith(self.sink):
                self.steps[-1].opened += 1
                self.steps[-1].written += bool(args[2] & (os.O_WRONLY | os.O_RDWR))

        def asked(*_: Any) -> None:
            if self.steps:
                self.steps[-1].state += 1

        VerifiedConnection.query = counted  # type: ignore[assignment,method-assign]
        event.listen(Engine, "before_cursor_execute", asked)
        sys.addaudithook(opened)

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        sink, state, began = self._bytes(), self._state_bytes(), time.process_time()
        Path("/proc/self/clear_refs").write_text("5")  # the peak is measured from here on
        self.steps.append(Step(name))
        try:
            yield
        finally:
            step = self.steps[-1]
            step.cpu = time.process_time() - began
            peak = re.search(r"^VmHWM:\s+(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)
            step.peak = int(peak[1]) >> 10 if peak else 0
            step.grew, step.state_grew = self._bytes() - sink, self._state_bytes() - state

    def _bytes(self) -> int:
        files = (file for file in Path(self.sink).rglob("*") if file.is_file() and not file.match(_STATE_FILES))
        return sum(file.stat().st_size for file in files)

    def _state_bytes(self) -> int:
        """Pages in use: SQLite's files also have others, for a while."""
        for file in Path(self.sink).rglob(_STATE_DATABASE):
            with closing(sqlite3.connect(f"{file.as_uri()}?mode=ro", uri=True)) as connection:
                pages = [connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "page_size")]
            return int(pages[0] * pages[1])
        return 0


def measure(file: str, change: Callable[[], None]) -> dict[str, Any]:
    """The steps of a pipeline's life.

    :param change: changes rows in the source.
    """
    pipeline = Pipeline.load(file)
    meter = Meter(pipeline.sink.path)
    with meter.step("start"):
        context = RunContext.for_pipeline(pipeline)
        store = context.open_state_database()
    with closing(store):
        with meter.step("plan"):
            plan = context.plans.ensure(store)
        with meter.step("track and publish"):
            run_snapshot(context, store, plan, partial(write_slices, rows=ROWS, seconds=0.5))
        with meter.step("`status`"):
            told = read_status(context)
        assert told["snapshot"]["complete"]
        with meter.step("coverage of chunks"):
            held = read_coverage(context, plan, open_sink_tables(context, plan))
        assert held is not None and sum(len(table.high_watermarks) for table in held) == len(plan.chunks)
        with meter.step("the stream begins"):
            epoch = begin_epoch(context, store, catch_up=True)
        change()
        with meter.step(f"a batch of {CHANGED} tables"):
            with closing(epoch.job.make_planner()) as planner:
                end = planner.find_batch_end(epoch.section_start, 1 << 40)
            epoch.apply_batch(epoch.job.stage_range(epoch.section_start, end, "0"))
        store.end_epoch(plan.pipeline, epoch.number, "stopped")
    with meter.step("the page, first look"):
        database = PageDatabase("k", "books", make_url(f"sqlite:///{context.local_files.state_database}"))
        first = look(database)
    with meter.step("the page, next look"):
        again = look(database)
    database.close()
    for part in (Path(pipeline.sink.path) / "_cdc").rglob(_STATE_FILES):
        part.unlink()
    with meter.step("rebuild the state database"), closing(context.open_state_database()) as store:
        assert adopt_published_groups(context, store, context.plans.require())
    counts = {"tables": len(plan.tables), "chunks": len(plan.chunks), "groups": len(plan.groups())}
    return {**counts, "steps": [asdict(step) for step in meter.steps], "page bytes": max(first, again)}


def look(database: PageDatabase) -> int:
    """Everything that the page of a pipeline asks for; bytes of the answers."""
    (overview,) = database.read_overview()
    views = PipelineViews(ShownPipeline(database, overview, ()), TaskNames((), ()))
    tables = table_views.tables_view(views, TableQuery("", [], False, "name", False, 0, 30))
    return len(json.dumps([views.describe(), tables, views.chunk_map(None, 2000)], default=str))


def taken(
    server: MySQLServer, user: dict[str, str], tables: int, folder: Path, in_group: int = IN_GROUP
) -> dict[str, Any]:
    """Make so many tables and measure their pipeline in a process of its own.

    :param in_group: chunks of a group.
    """
    server.execute("DROP DATABASE IF EXISTS scale")
    server.execute("CREATE DATABASE scale")
    rows = ", ".join(f"({n}, 0)" for n in range(CHUNKS))
    server.session(
        "scale",
        "SET SESSION sql_log_bin = 0",
        *(
            sql
            for n in range(tables)
            for sql in (f"CREATE TABLE t{n:05} (id INT PRIMARY KEY, v INT)", f"INSERT INTO t{n:05} VALUES {rows}")
        ),
    )
    cli = Cli(folder, server, r"scale\..*", name="scale", user=user, snapshot={"chunk_rows": 1, "group_rows": in_group})
    command = [sys.executable, "-m", "bench.scale", str(cli.file)]
    env = {**os.environ, **cli.env, "PYTHONPATH": str(ROOT)}
    changes = "".join(f"UPDATE t{n:05} SET v = v + 1 WHERE id < 5;" for n in range(min(CHANGED, tables)))
    with subprocess.Popen(command, cwd=ROOT, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdin and run.stdout
        assert run.stdout.readline() == "change\n", "the process has failed"
        server.session("scale", *changes.split(";")[:-1])
        run.stdin.write("done\n")
        run.stdin.flush()
        found = run.stdout.read()
    assert run.returncode == 0
    return dict(json.loads(found.splitlines()[-1]))


def show(found: dict[str, Any]) -> None:
    """Print what was measured of one size."""
    rows = found["chunks"] * ROWS
    print(f"\n{found['tables']:,} tables, {found['chunks']:,} chunks in {found['groups']:,} groups, {rows:,} rows:\n")
    columns = "at the source | at the state database | opened | written | sink grew by | state database grew by"
    print(f"| step | CPU s | peak MB | {columns} |")
    print("|---|--:|--:|--:|--:|--:|--:|--:|--:|")
    for step in (Step(**one) for one in found["steps"]):
        numbers = f"{step.source:,} | {step.state:,} | {step.opened:,} | {step.written:,}"
        grew = f"{step.grew / 1e6:,.1f} MB | {step.state_grew / 1e6:,.1f} MB"
        print(f"| {step.name} | {step.cpu:.1f} | {step.peak:,} | {numbers} | {grew} |")
    print(f"\nThe page of the pipeline is {found['page bytes'] / 1000:.0f} KB.", flush=True)


def main() -> None:
    sizes = [int(size) for size in os.environ.get("CDC_BENCH_TABLES", "500,1000,5000").split(",")]
    with MySQLServer({"innodb_buffer_pool_size": "1G", "table_open_cache": "8000", "tls_version": ""}) as server:
        user = server.create_cdc_user("cdc_scale")
        for size in sizes:
            with tempfile.TemporaryDirectory(prefix="cdc-scale-") as folder:
                show(taken(server, user, size, Path(folder)))
        (mysql,) = server.execute("SELECT VERSION()")[0]
    machine(str(mysql))


def _ask() -> None:
    """Let the process that has started this one change rows, and wait for it."""
    print("change", flush=True)
    sys.stdin.readline()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(json.dumps(measure(sys.argv[1], _ask)))
    else:
        main()
