"""Columns that MariaDB logs in its own way: generated, hidden and old ones, years of two digits, vectors."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pyarrow.compute as pc
import pytest

from airflow_provider_cdc.model.errors import TerminalError
from airflow_provider_cdc.mysql.client.charsets import load_decoders
from airflow_provider_cdc.mysql.client.session import connect
from tests.support.binlog.reading import agree, binlog_place, capture, transactions
from tests.support.cli import Cli
from tests.support.oracle import compare
from tests.support.servers import MySQLServer


@pytest.fixture(scope="module", params=["mariadb_server", "newest_mariadb_server"])
def mariadb(request: pytest.FixtureRequest) -> MySQLServer:
    """The usual MariaDB, and the newest one."""
    found = request.getfixturevalue(request.param)
    if request.param == "newest_mariadb_server" and found is request.getfixturevalue("mariadb_server"):
        pytest.skip("the usual MariaDB is the newest one")
    return cast(MySQLServer, found)


@pytest.fixture
def world(mariadb: MySQLServer, tmp_path: Path) -> Iterator[World]:
    found = World(mariadb, tmp_path)
    yield found
    mariadb.execute(f"DROP DATABASE {found.name}")


class World:
    """A database of a test's own, and a pipeline of all its tables."""

    def __init__(self, server: MySQLServer, folder: Path) -> None:
        self.server, self.name, self.folder = server, f"t_{secrets.token_hex(6)}", folder
        server.execute(f"CREATE DATABASE {self.name} CHARACTER SET utf8mb4")

    def run(self, *statements: str) -> None:
        self.server.session(self.name, *statements)

    def begin(self, folder: str = "p", **settings: dict[str, Any]) -> Cli:
        """A pipeline whose snapshot is done."""
        cli = Cli(self.folder / folder, self.server, rf"{self.name}\..*", name=f"{self.name}.{folder}", **settings)
        cli.snapshot()
        return cli

    def check(self, cli: Cli, *tables: str, without: tuple[str, ...] = ()) -> None:
        """Stream to the present: copy, server and ``verify`` agree."""
        cli.catch_up()
        with contextlib.closing(self.server.connect()) as connection:
            for table in tables:
                difference = compare(connection, self.name, table, cli.sink / self.name / table, without)
                assert difference is None, difference
        assert cli.call("verify").code == 0

    def end(self) -> tuple[str, int]:
        at = binlog_place(self.server)
        return at.file, at.position

    def agree(self, start: tuple[str, int], *tables: str, without: tuple[str, ...] = ()) -> None:
        """Both decoders read the same in what was written behind a place."""
        captured = capture(self.server, self.name, *tables)
        captured = {name: table.replace(excluded=(*table.excluded, *without)) for name, table in captured.items()}
        texts = load_decoders(lambda: contextlib.closing(connect(self.server.connect_args())), captured.values())
        events = [e for t in transactions(self.server, start, captured) for e in t.rows]
        assert events
        for event in events:
            agree(event, texts)


@pytest.mark.parametrize("compress", ["OFF", "ON"])
def test_generated_columns_that_are_not_copied(world: World, compress: str) -> None:
    """MariaDB leaves generated columns out of updates and deletes from 11.8 on; what is not copied is not needed."""
    world.run(
        "CREATE TABLE g (a INT, id INT PRIMARY KEY, s INT AS (a * 2) STORED, t TEXT, v TEXT AS (CONCAT(t, id)) VIRTUAL,"
        " d DECIMAL(40,3), e ENUM('x', 'y'))",
        "INSERT INTO g (id, a, t, d, e) SELECT seq, seq * 7, REPEAT('x', seq % 20), seq / 8, 'y' FROM seq_1_to_300",
    )
    cli = world.begin(source={"exclude_columns": [rf"{world.name}\.g\.[sv]"]})
    start = world.end()
    world.run(
        f"SET GLOBAL log_bin_compress = {compress}, GLOBAL log_bin_compress_min_len = 10",
        "INSERT INTO g (id, a, t) VALUES (1001, 5, 'new'), (1002, NULL, NULL)",
        "UPDATE g SET t = 'y', a = NULL WHERE id % 3 = 0",
        "UPDATE g SET id = id + 5000 WHERE id % 5 = 0",
        "DELETE FROM g WHERE id % 7 = 0",
        "XA START 'x'",
        "UPDATE g SET t = 'xa' WHERE id < 9",
        "XA END 'x'",
        "XA PREPARE 'x'",
        "XA COMMIT 'x'",
        "SET GLOBAL log_bin_compress = OFF",
    )
    world.check(cli, "g", without=("s", "v"))
    world.agree(start, "g", without=("s", "v"))
    cli.snapshot()
    assert "s" not in cli.rows(world.name, "g").column_names


