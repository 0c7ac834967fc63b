"""Conditions on keys of every type: the chunks that they become hold the rows for which the condition itself holds."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pymysql.connections import Connection

from airflow_provider_cdc.ddl.key_predicate import InvalidKeyPredicate
from airflow_provider_cdc.model.plan import Chunk
from airflow_provider_cdc.mysql.chunks.chunk import select_rows
from airflow_provider_cdc.mysql.chunks.planner import plan_ranges
from airflow_provider_cdc.mysql.client.catalog import read_schema
from airflow_provider_cdc.mysql.client.key_sql import chunk_condition, keys_of
from airflow_provider_cdc.mysql.client.session import connect, query_rows
from airflow_provider_cdc.mysql.keys import ownership
from airflow_provider_cdc.mysql.keys.ownership import find_owning_chunks, mask_owned_rows
from airflow_provider_cdc.mysql.keys.ranges import keys_as_ranges, parse_key_ranges
from tests.support.servers import MySQLServer

pytestmark = pytest.mark.one_of("server")
#: Columns of a key, rows, and conditions.
KEYS: dict[str, tuple[str, list[str], list[str]]] = {
    "int": (
        "a INT",
        [f"({n})" for n in range(-50, 50)],
        ["a >= -10 AND a < 20", "a > 5", "a <= -7", "a = 3", "a IN (9, -4, 7, 9)", "a = 1000", "a > -99999999999"],
    ),
    "bigint unsigned": (
        "a BIGINT UNSIGNED",
        [f"({n})" for n in (0, 1, 2, 2**63 - 1, 2**63, 2**64 - 2, 2**64 - 1)],
        ["a >= 1", "a > 1 AND a <= 18446744073709551614", "a < 9223372036854775808", "a IN (0, 18446744073709551615)"],
    ),
    "text": (
        "a VARCHAR(9) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci",
        [f"({w})" for w in ("''", "'A'", "'b'", "'ba'", "'C'", "'z'", "'ß'")],
        ["a >= 'B' AND a < 'c'", "a = 'a'", "a IN ('Z', 'a', 'A', 'q')", "a <= 'BA'", "a >= ''"],
    ),
    "latin1": (
        "a VARCHAR(9) CHARACTER SET latin1 COLLATE latin1_general_cs",
        ["('a')", "('A')", "('ä')", "('b')", "('ÿ')"],
        ["a >= 'ä'", "a = 'ä'", "a IN ('b', 'A', 'a')"],
    ),
    "varbinary": ("a VARBINARY(4)", ["('')", "('a')", "(x'00')", "(x'ff00')"], ["a >= x'01'", "a IN (x'00', 'a')"]),
    "binary": ("a BINARY(3)", ["('a')", "('ab')", "(x'ffffff')"], ["a = 'a'", "a = x'610000'", "a >= 'ab'"]),
    "decimal": (
        "a DECIMAL(9,3)",
        ["(-1.5)", "(0)", "(2.125)", "(7)"],
        ["a >= -1.5 AND a < 7", "a IN (2.125, '7.000')"],
    ),
    "date": (
        "a DATE",
        ["('2024-02-28')", "('2024-02-29')", "('2024-03-01')"],
        ["a >= '2024-02-29'", "a < DATE'2024-03-01'"],
    ),
    "datetime": (
        "a DATETIME(3)",
        ["('2024-02-28 01:02:03.004')", "('2024-02-28 01:02:03.005')", "('2025-01-01')"],
        ["a >= '2024-02-28 01:02:03.005'", "a < '2025-01-01'", "a = TIMESTAMP'2025-01-01 00:00:00'"],
    ),
    "time": (
        "a TIME",
        ["('-01:00:00')", "('00:00:01')", "('700:00:00')"],
        ["a >= '-01:00:00' AND a < '00:00:01'", "a = '700:00'"],
    ),
    "year": ("a YEAR", ["(1999)", "(2024)", "(2155)"], ["a >= 2000", "a IN (1999, 2155)"]),
    "enum": ("a ENUM('z', 'a', 'm')", ["('z')", "('a')", "('m')"], ["a = 'a'", "a IN ('m', 'z')"]),
    "two": (
        "a VARCHAR(9) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci, b INT",
        [f"('{w}', {n})" for w in ("a", "b", "c") for n in range(5)],
        [
            "a = 'B'",
            "a = 'b' AND b > 1 AND b < 4",
            "a >= 'b'",
            "a = 'b' AND b IN (4, 0, 2)",
            "a = 'b' AND b <= 2",
            "a < 'b'",
        ],
    ),
    "three": (
        "a INT, b DATE, c VARCHAR(3) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci",
        [f"({n}, '2024-01-0{d}', '{w}')" for n in (1, 2) for d in (1, 2, 3) for w in "xyz"],
        [
            "a = 1",
            "a > 1",
            "a = 1 AND b BETWEEN '2024-01-02' AND '2024-01-03'",
            "a = 2 AND b = '2024-01-02' AND c >= 'Y'",
        ],
    ),
}


@pytest.fixture
def connection(server: MySQLServer) -> Iterator[Connection[Any]]:
    server.execute("DROP DATABASE IF EXISTS ranges")
    server.execute("CREATE DATABASE ranges")
    with contextlib.closing(connect(server.connect_args())) as opened:
        yield opened
    server.execute("DROP DATABASE ranges")


def spell(connection: Connection[Any], columns: str, values: list[str]) -> str:
    """A table with a key and some rows; the names of the key's columns."""
    names = ", ".join(column.split()[0] for column in columns.split(", ") if column[1] == " ")
    query_rows(connection, f"CREATE TABLE ranges.t ({columns}, PRIMARY KEY ({names}))")
    query_rows(connection, f"INSERT INTO ranges.t VALUES {', '.join(values)}")
    return names


