"""Tables without a usable key: copied and followed exactly, equal rows counted; or a clear stop."""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pymysql
import pytest
from deltalake import DeltaTable

from airflow_provider_cdc.apply import applier as apply
from airflow_provider_cdc.chunk_groups.task import run_in_threads
from airflow_provider_cdc.model.errors import DdlError, TerminalError, TransientError
from airflow_provider_cdc.mysql.chunks import keyless as whole
from airflow_provider_cdc.mysql.chunks.chunk import ChunkRead
from airflow_provider_cdc.mysql.client.throttle import Throttle
from airflow_provider_cdc.mysql.positions.watermarks import Watermarks, make_watermarks
from airflow_provider_cdc.snapshot.group_result import GroupResult
from airflow_provider_cdc.snapshot.run import run_group
from airflow_provider_cdc.stream.run import begin_epoch
from airflow_provider_cdc.verify.run import TableComparison, verify_tables
from tests.support.cli import Cli, asked_by
from tests.support.delta import delta_table, put
from tests.support.epochs import run_epoch_in_process
from tests.support.heap import HeapWriter
from tests.support.mariadb import MariaDBServer
from tests.support.oracle import compare_database
from tests.support.servers import MySQLServer

# The servers have their turn: each test with each of them would be a product.
pytestmark = pytest.mark.one_of("server")

#: Awkward values, a key that allows NULL, columns that are hidden or computed.
WIDE = """CREATE TABLE wide (
    a INT, s VARCHAR(20) COLLATE utf8mb4_general_ci, f FLOAT, d DOUBLE, n DECIMAL(12,3), j JSON, g POINT,
    x VARBINARY(9), ts TIMESTAMP(3) NULL, e ENUM('p','q'), b BIT(9), t TIME(2), hidden INT INVISIBLE,
    twice INT AS (a * 2) STORED, half INT AS (a DIV 2) VIRTUAL, UNIQUE KEY (a, hidden))"""
NARROW = "CREATE TABLE narrow (a INT, v VARCHAR(9))"


@dataclass
class World:
    """A database ``d`` with tables without a key, and a pipeline that copies it."""

    server: MySQLServer
    cursor: Any
    cli: Cli

    def sql(self, *statements: str) -> None:
        for statement in statements:
            self.cursor.execute(statement)

    def differences(self) -> list[str]:
        return [str(d) for d in compare_database(self.server, "d", self.cli.sink)]

    def counts(self, table: str = "narrow") -> Counter[tuple[Any, ...]]:
        found = self.cli.rows("d", table)
        names = [name for name in found.column_names if not name.startswith("_cdc_")]
        return Counter(tuple(row.values()) for row in found.select(names).to_pylist())

    def verdict(self, table: str = "narrow") -> TableComparison:
        return next(v for v in verify_tables(self.cli.context, show_values=True) if v.table == f"d.{table}")

    def stream(self, batch_bytes: int = 1 << 28) -> None:
        with self.cli.opened() as (context, store):
            epoch = begin_epoch(context, store, catch_up=True)
            epoch.job = replace(epoch.job, max_batch_bytes=batch_bytes)
            run_epoch_in_process(epoch)

    def version(self, table: str = "narrow") -> int:
        return DeltaTable(str(self.cli.sink / "d" / table)).version()

    def lose(self, a: int, times: int = 1) -> None:
        """Take rows out of the copy of ``narrow``, behind the project's back."""
        context = self.cli.context
        schema = next(t for t in context.plans.require().tables if t.name == "narrow")
        target = delta_table(context, schema)
        rows = target.read_with_soft_deleted()
        gone = [i for i, value in enumerate(rows["a"].to_pylist()) if value == a][:times]
        assert len(gone) == times
        put(target, rows.take([i for i in range(rows.num_rows) if i not in gone]))

    def read_again(self, me: str = "task") -> GroupResult:
        with self.cli.opened() as (context, store):
            plan = context.plans.ensure(store)
            return run_group(context, store, plan, 0, run_in_threads, holder="somebody", requested_by=asked_by(me))


@pytest.fixture(scope="module", params=["MySQL", "MariaDB"])
def server(request: pytest.FixtureRequest) -> Iterator[MySQLServer]:
    with (MariaDBServer if request.param == "MariaDB" else MySQLServer)() as found:
        yield found


