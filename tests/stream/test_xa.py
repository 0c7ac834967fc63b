"""XA transactions around a snapshot and through the stream: their rows count from XA COMMIT on."""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from airflow_provider_cdc.model.errors import TransientError, UnknownPrepareError
from airflow_provider_cdc.mysql.binlog.events import transactions
from airflow_provider_cdc.mysql.binlog.events.spill import spill_to_disk
from airflow_provider_cdc.mysql.binlog.walk import binlog_reader
from airflow_provider_cdc.mysql.chunks import chunk as chunk_module
from airflow_provider_cdc.mysql.chunks import window_reader as windows
from airflow_provider_cdc.mysql.positions import p0, watermarks
from airflow_provider_cdc.mysql.positions.watermarks import _MariaDbWatermarks, _MySqlWatermarks, take_low_watermark
from airflow_provider_cdc.verify.run import verify_tables
from tests.support.cli import Cli
from tests.support.mariadb import MariaDBServer
from tests.support.oracle import compare_database
from tests.support.servers import MySQLServer

# The servers have their turn: each test with each of them would be a product.
pytestmark = pytest.mark.one_of("server")


@pytest.fixture(scope="module", params=["MySQL", "MySQL compressed", "MySQL without GTIDs", "MariaDB"])
def server(request: pytest.FixtureRequest) -> Iterator[MySQLServer]:
    settings = {"binlog_transaction_compression": "ON"} if "compressed" in request.param else {}
    settings |= {"gtid_mode": "OFF"} if "without" in request.param else {}
    with (MariaDBServer if request.param == "MariaDB" else MySQLServer)(variables=settings) as found:
        yield found


@pytest.fixture
def world(server: MySQLServer, tmp_path: Path) -> Iterator[World]:
    server.execute("CREATE DATABASE d")
    with contextlib.closing(World(server, tmp_path)) as opened:
        yield opened
    server.execute("DROP DATABASE d")


class World:
    """Table ``t`` of 30 rows in chunks of ten, a table that is not captured, and a pipeline."""

    def __init__(self, server: MySQLServer, folder: Path) -> None:
        self.server = server
        self.run(
            "CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(20))",
            "CREATE TABLE other (id INT PRIMARY KEY)",
            f"INSERT INTO t VALUES {', '.join(f'({n}, {n})' for n in range(30))}",
        )
        self.cli = Cli(folder, server, r"d\.t", snapshot={"chunk_rows": 10, "parallelism": 1})

    def run(self, *statements: str) -> None:
        """Statements of one session, which then ends: a prepared transaction outlives it."""
        self.server.session("d", *statements)

    def prepare(self, xid: str, *statements: str) -> None:
        # It keeps its locks: not of gaps, in which the next one inserts.
        level = "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED"
        self.run(level, f"XA START {xid}", *statements, f"XA END {xid}", f"XA PREPARE {xid}")

    def finish(self, word: str, xid: str) -> None:
        self.run(f"XA {word} {xid}")

    @property
    def has_barrier(self) -> bool:
        """Whether the server tells which commits stand between binlog and engine, XA COMMIT included."""
        if isinstance(self.server, MariaDBServer):
            return False
        return bool(self.server.execute("SELECT @@global.gtid_mode")[0][0] == "ON")

    def close(self) -> None:
        self.server.roll_back_prepared()

    def exact(self) -> None:
        self.cli.catch_up()
        assert compare_database(self.server, "d", self.cli.sink, ["t"]) == []


