"""Which chunk owns a key: what is computed for the stream must be what the chunk's own SELECT says."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pymysql.connections import Connection

from airflow_provider_cdc.model.plan import Chunk
from airflow_provider_cdc.model.schema import OP_COLUMN, SEQ_COLUMN, TS_COLUMN, TableSchema
from airflow_provider_cdc.mysql.chunks.chunk import select_rows
from airflow_provider_cdc.mysql.chunks.planner import plan_table
from airflow_provider_cdc.mysql.client.catalog import read_schema
from airflow_provider_cdc.mysql.client.key_sql import chunk_condition, keys_of
from airflow_provider_cdc.mysql.client.session import connect, query_rows
from airflow_provider_cdc.mysql.keys import ownership
from airflow_provider_cdc.mysql.keys.ownership import changes_after_snapshot, find_owning_chunks
from tests.support.servers import MySQLServer

LETTERS = "aAáÁàbBßsSzZñn _-'\"\\%`日本🎁龘\t\0~é\u0301"


@pytest.fixture
def connection(mysql_server: MySQLServer, cdc_user: dict[str, str]) -> Iterator[Connection[Any]]:
    with contextlib.closing(connect(mysql_server.connect_args(**cdc_user))) as opened:
        yield opened


def text(draw: random.Random) -> str:
    word = "".join(draw.choices(LETTERS, k=draw.randrange(4)))
    return f"_utf8mb4 x'{word.encode().hex()}'" if word else "''"


def moment(draw: random.Random) -> str:
    return f"TIMESTAMP'2000-01-{draw.randrange(1, 29):02d} 0{draw.randrange(10)}:00:00.{draw.randrange(10**6):06d}'"


def clock(draw: random.Random) -> str:
    sign = draw.choice(("", "-"))
    return f"'{sign}{draw.randrange(839)}:{draw.randrange(60):02d}:{draw.randrange(59):02d}.{draw.randrange(1000):03d}'"


COLLATIONS = ("utf8mb4_0900_ai_ci", "utf8mb4_0900_as_cs", "utf8mb4_0900_bin", "utf8mb4_general_ci", "utf8mb4_bin")
KEYS = {
    **{f"varchar {c}": (f"a VARCHAR(9) COLLATE {c}", lambda d: text(d)) for c in COLLATIONS},
    **{f"char {c}": (f"a CHAR(9) COLLATE {c}", lambda d: text(d)) for c in COLLATIONS},
    "int": ("a INT", lambda d: str(d.randrange(-300, 300))),
    "bigint unsigned": ("a BIGINT UNSIGNED", lambda d: str(d.choice((0, 2**63, 2**64 - 400)) + d.randrange(300))),
    "decimal": ("a DECIMAL(9,3)", lambda d: f"{d.randrange(-900, 900) / 8:.3f}"),
    "long decimal": ("a DECIMAL(65,30)", lambda d: f"{d.randrange(-(10**30), 10**30)}.{d.randrange(10**29):030d}"),
    "varbinary": ("a VARBINARY(9)", lambda d: f"x'{d.randbytes(d.randrange(4)).hex()}'"),
    "binary": ("a BINARY(3)", lambda d: f"x'{d.randbytes(d.randrange(4)).hex()}'"),
    "date": ("a DATE", lambda d: f"DATE'{d.choice((1000, 1969, 2000, 9999))}-01-{d.randrange(1, 29):02d}'"),
    "time": ("a TIME(3)", clock),
    "datetime": ("a DATETIME(6)", moment),
    "timestamp": ("a TIMESTAMP(3)", moment),
    "year": ("a YEAR", lambda d: str(d.choice((0, 1901 + d.randrange(255))))),
    "int, text": ("a INT, b VARCHAR(9)", lambda d: f"{d.randrange(3)}, {text(d)}"),
    "text, date, int": (
        "a VARCHAR(9), b DATE, c INT",
        lambda d: f"{text(d)}, DATE'2000-01-{d.randrange(1, 9):02d}', {d.randrange(3)}",
    ),
}


@pytest.mark.parametrize("name", KEYS)
def test_owner_is_the_chunk_whose_condition_holds(
    connection: Connection[Any], mysql_server: MySQLServer, database: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    columns, value = KEYS[name]
    columns = ", ".join(f"{c} NOT NULL" for c in columns.split(", "))
    names = ", ".join(c.split()[0] for c in columns.split(", "))
    draw = random.Random(name)
    mysql_server.execute(f"CREATE TABLE `{database}`.t ({columns}, PRIMARY KEY ({names}))")
    # The keys asked about: any that a row could have, in any spelling, so without a key; their number leads.
    mysql_server.execute(f"CREATE TABLE `{database}`.asked (n INT PRIMARY KEY, {columns})")
    # Bounds come from the middle of the keys, so that some lie below and above all chunks.
    held = ", ".join(f"({value(draw)})" for _ in range(150))
    asked = ", ".join(f"({n}, {value(draw)})" for n in range(400))
    mysql_server.execute(f"INSERT IGNORE INTO `{database}`.t VALUES {held}")
    mysql_server.execute(f"INSERT INTO `{database}`.asked VALUES {asked}")
    for end in ("", " DESC"):
        order = ", ".join(f"{n}{end}" for n in names.split(", "))
        mysql_server.execute(f"DELETE FROM `{database}`.t ORDER BY {order} LIMIT 5")

    table = read_schema(connection, database, "t")
    chunks = plan_table(connection, 0, table, 12)
    probe = read_schema(connection, database, "asked")
    data = pa.table(select_rows(connection, probe, "TRUE"), names=[c.name for c in probe.columns])
    found = find_owning_chunks(connection, table, chunks, keys_of(table, data))

    case = " ".join(f"WHEN {chunk_condition(table, chunk)} THEN {i}" for i, chunk in enumerate(chunks))
    said = query_rows(connection, f"SELECT CASE {case} ELSE -1 END FROM `{database}`.asked ORDER BY n")
    assert found == [int(str(n)) for (n,) in said]
    assert -1 in found and len(set(found)) > 3, "the keys do not cover the interesting places"

    # With more chunks than fit in one statement.
    for bounds in (3, 7):
        monkeypatch.setattr(ownership, "_BOUNDS_PER_QUERY", bounds)
        assert find_owning_chunks(connection, table, chunks, keys_of(table, data)) == found

    # One chunk alone, as the backfill asks: inside or not.
    for i, chunk in enumerate(chunks):
        alone = find_owning_chunks(connection, table, [chunk], keys_of(table, data))
        assert [o == 0 for o in alone] == [o == i for o in found]


def test_an_included_upper_bound_in_another_spelling(
    connection: Connection[Any], mysql_server: MySQLServer, database: str
) -> None:
    """The largest key is 'Z'; a change of 'z' is a change of that row, and belongs to its chunk."""
    mysql_server.execute(f"CREATE TABLE `{database}`.t (a VARCHAR(9) COLLATE utf8mb4_0900_ai_ci PRIMARY KEY)")
    mysql_server.execute(f"INSERT INTO `{database}`.t VALUES ('b'), ('m'), ('Z')")
    table = read_schema(connection, database, "t")
    chunks = plan_table(connection, 0, table, 2)
    keys: list[Any] = [(word.encode().hex(),) for word in ("a", "B", "ḃ", "M", "m", "Ž", "z", "zz")]
    assert find_owning_chunks(connection, table, chunks, keys) == [-1, 0, 0, 0, 0, 1, 1, -1]


def test_more_keys_than_fit_in_one_statement(
    connection: Connection[Any], mysql_server: MySQLServer, database: str
) -> None:
    mysql_server.execute(f"CREATE TABLE `{database}`.t (a VARCHAR(9) PRIMARY KEY)")
    mysql_server.execute(f"INSERT INTO `{database}`.t VALUES ('1000'), ('3000'), ('5000'), ('7000')")
    table = read_schema(connection, database, "t")
    chunks = plan_table(connection, 0, table, 2)
    keys: list[Any] = [(str(n).encode().hex(),) for n in range(1000, 7000)]
    assert find_owning_chunks(connection, table, chunks, keys) == [0] * 4000 + [1] * 2000


def changes(table: TableSchema, *rows: tuple[Any, int]) -> pa.Table:
    schema = table.sink_schema
    data = [{"a": key, SEQ_COLUMN: seq, OP_COLUMN: "u", TS_COLUMN: 0} for key, seq in rows]
    return pa.Table.from_pylist(data, schema=schema)


def test_what_the_snapshot_holds_is_dropped_and_nothing_else(
    connection: Connection[Any], mysql_server: MySQLServer, database: str
) -> None:
    mysql_server.execute(f"CREATE TABLE `{database}`.t (a INT PRIMARY KEY)")
    table = read_schema(connection, database, "t")
    chunks = [Chunk(0, 0, 0, (10,), (20,), False), Chunk(1, 0, 0, (20,), (30,), True)]
    given = changes(
        table,
        *((9, 100), (9, 101), (10, 149), (19, 150), (19, 151), (20, 200), (30, 201), (30, 200), (31, 100), (31, 101)),
    )
    kept = changes_after_snapshot(connection, table, chunks, [150, 200], 100, given)
    assert list(zip(kept["a"].to_pylist(), kept[SEQ_COLUMN].to_pylist(), strict=True)) == [
        (9, 101),  # below all chunks: only P0 counts
        (19, 151),
        (30, 201),
        (31, 101),
    ]
    # Behind P0, and in the chunk all the same.
    assert changes_after_snapshot(connection, table, chunks, [150, 200], 100, given.slice(2, 2)).num_rows == 0


def test_an_empty_table_is_one_virtual_chunk(
    connection: Connection[Any], mysql_server: MySQLServer, database: str
) -> None:
    mysql_server.execute(f"CREATE TABLE `{database}`.t (a INT PRIMARY KEY)")
    table = read_schema(connection, database, "t")
    kept = changes_after_snapshot(connection, table, [], [], 100, changes(table, (1, 100), (1, 101)))
    assert kept[SEQ_COLUMN].to_pylist() == [101]