@pytest.mark.parametrize("kind", KEYS)
def test_what_a_condition_holds(connection: Connection[Any], kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    columns, values, conditions = KEYS[kind]
    spell(connection, columns, values)
    table = read_schema(connection, "ranges", "t")
    for condition in conditions:
        data = pa.table(select_rows(connection, table, "TRUE"), names=[c.name for c in table.columns])
        ranges = parse_key_ranges(connection, table, 0, condition)
        chunks = plan_ranges(connection, table, ranges, 2)
        case = " ".join(f"WHEN {chunk_condition(table, chunk)} THEN {i}" for i, chunk in enumerate(chunks))
        order = ", ".join(table.key)
        said = query_rows(connection, f"SELECT {condition}, CASE {case} ELSE -1 END FROM ranges.t ORDER BY {order}")
        assert [found == "1" for found, _ in said] == [number != "-1" for _, number in said], condition
        # A row in two chunks would be doubled.
        assert sum(
            len(query_rows(connection, f"SELECT 1 FROM ranges.t WHERE {chunk_condition(table, c)}")) for c in chunks
        ) == sum(found == "1" for found, _ in said)
        for bounds in (32, 3, 2):
            monkeypatch.setattr(ownership, "_BOUNDS_PER_QUERY", bounds)
            assert find_owning_chunks(connection, table, chunks, keys_of(table, data)) == [
                int(str(n)) for _, n in said
            ], condition
        assert mask_owned_rows(connection, table, chunks, data).to_pylist() == [n != "-1" for _, n in said], condition


def test_a_range_is_cut_and_keeps_its_ends(connection: Connection[Any]) -> None:
    spell(connection, "a INT", [f"({n})" for n in range(10, 1000, 2)])
    table = read_schema(connection, "ranges", "t")
    for condition, low, high in (("a > 100 AND a < 301", 101, 300), ("a >= -5", -5, 2**31 - 1), ("a < 3", -(2**31), 2)):
        found = plan_ranges(connection, table, parse_key_ranges(connection, table, 7, condition), 10)
        assert (found[0].lower, found[-1].upper, found[-1].includes_upper) == ((low,), (high,), True)
        assert all(a.upper == b.lower and not a.includes_upper for a, b in zip(found, found[1:], strict=False))
        assert {chunk.table for chunk in found} == {7}
        assert len(found) > 5 or high == 2
    (alone,) = plan_ranges(connection, table, parse_key_ranges(connection, table, 0, "a = 11"), 10)
    assert alone == Chunk(0, 0, 0, (11,), (11,), True)


@pytest.mark.parametrize("kind", ["int", "text", "three"])
def test_keys_by_themselves(connection: Connection[Any], kind: str) -> None:
    """In the server's order, each once in whatever spelling; numbers that follow each other are one range."""
    columns, values, _ = KEYS[kind]
    spell(connection, columns, values)
    table = read_schema(connection, "ranges", "t")
    data = pa.table(select_rows(connection, table, "TRUE"), names=[c.name for c in table.columns])
    keys = keys_of(table, data)
    wanted = [keys[-1], *keys[1:4], keys[0], keys[0]]
    if kind == "text":
        wanted.append((b"a".hex(),))  # there is 'A'
    found = keys_as_ranges(connection, table, 3, wanted)
    mine = [keys.index(key) for key in sorted({*wanted} & {*keys}, key=keys.index)]
    assert [n for n, i in enumerate(find_owning_chunks(connection, table, found, keys)) if i >= 0] == mine
    assert len(found) == (2 if kind == "int" else len(mine)) and {chunk.table for chunk in found} == {3}
    order = find_owning_chunks(connection, table, found, keys)
    assert [i for i in order if i >= 0] == sorted(i for i in order if i >= 0)


@pytest.mark.parametrize(
    ("columns", "condition", "said"),
    [
        ("a INT", "a = 'x'", "'x' is not a value of a"),
        ("a INT", "a = 1.5", "'1.5' is not a value of a"),
        ("a INT", "a > 5 AND a < 6", "no value of a lies in the range"),
        ("a INT UNSIGNED", "a < 0", "no value of a lies in the range"),
        ("a VARCHAR(3) CHARACTER SET latin1", "a = '日'", "character set is latin1"),
        ("a VARCHAR(3) CHARACTER SET utf8mb3", "a = '😀'", "character set is utf8"),
        ("a VARCHAR(3)", "a = x'ff'", "cannot have"),
        ("a VARCHAR(3)", "a > 'b'", "use >="),
        ("a VARCHAR(3)", "a >= 'b' AND a < 'a'", "no value of a lies in the range"),
        ("a DATE", "a = '2023-02-29'", "is not a value of a"),
        ("a DATETIME", "a = '2023-02-20 00:00:00+02:00'", "is not a value of a"),
        ("a TIME", "a = '1:70:00'", "is not a value of a"),
        ("a DECIMAL(5,2)", "a = 1.234", "is not a value of a"),
        ("a DECIMAL(5,2)", "a = 'NaN'", "is not a value of a"),
        ("a ENUM('x', 'y')", "a = 'w'", "is not a value of a"),
        ("a ENUM('x', 'y')", "a >= 'x'", "an ENUM"),
        ("a INT", f"a IN ({', '.join(map(str, range(1001)))})", "1,001"),
    ],
)
def test_what_is_refused(connection: Connection[Any], columns: str, condition: str, said: str) -> None:
    query_rows(connection, f"CREATE TABLE ranges.t ({columns}, PRIMARY KEY (a))")
    table = read_schema(connection, "ranges", "t")
    with pytest.raises(InvalidKeyPredicate, match=said):
        parse_key_ranges(connection, table, 0, condition)