def test_generated_columns_that_are_copied(world: World) -> None:
    """Where they are missing nobody else knows their values, so it stops and says what to do; ``check`` warns."""
    world.run(
        "CREATE TABLE g (id INT PRIMARY KEY, a INT, s INT AS (a * 2) STORED, v INT AS (a + 1) VIRTUAL)",
        "INSERT INTO g (id, a) VALUES (1, 1), (2, 2)",
    )
    cli = world.begin()
    world.run("INSERT INTO g (id, a) VALUES (3, 3)", "DELETE FROM g WHERE id = 1")
    world.check(cli, "g")  # a delete needs the key alone
    world.run("UPDATE g SET a = 7 WHERE id = 2")
    said = [line for line in cli.call("check").out.splitlines() if "generated columns" in line]
    if not world.server.execute("SELECT VERSION()")[0][0].startswith("10."):
        assert len(said) == 1 and "(s, v)" in said[0] and said[0].startswith("warning")
        with pytest.raises(TerminalError, match=r"images of .*\.g are not full: they lack s, v,.*exclude_columns"):
            cli.catch_up()
    else:
        assert not said
        world.check(cli, "g")


def test_generated_columns_without_a_key(world: World) -> None:
    """All that is copied tells the rows apart: a before image has to have it."""
    world.run(
        "CREATE TABLE g (a INT, b TEXT, s INT AS (a * 2) STORED)",
        "INSERT INTO g (a, b) VALUES (1, 'x'), (1, 'x'), (2, NULL)",
    )
    cli = world.begin(source={"exclude_columns": [rf"{world.name}\.g\.s"]})
    world.run("UPDATE g SET b = 'y' WHERE a = 1 LIMIT 1", "DELETE FROM g WHERE a = 2")
    world.check(cli, "g", without=("s",))
    whole = world.begin("whole")
    world.run("DELETE FROM g LIMIT 1")
    if not world.server.execute("SELECT VERSION()")[0][0].startswith("10."):
        with pytest.raises(TerminalError, match="they lack s,"):
            whole.catch_up()


@pytest.mark.parametrize("metadata", ["FULL", "NO_LOG"])
def test_hidden_columns(world: World, metadata: str) -> None:
    """Behind a unique index of any length stands a column with a hash that no catalog shows."""
    world.server.execute(f"SET GLOBAL binlog_row_metadata = {metadata}")
    try:
        world.run(
            "CREATE TABLE h (id INT PRIMARY KEY, b TEXT UNIQUE, c VARCHAR(4000), db_row_hash_2 INT, UNIQUE (c, b), "
            "UNIQUE (id) USING HASH)",
            "CREATE TABLE k (c VARCHAR(4000) NOT NULL UNIQUE, n INT)",
            "CREATE TABLE p (id INT, n BLOB, PRIMARY KEY (id) USING HASH)",
            "INSERT INTO h VALUES (1, 'a', 'b', 1), (2, NULL, NULL, NULL), (3, 'c', 'b', 1)",
            "INSERT INTO k VALUES ('a', 1), ('b', 2)",
            "INSERT INTO p VALUES (1, 'x'), (2, NULL)",
        )
        cli = world.begin()
        keys = {t.name: t.key for t in cli.context.plans.require().tables}
        assert keys == {"h": ("id",), "k": (), "p": ("id",)}  # a hash has no order that could be read in chunks
        start = world.end()
        world.run(
            "INSERT INTO h VALUES (4, 'd', REPEAT('x', 3000), 4)",
            "UPDATE h SET b = 'z' WHERE id = 1",
            "UPDATE h SET id = 9 WHERE id = 3",
            "DELETE FROM h WHERE id = 2",
            "INSERT INTO k VALUES ('c', 3)",
            "UPDATE k SET n = 5 WHERE c = 'a'",
            "DELETE FROM k WHERE c = 'b'",
            "UPDATE p SET n = 'y'",
            "DELETE FROM p WHERE id = 2",
        )
        world.check(cli, "h", "k", "p")
        world.agree(start, "h", "k", "p")
        assert "columns, key (id)" in cli.call("check").out
    finally:
        world.server.execute("SET GLOBAL binlog_row_metadata = FULL")


