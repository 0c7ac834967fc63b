"""Killed where a table is altered, suspended, read again, added, removed or emptied, while writers and DDL go on.

The processes are commands of ``airflow-cdc``: a stream, and beside it those who ask it for something. In the end each
table equals its source, row by row and column by column. Every run of the tests has two chains that die at each of
these failpoints between them; the long suite has schedules by chance, of which each follows from one number.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_cdc.model.errors import TransientError
from airflow_provider_cdc.system.processes import process_start_time
from tests.support.altering import quoted
from tests.support.cli import Cli
from tests.support.commands import EXCUSES, Commands
from tests.support.definitions import check_definitions
from tests.support.failpoints import (
    ADDED_TABLE,
    DROPPED_TABLE,
    REQUESTS,
    RESNAPSHOT,
    SCHEMA_CHANGES,
    SNAPSHOT,
    STREAM,
    SUSPENSION,
)
from tests.support.harness import KILLED, Child, Nursery
from tests.support.oracle import Place, compare_database
from tests.support.redefining import TABLES as DEFINITIONS
from tests.support.redefining import Load
from tests.support.s3 import S3
from tests.support.servers import MySQLServer
from tests.support.sink_kinds import DELTA, ICEBERG, seeds_by_kind
from tests.support.store_lake import CONN_ID, StoreLake

#: Schedules of the long suite.
SEEDS = 60

_DATABASE = "kill_t"
_ALL = tuple(DEFINITIONS)
#: At which a table that is read again as a whole comes by.
_READING = tuple(name for name in SNAPSHOT if name.partition(".")[0] in ("chunk", "file", "manifest"))
POINTS = (*SCHEMA_CHANGES, *SUSPENSION, *DROPPED_TABLE, *ADDED_TABLE, *REQUESTS, *RESNAPSHOT)
_TRANSIENT = TransientError.exit_code


@dataclass(frozen=True)
class Step:
    """A process that is killed.

    :param failpoint: where, as ``name:n``.
    :param sql: what the source is told before.
    :param tables: what the pipeline copies from then on; empty: as before.
    :param command: what is killed.
    :param beside: what runs beside it. It may fail for a while if the stream is what dies.
    :param by_request: what somebody wants of the stream before: the kind, the table, and a condition on its key.
    """

    failpoint: str
    sql: tuple[str, ...] = ()
    tables: tuple[str, ...] = ()
    command: tuple[str, ...] = ("stream", "--catch-up")
    beside: tuple[str, ...] = ()
    by_request: tuple[str, ...] = ()


_FOLLOWED = "ALTER TABLE alpha ADD COLUMN added INT NULL"
_SUSPENDS = "ALTER TABLE `be``ta` MODIFY v VARBINARY(80)"
_GOING, _STREAM = ("stream",), ("stream", "--catch-up")
_ALPHA = f"{_DATABASE}.alpha"
_AGAIN = ("resnapshot", "--table", _ALPHA)
#: What each chain begins with, and its steps.
CHAINS: dict[str, tuple[tuple[str, ...], tuple[Step, ...]]] = {
    # One ALTER that is followed, then one that is not: from the moment that it is met to the exchange of all rows.
    "altered": (
        _ALL,
        (
            Step("definition.before_write", (_FOLLOWED,)),
            *(Step(f"definition.{name}") for name in ("after_write", "before_alter", "after_alter")),
            Step("suspend.before_write", (_SUSPENDS,)),
            Step("suspend.after_write"),
            Step("chunk.after_select"),
            Step("reread.after_stage"),
            *(Step(f"rejoin.{name}") for name in ("before_write", "after_write", "before_exchange", "after_exchange")),
            Step("manifest.after_write", ("ALTER TABLE gamma MODIFY v VARBINARY(80)",)),
            Step("rejoin.before_exchange"),
            Step("table.after_commit", ("ALTER TABLE alpha DROP COLUMN added, ADD more INT",)),
        ),
    ),
    # Tables come and go, at the start of a stream and beside one; others ask for one to be read again.
    "asked": (
        ("alpha", "be`ta"),
        (
            Step("add.before_write", tables=("alpha", "be`ta", "gamma")),
            Step("add.after_write"),
            Step("rejoin.before_write"),
            Step("add.after_write", tables=_ALL, command=_GOING, beside=("reload",)),
            Step("suspend.before_write", tables=("be`ta", "gamma", "delta"), command=_GOING, beside=("reload",)),
            Step("suspend.after_write"),
            Step("rejoin.after_write", tables=_ALL, command=_GOING, beside=("reload",)),
            Step("drop.before_commit", ("DROP TABLE delta",)),
            Step("drop.after_commit"),
            Step("rejoin.after_exchange", (f"CREATE TABLE delta {DEFINITIONS['delta']}",)),
            Step("chunk.after_hw", command=_AGAIN, beside=_GOING),
            Step("reread.after_stage", command=_AGAIN, beside=_GOING),
            Step("rejoin.before_exchange", command=_GOING, beside=_AGAIN),
            Step("add.before_write", ("CREATE TABLE created (id INT PRIMARY KEY, v INT)",), command=_GOING),
        ),
    ),
    # A table is suspended and resumed through the bookkeeping, and a part of one is read again. Whoever dies leaves a
    # request that was taken up, and the next one does it.
    "requested": (
        _ALL,
        (
            Step("request.after_take", command=_GOING, beside=("suspend", "--table", _ALPHA)),
            *(Step(name) for name in ("suspend.before_write", "suspend.after_write", "request.before_end")),
            Step("request.after_take", command=_GOING, beside=("resume", "--table", _ALPHA)),
            *(Step(name) for name in ("reread.after_stage", "rejoin.before_write")),
            *(Step(name) for name in ("rejoin.after_write", "rejoin.before_exchange", "request.before_end")),
            Step("reread.before_commit", by_request=("reread", _ALPHA, "id >= 5")),
            *(Step(name) for name in ("reread.after_commit", "request.before_end")),
        ),
    ),
}


class World(Commands):
    """A pipeline whose commands are killed, and a load on its tables."""

    def __init__(
        self, server: MySQLServer, nursery: Nursery, folder: Path, seed: int, store: S3 | None, kind: str
    ) -> None:
        self.server, self.folder = server, folder
        self.sink = {"kind": kind, "on_dropped": "drop", "merge": {"copy_on_write": [_pattern("be`ta")]}}
        super().__init__(nursery, Cli(folder / "p", server, sink=self.sink, **_SETTINGS), folder / "log")
        self.place: Place = self.cli.sink
        if store is not None:
            lake = StoreLake(store, store, "p", folder)
            self.place, self.cli.env = store, {**self.cli.env, **lake.connections}
            self.cli.value["sink"] |= {"path": store.uri(), "conn_id": CONN_ID}
        self.load = Load(server, seed, _DATABASE)
        self.deaths = Counter[str]()

    def captures(self, tables: Sequence[str]) -> None:
        """Write the pipeline's file: from the next start, or reload, on it copies these, and what is created."""
        self.cli.value["source"]["tables"] = [_pattern(name) for name in (*tables, "created")]
        self.cli.write()

    def carry_out(self, step: Step) -> None:
        """Do one step, in which a process dies."""
        if step.sql:
            self.server.session(_DATABASE, *step.sql)
        if step.tables and not step.beside:
            self.captures(step.tables)
        if step.by_request:
            kind, table, *condition = step.by_request
            with self.cli.opened() as (_, store):
                store.add_request("p", kind, table, "ann", *condition)
        if step.beside == _GOING:
            stream = self.start(*_GOING)
            self.began(stream)
            code = self.start(*step.command, failpoint=step.failpoint).wait()
            assert self.ends(stream) == 0, self.said()
        else:
            child = self.start(*step.command, failpoint=step.failpoint)
            if step.beside:
                self.began(child)
                if step.tables:
                    self.captures(step.tables)
                assert self.go(*step.beside) in (0, _TRANSIENT), self.said()
            code = child.wait()
        assert code == KILLED, f"{step} ended with {code}:\n{self.said()}"
        self.deaths[step.failpoint] += 1

    def there(self) -> list[str]:
        sql = f"SELECT table_name FROM information_schema.tables WHERE table_schema = '{_DATABASE}'"
        found = {name for (name,) in self.server.execute(sql)}
        return [name for name in (*_ALL, "created") if name in found]

    def settle(self) -> None:
        """Nobody writes any more: all tables that are there are part of the stream, and what the source has."""
        names = self.there()
        self.captures(_ALL)
        for _ in range(3):
            code = self.go("run", "--catch-up")
            plan = self.cli.context.plans.require()
            left = [plan.tables[step.table].name for step in plan.suspensions]
            if code == 0 and not {*left} & {*names}:
                break
            for name in left:
                if name in names:
                    assert self.go("resnapshot", "--table", f"{_DATABASE}.{name}") == 0, self.said()
        else:
            raise AssertionError(f"{left} did not come back:\n{self.said()}")
        with self.cli.opened() as (_, store):
            left = [f"{row.kind} {row.table}: {row.state} {row.outcome}" for row in store.last_requests("p", 100)]
        assert all(": done " in one or ": refused " in one for one in left), left
        differences = compare_database(self.server, _DATABASE, self.place, names)
        assert not differences, "\n".join(map(str, [*differences, self.said()]))
        assert self.go("verify") == 0, self.said()
        if self.place != self.cli.sink:
            return
        fresh = Cli(self.folder / "fresh", self.server, *map(_pattern, names), sink=self.sink, **_SETTINGS)
        fresh.snapshot()
        check_definitions(self.server, self.cli, fresh, names)


