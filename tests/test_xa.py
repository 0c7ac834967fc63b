"""XA transactions around a snapshot and through the stream: their rows count from XA COMMIT on."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import pymysql
import pytest

from airflow_provider_cdc.exceptions import TransientError
from airflow_provider_cdc.mysql import chunk as chunk_module
from airflow_provider_cdc.mysql import follow, planner
from airflow_provider_cdc.mysql.binlog import transactions
from airflow_provider_cdc.mysql.binlog.spill import spill
from airflow_provider_cdc.mysql.watermark import _MariaDB, low_watermark
from airflow_provider_cdc.phases.verify import verify
from airflow_provider_cdc.sinks.progress import Progress
from tests.cli import Cli
from tests.mariadb import MariaDBServer
from tests.oracle import compare_all
from tests.servers import MySQLServer


@pytest.fixture(scope="module", params=["MySQL", "MySQL compressed", "MariaDB"])
def server(request: pytest.FixtureRequest) -> Iterator[MySQLServer]:
    settings = {"binlog_transaction_compression": "ON"} if "compressed" in request.param else {}
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

    def close(self) -> None:
        with contextlib.closing(self.server.connect()) as connection, connection.cursor() as cursor:
            cursor.execute("XA RECOVER")
            for _, size, _, name in cursor.fetchall():
                with contextlib.suppress(pymysql.MySQLError):
                    cursor.execute(
                        "XA ROLLBACK %s", (name[:size].decode() if isinstance(name, bytes) else name[:size],)
                    )

    def exact(self) -> None:
        self.cli.catch_up()
        with contextlib.closing(self.server.connect()) as connection:
            assert compare_all(connection, "d", self.cli.sink, ["t"]) == []


def test_in_the_stream(world: World) -> None:
    """Prepared in one run, ended in a later one: the rows are read again from where they were prepared."""
    world.cli.snapshot()
    world.prepare("'a'", "UPDATE t SET v = 'xa' WHERE id = 3", "INSERT INTO t VALUES (100, 'xa')")
    world.prepare("'b', 'q', 5", "DELETE FROM t WHERE id = 4", "INSERT INTO t VALUES (101, 'xa')")
    world.prepare("'c'", "INSERT INTO other VALUES (1)")
    world.prepare("'d'", "UPDATE t SET id = 102 WHERE id = 6")
    world.run("UPDATE t SET v = 'plain' WHERE id = 5")
    world.exact()
    standing = Progress(world.cli.context.layout.progress, "p").read()
    assert standing is not None and [" " in text for text in standing.xa] == [True, True, False, True]
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
    standing = Progress(world.cli.context.layout.progress, "p").read()
    assert standing is not None and standing.xa == ()
    assert len(world.cli.rows("d", "t")) == 32 and all(v.equal for v in verify(world.cli.context))


def test_verify_while_one_is_open(world: World) -> None:
    world.cli.snapshot()
    world.prepare("'a'", "UPDATE t SET v = 'xa' WHERE id = 3")
    world.cli.catch_up()
    world.finish("COMMIT", "'a'")
    assert all(v.equal for v in verify(world.cli.context))


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

    def hit(name: str) -> None:
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
        context.ensure_plan(store)
    monkeypatch.setattr(chunk_module, "hit", hit)
    monkeypatch.setattr(_MariaDB.low, "__defaults__", (0.5,))
    try:
        world.cli.snapshot()
    except TransientError as error:
        # There nobody can tell whether an XA transaction that does not end is just being committed.
        assert isinstance(world.server, MariaDBServer) and "are prepared and do not end" in error.message
        world.finish(end, "'x'")
        ended = "stopped"
        world.cli.snapshot()
    monkeypatch.undo()
    world.run("UPDATE t SET v = 'plain' WHERE id IN (1, 11, 21)")
    if ended == "late":
        world.exact()
        world.finish(end, "'x'")
    world.exact()
    assert all(v.equal for v in verify(world.cli.context))


def test_prepared_before_the_snapshot(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its rows are in the binlog before anything is read: there is no snapshot before it has ended."""
    monkeypatch.setattr(planner, "_XA_SECONDS", 0.5)
    monkeypatch.setattr(low_watermark, "__defaults__", (None, 0.5))
    world.prepare("'x'", "UPDATE t SET v = 'xa' WHERE id = 12")
    with pytest.raises(TransientError, match=r"XA transactions .*are prepared and (not finished|do not end)"):
        world.cli.snapshot()
    world.finish("COMMIT", "'x'")
    world.cli.snapshot()
    world.exact()


def test_rows_that_wait_do_not_stay_in_memory(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the snapshot's window, in the stream's batch, and prepared in one before: from files, in several portions."""
    kept: list[int] = []

    def counted(parts: Sequence[memoryview]) -> list[memoryview]:
        found = spill(parts)
        kept.append(sum(len(part) for part in found))
        assert found == list(parts) and not {id(part.obj) for part in found} & {id(part.obj) for part in parts}
        return found

    monkeypatch.setattr(transactions, "spill", counted)
    monkeypatch.setattr(transactions, "_HELD_BYTES", 2000)
    monkeypatch.setattr(follow, "_PORTION_BYTES", 1000)
    # Several events each: one holds at most 8 kB of rows.
    twice = "FROM t a JOIN t b WHERE a.id < 30 AND b.id < 30"
    many = "INSERT INTO t SELECT {first} + a.id * 30 + b.id, REPEAT('x', 20) " + twice
    change = "UPDATE t SET v = 'xa' WHERE id BETWEEN {first} AND {first} + 899"

    def one_phase(first: int) -> None:
        wanted = [many.format(first=first), change.format(first=first)]
        world.run("XA START 'at once'", *wanted, "XA END 'at once'", "XA COMMIT 'at once' ONE PHASE")

    hits: list[str] = []

    def hit(name: str) -> None:
        hits.append(name)
        if hits.count("chunk.after_lw") == 1 and name == "chunk.after_lw":
            world.prepare("'window'", many.format(first=1000), change.format(first=1000))
            world.finish("COMMIT", "'window'")
            one_phase(5000)

    monkeypatch.setattr(chunk_module, "hit", hit)
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
