"""The changes of one table from any place of the binlog, without Spark."""

from __future__ import annotations

import contextlib
import json
import secrets
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_provider_cdc.data_source.changes_planner import ChangesPlanner
from airflow_provider_cdc.data_source.options import ConnectionLookup
from airflow_provider_cdc.data_source.table_changes import TableChanges
from airflow_provider_cdc.model.errors import NotReadyError, TerminalError
from airflow_provider_cdc.model.offset import Offset, Position
from airflow_provider_cdc.mysql.binlog.walk import binlog_reader, changes
from tests.support.binlog.budget import set_byte_budget
from tests.support.binlog.reading import binlog_place
from tests.support.mariadb import MariaDBServer
from tests.support.servers import MySQLServer

COLUMNS = ("id", "v")


@pytest.fixture(scope="module", params=["MySQL", "MariaDB"])
def server(request: pytest.FixtureRequest) -> Iterator[MySQLServer]:
    with (MariaDBServer if request.param == "MariaDB" else MySQLServer)() as found:
        yield found


@pytest.fixture
def world(server: MySQLServer, tmp_path: Path) -> Iterator[World]:
    with contextlib.closing(World(server, tmp_path)) as found:
        yield found


class World:
    """Table ``t`` in a database of its own, and where the binlog stands."""

    def __init__(self, server: MySQLServer, folder: Path) -> None:
        self.server, self.file = server, folder / "login"
        self.file.write_text(server.uri())
        self.database = f"t_{secrets.token_hex(6)}"
        server.execute(f"CREATE DATABASE {self.database}")
        self.run("CREATE TABLE t (id INT PRIMARY KEY, v LONGTEXT)")
        self.begin = self.end()

    def run(self, *statements: str) -> Position:
        """Statements of one session, and where the binlog ends then."""
        self.server.session(self.database, *statements)
        return self.end()

    def end(self) -> Position:
        return binlog_place(self.server)

    def log(self, **how: Any) -> TableChanges:
        how = {"range_bytes": 64 << 20, **how}
        return TableChanges.look_up(ConnectionLookup(conn_file=str(self.file)), self.database, "t", "error", **how)

    def offset(self, at: Position | str, log: TableChanges | None = None) -> Offset:
        with contextlib.closing(ChangesPlanner(log or self.log())) as planner:
            return planner.find_offset(str(at))

    def read(self, start: Position | str = "", end: Position | str = "latest", **how: Any) -> list[dict[str, Any]]:
        """All changes of a range, read in its pieces."""
        log = self.log(**how)
        with contextlib.closing(ChangesPlanner(log)) as planner:
            first = planner.find_offset(str(start or self.begin))
            planner.check_readable(first)
            ends, altered = planner.find_range_ends(first, planner.find_offset(str(end)).at)
        assert altered is None
        found: list[dict[str, Any]] = []
        for a, b in zip([first, *ends], ends, strict=False):
            for part in log.read(a, b, 2):
                found += part.to_pylist()
        return found

    def purge(self, file: str) -> None:
        """Let the binlog begin with a file; the server keeps what somebody still reads."""
        end = time.monotonic() + 400
        while self.server.execute("SHOW BINARY LOGS")[0][0] != file:
            assert time.monotonic() < end
            self.server.execute(f"PURGE BINARY LOGS TO '{file}'")
            time.sleep(0.1)

    def close(self) -> None:
        self.server.roll_back_prepared()
        self.server.execute(f"DROP DATABASE {self.database}")


