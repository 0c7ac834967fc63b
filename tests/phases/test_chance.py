"""Everything at once, as chance wants it: odd keys, crashes, compaction, groups that are read again, both merges."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import closing, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_cdc.jobs.batches import together
from airflow_provider_cdc.jobs.slices import run_in_threads
from airflow_provider_cdc.phases import apply, stream
from airflow_provider_cdc.phases.groups import targets
from airflow_provider_cdc.phases.resuming import find_place
from airflow_provider_cdc.phases.snapshot import run_group
from airflow_provider_cdc.sinks.delta import compaction, edit, key_index
from airflow_provider_cdc.sinks.delta.table import DeltaTarget
from airflow_provider_cdc.sinks.delta.upkeep import sweep
from tests.support.cli import Cli, asked_by
from tests.support.delta import as_delta
from tests.support.oracle import compare_all
from tests.support.servers import MySQLServer

#: Tables: the columns that tell their rows apart, the key, and values of these columns.
_TABLES: dict[str, tuple[dict[str, str], str, list[tuple[str, ...]]]] = {
    "whole": ({"k": "INT"}, "k", [("-3",), ("0",), ("1",), ("70",), ("-2147483648",), ("2147483647",)]),
    "huge": ({"k": "BIGINT UNSIGNED"}, "k", [("0",), ("5",), ("9223372036854775808",), ("18446744073709551615",)]),
    "folded": (
        {"k": "VARCHAR(20) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci"},
        "k",
        [("'a'",), ("'A'",), ("'á'",), ("'a '",), ("'b'",), ("''",), ("' '",), ("'ß'",), ("'S'",)],
    ),
    "padded": (
        {"k": "CHAR(9)", "n": "DECIMAL(12,3)"},
        "n, k",
        [("'a'", "1"), ("'a'", "-1"), ("'A'", "1"), ("'b'", "0"), ("''", "99999999.999"), ("'a'", "-0.001")],
    ),
    "raw": (
        {"k": "VARBINARY(9)"},
        "k",
        [("x'00'",), ("x'0000'",), ("''",), ("x'ff'",), ("'a'",), ("'A'",), ("x'ff00'",)],
    ),
    "dated": (
        {"d": "DATE", "t": "DATETIME(6)"},
        "d, t",
        [
            ("'2020-01-01'", "'2020-01-01 00:00:00.000001'"),
            ("'2020-01-01'", "'1969-12-31'"),
            ("'9999-01-01'", "'2020-01-01'"),
        ],
    ),
    "loose": (
        {"k": "FLOAT", "n": "VARCHAR(9)"},
        "",
        [("1.5", "'a'"), ("NULL", "NULL"), ("NULL", "'a'"), ("0", "'A'"), ("-0e0", "'A'"), ("1.5", "NULL")],
    ),
}


class Crash(Exception):
    """A process that is killed, as far as that can be had without one."""


class World:
    """A pipeline, its source, and what has not been committed yet."""

    def __init__(self, cli: Cli, server: MySQLServer, database: str, chance: random.Random) -> None:
        self.cli, self.server, self.database, self.chance = cli, server, database, chance
        self.waiting: list[tuple[int, Any, Any]] = []
        self.count = 0

    def tables(self) -> list[DeltaTarget]:
        return [as_delta(table) for table in targets(self.cli.context, self.cli.context.need_plan())]

    def write(self) -> None:
        """Some transactions; some are rolled back."""
        for _ in range(self.chance.randrange(1, 8)):
            statements = [self._statement() for _ in range(self.chance.randrange(1, 5))]
            if self.chance.random() < 0.05:
                self.server.session(self.database, f"TRUNCATE TABLE {self.chance.choice([*_TABLES])}")
            end = "ROLLBACK" if self.chance.random() < 0.1 else "COMMIT"
            self.server.session(self.database, "SET sql_mode = ''", "START TRANSACTION", *statements, end)

    def _statement(self) -> str:
        name, self.count = self.chance.choice([*_TABLES]), self.count + 1
        columns, _, values = _TABLES[name]
        row = self.chance.choice(values)
        where = " AND ".join(f"{c} <=> {v}" for c, v in zip(columns, row, strict=True))
        change = ", ".join(f"{c} = VALUES({c})" for c in columns)
        first, new = next(iter(columns)), f"VALUES ({', '.join(row)}, {self.count})"
        return self.chance.choice(
            [
                f"INSERT INTO {name} {new} ON DUPLICATE KEY UPDATE {change}, v = VALUES(v)",
                f"REPLACE INTO {name} {new}",
                f"UPDATE {name} SET v = {self.count} WHERE {where}",
                f"DELETE FROM {name} WHERE {where}",
                f"DELETE FROM {name} WHERE {where} LIMIT 1",
                f"UPDATE IGNORE {name} SET {first} = {row[0]} ORDER BY {first} LIMIT {self.chance.randrange(1, 3)}",
            ]
        )

    def stream(self, die: int | None) -> None:
        """One epoch, in batches of any size; it may die."""
        seen = 0

        def failpoint(name: str) -> None:
            nonlocal seen
            seen += 1
            if seen == die:
                raise Crash(name)

        with pytest.MonkeyPatch.context() as patch, suppress(Crash):
            patch.setattr(apply, "failpoint", failpoint)
            with self.cli.epoch() as epoch, closing(epoch.job.make_planner()) as planner:
                at, chance = epoch.start, self.chance
                epoch.publish()
                while not epoch.over():
                    sizes = chance.choice([1, 2000, 1 << 28]), chance.choice([1, 1500, 1 << 20])
                    ends = planner.pieces(at, sizes[0], 1 << 20, len(epoch.job.readers), sizes[1])
                    if not ends:
                        break
                    pieces = [*pairwise([at, *ends])]
                    for n in range(chance.choice([1, 1, 2])):  # Spark may run a task twice
                        manifests = [epoch.job.stage(*piece, f"{n}", i) for i, piece in enumerate(pieces)]
                    if chance.random() < 0.3:
                        self.plan()
                    epoch.apply(together(manifests))
                    at = ends[-1]
                    if chance.random() < 0.3:
                        self.commit()

    def plan(self) -> None:
        for index, table in enumerate(self.tables()):
            self.waiting += [(index, work, work.run()) for work in table.compactions()]

    def commit(self) -> None:
        tables = self.tables()
        self.chance.shuffle(self.waiting)
        while self.waiting and self.chance.random() < 0.8:
            index, *done = self.waiting.pop()
            tables[index].compacted([tuple(done)])

    def again(self) -> None:
        """A group is read again."""
        with self.cli.opened() as (context, store):
            plan = context.need_plan()
            group = self.chance.choice([*plan.groups()])
            for _ in range(2):
                run_group(context, store, plan, group, run_in_threads, holder="t", requested_by=asked_by(f"t{group}"))

    def sweep(self) -> None:
        for table in self.tables():
            sweep(table.load(), 0)

    def differences(self) -> str:
        with closing(self.server.connect()) as connection:
            return "\n".join(map(str, compare_all(connection, self.database, self.cli.sink)))


@pytest.fixture
def world(
    mysql_server: MySQLServer, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> Iterator[World]:
    monkeypatch.setattr(compaction, "FANOUT", 3)
    monkeypatch.setattr(compaction, "DEAD", 0.1)
    monkeypatch.setattr(key_index, "_MERGED", 2)
    chance = random.Random(seed)
    monkeypatch.setattr(edit, "SMALL_FILE", chance.choice([edit.SMALL_FILE, 2000]))
    for name, (columns, key, _) in _TABLES.items():
        filled = " NOT NULL" if key else ""
        listed = (
            [f"{c} {kind}{filled}" for c, kind in columns.items()]
            + ["v INT"]
            + ([f"PRIMARY KEY ({key})"] if key else [])
        )
        mysql_server.session(database, "SET sql_mode = ''", f"CREATE TABLE {name} ({', '.join(listed)})")
    cli = Cli(tmp_path, mysql_server, rf"{database}\..*", name=database, snapshot={"chunk_rows": 2})
    yield World(cli, mysql_server, database, chance)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(20, 30))
def test_everything_at_once(world: World, seed: int) -> None:
    chance = world.chance
    world.write()
    world.write()
    world.cli.snapshot()
    steps = chance.choices(
        ["write", "stream", "die", "plan", "commit", "again", "sweep", "merge"], [2, 2, *[1] * 6], k=25
    )
    for step in steps:
        if step == "die":
            world.stream(chance.randrange(1, 12))
        elif step == "stream":
            world.stream(None)
        elif step == "merge":
            world.cli.value["sink"]["merge"] = chance.choice(["deletion_vectors", "copy_on_write"])
            world.cli.write()
        else:
            getattr(world, step)()
    world.stream(None)
    assert not (found := world.differences()), (steps, found)


def test_an_epoch_that_is_overtaken_while_it_begins(
    mysql_server: MySQLServer, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stands still behind its fences, and goes on when the later one is about to commit what was staged."""
    mysql_server.session(database, "CREATE TABLE a (id INT PRIMARY KEY)", "CREATE TABLE b (id INT)")
    cli = Cli(tmp_path, mysql_server, rf"{database}\..*", name=database)
    cli.snapshot()
    mysql_server.session(database, "INSERT INTO a VALUES (1), (2)", "INSERT INTO b VALUES (1), (1)")
    with cli.opened() as (context, store), cli.opened() as (other, others):

        def find(*args: Any) -> Any:
            monkeypatch.setattr(stream, "find_place", find_place)
            others.end_stream(database, 1, "lost")  # as whoever has watched its heartbeat says
            later.append(stream.begin(other, others, catch_up=True))
            with closing(later[0].job.make_planner()) as planner:
                ends = [later[0].start, *later[0].job.pieces(planner, later[0].start)]
            staged.append(together([later[0].job.stage(*piece, "0") for piece in pairwise(ends)]))
            return find_place(*args)

        later: list[stream.Epoch] = []
        staged: list[dict[str, Any]] = []
        monkeypatch.setattr(stream, "find_place", find)
        older = stream.begin(context, store, catch_up=True)
        assert (older.number, later[0].number) == (1, 2)
        later[0].apply(staged[0])
    with closing(mysql_server.connect()) as connection:
        assert not compare_all(connection, database, cli.sink)