OLD = [
    *((f"DATETIME({n})", n) for n in range(7)),
    *((f"TIMESTAMP({n}) NULL", n) for n in range(7)),
    *((f"TIME({n})", n) for n in range(7)),
]
MOMENTS = ("1000-01-01 00:00:00", "9999-12-31 23:59:59", "1969-12-31 23:59:59", "2024-02-29 12:34:56")
STAMPS = ("1970-01-01 00:00:01", "2038-01-19 03:14:07", "2024-03-31 01:00:00")
CLOCKS = ("-838:59:58", "838:59:58", "00:00:00", "-00:00:00", "100:00:01", "-01:02:03")


def old_values(kind: str, fsp: int) -> list[str]:
    """Values with the smallest and the largest fraction, and one in between."""
    wholes = MOMENTS if kind.startswith("DATETIME") else STAMPS if kind.startswith("TIMESTAMP") else CLOCKS
    parts = [f".{n:0{fsp}d}" for n in (0, 1, 10**fsp - 1, 123456 // 10 ** (6 - fsp))] if fsp else [""]
    return [f"'{whole}{part}'" for whole in wholes for part in parts]


def test_old_dates_and_times(world: World) -> None:
    """Tables from before MySQL 5.6 keep another format until they are rebuilt."""
    columns = ", ".join(f"c{i} {kind}" for i, (kind, _) in enumerate(OLD))
    values = [old_values(*each) for each in OLD]
    rows = max(map(len, values)) + 1

    def insert(first: int, *tables: str) -> list[str]:
        listed = ([v[n % (len(v) + 1)] if n % (len(v) + 1) < len(v) else "NULL" for v in values] for n in range(rows))
        return [
            f"INSERT INTO {table} VALUES ({first + n}, {', '.join(some)})"
            for n, some in enumerate(listed)
            for table in tables
        ]

    zone = "SET time_zone = '+00:00', sql_mode = ''"
    world.server.execute("SET GLOBAL mysql56_temporal_format = OFF")
    try:
        world.run(
            zone,
            f"CREATE TABLE t (id INT PRIMARY KEY, {columns})",
            "CREATE TABLE k (d DATETIME(5), c TIME(2), s TIMESTAMP, PRIMARY KEY (d, c, s))",
            f"CREATE TABLE n ({columns.replace(' NULL', '')})",
            *insert(1, "t"),
        )
    finally:
        world.server.execute("SET GLOBAL mysql56_temporal_format = ON")
    keys = [f"('{d}', '{c}.5', '{s}')" for d in MOMENTS for c in CLOCKS for s in STAMPS]
    world.run(zone, f"INSERT INTO k VALUES {', '.join(keys[::2])}")
    cli = world.begin(snapshot={"chunk_rows": 10})
    start = world.end()
    world.run(
        zone,
        *insert(1001, "t"),
        "UPDATE t SET id = id + 5000 WHERE id % 3 = 0",
        "DELETE FROM t WHERE id % 7 = 0",
        f"INSERT INTO k VALUES {', '.join(keys[1::2])}",
        "UPDATE k SET c = ADDTIME(c, '00:00:00.01') WHERE c > 0",
        "DELETE FROM k WHERE c < '-800:00:00'",
    )
    world.check(cli, "t", "k", "n")
    world.agree(start, "t", "k")
    streamed = [row for row in cli.rows(world.name, "t").to_pylist() if row["_cdc_op"] == "c"]
    assert len(streamed) > rows // 2


def test_old_dates_that_are_none(world: World) -> None:
    kinds = ["DATETIME", "DATETIME(2)", "DATETIME(6)", "TIMESTAMP NULL", "TIMESTAMP(3) NULL", "TIMESTAMP(6) NULL"]
    world.server.execute("SET GLOBAL mysql56_temporal_format = OFF")
    try:
        columns = ", ".join(f"c{i} {kind}" for i, kind in enumerate(kinds))
        world.run(f"CREATE TABLE t (id INT PRIMARY KEY, {columns}, after INT)")
    finally:
        world.server.execute("SET GLOBAL mysql56_temporal_format = ON")
    strict, kept = world.begin("strict"), world.begin("kept", source={"zero_dates": None})
    start = world.end()
    zeros = ("'0000-00-00'",) * 3 + ("0",) * 3
    world.run("SET sql_mode = ''", f"INSERT INTO t VALUES (1, {', '.join(zeros)}, 7)")
    kept.catch_up()
    (row,) = kept.rows(world.name, "t").to_pylist()
    assert [row[f"c{i}"] for i in range(6)] == [None] * 6 and row["after"] == 7
    with pytest.raises(TerminalError, match="zero, partial or impossible date 0000-00-00 in column c0 of"):
        strict.catch_up()
    for i, kind in enumerate(kinds):  # each alone
        later = world.end()
        partial = "'2020-00-10'" if kind.startswith("DATETIME") else "0"
        world.run("SET sql_mode = ''", f"INSERT INTO t (id, c{i}) VALUES ({i + 10}, {partial})")
        world.agree(later, "t")
    world.agree(start, "t")


def test_years_of_two_digits(world: World) -> None:
    """What the server says, not what is stored: 70 and not 1970. They cannot be a key, for 00 is two values."""
    world.run(
        "CREATE TABLE y (id INT PRIMARY KEY, y2 YEAR(2), y4 YEAR(4), w YEAR(2) NOT NULL)",
        "CREATE TABLE k (y YEAR(2) PRIMARY KEY, n INT)",
    )
    years = (70, 99, 0, 1, 69, 1970, 1999, 2000, 2069)
    rows = ", ".join(f"(%d + {n}, {y}, {1970 + n}, '{y}')" for n, y in enumerate(years))
    keys = "INSERT INTO k VALUES (%d, 1), (%d, 2)"
    world.run(f"INSERT INTO y VALUES {rows % ((0,) * 9)}, (90, NULL, NULL, 5)", keys % (70, 5))
    cli = world.begin()
    start = world.end()
    world.run(f"INSERT INTO y VALUES {rows % ((1000,) * 9)}, (91, NULL, NULL, 5)", keys % (71, 0))
    world.run(
        "UPDATE y SET y2 = 2042, id = id + 5000 WHERE y2 = 99", "UPDATE k SET n = 3", "DELETE FROM k WHERE y = 70"
    )
    world.check(cli, "y", "k")
    world.agree(start, "y", "k")
    assert cli.rows(world.name, "y").filter(pc.field("id") == 1000)["y2"].to_pylist() == [70]
    assert {t.name: t.key for t in cli.context.plans.require().tables} == {"y": ("id",), "k": ()}


def test_vectors(newest_mariadb_server: MySQLServer, tmp_path: Path) -> None:
    """As those of MySQL: lists of 32-bit numbers, to the bit."""
    world = World(newest_mariadb_server, tmp_path)
    world.run(
        "CREATE TABLE v (id INT PRIMARY KEY, a VECTOR(3), b VECTOR(100) NOT NULL, c VECTOR(10000), VECTOR INDEX (b))"
    )
    long = "(SELECT VEC_FromText(CONCAT('[', GROUP_CONCAT(seq / 3), ']')) FROM seq_1_to_{})"

    def insert(first: int) -> str:
        some = ("VEC_FromText('[1, -0.5, 3.25]')", "x'0000803f0000008000002040'", "NULL")
        rows = ", ".join(
            f"({first + n}, {a}, {long.format(100)}, {long.format(10000) if n else 'NULL'})" for n, a in enumerate(some)
        )
        return f"INSERT INTO v VALUES {rows}"

    world.run("SET group_concat_max_len = 1000000", insert(1))
    cli = world.begin()
    start = world.end()
    world.run(
        "SET group_concat_max_len = 1000000", insert(11), "UPDATE v SET a = VEC_FromText('[1, 2, 3]') WHERE id = 2"
    )
    world.run("DELETE FROM v WHERE id = 1", "UPDATE v SET id = 20 WHERE id = 3")
    world.check(cli, "v")
    world.agree(start, "v")
    rows = {row["id"]: row for row in cli.rows(world.name, "v").to_pylist()}
    assert (
        rows[2]["a"] == [1.0, 2.0, 3.0]
        and str(rows[12]["a"]).startswith("[1.0, -0.0, ")
        and len(rows[12]["c"]) == 10000
    )
    world.server.execute(f"DROP DATABASE {world.name}")


@pytest.mark.parametrize("image", ["MINIMAL", "NOBLOB"])
def test_images_that_are_not_full(server: MySQLServer, tmp_path: Path, image: str) -> None:
    """An update lacks what is copied, so it stops; a delete has the key, and that is all it takes."""
    world = World(server, tmp_path)
    world.run("CREATE TABLE t (id INT PRIMARY KEY, a INT, b TEXT)", "INSERT INTO t VALUES (1, 1, 'x'), (2, 2, 'y')")
    cli = world.begin()
    start = world.end()
    world.run(f"SET binlog_row_image = {image}", "DELETE FROM t WHERE id = 1", "INSERT INTO t VALUES (3, 3, 'z')")
    world.check(cli, "t")
    world.agree(start, "t")
    world.run(f"SET binlog_row_image = {image}", "UPDATE t SET a = 3 WHERE id = 2")
    with pytest.raises(TerminalError, match=r"row images of .*\.t are not full: they lack .*b,.*binlog_row_image=FULL"):
        cli.catch_up()
    server.execute(f"DROP DATABASE {world.name}")
