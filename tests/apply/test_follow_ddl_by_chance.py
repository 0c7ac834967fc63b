"""Writers and DDL go on all through snapshot, stream, kills and groups that are read again; then the copy is compared.

With every other seed, there are rules for rows and columns: DDL drops and renames columns, too, tables are suspended,
and what the stream cannot decide is decided as a user would.

Each schedule follows from one number, but for the clock.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pymysql
import pytest
from deltalake import write_deltalake

from airflow_provider_cdc.apply import applier as apply
from airflow_provider_cdc.apply import follow_ddl as schema_changes
from airflow_provider_cdc.apply import task as batches
from airflow_provider_cdc.chunk_groups import chunk_group
from airflow_provider_cdc.chunk_groups import task as slices
from airflow_provider_cdc.chunk_groups.task import run_in_threads
from airflow_provider_cdc.model.errors import (
    CdcError,
    NotReadyError,
    TableAlteredError,
    TableSuspendedError,
    TransientError,
)
from airflow_provider_cdc.mysql.chunks import chunk, keyless
from airflow_provider_cdc.mysql.client.catalog import read_schema
from airflow_provider_cdc.mysql.client.session import connect
from airflow_provider_cdc.resnapshot import publish
from airflow_provider_cdc.resnapshot import worker as rereading
from airflow_provider_cdc.sinks.lake import compaction
from airflow_provider_cdc.sinks.lake.merge import table_edit
from airflow_provider_cdc.snapshot import run as snapshot
from airflow_provider_cdc.snapshot.run import run_group
from airflow_provider_cdc.stream.run import begin_epoch
from airflow_provider_cdc.verify.run import verify_tables
from tests.support.altering import BESIDE, KEYS, TABLES, Alterations, change, quoted, seen
from tests.support.altering_rules import decide, draw_rules, fixed_columns, key_of
from tests.support.chance import Killed, Threads, at_once, killed, roll_back_xa
from tests.support.chance_rules import Rules
from tests.support.cli import Cli, asked_by
from tests.support.definitions import copied_fields
from tests.support.epochs import run_epoch_in_process
from tests.support.failpoints import RESNAPSHOT, SCHEMA_CHANGES, STREAM
from tests.support.loaded_pipeline import LoadedPipeline
from tests.support.oracle import compare_all, open_copy
from tests.support.servers import MySQLServer
from tests.support.sink_kinds import DELTA, seeds_by_kind
from tests.support.transforms import HASH_ENV

#: DDL that must have been followed at least, and columns that must have been added: a schedule without is none.
_FOLLOWED, _ADDED = 8, 4
_DATABASE = "chance_d"
#: Why a group that was read again may not be published.
_DROPPED = ("was altered since", "is hashed in its copy", "is suspended", "was re-snapshotted as a whole")
_MODULES = (apply, publish, schema_changes, batches, slices, chunk_group, snapshot, chunk, keyless)


class Load(Threads):
    """Threads that write, and one that alters."""

    def __init__(
        self, server: MySQLServer, seed: int, fixed: Mapping[str, Collection[str]] | None, writers: int = 2
    ) -> None:
        self.fixed = fixed
        super().__init__(server, seed, _DATABASE, [self._write] * writers + [self._alter], "sql_mode = ''")

    def _write(self, draw: random.Random, number: int, cursor: Any) -> None:
        """One transaction."""
        if draw.random() < 0.01:
            with suppress(pymysql.MySQLError):
                cursor.execute(f"TRUNCATE TABLE {quoted(draw.choice([*TABLES]))}")
            return
        tables = draw.choices([*TABLES], k=draw.choice((1, 1, 2, 4)))
        changes = [change(draw, table, seen(cursor, _DATABASE, table)) for table in tables]
        xid, how = f"'{_DATABASE}{number}'", draw.random()
        end = "ROLLBACK" if draw.random() < 0.1 else "COMMIT"
        if how < 0.15:
            statements = [f"XA START {xid}", *changes, f"XA END {xid}", f"XA PREPARE {xid}", f"XA {end} {xid}"]
        elif how < 0.7:
            statements = ["BEGIN", *changes, end]
        else:
            statements = changes
        for statement in statements:
            if not self.executed(cursor, statement) and how < 0.15:
                roll_back_xa(cursor, xid)
                return
            if statement.startswith("XA PREPARE"):
                time.sleep(draw.choice((0, 0.01, 0.05)))
        if how >= 0.15:
            cursor.execute("COMMIT")

    def _alter(self, draw: random.Random, number: int, cursor: Any) -> None:
        """One DDL or two, of captured tables or of others."""
        if not self.alters.acquire(blocking=False):
            return
        made = Alterations(self.server, draw, self.fixed)
        made.number = len(self.said) * 10
        for _ in range(draw.choice((1, 1, 1, 2, 3))):
            if draw.random() < 0.2:
                statement = self._beside(draw)
            else:
                table = draw.choice([*TABLES])
                statement = made.of(cursor, _DATABASE, table)
            self.executed(cursor, statement, ddl=True)
        self.over.wait(draw.choice((0, 0.05, 0.2)))

    def _beside(self, draw: random.Random) -> str:
        one, other = (quoted(name) for name in draw.sample(BESIDE, 2))
        return draw.choice(
            [
                f"CREATE TABLE IF NOT EXISTS {one} (id INT PRIMARY KEY, v INT DEFAULT 7)",
                f"ALTER TABLE {one} DROP COLUMN v",
                f"ALTER TABLE {one} ADD COLUMN v INT NOT NULL DEFAULT 9 FIRST",
                f"RENAME TABLE {one} TO {other}",
                f"DROP TABLE IF EXISTS {one}, {other}",
                f"CREATE TABLE IF NOT EXISTS {one} LIKE {quoted(draw.choice([*TABLES]))}",
            ]
        )


class World(LoadedPipeline):
    """A pipeline under a load."""

    def __init__(self, server: MySQLServer, folder: Path, seed: int, kind: str) -> None:
        super().__init__(server, folder, seed)
        chance = self.chance
        patterns = {name: rf"{_DATABASE}[.]{name}" for name in TABLES}
        self.soft = [name for name in TABLES if name != "loose" and chance.random() < 0.3]
        sink: dict[str, Any] = {
            "kind": kind,
            "merge": {"copy_on_write": [patterns[n] for n in chance.sample([*TABLES], 2)]},
        }
        fed = patterns[chance.choice([*TABLES])]
        if kind == DELTA:
            sink["table_properties"] = {"delta.enableChangeDataFeed": {"true": [fed]}}
        if self.soft:
            sink["deletes"] = {"soft": [patterns[name] for name in self.soft]}
        settings: dict[str, Any] = {
            "snapshot": {"chunk_rows": 5, "group_rows": chance.choice([5, 10, 1000])},
            "stream": {"parallelism": chance.choice([1, 2, 3])},
        }
        self.rules: Rules | None = None
        if seed % 2:
            self.rules = draw_rules(random.Random(f"{seed}/rules"), _DATABASE, self.soft)
            settings["transforms"] = self.rules.section()
            settings["stream"] |= {"on_table_error": "suspend", "reread": "auto"}
        self.settings: dict[str, Any] = {"sink": sink, **settings}
        self.patterns = patterns
        self.cli = Cli(folder / "p", server, *patterns.values(), **self.settings)
        self.cli.env |= HASH_ENV
        self.load = Load(server, seed, None if self.rules is None else fixed_columns(self.soft, self.chance))

    # ---------------------------------------------------------------- what is done to it

    def snapshot(self) -> None:
        """The snapshot; it may be altered meanwhile: then it goes on, or stops by name and begins anew."""
        if self.chance.random() < 0.5:
            self.load.alters.release(2)
        for number in range(6):
            try:
                self.cli.snapshot()
                return
            except TableAlteredError as error:
                self.done["snapshots that stopped"] += 1
                assert "a part of it was published" in error.message, error
            except NotReadyError as error:
                self.done["snapshots that were refused"] += 1
                self.decide(error)
            while self.load.alters.acquire(blocking=False):
                pass
            with self.load.still():  # the last DDL has ended
                if self.cli.sink.exists():
                    self.cli.sink.rename(self.folder / f"stopped{number}")
        raise AssertionError(dict(self.done))

    def stream(self, *, dies: bool = False, ends: bool = False, name: str | None = None) -> None:
        """One epoch, in batches of a random size.

        :param dies: it is killed at a random place, or stopped at a random moment.
        :param ends: it goes on to where the server is.
        :param name: the failpoint at which it is killed the first time that it comes by, instead of a random place.
        """
        chance, catch_up = self.chance, ends or self.chance.random() < 0.7
        self.remove_unmatched()
        other = chance.choice([None, *SCHEMA_CHANGES, *SCHEMA_CHANGES, *STREAM, *RESNAPSHOT])
        at = 1 if name else chance.randrange(1, 40 if other is None else 4)
        stop = threading.Event()
        with self.cli.opened() as (context, store):
            with (
                killed(_MODULES, name or other, at, self.done, dies=dies, died=stop.set),
                suppress(TableSuspendedError),
            ):
                epoch = begin_epoch(context, store, catch_up=catch_up)
                epoch.stop = stop
                size, piece = chance.choice([3000, 20_000, 1 << 20]), chance.choice([700, 1 << 20])
                epoch.job = replace(epoch.job, max_batch_bytes=size, min_range_bytes=piece)
                timer = threading.Timer(chance.uniform(0.2, 1.5), epoch.stop.set)
                if not catch_up or (dies and chance.random() < 0.3 and not name):
                    timer.start()
                try:
                    run_epoch_in_process(epoch)
                finally:
                    timer.cancel()
            run = store.newest_epoch(context.pipeline.name)
            if run is not None and run.state == "running":  # it was killed before it had begun
                store.end_epoch(context.pipeline.name, run.epoch, "failed", "killed")
        self.done["epochs"] += 1

    def again(self) -> None:
        """A group is read again, while a stream runs or not."""
        with self.cli.opened() as (context, store):
            plan = context.plans.require()
            group = self.chance.choice([*plan.groups()])
            for _ in range(2):
                plan = context.plans.require()
                asked = asked_by(f"t{group}")
                try:
                    found = run_group(context, store, plan, group, run_in_threads, holder="t", requested_by=asked)
                    self.done[found.outcome] += 1
                except TransientError as error:
                    self.done["reads that were too early"] += 1
                    events = store.last_events(plan.pipeline, 20)
                    late = any(
                        e.kind == "reread_dropped" and any(text in e.detail for text in _DROPPED) for e in events
                    )
                    assert "the stream has not followed that yet" in error.message or late, error
                except TableAlteredError as error:
                    self.done["reads that were too early"] += 1
                    assert "a part of it was published" in error.message and not self.done["epochs"], error

    def beside(self) -> None:
        """Both at a time."""
        at_once(self.again, lambda: self.stream(dies=self.chance.random() < 0.5))

    # ---------------------------------------------------------------- how it is

    def check(self) -> None:
        self.settle()
        self.rows()
        assert all(v.is_equal for v in verify_tables(self.cli.context, show_values=True))

    def settle(self) -> None:
        """The stream goes on to where the server is. Tables that it has suspended rejoin, by other rules if need be."""
        for _ in range(6):
            try:
                self.stream(ends=True)
            except NotReadyError as error:
                self.decide(error)
                continue
            plan = self.cli.context.plans.require()
            if not plan.suspensions:
                return
            assert self.rules is not None
            for step in plan.suspensions:
                self.done["suspended"] += 1
                try:
                    self.done[self.cli.resnapshot(plan.tables[step.table].label)] += 1
                except (NotReadyError, TransientError) as error:
                    self.decide(error)
        raise AssertionError(plan.suspensions)

    def remove_unmatched(self) -> None:
        """Once rules have changed, no run begins with a pattern of a column that is gone."""
        with self.cli.opened() as (context, _):
            try:
                context.plans.refuse_unmatched_rules(context.plans.require())
            except NotReadyError as error:
                self.decide(error)

    def decide(self, error: CdcError) -> None:
        """Change the rules as an error demands."""
        assert self.rules is not None, error
        if "matches no" in error.message:
            self.rules.columns = {
                table: {name: p if name in self.names(table) else None for name, p in policies.items()}
                for table, policies in self.rules.columns.items()
            }
            self.done["patterns removed"] += 1
        else:
            table = next(name for name in TABLES if f"{_DATABASE}.{name}" in f"{error.message} {error.table}")
            self.done[decide(self.rules, table, self.names(table), error.message, self.chance)] += 1
        self.cli.value["transforms"] = self.settings["transforms"] = self.rules.section()
        self.cli.write()

    def names(self, table: str) -> list[str]:
        """Columns that a table has now."""
        with closing(self.server.connect(database=_DATABASE)) as connection, connection.cursor() as cursor:
            return [column.name for column in seen(cursor, _DATABASE, table)]

    def rows(self) -> None:
        """Rows as other software reads them are the source's; deleted ones that stay are left out."""
        views = {}
        if self.rules is not None:
            views = self.rules.make_views(self.server, {name: key_of(name) for name in TABLES})
        live = self.folder / f"live{self.done['epochs']}"
        for name in self.soft:
            copy = open_copy(self.cli.sink / _DATABASE / name)
            assert copy is not None
            table = copy.read(copy.columns)
            rows = table.filter(pc.invert(table["_cdc_deleted"])).drop_columns(["_cdc_deleted"])
            write_deltalake(str(live / _DATABASE / name), rows)
        with closing(self.server.connect(database=_DATABASE)) as connection:
            others = [name for name in TABLES if name not in self.soft]
            assert compare_all(connection, _DATABASE, self.cli.sink, others, views=views) == []
            assert compare_all(connection, _DATABASE, live, self.soft, views=views) == []

    def columns(self) -> None:
        """Definitions, and names, order, types and comments of the columns, are those of a copy that is made now."""
        fresh = Cli(self.folder / "fresh", self.server, *self.patterns.values(), **self.settings)
        fresh.env |= HASH_ENV
        if self.rules is not None:  # no pattern must match nothing
            self.decide(NotReadyError("matches no column", ""))
            fresh.value["transforms"] = self.settings["transforms"]
            fresh.write()
        fresh.snapshot()
        plan = self.cli.context.plans.require()
        with closing(connect(self.server.connect_args())) as connection:
            for table in plan.tables:
                there = read_schema(connection, *table.id, apply_rules=self.cli.context.copy_rules.apply)
                assert table.columns == there.columns
                assert (table, table.comments, table.collation) == (there, there.comments, there.collation)
                old, new = (copied_fields(cli, _DATABASE, table.name) for cli in (self.cli, fresh))
                if plan.rejoin_of(plan.tables.index(table)) is not None:
                    for one, two in zip(old, new, strict=True):
                        if "comment" not in two["metadata"]:  # one that is told no more may be somebody else's
                            one["metadata"].pop("comment", None)
                assert [a for a in old if a not in new] == [b for b in new if b not in old]
                assert old == new
        self.done["followed"] = len(plan.amendments)
        self.done["added"] = sum(
            len(plan.followed_ddls_of(i)[-1].schema.columns) - len(found.newest.columns)
            for i, found in enumerate(plan.definitions)
            if plan.followed_ddls_of(i)
        )