def test_in_the_stream(world: World) -> None:
    """Prepared in one run, ended in a later one: the rows are read again from where they were prepared."""
    world.cli.snapshot()
    world.prepare("'a'", "UPDATE t SET v = 'xa' WHERE id = 3", "INSERT INTO t VALUES (100, 'xa')")
    world.prepare("'b', 'q', 5", "DELETE FROM t WHERE id = 4", "INSERT INTO t VALUES (101, 'xa')")
    world.prepare("'c'", "INSERT INTO other VALUES (1)")
    world.prepare("'d'", "UPDATE t SET id = 102 WHERE id = 6")
    world.run("UPDATE t SET v = 'plain' WHERE id = 5")
    world.exact()
    standing = world.cli.context.sink.resume_point().read()
    assert standing is not None and [" " in text for text in standing.open_xa] == [True, True, False, True]
    world.run("FLUSH BINARY LOGS", "UPDATE t SET v = 'later' WHERE id = 5")
    world.exact()
    world.finish("COMMIT", "'a'")
    world.exact()
    world.run("UPDATE t SET v = 'after' WHERE id = 3")
    world.finish("ROLLBACK", "'b', 'q', 5")
    # Names are used again in the batch in which they end.
    world.finish("COMMIT", "'c'")
    world.prepare("'c'", "INSERT INTO other VALUES (2)")
    world.finish("COMMIT", "'d'")
    world.prepare("'d'", "INSERT INTO t VALUES (6, 'anew')")
    world.exact()
    world.finish("COMMIT", "'c'")
    world.finish("COMMIT", "'d'")
    world.prepare("'e'", "DELETE FROM t WHERE id = 7")
    world.finish("COMMIT", "'e'")
    world.run("XA START 'f'", "INSERT INTO t VALUES (7, 'one phase')", "XA END 'f'", "XA COMMIT 'f' ONE PHASE")
    world.exact()
    standing = world.cli.context.sink.resume_point().read()
    assert standing is not None and standing.open_xa == ()
    assert len(world.cli.rows("d", "t")) == 32 and all(v.is_equal for v in verify_tables(world.cli.context))


def test_verify_while_one_is_open(world: World) -> None:
    world.cli.snapshot()
    world.prepare("'a'", "UPDATE t SET v = 'xa' WHERE id = 3")
    world.cli.catch_up()
    world.finish("COMMIT", "'a'")
    assert all(v.is_equal for v in verify_tables(world.cli.context))


BEFORE, LOW, SELECT, HIGH = "chunk.before_lw", "chunk.after_lw", "chunk.after_select", "chunk.after_hw"