def short(rows: Sequence[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return [(r["_cdc_op"], r["id"], r["v"]) for r in rows]


def test_each_change_and_where_it_stands(world: World) -> None:
    ends = [
        world.run("INSERT INTO t VALUES (1, 'a'), (2, NULL)"),
        world.run("BEGIN", "UPDATE t SET v = 'b' WHERE id = 1", "DELETE FROM t WHERE id = 2", "COMMIT"),
        world.run("UPDATE t SET id = 3"),
    ]
    found = world.read()
    assert short(found) == [
        ("c", 1, "a"),
        ("c", 2, None),
        ("u", 1, "b"),
        ("d", 2, None),
        ("d", 1, "b"),
        ("u", 3, "b"),
    ]
    assert [Position(r["_cdc_file"], r["_cdc_pos"]) for r in found] == [end for end in ends for _ in range(2)]
    assert [r["_cdc_row"] for r in found] == [0, 1] * 3
    both = world.read(before_images=True)
    assert short(both)[2:4] == [("b", 1, "a"), ("u", 1, "b")] and short(both)[5:] == [("b", 1, "b"), ("u", 3, "b")]


def gtids(world: World) -> str:
    column = "gtid_binlog_pos" if isinstance(world.server, MariaDBServer) else "gtid_executed"
    return str(world.server.execute(f"SELECT @@global.{column}")[0][0]).replace("\n", "")


def last_gtid(world: World) -> str:
    """GTID of the newest transaction, as the server tells it."""
    if isinstance(world.server, MariaDBServer):
        return gtids(world)
    uuid, _, numbers = gtids(world).partition(":")
    return f"{uuid}:{numbers.replace(':', '-').split('-')[-1]}"


@pytest.mark.parametrize("piece", [1, 400, 64 << 20])
def test_the_pieces_do_not_change_what_is_read(world: World, piece: int) -> None:
    expected, names = [], []
    world.run("CREATE TABLE other (id INT PRIMARY KEY)")
    for n in range(9):
        world.run(f"INSERT INTO t VALUES ({n}, '{n}')")
        names.append(last_gtid(world))
        world.run(f"INSERT INTO other VALUES ({n})", *(["FLUSH BINARY LOGS"] if n % 3 == 2 else []))
        expected.append(("c", n, str(n)))
    found = world.read(range_bytes=piece)
    assert short(found) == expected
    assert [r["_cdc_gtid"] for r in found] == names
    assert len({r["_cdc_file"] for r in found}) == 3


def test_one_transaction_that_only_unpacked_is_larger_than_a_piece(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not the last one of the piece, so it does not end where that ends."""
    monkeypatch.setattr(changes, "MAX_HELD_BYTES", 1 << 16)
    set_byte_budget(monkeypatch, 1 << 16)
    is_mariadb = isinstance(world.server, MariaDBServer)
    name = "log_bin_compress" if is_mariadb else "binlog_transaction_compression"
    values = ", ".join(f"({n}, REPEAT('x', 1000))" for n in range(1000))
    rest = [f"INSERT INTO t SELECT id + {k}, v FROM t WHERE id BETWEEN 0 AND 999" for k in range(1000, 3000, 1000)]
    world.server.execute(f"SET GLOBAL {name} = ON")
    try:
        end = world.run("BEGIN", f"INSERT INTO t VALUES {values}", *rest, "COMMIT")
    finally:
        world.server.execute(f"SET GLOBAL {name} = OFF")
    assert end.position - world.begin.position < 1 << 19
    world.run("INSERT INTO t VALUES (-2, 'after')")
    assert [row["id"] for row in world.read(range_bytes=1 << 20)] == [*range(3000), -2]


def test_one_transaction_larger_than_a_piece(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is handed out in parts, on MariaDB too, which does not tell where it ends."""
    monkeypatch.setattr(changes, "MAX_HELD_BYTES", 1 << 18)
    set_byte_budget(monkeypatch, 1 << 18)
    world.run("INSERT INTO t VALUES (-1, 'before')")
    values = ", ".join(f"({n}, REPEAT('x', 1000))" for n in range(1000))
    rest = [f"INSERT INTO t SELECT id + {k}, v FROM t WHERE id BETWEEN 0 AND 999" for k in range(1000, 6000, 1000)]
    end = world.run("BEGIN", f"INSERT INTO t VALUES {values}", *rest, "COMMIT")
    name = last_gtid(world)
    world.run("INSERT INTO t VALUES (-2, 'after')")
    log = world.log(range_bytes=1 << 20)
    with contextlib.closing(ChangesPlanner(log)) as planner:
        first = planner.find_offset(str(world.begin))
        ends, _ = planner.find_range_ends(first, planner.binlog_end())
    assert end in [e.at for e in ends]
    parts: list[pa.RecordBatch] = []
    for a, b in zip([first, *ends[:-1]], ends, strict=True):
        parts += log.read(a, b, 2)
    large = [p for p in parts if p.num_rows > 1]
    assert len(large) >= 3 and max(p.nbytes for p in large) < 5 << 20
    rows = pa.Table.from_batches(parts)
    assert rows["id"].to_pylist() == [-1, *range(6000), -2]
    assert rows["_cdc_row"].to_pylist() == [0, *range(6000), 0]
    assert set(rows["_cdc_pos"].to_pylist()[1:-1]) == {end.position}
    assert set(rows["_cdc_gtid"].to_pylist()[1:-1]) == {name}


def test_changes_that_wait_keep_their_gtids(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A part is due in the middle of a transaction, and MariaDB does not announce where that ends: nothing is taken."""
    monkeypatch.setattr(changes, "MAX_HELD_BYTES", 1000)
    set_byte_budget(monkeypatch, 1000)
    names = []
    for n in range(30):
        world.run(f"INSERT INTO t VALUES ({n}, REPEAT('x', 300))")
        names.append(last_gtid(world))
    found = world.read()
    assert [row["id"] for row in found] == [*range(30)] and [row["_cdc_gtid"] for row in found] == names


def test_xa_counts_where_it_is_committed(world: World) -> None:
    world.run("XA START 'early'", "INSERT INTO t VALUES (1, 'early')", "XA END 'early'", "XA PREPARE 'early'")
    world.run("XA START 'gone'", "INSERT INTO t VALUES (9, 'gone')", "XA END 'gone'", "XA PREPARE 'gone'")
    start = world.run("FLUSH BINARY LOGS")
    world.run("INSERT INTO t VALUES (2, 'plain')")
    world.run("XA START 'late'", "INSERT INTO t VALUES (3, 'late'), (4, 'late')", "XA END 'late'", "XA PREPARE 'late'")
    middle = world.run("INSERT INTO t VALUES (5, 'plain')")
    end = world.run("XA COMMIT 'early'")
    name = last_gtid(world)
    world.run("XA ROLLBACK 'gone'")
    world.run("XA COMMIT 'late'")
    expected = [("c", 2, "plain"), ("c", 5, "plain"), ("c", 1, "early"), ("c", 3, "late"), ("c", 4, "late")]
    for piece in (1, 64 << 20):
        found = world.read(start, range_bytes=piece)
        assert short(found) == expected
        assert (found[2]["_cdc_file"], found[2]["_cdc_pos"], found[2]["_cdc_gtid"]) == (end.file, end.position, name)
    assert short(world.read(middle)) == expected[2:]


@pytest.mark.parametrize("phases", [1, 2])
def test_a_large_xa_transaction_comes_in_portions(world: World, phases: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(binlog_reader, "_MAX_UNTAKEN_BYTES", 1000)
    start = world.end()
    values = [", ".join(f"({n}, REPEAT('x', 100))" for n in range(first, first + 300)) for first in (0, 300)]
    ways = {1: ["XA COMMIT 'large' ONE PHASE"], 2: ["XA PREPARE 'large'", "XA COMMIT 'large'"]}
    end = world.run("XA START 'large'", *(f"INSERT INTO t VALUES {v}" for v in values), "XA END 'large'", *ways[phases])
    log = world.log()
    parts = [p for p in log.read(world.offset(start, log), world.offset(end, log), 1) if p.num_rows]
    # MariaDB logs one of one phase as any other.
    assert len(parts) > 1 or (phases == 1 and isinstance(world.server, MariaDBServer))
    rows = pa.Table.from_batches(parts)
    assert rows["id"].to_pylist() == rows["_cdc_row"].to_pylist() == [*range(600)]
    assert set(rows["_cdc_gtid"].to_pylist()) == {last_gtid(world)}


def test_xa_that_is_no_longer_there(server: MySQLServer, tmp_path: Path) -> None:
    with contextlib.closing(World(server, tmp_path)) as world:
        world.run("XA START 'old'", "INSERT INTO t VALUES (1, 'old')", "XA END 'old'", "XA PREPARE 'old'")
        start = world.run("FLUSH BINARY LOGS")
        world.purge(start.file)
        world.run("XA COMMIT 'old'")
        with pytest.raises(TerminalError, match=r"X'6f6c64'.* what it changed is no longer in the binlog"):
            world.read(start)
        world.run("INSERT INTO t VALUES (2, 'new')")
        assert short(world.read(world.end())) == []


def test_truncate_is_a_row(world: World) -> None:
    world.run("INSERT INTO t VALUES (1, 'a')")
    end = world.run("TRUNCATE TABLE t")
    name = last_gtid(world)
    world.run("INSERT INTO t VALUES (1, 'b')")
    found = world.read()
    assert short(found) == [("c", 1, "a"), ("t", None, None), ("c", 1, "b")]
    assert (found[1]["_cdc_file"], found[1]["_cdc_pos"], found[1]["_cdc_gtid"]) == (end.file, end.position, name)


def test_rows_of_another_definition_are_never_read(world: World) -> None:
    world.run("INSERT INTO t VALUES (1, 'a')")
    before = world.end()
    behind = world.run("ALTER TABLE t ADD COLUMN w INT")
    world.run("INSERT INTO t VALUES (2, 'b', 2)")
    for start in (world.begin, before):
        with pytest.raises(TerminalError, match=rf"was altered at {before}.* Begin after it: use {behind}"):
            world.read(start)
    with pytest.raises(TerminalError, match=f"was altered at {before}"):
        world.read(world.begin, before)  # though the range ends before it
    assert short(world.read(behind)) == [("c", 2, "b")]
    assert world.offset("earliest").at == behind
    assert short(world.read("earliest")) == [("c", 2, "b")]


def test_a_definition_of_the_same_layout(world: World) -> None:
    """Nothing in the rows tells that it was another one: the statement does."""
    world.run("SET NAMES utf8mb4", "INSERT INTO t VALUES (1, 'ä')")
    before = world.end()
    world.run("ALTER TABLE t MODIFY v LONGTEXT CHARACTER SET latin1")
    with pytest.raises(TerminalError, match=f"was altered at {before}"):
        world.read(world.begin, before)


def test_while_it_is_followed(world: World) -> None:
    """What came before the change is handed out; then it stops."""
    log = world.log()
    with contextlib.closing(ChangesPlanner(log)) as planner:
        start = planner.find_offset("latest")
        planner.check_readable(start)
        world.run("INSERT INTO t VALUES (1, 'a')")
        before = world.run("INSERT INTO t VALUES (2, 'b')")
        world.run("ALTER TABLE t ADD COLUMN w INT", "INSERT INTO t VALUES (3, 'c', 3)")
        ends, altered = planner.find_range_ends(start, planner.binlog_end())
        assert altered is not None and ends[-1].at == before
        assert ends[-1].gtid_set == world.offset(before).gtid_set
        assert [i for part in log.read(start, ends[-1], 2) for i in part["id"].to_pylist()] == [1, 2]
        again, altered = planner.find_range_ends(ends[-1], planner.binlog_end())
        assert again == [] and altered is not None


def test_places(world: World) -> None:
    place = world.run("INSERT INTO t VALUES (1, 'a')")
    standing = gtids(world)
    end = world.run("INSERT INTO t VALUES (2, 'b')")
    found = world.offset(place)
    assert found.at == place and found.gtid_set == standing
    assert world.offset("latest").at == end
    with pytest.raises(NotReadyError, match=rf"{place.file}:{place.position + 31} is inside a transaction.* as {end}"):
        world.offset(f"{place.file}:{place.position + 31}")
    for wrong in (f"{place.file}:{1 << 40}", "binlog.999999:4", f"{place.file}:3"):
        with pytest.raises(NotReadyError, match=rf"there is no position {wrong} in the binlog"):
            world.offset(wrong)
    for wrong in ("first", "3f2a:1", "0-1"):
        with pytest.raises(NotReadyError, match="is not a position in the binlog .* Give earliest, latest"):
            world.offset(wrong)


def test_a_gtid_set_is_a_place(world: World) -> None:
    if isinstance(world.server, MariaDBServer):
        with pytest.raises(NotReadyError, match="is not a position"):
            world.offset(gtids(world))
        return
    places = []
    for n in range(12):
        places.append((world.run(f"INSERT INTO t VALUES ({n}, '')"), gtids(world)))
        if n == 7:
            world.run("FLUSH BINARY LOGS")
    for place, text in (places[0], places[4], places[6], places[8], places[11]):
        found = world.offset(text)
        assert (found.at, found.gtid_set) == (place, text)
    uuid, _, numbers = places[5][1].partition(":")
    last = int(numbers.split("-")[-1])
    with pytest.raises(NotReadyError, match=rf"is not a position in .* of this server: {uuid}:{last} precedes"):
        world.offset(f"{uuid}:1-{last - 1}:{last + 1}")
    with pytest.raises(NotReadyError, match="does not exist yet"):
        world.offset(f"{uuid}:1-{last + 100000}")


def test_a_place_that_is_gone(world: World) -> None:
    place = world.run("INSERT INTO t VALUES (1, 'a')")
    offset = world.offset(place)
    later = world.run("INSERT INTO t VALUES (2, 'b')", "FLUSH BINARY LOGS")
    world.purge(later.file)
    with contextlib.closing(ChangesPlanner(world.log())) as planner:
        with pytest.raises(TerminalError, match=rf"the binlog position {place} is no longer on the server"):
            planner.check_readable(offset)
        other = Offset.from_json({**json.loads(json.dumps(offset.to_json())), "server": "another"})
        with pytest.raises(TerminalError, match="the connection reaches server"):
            planner.check_readable(other)


def test_what_is_no_table(world: World) -> None:
    with pytest.raises(NotReadyError, match="there is no table"):
        TableChanges.look_up(
            ConnectionLookup(conn_file=str(world.file)), world.database, "none", "error", range_bytes=1
        )
    world.run("CREATE TABLE m (id INT PRIMARY KEY) ENGINE = MyISAM")
    with pytest.raises(NotReadyError, match="engine MyISAM"):
        TableChanges.look_up(ConnectionLookup(conn_file=str(world.file)), world.database, "m", "error", range_bytes=1)


def test_a_server_restored_from_a_dump(server: MySQLServer, tmp_path: Path) -> None:
    """It has GTIDs that were never in its binlog; no head of a file tells them."""
    uuid = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
    with type(server)() as restored:
        if isinstance(restored, MariaDBServer):
            restored.execute("RESET MASTER")
            restored.execute("SET GLOBAL gtid_slave_pos = '0-7-100'")
            earlier = ""  # what a replica has got is no part of its binlog
        else:
            restored.execute("RESET BINARY LOGS AND GTIDS")
            restored.execute(f"SET GLOBAL gtid_purged = '{uuid}:1-100'")
            earlier = f"{uuid}:1-100"
        with contextlib.closing(World(restored, tmp_path)) as world:
            first = world.run("INSERT INTO t VALUES (1, 'a')")
            standing = gtids(world)
            if not earlier:  # two servers of one domain: the newest counts, in whatever order the head tells them
                world.run("SET server_id = 9", "INSERT INTO t VALUES (4, 'd')", "DELETE FROM t WHERE id = 4")
            later = world.run("FLUSH BINARY LOGS", "INSERT INTO t VALUES (2, 'b')")
            other = [] if earlier else [("c", 4, "d"), ("d", 4, "d")]
            both = [("c", 1, "a"), *other, ("c", 2, "b")]
            assert short(world.read("earliest")) == [("t", None, None), *both]
            assert short(world.read()) == both
            assert short(world.read(first)) == both[1:]
            assert short(world.read(Position(later.file, 4))) == both[-1:]
            assert world.offset("earliest").gtid_set == earlier
            assert world.offset(first).gtid_set == standing
            world.run("INSERT INTO t VALUES (3, 'c')")
            if earlier:
                assert world.offset(standing).at in (first, Position(later.file, 4))
                assert short(world.read(standing))[0] == ("c", 2, "b")
                with pytest.raises(NotReadyError, match="no longer has everything after the GTID set"):
                    world.offset(f"{uuid}:1-99")
            world.purge(later.file)
            assert short(world.read("earliest")) == [("c", 2, "b"), ("c", 3, "c")]


def test_columns_that_are_not_wanted(newest_mariadb_server: MySQLServer, tmp_path: Path) -> None:
    """The newest MariaDB leaves generated columns out of row images: who wants the others names them."""
    with contextlib.closing(World(newest_mariadb_server, tmp_path)) as world:
        world.run("ALTER TABLE t ADD g INT AS (id + 1) VIRTUAL", "ALTER TABLE t ADD s INT AS (id + 1) STORED")
        world.begin = world.run("INSERT INTO t (id, v) VALUES (1, 'a'), (2, 'b')")
        world.run("UPDATE t SET v = 'c' WHERE id = 1", "UPDATE t SET id = 3 WHERE id = 1", "DELETE FROM t WHERE id = 2")
        with pytest.raises(TerminalError, match=r"not full: they lack g, s,"):
            world.read()
        wanted = [("u", 1, "c"), ("d", 1, "c"), ("u", 3, "c"), ("d", 2, "b")]
        assert short(world.read(exclude=["g", "s"])) == wanted
        both = short(world.read(exclude=["g", "s"], before_images=True))
        assert both == [("b", 1, "a"), ("u", 1, "c"), ("b", 1, "c"), ("u", 3, "c"), ("d", 2, "b")]
        for name in ("id", "none"):
            with pytest.raises(NotReadyError, match=f"column {name} of .* cannot be excluded"):
                world.log(exclude=[name])
        # An old row is handed out whole, or not at all.
        world.begin = world.end()
        world.run("SET binlog_row_image = MINIMAL", "DELETE FROM t WHERE id = 3")
        with pytest.raises(TerminalError, match="not full: they lack v,"):
            world.read(exclude=["g", "s"])
