"""Three tables copied into one, and killed at any moment: while they are written to, altered and read again.

Whatever happens to one table, the copy has the rows of all three in the end, each with its own values; columns that a
table does not have are NULL in its rows. The processes are commands of ``airflow-cdc``.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_cdc.model.errors import TransientError
from airflow_provider_cdc.sinks.delta.maintenance import vacuum_files
from airflow_provider_cdc.sinks.delta.table import DeltaSinkTable
from airflow_provider_cdc.system.processes import process_start_time
from tests.support.cli import Cli
from tests.support.commands import EXCUSES, Commands
from tests.support.failpoints import (
    ICEBERG as ICEBERG_COMMITS,
)
from tests.support.failpoints import (
    REQUESTS,
    RESNAPSHOT,
    RESNAPSHOT_OUTCOME,
    SCHEMA_CHANGES,
    SHARED_COPY,
    SNAPSHOT,
    STREAM,
    SUSPENSION,
)
from tests.support.harness import KILLED, Child, Nursery
from tests.support.oracle import below, open_copy
from tests.support.s3 import S3
from tests.support.servers import MySQLServer
from tests.support.sink_kinds import DELTA, ICEBERG, seeds_by_kind
from tests.support.store_lake import CONN_ID, StoreLake
from tests.support.writing_thread import WritingThread

#: Schedules of the long suite.
SEEDS = 40

SHARDS = ("shared_0", "shared_1", "shared_2")
_INTO = "all/orders"
_ROWS = 60
#: Columns that tables get and lose, and what is written to them.
_ADDED = {"c0": ("INT", "17"), "c1": ("VARCHAR(9)", "'ä'"), "c2": ("DATE", "'2026-02-28'")}
#: A part of such a table cannot be read again.
_SUSPENDED = "is suspended and is not part of the stream"
_BASE = ("id", "part", "v", "n")
_SNAPSHOT_KILLS = (*SNAPSHOT, *SHARED_COPY)
_STREAM_KILLS = (*STREAM, *STREAM, *SCHEMA_CHANGES, *SHARED_COPY, *SUSPENSION, *REQUESTS, *RESNAPSHOT)
_READING_KILLS = (*RESNAPSHOT, *RESNAPSHOT_OUTCOME, "chunk.after_select", "manifest.after_write")


class Writer(WritingThread):
    """Writes to the tables, the same keys in each, and alters one now and then.

    :param keyed: whether the tables have a key.
    """

    def __init__(self, args: dict[str, Any], seed: int, *, keyed: bool) -> None:
        super().__init__(args, SHARDS[0], seed, 0.03)
        self.columns = {shard: set[str]() for shard in SHARDS}
        self.keyed, self.done = keyed, Counter[str]()
        #: DDL that may be carried out.
        self.alters = threading.Semaphore(0)

    def _write(self, connection: Any, cursor: Any) -> None:
        draw = self._draw
        if self.alters.acquire(blocking=False):
            self._alter(cursor)
        if draw.random() < 0.02:
            cursor.execute(f"TRUNCATE TABLE {draw.choice(SHARDS)}.orders")
            self.done["truncate"] += 1
        is_xa = draw.random() < 0.05
        if is_xa:
            connection.commit()
            cursor.execute("XA START 'x'")
        for _ in range(draw.randint(1, 4)):
            shard = draw.choice(SHARDS)
            table = f"{shard}.orders"
            number, other = draw.randint(1, 2 * _ROWS), draw.randint(1, 2 * _ROWS)
            extra = "".join(f", {c} = {draw.choice(('NULL', _ADDED[c][1]))}" for c in sorted(self.columns[shard]))
            put = "REPLACE" if self.keyed else "INSERT"
            part = draw.choice(("'x'", "'é/%'", "NULL"))
            cursor.execute(
                draw.choice(
                    (
                        f"{put} INTO {table} SET id = {number}, part = {part}, v = '{shard}', n = {other}{extra}",
                        f"UPDATE {table} SET part = {part}, n = n + 1{extra} WHERE id DIV 5 = {number} DIV 5",
                        f"UPDATE IGNORE {table} SET id = {other} WHERE id = {number}",
                        f"DELETE FROM {table} WHERE id = {number}",
                    )
                )
            )
        if is_xa:
            for statement in ("XA END 'x'", "XA PREPARE 'x'", draw.choice(("XA COMMIT 'x'", "XA ROLLBACK 'x'"))):
                cursor.execute(statement)
            self.done["xa"] += 1

    def _alter(self, cursor: Any) -> None:
        shard, column = self._draw.choice(SHARDS), self._draw.choice([*_ADDED])
        has = self.columns[shard]
        default = " DEFAULT " + _ADDED[column][1] if self._draw.random() < 0.2 else ""
        change = f"DROP COLUMN {column}" if column in has else f"ADD COLUMN {column} {_ADDED[column][0]}{default}"
        cursor.execute(f"ALTER TABLE {shard}.orders {change}")
        has ^= {column}
        self.done[change.partition(" ")[0] + (" with default" if default and column in has else "")] += 1


class World(Commands):
    """A pipeline that copies the tables into one, what is done to it by chance, and what must come of it."""

    def __init__(self, server: MySQLServer, nursery: Nursery, folder: Path, seed: int, kind: str, store: S3 | None):
        draw = self.draw = random.Random(seed)
        self.server, self.keyed, self.results = server, draw.random() < 0.8, Counter[str]()
        tables = r"shared_\d\.orders"
        sink: dict[str, Any] = {"kind": kind, "routes": [{"match": tables, "into": _INTO}]}
        if draw.random() < 0.3:
            sink["merge"] = "copy_on_write"
        if draw.random() < 0.3:
            sink["partition_by"] = {tables: ["part"]}
        cli = Cli(
            folder / "p",
            server,
            tables,
            sink=sink,
            snapshot={"chunk_rows": 9, "group_rows": draw.choice((20, 40, 1000)), "parallelism": 2},
            stream={"on_table_error": "suspend", "reread": draw.choice(("auto", "ask")), "trigger_seconds": 0.1},
        )
        super().__init__(nursery, cli, folder / "log")
        self.checked, self.place = False, below(cli.sink, _INTO)
        if store is not None:
            lake = StoreLake(store, store, "p", folder)
            self.place, cli.env = below(store, _INTO), {**cli.env, **lake.connections}
            cli.value["sink"] |= {"path": store.uri(), "conn_id": CONN_ID}
            cli.write()
        self.commits = ICEBERG_COMMITS if kind == ICEBERG else ()
        self.writer = Writer(server.connect_args(), seed, keyed=self.keyed)
        key = " PRIMARY KEY" if self.keyed else ""
        for number, shard in enumerate(SHARDS):
            rows = ", ".join(f"({n}, 'x', '{shard}', {number})" for n in range(1, _ROWS + 1))
            server.session(
                shard,
                f"CREATE TABLE orders (id INT NOT NULL{key}, part VARCHAR(9), v VARCHAR(20), n INT)",
                f"INSERT INTO orders VALUES {rows}",
            )

    def begin(self, *command: str, kills: tuple[str, ...]) -> Child:
        """Start a process that dies at a failpoint, or at none."""
        failpoint = self.draw.choice(["", *kills, *self.commits])
        return self.start(*command, failpoint=failpoint and f"{failpoint}:{self.draw.choice((1, 1, 2, 3, 5))}")

    def finish(self, child: Child, *, killed: bool = False) -> None:
        """A process that is not killed has done its work, or is worth a retry.

        :param killed: after a while, if it has not ended by then.
        """
        if killed:
            alive = time.monotonic() + self.draw.uniform(0.1, 2)
            while time.monotonic() < alive and process_start_time(child.pid):
                time.sleep(0.02)
            child.kill()
        code = self.ended(child)
        self.results["killed" if code == KILLED else f"exit {code}"] += 1
        if code not in (0, KILLED, TransientError.exit_code):
            said = self.said().splitlines()[-1]
            assert any(text in said for text in (*EXCUSES, _SUSPENDED)), self.said()

    def snapshot(self) -> None:
        """Two tasks at once read chunk groups of the tables; either may die."""
        for _ in range(self.draw.choice((1, 2, 3))):
            self.finish(self.begin("snapshot", kills=_SNAPSHOT_KILLS), killed=self.draw.random() < 0.2)
        if self.draw.random() < 0.7:
            plan = self.cli.context.plans.load()
            groups = [*plan.groups()] if plan is not None else []
            tasks = [self.start(group=(n, f"task-{n}#1")) for n in self.draw.sample(groups, min(3, len(groups)))]
            for task in tasks:
                self.finish(task, killed=self.draw.random() < 0.3)

    def stream(self) -> None:
        child = self.begin("stream", "--catch-up", kills=_STREAM_KILLS)
        self.finish(child, killed=self.draw.random() < 0.3)

    def beside(self) -> None:
        """A stream, and a table that is read again meanwhile; either may die."""
        stream = self.begin("stream", kills=_STREAM_KILLS)
        self.began(stream)
        self.reading()
        if self.draw.random() < 0.6:
            self.go("stop")
            self.finish(stream)
        else:
            self.finish(stream, killed=True)

    def reading(self) -> None:
        where = ("--where-key", f"id BETWEEN {self.draw.randint(1, 40)} AND 80") if self.keyed else ()
        part = where if self.draw.random() < 0.5 else ()
        table = f"{self.draw.choice(SHARDS)}.orders"
        self.finish(self.begin("resnapshot", "--table", table, *part, kills=_READING_KILLS))

    def settle(self) -> None:
        """Nobody writes any more: all tables take part in the stream, and the copy is what the sources are."""
        for _ in range(4):
            code = self.go("run", "--catch-up")
            plan = self.cli.context.plans.require()
            left = [plan.tables[step.table].label for step in plan.suspensions]
            if code == 0 and not left:
                break
            for table in left:
                assert self.go("resnapshot", "--table", table) == 0, self.said()
        else:
            raise AssertionError(f"{left} did not come back:\n{self.said()}")
        self.check()
        assert self.go("verify") == 0, self.said()
        self.clean_up()
        self.check()

    def clean_up(self) -> None:
        """Delete whatever is not needed any more, as seen by each of the tables."""
        context = self.cli.context
        for table in context.plans.require().tables:
            target = context.sink.table(table)
            target.clean_up()
            if isinstance(target, DeltaSinkTable):
                vacuum_files(target.load_log(), retention=0)

    def check(self) -> None:
        copy = open_copy(self.place)
        assert copy is not None
        names = [*_BASE, *(name for name in _ADDED if name in copy.columns)]
        assert {*names, "_cdc_source"} == {n for n in copy.columns if n == "_cdc_source" or not n.startswith("_cdc_")}
        rows = Counter(tuple(row.values()) for row in copy.read(["_cdc_source", *names]).to_pylist())
        wanted = Counter[tuple[Any, ...]]()
        for shard in SHARDS:
            has = {*_BASE, *self.writer.columns[shard]}
            texts = ", ".join(name if name in has else "NULL" for name in names)
            wanted.update(
                (f"{shard}.orders", *row) for row in self.server.execute(f"SELECT {texts} FROM {shard}.orders")
            )
        missing, extra = wanted - rows, rows - wanted
        assert not missing and not extra, f"missing {missing}, extra {extra}\n{self.said()}"


@pytest.fixture
def store() -> S3 | None:
    """Where the sink is, if not in a folder."""
    return None


@pytest.fixture
def world(
    server: MySQLServer, nursery: Nursery, tmp_path: Path, seed: int, kind: str, store: S3 | None
) -> Iterator[World]:
    for shard in SHARDS:
        server.execute(f"DROP DATABASE IF EXISTS {shard}")
        server.execute(f"CREATE DATABASE {shard}")
    yield World(server, nursery, tmp_path, seed, kind, store)
    for shard in SHARDS:
        server.execute(f"DROP DATABASE {shard}")


@pytest.mark.one_of("server")
@pytest.mark.parametrize(("seed", "kind"), seeds_by_kind([1], range(2, SEEDS), [1]))
def test_killed_by_chance(world: World) -> None:
    carry_out(world)


def carry_out(world: World) -> None:
    """Kill whatever runs, again and again; in the end the copy is right."""
    kinds = [world.stream, world.stream, world.stream, world.beside, world.reading]
    try:
        with world.writer:
            world.snapshot()
            assert world.go("run", "--catch-up") == 0, world.said()
            for number in range(8):
                if number % 2:
                    world.writer.alters.release()
                world.draw.choice(kinds)()
        world.settle()
    finally:
        print(dict(world.results), dict(world.writer.done), world.cli.value["sink"], f"keyed {world.keyed}")


class TestInAnObjectStore:
    """The same, with commits of several tables at once."""

    @pytest.fixture
    def store(self, s3: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> S3:
        monkeypatch.setenv("AIRFLOW_CDC_STATE_DIR", str(tmp_path / "state"))
        return s3.under("lake")

    @pytest.mark.one_of("server")
    @pytest.mark.parametrize(
        ("seed", "kind"),
        [pytest.param(3, DELTA), *(pytest.param(n, DELTA, marks=pytest.mark.long) for n in range(100, 110))],
    )
    def test_killed_by_chance(self, world: World) -> None:
        carry_out(world)