_SETTINGS: dict[str, Any] = {
    "snapshot": {"chunk_rows": 5, "group_rows": 20},
    "stream": {"on_table_error": "suspend"},
    "source": {"zero_dates": "null"},
}


def _pattern(name: str) -> str:
    return rf"{_DATABASE}[.]{name}"


@pytest.fixture
def store() -> S3 | None:
    """Where the sink is, if not in a folder."""
    return None


@pytest.fixture
def kind() -> str:
    """Kind of the sink."""
    return DELTA


@pytest.fixture
def world(
    server: MySQLServer, nursery: Nursery, tmp_path: Path, seed: int, store: S3 | None, kind: str
) -> Iterator[World]:
    server.execute(f"DROP DATABASE IF EXISTS {_DATABASE}")
    server.execute(f"CREATE DATABASE {_DATABASE} CHARACTER SET utf8mb4")
    found = World(server, nursery, tmp_path, seed, store, kind)
    for name, definition in DEFINITIONS.items():
        server.session(_DATABASE, f"CREATE TABLE {quoted(name)} {definition}")
    yield found
    server.execute(f"DROP DATABASE {_DATABASE}")


@pytest.mark.one_of("server")
@pytest.mark.parametrize(("chain", "seed"), [(chain, number) for number, chain in enumerate(CHAINS)])
def test_killed_and_started_again(world: World, chain: str) -> None:
    """Each process dies at the place of its step, and the next one finds what it has left."""
    carry_out(world, *CHAINS[chain])