@pytest.mark.parametrize(
    ("prepared", "ended", "end"),
    [
        *((prepared, ended, "COMMIT") for prepared in (BEFORE, LOW, SELECT) for ended in ("same", LOW, SELECT, "late")),
        *((HIGH, ended, "COMMIT") for ended in (BEFORE, HIGH)),
        *((SELECT, ended, "ROLLBACK") for ended in ("same", LOW, "late")),
    ],
)
def test_around_the_snapshot(
    world: World, prepared: str, ended: str, end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prepared at some moment of the second chunk; ended at once, at a moment of the third one, or after all."""
    seen: list[str] = []

    def failpoint(name: str) -> None:
        seen.append(name)
        count = seen.count(name)
        if name == prepared and count == 2:
            world.prepare(
                "'x'",
                "UPDATE t SET v = 'xa' WHERE id IN (2, 12, 15, 25)",
                "DELETE FROM t WHERE id IN (3, 13, 23)",
                "UPDATE t SET id = 113 WHERE id = 14",
                "INSERT INTO t VALUES (-1, 'xa')",
            )
            if ended == "same":
                world.finish(end, "'x'")
        if name == ended and count == 3:
            world.finish(end, "'x'")

    with world.cli.opened() as (context, store):
        context.plans.ensure(store)
    monkeypatch.setattr(chunk_module, "failpoint", failpoint)
    monkeypatch.setattr(_MariaDbWatermarks.low, "__defaults__", (0.5,))
    monkeypatch.setattr(_MySqlWatermarks.low, "__defaults__", (0.5,))
    try:
        world.cli.snapshot()
    except TransientError as error:
        # There nobody can tell whether an XA transaction that does not end is just being committed.
        assert not world.has_barrier and "are prepared and do not end" in error.message
        world.finish(end, "'x'")
        ended = "stopped"
        world.cli.snapshot()
    monkeypatch.undo()
    world.run("UPDATE t SET v = 'plain' WHERE id IN (1, 11, 21)")
    if ended == "late":
        world.exact()
        world.finish(end, "'x'")
    world.exact()
    assert all(v.is_equal for v in verify_tables(world.cli.context))


def unseen(monkeypatch: pytest.MonkeyPatch) -> None:
    """XA transactions are in the binlog a moment before they are listed, so any may be open though none is listed."""
    for module in (p0, watermarks):
        monkeypatch.setattr(module, "open_xa_transactions", lambda _: frozenset())


def test_open_for_long_before_the_snapshot(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """P0 lists it with its place; where a low watermark cannot do without its end it is named."""
    monkeypatch.setattr(p0, "_XA_SECONDS", 0.2)
    monkeypatch.setattr(take_low_watermark, "__defaults__", (None, 0.5))
    monkeypatch.setattr(_MariaDbWatermarks.low, "__defaults__", (0.5,))
    monkeypatch.setattr(_MySqlWatermarks.low, "__defaults__", (0.5,))
    world.prepare("'x'", "UPDATE t SET v = 'xa' WHERE id = 12", "INSERT INTO t VALUES (100, 'xa')")
    world.prepare("'y'", "INSERT INTO other VALUES (1)")
    if not world.has_barrier:
        with pytest.raises(TransientError, match=r"XA transactions X'78',X'',1, .*are prepared and do not end"):
            world.cli.snapshot()
        return
    world.cli.snapshot()
    assert [" " in text for text in world.cli.context.plans.require().p0.open_xa] == [True, False]
    world.exact()
    world.finish("COMMIT", "'x'")
    world.finish("COMMIT", "'y'")
    world.exact()


def test_open_for_long_and_purged(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(p0, "_XA_SECONDS", 0.2)
    if not world.has_barrier:
        pytest.skip("there is no P0")
    world.prepare("'x'", "UPDATE t SET v = 'xa' WHERE id = 12")
    world.server.purge()
    with pytest.raises(TransientError, match=r"no longer in the binlog \(X'78',X'',1\)"):
        world.cli.snapshot()
    world.finish("COMMIT", "'x'")
    world.cli.snapshot()
    world.exact()


@pytest.mark.parametrize("end", ["COMMIT", "ROLLBACK"])
@pytest.mark.parametrize("ended", ["before the chunks", "in a chunk", "in the stream"])
def test_open_at_p0_and_not_listed(world: World, ended: str, end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its PREPARE is looked for in the binlog before P0: the newest of the name."""
    world.prepare("'x'", "UPDATE t SET v = 'old' WHERE id = 13")
    world.run("FLUSH BINARY LOGS")
    world.finish("COMMIT", "'x'")
    world.prepare("'x'", "UPDATE t SET v = 'xa' WHERE id IN (2, 12, 22)", "DELETE FROM t WHERE id = 3")
    world.prepare("'y'", "INSERT INTO t VALUES (50, 'xa')", "UPDATE t SET id = 51 WHERE id = 14")
    world.run("FLUSH BINARY LOGS", "INSERT INTO t VALUES (40, 'plain')")
    with monkeypatch.context() as patch, world.cli.opened() as (context, store):
        unseen(patch)
        assert context.plans.ensure(store).p0.open_xa == ()
    seen: list[str] = []

    def both() -> None:
        world.finish(end, "'x'")
        world.finish("COMMIT", "'y'")
        world.prepare("'x'", "UPDATE t SET v = 'again' WHERE id = 29")

    def failpoint(name: str) -> None:
        seen.append(name)
        if ended == "in a chunk" and name == "chunk.after_select" and seen.count(name) == 2:
            both()

    if ended == "before the chunks":
        both()
    with monkeypatch.context() as patch:
        unseen(patch)
        patch.setattr(chunk_module, "failpoint", failpoint)
        world.cli.snapshot()
    if ended == "in the stream":
        world.exact()
        both()
    world.exact()
    world.finish("COMMIT", "'x'")
    world.exact()
    assert all(v.is_equal for v in verify_tables(world.cli.context))


def test_what_it_changed_is_purged(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a chunk's window the chunk is read again, and sees it; the stream stops by name."""
    world.prepare("'x'", "UPDATE t SET v = 'xa' WHERE id = 12")
    world.server.purge()
    with monkeypatch.context() as patch:
        unseen(patch)
        with world.cli.opened() as (context, store):
            context.plans.ensure(store)
        seen: list[str] = []

        def failpoint(name: str) -> None:
            seen.append(name)
            if name == "chunk.after_select" and seen.count(name) == 2:
                world.finish("COMMIT", "'x'")

        patch.setattr(chunk_module, "failpoint", failpoint)
        world.cli.snapshot()
    assert seen.count("chunk.after_lw") == (3 if isinstance(world.server, MariaDBServer) else 4)
    assert world.cli.rows("d", "t").column("v").to_pylist().count("xa") == (
        0 if isinstance(world.server, MariaDBServer) else 1
    )
    with pytest.raises(UnknownPrepareError, match=r"X'78',X'',1 is committed at .* is no longer in the binlog"):
        world.cli.catch_up()


def test_writers_on_another_table(world: World) -> None:
    """Some XA transaction ends in every window, and at P0 there is always one open: nothing is read twice for that."""
    over = threading.Event()

    def write(number: int) -> None:
        with contextlib.closing(world.server.connect(database="d")) as connection, connection.cursor() as cursor:
            for k in itertools.count():
                cursor.execute(f"XA START '{number}'")
                cursor.execute(f"INSERT INTO other VALUES ({k}{number})")
                cursor.execute(f"XA END '{number}'")
                cursor.execute(f"XA PREPARE '{number}'")
                time.sleep(0.005)
                cursor.execute(f"XA COMMIT '{number}'")
                if over.is_set():
                    return

    threads = [threading.Thread(target=write, args=(n,)) for n in range(6)]
    world.run("CREATE TABLE u (v INT)", "INSERT INTO u VALUES (1), (1), (2)")
    cli = Cli(world.cli.folder / "both", world.server, r"d\.[tu]", snapshot={"chunk_rows": 5, "parallelism": 2})
    for thread in threads:
        thread.start()
    try:
        cli.snapshot()
        cli.catch_up()
    finally:
        over.set()
        for thread in threads:
            thread.join()
    cli.catch_up()
    assert compare_database(world.server, "d", cli.sink, ["t", "u"]) == []


@pytest.mark.parametrize("skip", [0, 32 << 20])
def test_a_name_that_is_used_again_between_two_windows(
    world: World, skip: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether what lies between them is read or left out."""
    monkeypatch.setattr(windows, "_SKIP_BYTES", skip)
    monkeypatch.setattr(watermarks, "_REUSE_SECONDS", 0.0)
    seen: list[str] = []

    def failpoint(name: str) -> None:
        seen.append(name)
        moment = name, seen.count(name)
        if moment == (SELECT, 1):
            world.prepare("'x'", "UPDATE t SET v = 'first' WHERE id = 15")
        if moment == (BEFORE, 2):
            world.finish("ROLLBACK", "'x'")
            world.prepare("'x'", "UPDATE t SET v = 'second' WHERE id = 16")
        if moment == (SELECT, 2):
            world.finish("COMMIT", "'x'")

    with world.cli.opened() as (context, store):
        context.plans.ensure(store)
    with monkeypatch.context() as patch:
        patch.setattr(chunk_module, "failpoint", failpoint)
        unseen(patch)
        world.cli.snapshot()
    world.exact()


def test_open_while_a_table_is_planned_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is before the new plan is passed over, but not what becomes visible behind it."""
    seen: list[str] = []
    # On MariaDB a DDL waits for the transaction in which the table was read.
    moment = LOW if isinstance(world.server, MariaDBServer) else SELECT

    def failpoint(name: str) -> None:
        seen.append(name)
        if name == moment and seen.count(name) == 1:
            world.prepare("'before'", "UPDATE t SET v = 'xa' WHERE id = 11")
            world.finish("COMMIT", "'before'")
            world.run("ALTER TABLE t ADD COLUMN w INT FIRST")
            world.prepare("'x'", "UPDATE t SET v = 'xa' WHERE id = 12", "INSERT INTO t VALUES (1, 100, 'xa')")
            world.prepare("'y'", "UPDATE t SET v = 'xa', w = 2 WHERE id = 13")

    with world.cli.opened() as (context, store):
        context.plans.ensure(store)
    with monkeypatch.context() as patch:
        unseen(patch)
        patch.setattr(chunk_module, "failpoint", failpoint)
        with contextlib.suppress(TransientError):  # the attempt; the next one has the new plan
            world.cli.snapshot()
        world.cli.snapshot()
    assert world.cli.context.plans.require().definitions[0].revision == 1
    world.finish("COMMIT", "'x'")
    world.exact()
    world.finish("COMMIT", "'y'")
    world.exact()


def test_rows_that_wait_do_not_stay_in_memory(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the snapshot's window, in the stream's batch, and prepared in one before: from files, in several portions."""
    kept: list[int] = []

    def counted(parts: Sequence[memoryview]) -> list[memoryview]:
        found = spill_to_disk(parts)
        kept.append(sum(len(part) for part in found))
        assert found == list(parts) and not {id(part.obj) for part in found} & {id(part.obj) for part in parts}
        return found

    monkeypatch.setattr(transactions, "spill_to_disk", counted)
    monkeypatch.setattr(transactions, "_MAX_HELD_BYTES", 2000)
    monkeypatch.setattr(binlog_reader, "_MAX_UNTAKEN_BYTES", 1000)
    # Several events each: one holds at most 8 kB of rows.
    twice = "FROM t a JOIN t b WHERE a.id < 30 AND b.id < 30"
    many = "INSERT INTO t SELECT {first} + a.id * 30 + b.id, REPEAT('x', 20) " + twice
    change = "UPDATE t SET v = 'xa' WHERE id BETWEEN {first} AND {first} + 899"

    def one_phase(first: int) -> None:
        wanted = [many.format(first=first), change.format(first=first)]
        world.run("XA START 'at once'", *wanted, "XA END 'at once'", "XA COMMIT 'at once' ONE PHASE")

    hits: list[str] = []

    def failpoint(name: str) -> None:
        hits.append(name)
        if hits.count("chunk.after_lw") == 1 and name == "chunk.after_lw":
            world.prepare("'window'", many.format(first=1000), change.format(first=1000))
            world.finish("COMMIT", "'window'")
            one_phase(5000)

    monkeypatch.setattr(chunk_module, "failpoint", failpoint)
    world.cli.snapshot()
    assert kept or isinstance(world.server, MariaDBServer)  # where a chunk has no window
    kept.clear()
    world.prepare("'before'", many.format(first=2000), change.format(first=2000))
    world.prepare("'never'", many.format(first=3000))
    world.exact()
    world.prepare("'batch'", many.format(first=4000), change.format(first=4000))
    for xid in ("'before'", "'batch'"):
        world.finish("COMMIT", xid)
    world.finish("ROLLBACK", "'never'")
    world.exact()
    assert kept
    kept.clear()
    one_phase(6000)
    world.exact()
    assert kept or isinstance(world.server, MariaDBServer)  # there it is logged as any other transaction
    assert len(world.cli.rows("d", "t")) == 30 + 5 * 900