@pytest.fixture(scope="module")
def user(server: MySQLServer) -> dict[str, str]:
    return server.create_cdc_user()


@pytest.fixture
def world(server: MySQLServer, user: dict[str, str], tmp_path: Path) -> Iterator[World]:
    server.execute("DROP DATABASE IF EXISTS d")
    server.execute("CREATE DATABASE d")
    with contextlib.closing(server.connect(database="d", autocommit=True)) as connection:
        with connection.cursor() as cursor:
            cursor.execute("SET SESSION lock_wait_timeout = 5, time_zone = '+00:00'")
            cursor.execute(NARROW)
            yield World(server, cursor, Cli(tmp_path, server, r"d\..*", user=user))
    server.execute("DROP DATABASE d")


@pytest.fixture
def written(world: World, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Callable[[int], None]], list[int]]:
    """Have something done in each view: ``before`` it is opened (behind the low watermark), or ``after``."""

    def arm(moment: str, act: Callable[[int], None]) -> list[int]:
        seen: list[int] = []
        with contextlib.closing(world.server.connect()) as connection:
            kind: type[Watermarks] = type(make_watermarks(connection))
        hold = kind.hold_view

        def held(self: Watermarks) -> None:
            seen.append(len(seen))
            if moment == "before":
                act(seen[-1])
            hold(self)
            if moment == "after":
                act(seen[-1])

        monkeypatch.setattr(kind, "hold_view", held)
        return seen

    return arm


def once(world: World, *statements: str) -> Callable[[int], None]:
    """What runs statements in the first view only."""
    return lambda attempt: None if attempt else world.sql(*statements)


def test_everything_that_may_happen_to_rows(world: World) -> None:
    """Equal rows, rows of nothing but NULL, values that differ in their bits alone; one of several goes or changes."""
    row = "(1, 'Abc', 0e0, 1.5e0, 1.5, '{\"k\": [1, 2.50]}', POINT(1, 2), x'00ff', '2024-01-02 03:04:05.678', 'p', 3, "
    row += "'-01:02:03.45', 7)"
    columns = "(a, s, f, d, n, j, g, x, ts, e, b, t, hidden)"
    world.sql(
        WIDE.replace(", UNIQUE KEY (a, hidden)", ""),
        f"INSERT INTO wide {columns} VALUES {', '.join([row] * 3)}",
        f"INSERT INTO wide {columns} VALUES {row.replace('0e0', '-0e0')}, {row.replace('Abc', 'abc')}",
        f"INSERT INTO wide {columns} VALUES {row.replace('Abc', 'Abc ')}, {row.replace('00ff', '00ff00')}",
        "INSERT INTO wide (a) VALUES (NULL), (NULL), (NULL)",
        "INSERT INTO narrow VALUES (1, 'x'), (1, 'x'), (1, 'x'), (2, 'y'), (NULL, 'x'), (NULL, NULL), (NULL, NULL)",
        WIDE.replace("wide", "nullable"),
        "INSERT INTO nullable (a, s, hidden) VALUES (1, 'n', NULL), (1, 'n', NULL), (1, 'n', 1)",
        "CREATE TABLE nothing LIKE narrow",
    )
    world.cli.snapshot()
    assert world.counts() == Counter({(1, "x"): 3, (2, "y"): 1, (None, "x"): 1, (None, None): 2})
    assert all(v.is_equal and v.at for v in verify_tables(world.cli.context))
    steps: tuple[tuple[str, ...], ...] = (
        ("DELETE FROM narrow WHERE a = 1 LIMIT 1", "DELETE FROM wide WHERE a = 1 AND s = BINARY 'Abc' LIMIT 1"),
        ("UPDATE narrow SET v = 'z' WHERE a = 1 LIMIT 1", "UPDATE wide SET s = 'ABC' WHERE a = 1 LIMIT 1"),
        ("DELETE FROM narrow WHERE a IS NULL AND v IS NULL LIMIT 1", "DELETE FROM wide WHERE a IS NULL LIMIT 2"),
        ("INSERT INTO narrow SELECT * FROM narrow", "UPDATE narrow SET a = 5 - a WHERE a IS NOT NULL"),
        ("UPDATE wide SET f = -f WHERE f = 0", "UPDATE wide SET half = DEFAULT, hidden = hidden + 1 WHERE a = 1"),
        (
            "DELETE FROM wide WHERE a = 1 LIMIT 2",
            "UPDATE nullable SET hidden = NULL",
            "INSERT INTO nothing VALUES (1, '')",
        ),
        ("DELETE FROM nullable LIMIT 1", "TRUNCATE narrow", "INSERT INTO narrow VALUES (1, 'x'), (1, 'x')"),
        ("DELETE FROM narrow LIMIT 1", "DELETE FROM nothing", "INSERT INTO nothing VALUES (NULL, NULL), (NULL, NULL)"),
    )
    for statements in steps:
        world.sql(*statements)
        world.stream()
        assert world.differences() == [], statements
    assert all(v.is_equal for v in verify_tables(world.cli.context))
    assert world.counts() == Counter({(1, "x"): 1}) and world.counts("nothing") == Counter({(None, None): 2})