@pytest.mark.one_of("server")
@pytest.mark.parametrize("kind", [ICEBERG])
@pytest.mark.parametrize(
    ("chain", "seed"),
    [pytest.param(name, n, marks=[] if n == 0 else pytest.mark.long) for n, name in enumerate(CHAINS)],
)
def test_killed_and_started_again_with_iceberg(world: World, chain: str) -> None:
    """The same, into Iceberg tables."""
    carry_out(world, *CHAINS[chain])


def carry_out(world: World, tables: Sequence[str], steps: Sequence[Step]) -> None:
    """Carry out the steps of a chain; at the end each copy is its source."""
    with world.load:
        time.sleep(1)  # some rows
        world.captures(tables)
        assert world.go("run", "--catch-up") == 0, world.said()
        for step in steps:
            world.carry_out(step)
        time.sleep(0.2)
    world.settle()
    with world.cli.opened() as (_, store):
        dropped = [event.detail for event in store.last_events("p", 1000, ["reread_dropped"])]
    # Nobody reads a table while another one does: what was dropped has become void by a DDL or a suspension.
    assert not [said for said in dropped if "by a read that began later" in said], dropped
    print(dict(world.deaths), dict(world.load.done))


class TestInAnObjectStore:
    """The same where a rename is a request, and a look costs one."""

    @pytest.fixture
    def store(self, s3: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> S3:
        monkeypatch.setenv("AIRFLOW_CDC_STATE_DIR", str(tmp_path / "state"))  # also for what the test itself looks up
        return s3.under("lake")

    @pytest.mark.one_of("server")
    @pytest.mark.parametrize("seed", [7])
    def test_killed_and_started_again(self, world: World) -> None:
        """A table is suspended, read again and rejoins, one is added, one leaves, one is dropped."""
        steps = (
            Step("suspend.after_write", (_SUSPENDS,)),
            Step("rejoin.before_exchange"),
            Step("add.after_write", tables=_ALL),
            Step("suspend.before_write", tables=("be`ta", "gamma", "delta"), command=_GOING, beside=("reload",)),
            Step("drop.before_commit", ("DROP TABLE delta",)),
        )
        carry_out(world, ("alpha", "be`ta", "delta"), steps)

    @pytest.mark.long
    @pytest.mark.parametrize(("chain", "seed"), [(chain, number) for number, chain in enumerate(CHAINS)])
    def test_the_whole_chains(self, world: World, chain: str) -> None:
        carry_out(world, *CHAINS[chain])


class Chance:
    """What happens to a world by chance."""

    def __init__(self, world: World, seed: int) -> None:
        self.world, self.draw, self.done = world, random.Random(seed), Counter[str]()

    def run(self, *command: str) -> Child:
        """A process that dies at a failpoint, or at none."""
        failpoint = self.draw.choice(["", *POINTS, *POINTS, *_READING, *STREAM])
        return self.world.start(*command, failpoint=failpoint and f"{failpoint}:{self.draw.choice((1, 1, 2, 3))}")

    def ended(self, child: Child, *, killed: bool = False) -> None:
        """A process that ends by itself, and not by a failpoint, has done its work, or is worth a retry.

        :param killed: after a while, if it has not ended by then.
        """
        if killed:
            alive = time.monotonic() + self.draw.uniform(0.3, 3)
            while time.monotonic() < alive and process_start_time(child.pid):
                time.sleep(0.02)
            child.kill()
        code = self.world.ended(child)
        self.done["killed" if code == KILLED else f"exit {code}"] += 1
        if code not in (0, KILLED, _TRANSIENT):
            said = self.world.said().splitlines()[-1]
            assert any(text in said for text in EXCUSES), self.world.said()

    def stream(self) -> None:
        self.ended(self.run("stream", "--catch-up"), killed=self.draw.random() < 0.3)

    def beside(self) -> None:
        """A stream, and who asks it for something; either may die."""
        world, draw = self.world, self.draw
        stream = self.run("stream")
        world.began(stream)
        for _ in range(draw.choice((1, 2))):
            if draw.random() < 0.5:
                self.reading()
            else:
                self.reload()
        time.sleep(draw.uniform(0, 1.5))
        if draw.random() < 0.7:
            world.go("stop")
            self.ended(stream)
        else:
            self.ended(stream, killed=True)

    def reading(self) -> None:
        table = self.draw.choice(_ALL)
        self.ended(self.run("resnapshot", "--table", f"{_DATABASE}.{table}"), killed=self.draw.random() < 0.2)

    def reload(self) -> None:
        self.world.captures(self.draw.sample(_ALL, self.draw.choice((2, 3, 4, 4))))
        self.ended(self.world.start("reload"), killed=self.draw.random() < 0.3)


@pytest.mark.long
@pytest.mark.parametrize(("seed", "kind"), seeds_by_kind([], range(SEEDS), []))
def test_killed_by_chance(world: World, seed: int) -> None:
    """DDL of every kind, and whoever is at it dies anywhere."""
    chance = Chance(world, seed)
    kinds = [chance.stream, chance.stream, chance.beside, chance.beside, chance.reading, chance.reload]
    try:
        with world.load:
            time.sleep(1)
            world.captures(_ALL)
            assert world.go("run", "--catch-up") == 0, world.said()
            for _ in range(8):
                world.load.alters.release(2)
                chance.draw.choice(kinds)()
        world.settle()
    except BaseException:
        print(*world.load.said, sep=";\n")
        raise
    finally:
        print(dict(chance.done), dict(world.load.done))


def test_the_chains_have_every_failpoint() -> None:
    met = {step.failpoint for _, steps in CHAINS.values() for step in steps}
    assert met >= {*POINTS} and met & {*_READING} and met & {*STREAM}
