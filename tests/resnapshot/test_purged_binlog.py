"""The server has removed binlogs that were never read: the stream stops, or all tables are read again in place."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from airflow_provider_cdc.apply import applier as apply
from airflow_provider_cdc.chunk_groups.chunk_group import ChunkGroup
from airflow_provider_cdc.chunk_groups.task import run_in_threads
from airflow_provider_cdc.config import Pipeline
from airflow_provider_cdc.model.comparison import NOT_COMPARABLE
from airflow_provider_cdc.model.errors import FencedError, NotReadyError, OtherHistoryError, PurgedError
from airflow_provider_cdc.observe.status import read_status
from airflow_provider_cdc.resnapshot import purged_binlog as next_snapshot
from airflow_provider_cdc.resnapshot.purged_binlog import replan_if_purged
from airflow_provider_cdc.runtime.liveness import Heartbeat
from airflow_provider_cdc.snapshot.run import run_group
from airflow_provider_cdc.stream.run import begin_epoch
from airflow_provider_cdc.verify.run import verify_tables
from tests.support.chance import killed_at
from tests.support.cli import Cli
from tests.support.epochs import run_epoch_in_process, stage_everything
from tests.support.failpoints import NEXT_SNAPSHOT
from tests.support.mariadb import MariaDBServer
from tests.support.oracle import compare_database
from tests.support.servers import MySQLServer

# The servers have their turn: each test with each of them would be a product.
pytestmark = pytest.mark.one_of("server")

_NUMBERS = itertools.count(10)


@pytest.fixture(scope="module", params=["MySQL", "MySQL without GTIDs", "MariaDB"])
def server(request: pytest.FixtureRequest) -> Iterator[MySQLServer]:
    if request.param == "MariaDB":
        own: MySQLServer = MariaDBServer()
    elif "without" in request.param:
        own = MySQLServer({"gtid_mode": "OFF", "enforce_gtid_consistency": "OFF"})
    else:
        own = MySQLServer()
    with own:
        yield own


@dataclass
class World:
    """Tables ``d.t`` (chunks of three rows), ``d.e`` (empty) and ``d.gone``, copied and followed."""

    server: MySQLServer
    cli: Cli

    def run(self, *statements: str) -> None:
        self.server.session("d", *statements)

    def change(self) -> None:
        """Changes of every kind, also outside of all chunks, that only the binlog holds; then they are gone from it."""
        self.run(
            "UPDATE t SET v = 'gap' WHERE id IN (2, 11)",
            "DELETE FROM t WHERE id = 5",
            "INSERT INTO t VALUES (-7, 'gap'), (500, 'gap')",
            "INSERT INTO e VALUES (1, 'gap')",
            "DROP TABLE gone",
            "CREATE TABLE fresh (id INT PRIMARY KEY, v VARCHAR(20))",
            "INSERT INTO fresh VALUES (1, 'gap')",
        )
        self.server.purge()

    def exact(self, generation: int) -> None:
        """Whether the copy is right, and goes on being so."""
        for _ in range(2):
            n = next(_NUMBERS)
            self.run(f"UPDATE t SET v = '{n}' WHERE id IN (3, 500)", f"INSERT INTO e VALUES ({n}, 'new')")
            self.cli.catch_up()
            assert compare_database(self.server, "d", self.cli.sink, ["t", "e", "fresh"]) == []
        assert all(verdict.is_equal for verdict in verify_tables(self.cli.context))
        assert self.cli.context.plans.require().generation == generation
        found = read_status(self.cli.context)
        assert (found["generation"], found["phase"]) == (generation, "stopped"), found


@pytest.fixture
def world(server: MySQLServer, tmp_path: Path) -> Iterator[World]:
    server.execute("DROP DATABASE IF EXISTS d")
    server.execute("CREATE DATABASE d")
    for name in ("t", "e", "gone"):
        server.execute(f"CREATE TABLE d.{name} (id INT PRIMARY KEY, v VARCHAR(20))")
    server.execute(f"INSERT INTO d.t VALUES {', '.join(f'({n}, {n})' for n in range(20))}")
    server.execute("INSERT INTO d.gone VALUES (1, 'old')")
    server.execute("ANALYZE TABLE d.t")
    small = {"chunk_rows": 3, "group_rows": 9, "parallelism": 1}
    cli = Cli(tmp_path, server, r"d\..*", stream={"on_purged": "reread"}, snapshot=small)
    cli.snapshot()
    server.execute("UPDATE d.t SET v = 'streamed' WHERE id = 1")
    cli.catch_up()
    yield World(server, cli)
    server.execute("DROP DATABASE d")


def test_the_stream_stops_with_what_to_do(world: World) -> None:
    world.change()
    with pytest.raises(PurgedError, match=r"is no longer on the server.*re-snapshot all tables, use `airflow-cdc run`"):
        world.cli.catch_up()
    assert {one.verdict for one in verify_tables(world.cli.context)} == {NOT_COMPARABLE}
    value = yaml.safe_load(world.cli.file.read_text())
    world.cli.file.write_text(yaml.safe_dump({**value, "stream": {}}))
    world.cli.snapshot()  # nothing to do: the tables stay as they are
    with pytest.raises(PurgedError, match=r"tables, set stream.on_purged to reread and use `airflow-cdc run`"):
        world.cli.catch_up()
    assert world.cli.context.plans.require().generation == 1 and len(world.cli.rows("d", "t")) == 20


def test_a_table_that_is_further_than_the_new_snapshot_would_begin(world: World) -> None:
    """A run died between a table's commit and the resume point, and the server was reset: what the new binlog has up to
    the table's marker would be taken for applied.
    """
    mariadb = isinstance(world.server, MariaDBServer)
    world.run("FLUSH BINARY LOGS", *(f"INSERT INTO t VALUES ({n}, 'row')" for n in range(100, 120)))
    with world.cli.epoch() as epoch, killed_at("progress.before_commit", apply):
        epoch.applier.apply(stage_everything(epoch))
    last = world.server.execute("SHOW BINARY LOGS")[-1][0]
    time.sleep(1.1)  # when a file was begun is known to the second
    world.server.execute("RESET MASTER" if mariadb else "RESET BINARY LOGS AND GTIDS")
    while world.server.execute("SHOW BINARY LOGS")[-1][0] != last:
        world.server.execute("FLUSH BINARY LOGS")
    world.server.purge(flush=False)
    with pytest.raises(OtherHistoryError):
        world.cli.snapshot()
        world.run("UPDATE t SET v = 'late' WHERE id = 3")
        world.cli.catch_up()


def test_all_tables_are_read_again(world: World) -> None:
    world.cli.snapshot()
    assert world.cli.context.plans.require().generation == 1, "nothing is missing"
    world.change()
    world.cli.snapshot()
    world.exact(generation=2)
    world.cli.snapshot()
    world.exact(generation=2)
    # And once more, from a snapshot that was read again.
    world.run("UPDATE t SET v = 'once more' WHERE id > 7")
    world.server.purge()
    world.cli.snapshot()
    world.exact(generation=3)


def test_a_table_that_is_empty_the_second_time(world: World) -> None:
    """No group reads it, and what the first snapshot has left there goes all the same."""
    world.run("DELETE FROM t", "INSERT INTO e VALUES (7, 'new')")
    world.server.purge()
    world.cli.snapshot()
    world.cli.catch_up()
    assert compare_database(world.server, "d", world.cli.sink, ["t", "e", "gone"]) == []


def test_before_the_stream_has_begun(server: MySQLServer, tmp_path: Path) -> None:
    """The first snapshot took too long."""
    server.execute("DROP DATABASE IF EXISTS d")
    server.execute("CREATE DATABASE d")
    try:
        for name in ("t", "e", "fresh"):
            server.execute(f"CREATE TABLE d.{name} (id INT PRIMARY KEY, v VARCHAR(20))")
        server.execute("INSERT INTO d.t VALUES (3, 'a'), (500, 'b')")
        cli = Cli(tmp_path, server, r"d\..*", stream={"on_purged": "reread"})
        cli.snapshot()
        world = World(server, cli)
        world.run("DELETE FROM t WHERE id = 3", "INSERT INTO t VALUES (4, 'c')")
        world.server.purge()
        assert "The snapshot starts over" in cli.call("check").out
        cli.snapshot()
        world.exact(generation=2)
    finally:
        server.execute("DROP DATABASE d")


@pytest.mark.parametrize("place", NEXT_SNAPSHOT)
def test_killed_on_the_way(world: World, place: str) -> None:
    world.change()
    with killed_at(place, next_snapshot):
        world.cli.snapshot()
    with pytest.raises((PurgedError, NotReadyError)):
        world.cli.catch_up()  # there is no way around it
    world.cli.snapshot()
    world.exact(generation=2)


def test_who_belongs_to_the_old_snapshot_cannot_write(world: World) -> None:
    """A stream that was taken for lost, with a batch in its hands; and a reader of a chunk group."""
    with world.cli.opened() as (context, store):
        old = context.plans.require()
        epoch = begin_epoch(context, store, catch_up=False)
        world.run("UPDATE t SET v = 'late' WHERE id = 3", "DELETE FROM t WHERE id = 4")
        with contextlib.closing(epoch.job.make_planner()) as planner:
            (end,) = epoch.job.find_range_ends(planner, epoch.section_start)
        batch = epoch.job.stage_range(epoch.section_start, end, "0")
        store.end_epoch("p", epoch.number, "failed", "lost", "")
    world.change()
    with world.cli.opened() as (context, store):
        replan_if_purged(context, store)
    with pytest.raises(FencedError):
        epoch.apply_batch(batch)
    world.cli.snapshot()
    with pytest.raises(FencedError):
        epoch.apply_batch(batch)
    group = ChunkGroup(context, old, 0)
    entries = [entry for entry in group.read_totals(group.published_by_table()).entries if entry["file"]["rows"]]
    with pytest.raises(FencedError):
        group.publish(1, entries)
    # A task that was mapped over the groups of the old plan, of which the new one has fewer.
    with (
        world.cli.opened() as (context, store),
        pytest.raises(NotReadyError, match="has no chunk group 90: the snapshot was planned again"),
    ):
        run_group(context, store, replan_if_purged(context, store), 90, run_in_threads, holder="old")
    world.exact(generation=2)


def test_beside_a_stream_that_runs_nothing_is_planned(world: World) -> None:
    with world.cli.opened() as (context, store):
        epoch = begin_epoch(context, store, catch_up=False)
        world.change()  # it may have read all that, which its resume point does not tell
        with Heartbeat(store, "p", epoch.number, epoch.details, epoch.stop, lambda: False):
            with pytest.raises(NotReadyError, match="a stream of p is running"):
                replan_if_purged(context, store)
        epoch.stop.set()
        run_epoch_in_process(epoch)
    assert world.cli.context.plans.require().generation == 1


def test_what_it_does_not_go_with() -> None:
    value = {"name": "p", "source": {"conn_id": "c", "tables": ["d.t"]}, "sink": {"path": "/lake"}}
    for stream, said in (
        ({"on_purged": "reread", "start": "latest"}, "nothing to re-snapshot"),
        ({"on_purged": "again"}, "stream.on_purged is 'again'"),
    ):
        with pytest.raises(NotReadyError, match=said):
            Pipeline.from_dict({**value, "stream": stream})