def test_all_of_it_in_one_batch_and_each_by_itself(world: World, tmp_path: Path) -> None:
    """What comes and goes in one batch adds up; cut up, it does the same."""
    world.sql("INSERT INTO narrow VALUES (1, 'x'), (1, 'x'), (2, 'y')")
    world.cli.snapshot()
    other = World(world.server, world.cursor, Cli(tmp_path / "other", world.server, r"d\..*", name="q"))
    other.cli.snapshot()
    world.sql(
        "INSERT INTO narrow VALUES (3, 'z'), (1, 'x')",
        "DELETE FROM narrow WHERE a = 3",
        "UPDATE narrow SET a = 2, v = 'y' WHERE a = 1 LIMIT 2",
        "UPDATE narrow SET a = 3 - a, v = IF(v = 'x', 'y', 'x')",
        "DELETE FROM narrow WHERE a = 1 LIMIT 2",
        "INSERT INTO narrow VALUES (7, 'x'), (7, 'x')",
    )
    world.stream()
    other.stream(batch_bytes=1)
    assert world.differences() == other.differences() == []
    assert world.counts() == other.counts() == Counter({(2, "y"): 1, (1, "x"): 1, (7, "x"): 2})


@pytest.mark.parametrize("moment", ["before", "after"])
def test_writers_while_the_view_is_opened(
    world: World, written: Any, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only a view beside which nothing was written to the table counts; other tables do not matter."""
    world.sql("INSERT INTO narrow VALUES (1, 'x'), (1, 'x')", "CREATE TABLE other (id INT PRIMARY KEY)")

    def act(attempt: int) -> None:
        world.sql(f"INSERT INTO other VALUES ({attempt})")
        if attempt < 3:
            world.sql("DELETE FROM narrow LIMIT 1", f"INSERT INTO narrow VALUES ({attempt}, 'new'), (1, 'x')")

    seen = written(moment, act)
    world.cli.snapshot()
    # MariaDB tells the position of the view itself, so there is no moment in between.
    assert len(seen) == (1 if isinstance(world.server, MariaDBServer) else 4)
    monkeypatch.undo()
    assert world.verdict().is_equal, "what the snapshot holds of the binlog is not counted twice"
    world.cli.catch_up()
    assert world.differences() == []
    assert world.verdict().is_equal


def test_writers_that_never_stop(world: World, written: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    if isinstance(world.server, MariaDBServer):
        pytest.skip("it tells the position of the view itself")
    monkeypatch.setattr(whole, "_MAX_VIEWS", 4)
    seen = written("after", lambda n: world.sql(f"INSERT INTO narrow VALUES ({n}, 'again')"))
    with pytest.raises(TransientError) as caught:
        world.cli.snapshot()
    said = r"d\.narrow, .* during each of 4 attempts .* \(on average [\d.]+ ms and 1\.0 changes each; \d+ s in total\)"
    assert re.search(said, caught.value.message) and len(seen) == 4
    assert "writers pause" in caught.value.remedy and "primary key" in caught.value.remedy
    monkeypatch.undo()
    world.cli.snapshot()  # now they have
    world.cli.catch_up()
    assert world.differences() == []


def test_an_old_low_watermark_is_not_kept(world: World, written: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where low watermarks are used again, a write behind one would make every later view a busy one."""
    if isinstance(world.server, MariaDBServer):
        pytest.skip("it has no such low watermarks")
    world.sql("GRANT RELOAD ON *.* TO cdc", "INSERT INTO narrow VALUES (1, 'x')")
    world.sql("SET GLOBAL gtid_mode = ON_PERMISSIVE")
    try:
        monkeypatch.setattr(whole, "_MAX_VIEWS", 4)
        seen = written("after", once(world, "INSERT INTO narrow VALUES (2, 'y')"))
        world.cli.snapshot()
        assert len(seen) == 2
        world.cli.catch_up()
    finally:
        world.sql("SET GLOBAL gtid_mode = ON", "REVOKE RELOAD ON *.* FROM cdc")
    assert world.differences() == []


def test_a_real_writer(world: World) -> None:
    """Equal rows come, change and go all the time, through snapshot, stream and comparison."""
    with HeapWriter(world.server.connect_args(), "d", pause=0.03) as writer:
        world.cli.snapshot()
        for _ in range(3):
            world.stream(batch_bytes=5000)
        assert world.verdict("heap").is_equal
    assert writer.transactions > 10
    world.stream()
    assert world.differences() == []


@pytest.mark.parametrize("again", [1 << 28, 1], ids=["whole", "one by one"])
@pytest.mark.parametrize("truncate", [False, True], ids=["", "truncate"])
def test_killed_before_the_resume_point(
    world: World, truncate: bool, again: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The batch comes again, whole or cut otherwise; of three equal rows one goes, not two."""
    world.sql("INSERT INTO narrow VALUES (1, 'x'), (1, 'x'), (1, 'x'), (2, 'y')")
    world.cli.snapshot()
    world.sql("INSERT INTO narrow VALUES (7, 'z'), (7, 'z')", "DELETE FROM narrow WHERE a = 1 LIMIT 1")
    world.sql("UPDATE narrow SET v = 'q' WHERE a = 2")
    if truncate:
        world.sql("TRUNCATE narrow", "INSERT INTO narrow VALUES (1, 'x'), (1, 'x'), (1, 'x')")
        world.sql("DELETE FROM narrow WHERE a = 1 LIMIT 1")

    class Crash(Exception):
        pass

    def failpoint(name: str) -> None:
        if name == "progress.before_commit":
            raise Crash

    monkeypatch.setattr(apply, "failpoint", failpoint)
    with pytest.raises(Crash):
        world.stream()
    monkeypatch.undo()
    assert world.counts()[1, "x"] == 2, "the table was committed"
    world.sql("INSERT INTO narrow VALUES (8, 'new')")  # whole, it goes on behind what the table has
    world.stream(again)
    assert world.differences() == []
    world.sql("DELETE FROM narrow WHERE a = 1 LIMIT 1")
    world.stream()
    assert world.counts()[1, "x"] == 1 and world.differences() == []


def test_a_delete_that_finds_nothing(world: World) -> None:
    world.sql("INSERT INTO narrow VALUES (1, 'x'), (1, 'x'), (2, 'y')")
    world.cli.snapshot()
    world.cli.catch_up()
    world.lose(1)
    verdict = world.verdict()
    assert (verdict.rows, verdict.missing, verdict.extra, verdict.different) == (3, 1, 0, 0)
    assert verdict.examples == ("missing 1 of (1, 'x')",)
    world.sql("DELETE FROM narrow WHERE a = 2", "DELETE FROM narrow WHERE a = 1")
    at = world.server.execute(
        "SHOW MASTER STATUS" if isinstance(world.server, MariaDBServer) else "SHOW BINARY LOG STATUS"
    )
    before = world.version(), world.counts()
    for _ in range(2):
        with pytest.raises(TerminalError) as caught:
            world.stream()
        said = f"table d.narrow, which has no usable key: 1 of the rows .* up to {at[0][0]}:{at[0][1]} do not exist"
        assert re.search(said, caught.value.message)
        assert "then re-snapshot the table: airflow-cdc resnapshot" in caught.value.remedy
    now = world.version(), world.counts()
    assert now[1] == before[1] and now[0] == before[0] + 1, (
        "nothing but the fence of the second epoch: the first one failed"
    )


def test_what_verify_finds(world: World) -> None:
    """Rows that are missing or too many while the binlog goes on; a changed row is one of each."""
    world.sql("INSERT INTO narrow VALUES (1, 'x'), (1, 'x'), (2, 'y'), (2, 'y'), (NULL, NULL)")
    world.cli.snapshot()
    world.sql("INSERT INTO narrow VALUES (1, 'x'), (3, 'z')", "DELETE FROM narrow WHERE a = 2 LIMIT 1")
    assert world.verdict().is_equal, "changes behind the snapshot are no difference"
    world.cli.catch_up()
    world.sql("DELETE FROM narrow WHERE a = 1 LIMIT 1", "INSERT INTO narrow VALUES (2, 'y')")
    assert world.verdict().is_equal, "changes behind the copy are no difference"
    world.lose(1, times=2)
    assert world.verdict().missing == 2 and world.verdict().extra == 0
    world.lose(3)
    found = world.verdict()
    assert found.missing == 3 and set(found.examples) == {"missing 2 of (1, 'x')", "missing 1 of (3, 'z')"}
    result = world.cli.call("verify", "--show-values")
    assert result.code == 1 and "missing 2 of (1, 'x')" in result.err.splitlines()[-1]
    # Values are shown to those who ask for them.
    for more in ((), ("--json",)):
        result = world.cli.call("verify", *more)
        assert result.code == 1 and "'x'" not in result.out + result.err
        assert "d.narrow: 6 rows, 3 missing, 0 extra, 0 different" in result.err or more
        assert "--show-values shows which rows" in result.err.splitlines()[-1]


def test_it_is_read_in_pieces(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """No more than a piece is held, and between two of them the reader keeps to its rates and may be told to stop."""
    world.sql("INSERT INTO narrow VALUES " + ", ".join(f"({n // 2}, '{'x' * (n % 9)}')" for n in range(5000)))
    monkeypatch.setattr(whole, "_PART_BYTES", 1 << 14)
    looks: list[None] = []
    monkeypatch.setattr(Throttle, "wait_for_rates", lambda self, check: looks.append(check()))
    sizes: list[int] = []
    read = whole.read_keyless

    def measured(*args: Any) -> Iterator[ChunkRead]:
        for piece in read(*args):
            sizes.append(piece.rows.num_rows)
            yield piece

    monkeypatch.setattr(whole, "read_keyless", measured)
    world.cli.snapshot()
    assert sum(sizes) == 5000 and 3 < len(sizes) <= len(looks) and max(sizes) < 3000
    assert world.differences() == []
    world.sql("DELETE FROM narrow WHERE a = 777 LIMIT 1", "UPDATE narrow SET v = NULL WHERE a = 778 LIMIT 1")
    world.cli.catch_up()
    assert world.differences() == []


def test_columns_that_are_left_out(world: World) -> None:
    """Rows that differ in what is left out are equal ones in the copy."""
    world.sql("INSERT INTO narrow VALUES (1, 'x'), (1, 'y'), (2, 'x')")
    world.cli.value["source"]["exclude_columns"] = [r"d\.narrow\.v"]
    world.cli.write()
    world.cli.snapshot()
    assert world.counts() == Counter({(1,): 2, (2,): 1})
    world.sql("UPDATE narrow SET v = 'other' WHERE a = 1 LIMIT 1", "DELETE FROM narrow WHERE v = 'y'")
    world.cli.catch_up()
    assert world.counts() == Counter({(1,): 1, (2,): 1}) and world.verdict().is_equal
    world.cli.value["source"]["exclude_columns"] = [r"d\.narrow\..*"]
    world.cli.write()
    with pytest.raises(DdlError, match="leave out a of"):
        world.cli.catch_up()


@pytest.mark.parametrize(
    "sql",
    ["TRUNCATE narrow", "ALTER TABLE narrow ADD COLUMN w INT DEFAULT 7 FIRST", f"DROP TABLE narrow; {NARROW}"],
    ids=["truncate", "alter", "drop"],
)
@pytest.mark.parametrize("moment", ["before", "after"])
def test_ddl_while_it_is_read(world: World, written: Any, moment: str, sql: str) -> None:
    world.sql("INSERT INTO narrow VALUES (1, 'x'), (1, 'x')")
    if isinstance(world.server, MariaDBServer) and moment == "before":
        moment = "after"  # its view is open then
    row = "(7, 1, 'new')" if "ALTER" in sql else "(1, 'new')"
    written(moment, once(world, *sql.split("; "), f"INSERT INTO narrow VALUES {row}"))
    try:
        world.cli.snapshot()
        world.cli.catch_up()
    except TerminalError as error:
        assert isinstance(world.server, MariaDBServer) and "narrow" in str(error) and "TRUNCATE" not in sql
        return
    assert world.differences() == []
    assert world.verdict().is_equal


def test_a_truncate_beside_the_view(world: World, written: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is a change as any other, though it has no rows."""
    if isinstance(world.server, MariaDBServer):
        pytest.skip("it tells the position of the view itself")
    world.sql("INSERT INTO narrow VALUES (1, 'x')")
    seen = written("before", once(world, "TRUNCATE narrow"))
    world.cli.snapshot()
    assert len(seen) == 2
    monkeypatch.undo()
    world.cli.catch_up()
    assert world.differences() == []


def test_an_xa_transaction_that_ends_beside_the_view(
    world: World, written: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its rows are neither in the view nor, since they were written before it, in the window."""
    if isinstance(world.server, MariaDBServer):
        pytest.skip("it does not open a view beside one")
    world.sql("INSERT INTO narrow VALUES (1, 'x')")
    with world.cli.opened() as (context, store):
        context.plans.ensure(store)
    world.server.session("d", "XA START 'x'", "INSERT INTO narrow VALUES (2, 'xa')", "XA END 'x'", "XA PREPARE 'x'")
    seen = written("after", lambda attempt: None if attempt else world.server.session("d", "XA COMMIT 'x'"))
    world.cli.snapshot()
    assert len(seen) == 2
    monkeypatch.undo()
    world.cli.catch_up()
    assert world.counts() == Counter({(1, "x"): 1, (2, "xa"): 1})


def test_no_other_table_in_its_place(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the window and the reading nothing may become of the table: its binlog is not looked at any more."""
    world.sql("INSERT INTO narrow VALUES (1, 'x')", "CREATE TABLE spare (id INT PRIMARY KEY, a INT, v VARCHAR(9))")
    refused: list[int] = []

    def failpoint(name: str) -> None:
        if name == "chunk.after_hw":
            with pytest.raises(pymysql.err.OperationalError) as caught:
                world.sql("SET SESSION lock_wait_timeout = 1", "RENAME TABLE narrow TO gone, spare TO narrow")
            refused.append(caught.value.args[0])

    monkeypatch.setattr(whole, "failpoint", failpoint)
    world.cli.snapshot()
    assert refused == [1205]
    assert world.counts() == Counter({(1, "x"): 1})


def test_it_is_read_again(world: World) -> None:
    """Before a stream in place; afterwards with what has been written since, counted once."""
    world.sql("INSERT INTO narrow VALUES (1, 'x'), (1, 'x'), (1, 'x'), (2, 'y')")
    assert world.read_again().outcome == "published"
    world.lose(1)
    world.sql("INSERT INTO narrow VALUES (3, 'z')")
    assert world.read_again().outcome == "replaced"
    assert world.counts() == Counter({(1, "x"): 3, (2, "y"): 1, (3, "z"): 1})
    world.sql("DELETE FROM narrow WHERE a = 1 LIMIT 1")
    world.cli.catch_up()
    assert world.counts()[1, "x"] == 2 and world.differences() == []

    world.lose(1)
    world.sql("INSERT INTO narrow VALUES (4, 'w'), (4, 'w')")
    assert world.read_again().outcome == "staged"
    world.sql("DELETE FROM narrow WHERE a = 4 LIMIT 1", "UPDATE narrow SET v = 'q' WHERE a = 1 LIMIT 1")
    world.stream()  # it is published in the middle or at the end, with the changes behind its high watermark
    assert world.differences() == []
    assert world.verdict().is_equal

    # Read while the stream stands, published by the next one, which has gone on by several batches before.
    world.lose(2)
    assert world.read_again().outcome == "staged"
    world.sql("INSERT INTO narrow VALUES (1, 'q')", "DELETE FROM narrow WHERE a = 3", "DELETE FROM narrow WHERE a = 2")
    world.stream(batch_bytes=1)
    assert world.differences() == []
    world.sql("TRUNCATE narrow", "INSERT INTO narrow VALUES (1, 'x')")
    world.stream()
    assert world.counts() == Counter({(1, "x"): 1})
