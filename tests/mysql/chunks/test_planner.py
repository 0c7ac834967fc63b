"""Chunk bounds against a real server: every key lies in exactly one chunk, by the server's own judgement."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from pymysql.connections import Connection

from airflow_provider_cdc.model.errors import NotReadyError
from airflow_provider_cdc.model.plan import MAX_CHUNK_OVERSIZE, Chunk, Plan
from airflow_provider_cdc.model.schema import TableSchema
from airflow_provider_cdc.mysql.binlog.events.binlog_source import BinlogSource
from airflow_provider_cdc.mysql.chunks import planner
from airflow_provider_cdc.mysql.chunks.planner import make_plan, plan_table
from airflow_provider_cdc.mysql.client.catalog import read_schema
from airflow_provider_cdc.mysql.client.key_sql import chunk_condition, table_name
from airflow_provider_cdc.mysql.client.session import connect, query_rows, query_value
from tests.support.servers import MySQLServer

WORDS = ["", "a", "A", "á", "b", "B ", "ß", "ss", "SS", "z", "Zz", "ñ", "n", "日本", "日", "🎁", "龘", "a\0", "a b"]


@pytest.fixture
def connection(mysql_server: MySQLServer, cdc_user: dict[str, str]) -> Iterator[Connection[Any]]:
    with contextlib.closing(connect(mysql_server.connect_args(**cdc_user))) as opened:
        yield opened


def made(connection: Connection[Any], server: MySQLServer, database: str, key: str, source: str) -> TableSchema:
    """A table ``t`` with a key and a payload, filled by a query that gives the key columns."""
    server.execute(f"CREATE TABLE `{database}`.t ({key}, v INT)")
    names = ", ".join(n for n in "abc" if f"{n} " in key.split("PRIMARY")[0])
    if source:
        server.execute(f"INSERT IGNORE INTO `{database}`.t ({names}) {source}")
    server.execute(f"ANALYZE TABLE `{database}`.t")
    return read_schema(connection, database, "t")


def sizes(connection: Connection[Any], table: TableSchema, chunks: list[Chunk]) -> list[int]:
    """Rows of each chunk; fails unless each row of the table is in one chunk and no more."""
    found = [
        int(query_value(connection, f"SELECT COUNT(*) FROM {table_name(table)} WHERE {chunk_condition(table, c)}") or 0)
        for c in chunks
    ]
    tests = " + ".join(f"({chunk_condition(table, c)})" for c in chunks)
    if chunks:
        odd = query_rows(connection, f"SELECT COUNT(*) FROM {table_name(table)} WHERE ({tests}) <> 1")[0][0]
        assert odd == "0", f"{odd} rows are in no chunk or in several"
    assert sum(found) == int(query_value(connection, f"SELECT COUNT(*) FROM {table_name(table)}") or 0)
    assert all(a.upper == b.lower for a, b in zip(chunks, chunks[1:], strict=False))
    assert [c.includes_upper for c in chunks] == [False] * (len(chunks) - 1) + [True] * bool(chunks)
    return found


def series(n: int, expression: str = "i", first: int = 1) -> str:
    """Query that gives ``expression`` for i = first, first + 1, ... (n rows)."""
    hint = f"/*+ SET_VAR(cte_max_recursion_depth = {n + 2}) */"
    return (
        f"WITH RECURSIVE s (i) AS (SELECT {first} UNION ALL SELECT i + 1 FROM s WHERE i < {first + n - 1}) "
        f"SELECT {hint} {expression} FROM s"
    )


def listed(*keys: object) -> str:
    return "VALUES " + ", ".join(f"ROW({key})" for key in keys)


SIGNED, UNSIGNED = "a BIGINT NOT NULL PRIMARY KEY", "a BIGINT UNSIGNED NOT NULL PRIMARY KEY"


@pytest.mark.parametrize(
    ("key", "source", "chunks"),
    [
        pytest.param(SIGNED, series(1000), range(10, 11), id="even"),
        pytest.param(SIGNED, series(1000, "i - 500"), range(10, 11), id="negative"),
        pytest.param(SIGNED, series(1000, "i * i * i"), range(10, 11), id="sparse"),
        pytest.param(SIGNED, series(1000, "IF(i < 990, i, i * 90)"), range(8, 15), id="uneven within the factor"),
        pytest.param(SIGNED, listed(7), range(1, 2), id="one row"),
        pytest.param(SIGNED, listed(-(2**63), 2**63 - 1), range(1, 2), id="both ends"),
        pytest.param(SIGNED, listed(*range(2**63 - 250, 2**63)), range(3, 4), id="up to the signed end"),
        pytest.param(UNSIGNED, listed(*range(2**64 - 250, 2**64)), range(3, 4), id="up to the unsigned end"),
        pytest.param(UNSIGNED, listed(*(2**63 + n for n in range(-150, 150))), range(3, 4), id="across 2^63"),
        pytest.param(UNSIGNED, listed(0, 1, 2**64 - 1), range(1, 2), id="unsigned ends"),
        pytest.param("a TINYINT NOT NULL PRIMARY KEY", series(256, "i - 129"), range(3, 4), id="all of tinyint"),
        pytest.param("a DECIMAL(20,3) NOT NULL PRIMARY KEY", series(300, "(i - 150) / 7"), range(3, 4), id="decimal"),
        pytest.param(
            "a DATE NOT NULL PRIMARY KEY", series(300, "DATE'1999-12-01' + INTERVAL i DAY"), range(3, 4), id="date"
        ),
        pytest.param(
            "a TIME(3) NOT NULL PRIMARY KEY", series(300, "SEC_TO_TIME((i - 150) * 1.125)"), range(3, 4), id="time"
        ),
        pytest.param(
            "a DATETIME(6) NOT NULL PRIMARY KEY",
            series(300, "TIMESTAMP'2000-01-01 00:00:00' + INTERVAL i * 3 MICROSECOND"),
            range(3, 4),
            id="datetime",
        ),
        pytest.param(
            "a TIMESTAMP(2) NOT NULL PRIMARY KEY",
            series(300, "FROM_UNIXTIME(1 + i * 0.37)"),
            range(3, 4),
            id="timestamp",
        ),
        pytest.param("a YEAR NOT NULL PRIMARY KEY", series(150, "1900 + i"), range(2, 3), id="year"),
        pytest.param(
            "a VARBINARY(9) NOT NULL PRIMARY KEY",
            series(300, "LEFT(UNHEX(SHA2(i, 224)), 9)"),
            range(3, 4),
            id="varbinary",
        ),
        pytest.param("a BINARY(4) NOT NULL PRIMARY KEY", series(300, "UNHEX(HEX(i))"), range(3, 4), id="binary"),
        pytest.param(
            "a VARBINARY(9) NOT NULL PRIMARY KEY", listed("''", "x'00'", "x'0000'"), range(1, 2), id="zero bytes"
        ),
        pytest.param(
            "a INT NOT NULL, b VARCHAR(9) NOT NULL, c DATE NOT NULL, PRIMARY KEY (a, b, c)",
            series(900, "i DIV 300, CONCAT('k', i DIV 9), DATE'2000-01-01' + INTERVAL i DAY"),
            range(9, 10),
            id="composite",
        ),
        pytest.param(
            "a INT NOT NULL, b INT NOT NULL, PRIMARY KEY (b, a)", series(500, "i, i MOD 3"), range(5, 6), id="key order"
        ),
        pytest.param(
            "a INT NOT NULL, b VARCHAR(9) NOT NULL, PRIMARY KEY (a, b)",
            series(500, "1, CONCAT(IF(i MOD 2, 'a', 'A'), i)"),
            range(5, 6),
            id="composite whose first column is always the same",
        ),
        pytest.param(
            "a INT NOT NULL UNIQUE, b INT", series(300, "i, NULL"), range(3, 4), id="unique instead of primary"
        ),
    ],
)
def test_each_key_in_one_chunk(
    connection: Connection[Any], mysql_server: MySQLServer, database: str, key: str, source: str, chunks: range
) -> None:
    table = made(connection, mysql_server, database, key, source)
    found = plan_table(connection, 3, table, 100)
    assert len(found) in chunks, [c.lower for c in found]
    assert {c.table for c in found} == {3}
    assert max(sizes(connection, table, found)) <= MAX_CHUNK_OVERSIZE * 100


@pytest.mark.parametrize(
    "collation",
    [
        "utf8mb4_0900_ai_ci",
        "utf8mb4_0900_as_cs",
        "utf8mb4_0900_bin",
        "utf8mb4_general_ci",
        "utf8mb4_unicode_ci",
        "utf8mb4_bin",
        "utf8mb4_de_pb_0900_ai_ci",
        "utf8mb3_general_ci",
        "ascii_general_ci",
    ],
)
@pytest.mark.parametrize("kind", ["VARCHAR(40)", "CHAR(40)"])
def test_strings_in_the_collation_of_their_column(
    connection: Connection[Any], mysql_server: MySQLServer, database: str, collation: str, kind: str
) -> None:
    draw = random.Random(collation)
    charset = collation.split("_")[0]
    words = ["".join(draw.choices(WORDS, k=3)) for _ in range(700)] + WORDS
    if charset != "utf8mb4":
        words = [w.encode("ascii" if charset == "ascii" else "utf-8", "ignore").decode() for w in words]
        words = [w for w in words if all(ord(c) < 0x10000 for c in w)]
    listing = ", ".join(f"ROW(CONVERT(_utf8mb4 x'{w.encode().hex()}' USING {charset}))" for w in words if w)
    column = f"a {kind} CHARACTER SET {charset} COLLATE {collation} NOT NULL PRIMARY KEY"
    table = made(connection, mysql_server, database, column, f"VALUES {listing}, ROW('')")
    found = plan_table(connection, 0, table, 20)
    assert len(found) > 3
    assert max(sizes(connection, table, found)) <= 30


def test_an_empty_table_has_no_chunk(connection: Connection[Any], mysql_server: MySQLServer, database: str) -> None:
    table = made(connection, mysql_server, database, SIGNED, "")
    assert plan_table(connection, 0, table, 100) == []


def test_statistics_that_are_wrong_by_far(
    connection: Connection[Any], mysql_server: MySQLServer, database: str
) -> None:
    """The statistics say one row, then 3000 arrive at one end: counting a few chunks finds out."""
    mysql_server.execute(f"CREATE TABLE `{database}`.t (a BIGINT NOT NULL PRIMARY KEY, v INT) STATS_AUTO_RECALC=0")
    mysql_server.execute(f"INSERT INTO `{database}`.t (a) {series(60, 'i * 1000')}")
    mysql_server.execute(f"ANALYZE TABLE `{database}`.t")
    mysql_server.execute(f"INSERT IGNORE INTO `{database}`.t (a) {series(3000)}")
    table = read_schema(connection, database, "t")
    assert max(sizes(connection, table, plan_table(connection, 0, table, 10))) <= MAX_CHUNK_OVERSIZE * 10


def test_wide_rows_make_smaller_chunks(
    connection: Connection[Any], mysql_server: MySQLServer, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planner, "MAX_CHUNK_BYTES", 100_000)
    mysql_server.execute(f"CREATE TABLE `{database}`.t (a INT NOT NULL PRIMARY KEY, v BLOB)")
    wide = series(100, "i, REPEAT('x', 5000)")
    mysql_server.execute(f"INSERT INTO `{database}`.t {wide}")
    mysql_server.execute(f"ANALYZE TABLE `{database}`.t")
    table = read_schema(connection, database, "t")
    found = sizes(connection, table, plan_table(connection, 0, table, 8096))
    assert 5 <= len(found) <= 20


def plan_of(connection: Connection[Any], database: str, server: MySQLServer) -> Plan:
    return make_plan(
        connection,
        "p",
        lambda d, _: d == database,
        patterns=((rf"{database}\..*",), ()),
        generation=1,
        chunk_rows=10,
        group_rows=30,
        open_at=BinlogSource(server.connect_args()).open_to_end,
    )


def test_p0_is_taken_before_the_bounds(
    connection: Connection[Any], mysql_server: MySQLServer, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row that comes in between is beyond the last chunk, and its change is after P0: nothing is lost."""
    made(connection, mysql_server, database, SIGNED, series(100))
    before = mysql_server.execute("SHOW BINARY LOG STATUS")[0][:2]
    find = planner.plan_table

    def between(*arguments: Any) -> list[Chunk]:
        mysql_server.execute(f"CREATE TABLE `{database}`.later (id INT PRIMARY KEY)")
        return find(*arguments)

    monkeypatch.setattr(planner, "plan_table", between)
    plan = plan_of(connection, database, mysql_server)
    assert (plan.p0.at.file, plan.p0.at.position) == before
    assert [c.number for c in plan.chunks] == list(range(10))
    assert [c.group for c in plan.chunks] == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3]
    assert Plan.from_json(plan.to_json()) == plan.replace(costs=())


def test_no_table(connection: Connection[Any], mysql_server: MySQLServer, database: str) -> None:
    with pytest.raises(NotReadyError, match="no table matches"):
        plan_of(connection, database, mysql_server)


def test_an_open_xa_transaction_is_waited_for(
    connection: Connection[Any], mysql_server: MySQLServer, database: str
) -> None:
    """Its rows may be in the binlog before P0 and yet invisible."""
    made(connection, mysql_server, database, SIGNED, series(10))
    with contextlib.closing(mysql_server.connect(database=database)) as other, other.cursor() as cursor:
        for sql in ("XA START 'open'", "INSERT INTO t (a) VALUES (99)", "XA END 'open'", "XA PREPARE 'open'"):
            cursor.execute(sql)
        ended: list[float] = []

        def end() -> None:
            time.sleep(1)
            ended.append(time.monotonic())
            cursor.execute("XA COMMIT 'open'")

        thread = threading.Thread(target=end)
        thread.start()
        plan = plan_of(connection, database, mysql_server)
        planned = time.monotonic()
        thread.join()
    assert ended[0] <= planned
    assert plan.chunks[-1].upper == (99,)
