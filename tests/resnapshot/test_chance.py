"""Everything at once, as chance wants it: odd keys, partitions, deleted rows that stay, crashes, compaction, groups
that are read again, both merges; with every other seed, also rules for rows and columns."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_cdc.apply import applier as apply
from airflow_provider_cdc.apply.applier import epoch_fence
from airflow_provider_cdc.apply.task import merge_manifests
from airflow_provider_cdc.chunk_groups.chunk_group import open_sink_tables
from airflow_provider_cdc.chunk_groups.task import run_in_threads
from airflow_provider_cdc.model.offset import Offset
from airflow_provider_cdc.resnapshot import publish
from airflow_provider_cdc.sinks.delta.maintenance import vacuum_files
from airflow_provider_cdc.sinks.delta.table import DeltaSinkTable
from airflow_provider_cdc.sinks.iceberg import commit_encoder, snapshot_expiry, upkeep
from airflow_provider_cdc.sinks.iceberg.log import iceberg_log
from airflow_provider_cdc.sinks.iceberg.table import IcebergSinkTable
from airflow_provider_cdc.sinks.lake import compaction
from airflow_provider_cdc.sinks.lake.merge import key_index, table_edit
from airflow_provider_cdc.sinks.protocol import SinkTable
from airflow_provider_cdc.snapshot.run import run_group
from airflow_provider_cdc.stream import run as stream
from airflow_provider_cdc.stream.epoch import Epoch
from airflow_provider_cdc.stream.resume import move_to_resume_point
from tests.support.chance_rules import Rules
from tests.support.cli import Cli, asked_by
from tests.support.gone import MOMENT, NUMBER, Gone
from tests.support.odd_keys import MOMENTS, PARTITIONS, PARTS, TABLES, draw_rules, partitions_of
from tests.support.oracle import Kept, compare_database, open_copy
from tests.support.servers import MySQLServer
from tests.support.sink_kinds import seeds_by_kind
from tests.support.transforms import HASH_ENV


class Crash(Exception):
    """A process that is killed, as far as that can be had without one."""


def as_lake(table: SinkTable) -> DeltaSinkTable | IcebergSinkTable:
    assert isinstance(table, DeltaSinkTable | IcebergSinkTable)
    return table


class World:
    """A pipeline, its source, and what has not been committed yet.

    :param rules: of rows and columns, if there are any.
    """

    def __init__(
        self, cli: Cli, server: MySQLServer, database: str, gone: Gone, chance: random.Random, rules: Rules | None
    ) -> None:
        self.cli, self.server, self.database, self.gone, self.chance = cli, server, database, gone, chance
        self.rules, self.since = rules, "1970-01-01"
        self.waiting: list[tuple[int, Any, Any]] = []
        self.places: list[Offset] = []
        self.count = 0

    def tables(self) -> list[DeltaSinkTable | IcebergSinkTable]:
        return [as_lake(table) for table in open_sink_tables(self.cli.context, self.cli.context.plans.require())]

    def write(self) -> None:
        """Some transactions; some are rolled back."""
        chance = self.chance
        with closing(self.server.connect(database=self.database)) as connection, connection.cursor() as cursor:
            cursor.execute("SET sql_mode = ''")
            for _ in range(chance.randrange(5, 40)):
                if chance.random() < 0.03:
                    self.gone.truncate(connection, chance.choice([*TABLES]))
                cursor.execute("START TRANSACTION")
                for _ in range(chance.randrange(1, 5)):
                    cursor.execute(self._statement())
                cursor.execute("ROLLBACK" if chance.random() < 0.1 else "COMMIT")

    def _statement(self) -> str:
        name, self.count = self.chance.choice([*TABLES]), self.count + 1
        columns, _, values = TABLES[name]
        row, part, at = self.chance.choice(values), self.chance.choice(PARTS), self.chance.choice(MOMENTS)
        where = " AND ".join(f"{c} <=> {v}" for c, v in zip(columns, row, strict=True))
        change = ", ".join(f"{c} = VALUES({c})" for c in columns)
        first, new = next(iter(columns)), f"VALUES ({', '.join(row)}, {part}, {at}, {self.count})"
        moved = f"UPDATE {name} SET p = {part}, at = {at}, v = v + 1 LIMIT {self.chance.randrange(1, 4)}"
        return self.chance.choice(
            [
                *([moved] * 3 if self.rules else []),  # they enter, and leave
                f"INSERT INTO {name} {new} ON DUPLICATE KEY UPDATE {change}, p = VALUES(p), v = VALUES(v)",
                f"REPLACE INTO {name} {new}",
                f"UPDATE {name} SET v = {self.count} WHERE {where}",
                f"UPDATE {name} SET p = {part}, at = {at} WHERE {where}",
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
            for module in (apply, publish, commit_encoder, iceberg_log):
                patch.setattr(module, "failpoint", failpoint)
            with self.cli.epoch() as epoch, closing(epoch.job.make_planner()) as planner:
                at, chance = epoch.section_start, self.chance
                self.places.append(at)
                epoch.publish_pending()
                while not epoch.is_over():
                    sizes = chance.choice([1, 2000, 1 << 28]), chance.choice([1, 1500, 1 << 20])
                    ends = planner.find_range_ends(at, sizes[0], 1 << 20, len(epoch.job.reader_replicas), sizes[1])
                    if not ends:
                        break
                    pieces = [*pairwise([at, *ends])]
                    for n in range(chance.choice([1, 1, 2])):  # Spark may run a task twice
                        manifests = [epoch.job.stage_range(*piece, f"{n}", i) for i, piece in enumerate(pieces)]
                    if chance.random() < 0.3:
                        self.plan()
                    epoch.apply_batch(merge_manifests(manifests))
                    at = ends[-1]
                    if chance.random() < 0.3:
                        self.commit()
                    if chance.random() < 0.5:
                        epoch.publish_pending()
                epoch.publish_pending()

    def plan(self) -> None:
        for index, table in enumerate(self.tables()):
            self.waiting += [(index, work, work.run()) for work in table.plan_compactions()]

    def commit(self) -> None:
        tables = self.tables()
        self.chance.shuffle(self.waiting)
        while self.waiting and self.chance.random() < 0.8:
            index, *done = self.waiting.pop()
            tables[index].commit_compactions([tuple(done)])

    def again(self) -> None:
        """A group is read again."""
        with self.cli.opened() as (context, store):
            plan = context.plans.require()
            group = self.chance.choice([*plan.groups()])
            for _ in range(2):
                run_group(context, store, plan, group, run_in_threads, holder="t", requested_by=asked_by(f"t{group}"))

    def read(self) -> None:
        """A table is read again as a whole while the stream runs."""
        with self.cli.streaming():
            assert self.cli.resnapshot(f"{self.database}.{self.chance.choice([*TABLES])}") == "rejoined"

    def back(self) -> None:
        """The resume point is that of an earlier time: whatever has come since comes again, in other batches."""
        with self.cli.epoch() as epoch:
            earlier = [place for place in self.places if place.at < epoch.section_start.at]
            if earlier:
                fence = epoch_fence(self.cli.context.pipeline.name, epoch.number)
                self.cli.context.sink.resume_point().write(self.chance.choice(earlier), epoch.plan.timeline, fence)

    def sweep(self) -> None:
        for table in self.tables():
            if isinstance(table, DeltaSinkTable):
                vacuum_files(table.load_log(), 0)
            else:
                table.clean_up()

    def merge(self) -> None:
        """From now on other tables are merged by copies."""
        copies = [name for name in TABLES if self.chance.random() < 0.5]
        self.cli.value["sink"]["merge"] = {"copy_on_write": [f"{self.database}[.]{name}" for name in copies]}
        self.cli.write()

    def snapshot(self) -> None:
        time.sleep(1.1)  # MariaDB's binlog has whole seconds: what is gone by now was gone in an earlier one
        self.since = self.gone.now()
        self.cli.snapshot()

    def differences(self) -> str:
        soft, views = self.cli.value["sink"]["deletes"]["soft"], {}
        kept = {
            name: Kept(self.gone.database, self.since, f"{self.database}[.]{name}" in soft) for name in self.gone.tables
        }
        if self.rules is not None:
            keys = {name: key.split(", ") if key else [] for name, (_, key, _) in TABLES.items()}
            views = self.rules.make_views(self.server, keys)
            about = (NUMBER, MOMENT)
            self.rules.make_views(self.server, {name: keys[name] for name in kept}, self.gone.database, about)
        found = compare_database(self.server, self.database, self.cli.sink, kept=kept, views=views)
        return "\n".join([*map(str, found), *self.wrong_metadata()])

    def wrong_metadata(self) -> list[str]:
        """Tables whose metadata columns are not what they must be in every row."""
        wrong = []
        for name in TABLES if self.rules is not None else ():
            copy = open_copy(self.cli.sink / self.database / name)
            assert copy is not None
            listed = self.rules.metadata if self.rules is not None else ()
            must = {"_cdc_database": self.database, "_cdc_table": name}
            must = {column: value for column, value in must.items() if column.removeprefix("_cdc_") in listed}
            filled = [{"position": "_cdc_pos"}.get(one, f"_cdc_{one}") for one in listed if one != "gtid"]
            for row in copy.read(filled).to_pylist() if filled else ():
                if None in row.values() or must.items() - row.items():
                    wrong.append(f"{name}: {row}")
        return wrong


@pytest.fixture
def world(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, kind: str
) -> Iterator[World]:
    """Odd seeds have rules; of each four, two are on MariaDB."""
    server: MySQLServer = request.getfixturevalue("mariadb_server" if seed % 4 > 1 else "mysql_server")
    monkeypatch.setattr(snapshot_expiry, "MAX_SNAPSHOTS", 4)
    monkeypatch.setattr(snapshot_expiry, "EXPIRY_BATCH", 2)
    monkeypatch.setattr(upkeep, "RETENTION_SECONDS", -3600)
    monkeypatch.setattr(compaction, "FANOUT", 3)
    monkeypatch.setattr(compaction, "MIN_FANOUT", 2)
    monkeypatch.setattr(compaction, "MAX_DEAD_SHARE", 0.1)
    monkeypatch.setattr(key_index, "_SEGMENTS_TO_MERGE", 2)
    chance = random.Random(seed)
    monkeypatch.setattr(table_edit, "SMALL_FILE_BYTES", chance.choice([table_edit.SMALL_FILE_BYTES, 2000]))
    with server.fresh_database() as database:
        for name, (columns, key, _) in TABLES.items():
            filled = " NOT NULL" if key else ""
            listed = [f"{c} {kind}{filled}" for c, kind in columns.items()]
            listed += ["p VARCHAR(9)", "at DATETIME(6)", "v INT", *([f"PRIMARY KEY ({key})"] if key else [])]
            server.session(database, "SET sql_mode = ''", f"CREATE TABLE {name} ({', '.join(listed)})")
        how = {name: chance.choice(["soft", "ignore", "hard"]) for name, (_, key, _) in TABLES.items() if key}
        by = {n: chance.choice(by) for n, by in PARTITIONS.items() if chance.random() < 0.6}
        rules = draw_rules(random.Random(f"{seed}/rules"), database) if seed % 2 else None
        if rules is not None:
            by = {name: parts for name in by if (parts := partitions_of(by[name], rules, name))}
        sink: dict[str, Any] = {
            "kind": kind,
            "deletes": {mode: [f"{database}[.]{n}" for n in how if how[n] == mode] for mode in ("soft", "ignore")},
            "partition_by": {f"{database}[.]{name}": parts for name, parts in by.items()},
        }
        more = {} if rules is None else {"transforms": rules.section()}
        chunks = {"chunk_rows": 2}
        cli = Cli(tmp_path, server, rf"{database}\..*", name=database, snapshot=chunks, sink=sink, **more)
        cli.env |= HASH_ENV
        kept = [name for name, mode in how.items() if mode != "hard"]
        conditions = {} if rules is None else {name: one.sql for name, one in rules.where.items()}
        with Gone(server.connect_args(), database, kept, conditions) as gone:
            yield World(cli, server, database, gone, chance, rules)


@pytest.mark.parametrize(("seed", "kind"), seeds_by_kind([0], range(1, 12)))
def test_everything_at_once(world: World, seed: int) -> None:
    chance = world.chance
    world.write()
    world.snapshot()
    kinds = ["stream", "die", "plan", "commit", "again", "sweep", "merge", "back", *(["read"] if world.rules else [])]
    steps = [step for _ in range(8) for step in ("write", *chance.sample(kinds, 4))]
    for number, step in enumerate(steps, start=1):
        if step == "die":
            world.stream(chance.randrange(1, 30))
        elif step == "stream":
            world.stream(None)
        else:
            getattr(world, step)()
        if number == len(steps) or (world.rules and number % 10 == 1):  # right after a write, too
            world.stream(None)
            assert not (found := world.differences()), (steps[:number], world.cli.value, found)


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
            monkeypatch.setattr(stream, "move_to_resume_point", move_to_resume_point)
            others.end_epoch(database, 1, "lost")  # as whoever has watched its heartbeat says
            later.append(stream.begin_epoch(other, others, catch_up=True))
            with closing(later[0].job.make_planner()) as planner:
                ends = [later[0].section_start, *later[0].job.find_range_ends(planner, later[0].section_start)]
            staged.append(merge_manifests([later[0].job.stage_range(*piece, "0") for piece in pairwise(ends)]))
            return move_to_resume_point(*args)

        later: list[Epoch] = []
        staged: list[dict[str, Any]] = []
        monkeypatch.setattr(stream, "move_to_resume_point", find)
        older = stream.begin_epoch(context, store, catch_up=True)
        assert (older.number, later[0].number) == (1, 2)
        later[0].apply_batch(staged[0])
    assert not compare_database(mysql_server, database, cli.sink)