@pytest.fixture
def world(
    server: MySQLServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, kind: str
) -> Iterator[World]:
    monkeypatch.setattr(compaction, "MAX_DEAD_SHARE", 0.1)
    monkeypatch.setattr(rereading, "_RETRY_SECONDS", 0.2)
    go = rereading.ResnapshotWorker._run

    def ends(self: rereading.ResnapshotWorker) -> None:
        with suppress(Killed):
            go(self)

    monkeypatch.setattr(rereading.ResnapshotWorker, "_run", ends)
    if seed % 4 > 1:
        monkeypatch.setattr(table_edit, "SMALL_FILE_BYTES", 2000)
    with World(server, tmp_path, seed, kind).with_tables(monkeypatch, TABLES, 60, change) as found:
        yield found


@pytest.mark.one_of("server")
@pytest.mark.parametrize(("seed", "kind"), seeds_by_kind([0], range(1, 100)))
def test_a_schedule(world: World, seed: int) -> None:
    chance, load = world.chance, world.load
    kinds = ["stream", "dies", "dies", "again", "beside", "verified", "metadata"]
    steps = [chance.choice(kinds) for _ in range(7)]
    try:
        with load:
            world.snapshot()
            for step in [*steps, "dies", "stream"]:
                load.alters.release(4)
                if step == "dies":
                    world.stream(dies=True)
                else:
                    getattr(world, step)()
        world.check()
        # A definition whose columns the copy does not have; and no other DDL comes by that would give it them.
        last = quoted([*TABLES][seed % len(TABLES)])
        world.server.session(_DATABASE, f"ALTER TABLE {last} ADD last INT", f"UPDATE {last} SET last = {seed}")
        world.stream(dies=True, ends=True, name="definition.before_alter")
        assert world.done["killed at definition.before_alter"]
        world.check()
        world.columns()
    except BaseException:
        print(f"seed {seed}, steps {steps}", *load.said, sep=";\n")
        raise
    finally:
        print(f"seed {seed}: {dict(world.done)}, {dict(load.done)}")
    assert world.done["followed"] >= _FOLLOWED
    assert world.done["added"] >= _ADDED or world.rules is not None
    assert KEYS.keys() == TABLES.keys()
