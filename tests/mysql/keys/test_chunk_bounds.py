"""Planning of tables that are not an even row of integers, on both kinds of server: what it costs, and what it gives.

Costs are counted by the server (statements, rows read) and compared as the table grows; nothing here measures time.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pymysql.connections import Connection

from airflow_provider_cdc.model.errors import TableChangedError
from airflow_provider_cdc.model.plan import MAX_CHUNK_OVERSIZE, Chunk, PlanningCost
from airflow_provider_cdc.model.schema import Column, TableSchema
from airflow_provider_cdc.mysql.chunks import planner
from airflow_provider_cdc.mysql.chunks.chunk import select_rows
from airflow_provider_cdc.mysql.chunks.planner import _session_cost, estimate_rows_and_row_bytes, plan_table
from airflow_provider_cdc.mysql.client.catalog import read_schema
from airflow_provider_cdc.mysql.client.key_sql import canonical_expression, chunk_condition, key_list, keys_of
from airflow_provider_cdc.mysql.client.session import connect, query_pairs, query_rows, query_value
from airflow_provider_cdc.mysql.keys.ownership import find_owning_chunks
from tests.support.mariadb import MariaDBServer
from tests.support.servers import MySQLServer

#: Key columns and the expressions that fill them, from a row's number ``i``.
KEYS: dict[str, tuple[str, str]] = {
    "sparse integers": ("a BIGINT UNSIGNED", "i * 1000 + i % 7"),
    "growing gaps": ("a BIGINT", "CAST(i AS SIGNED) * i * i - 1000000"),
    "a dense cluster far off": ("a BIGINT", "IF(i < 100, i * 1000000000000, 77777777777777 + i)"),
    "uuid text": ("a CHAR(36) CHARACTER SET ascii", "INSERT(LEFT(SHA2(i, 256), 35), 9, 0, '-')"),
    "uuid binary": ("a BINARY(16)", "UNHEX(LEFT(SHA2(i, 256), 32))"),
    "varbinary": ("a VARBINARY(20)", "UNHEX(LEFT(SHA2(i, 256), 2 * (8 + i % 12)))"),
    "any spelling": ("a VARCHAR(40) COLLATE utf8mb4_unicode_520_ci", "CONCAT(ELT(1 + i % 3, 'user', 'User ', 'Ü'), i)"),
    "addresses": ("a VARCHAR(80) COLLATE utf8mb4_bin", "CONCAT(LEFT(SHA2(i, 256), 6 + i % 50), '@example.com')"),
    "padded": ("a CHAR(40) COLLATE utf8mb4_general_ci", "CONCAT(ELT(1 + i % 2, 'a b', 'A\\tc'), ' ', SHA2(i, 224))"),
    "far characters": ("a VARCHAR(20)", "CONCAT(CONVERT(CHAR(0x4E00 + i * 37 % 20000 USING ucs2) USING utf8mb4), i)"),
    "decimal": ("a DECIMAL(20,3)", "CAST(i AS SIGNED) * i / 7 - 100000"),
    "datetime": ("a DATETIME(6)", "TIMESTAMP'2000-01-01 00:00:00' + INTERVAL i * i MICROSECOND"),
    "date and text": ("a DATE, b VARCHAR(99)", "DATE'2000-01-01' + INTERVAL i % 9 DAY, SHA2(i, 224)"),
    "enum and integer": ("a ENUM('z','b','a','y'), b INT", "1 + i % 4, i * 50"),
    "five, the first always the same": (
        "a VARCHAR(9), b DATE, c DECIMAL(6,2), d VARBINARY(8), e INT",
        "'ä', DATE'2000-01-01' + INTERVAL (i DIV 3500) DAY, 2.5, UNHEX(LPAD(HEX(i DIV 50), 8, '0')), i * 10",
    ),
}  # fmt: skip


@pytest.fixture
def connection(server: MySQLServer) -> Iterator[Connection[Any]]:
    server.execute("CREATE DATABASE b CHARACTER SET utf8mb4")
    with contextlib.closing(connect({**server.connect_args(), "database": "b"})) as opened:
        deep = "max_recursive_iterations" if isinstance(server, MariaDBServer) else "cte_max_recursion_depth"
        query_rows(opened, f"SET {deep} = 1000000")
        yield opened
    server.execute("DROP DATABASE b")


def make(connection: Connection[Any], key: str, expressions: str, n: int, options: str = "") -> TableSchema:
    """The table ``b.t`` with a narrow index beside its key, which the server would rather scan."""
    columns = key.split(", ") if "ENUM" not in key else [key.rpartition(", ")[0], key.rpartition(", ")[2]]
    parts = [f"{part} NOT NULL" for part in columns]
    names = ", ".join(part.split()[0] for part in columns)
    query_rows(connection, f"CREATE TABLE t ({', '.join(parts)}, v TINYINT, PRIMARY KEY ({names}), KEY (v)) {options}")
    fill(connection, expressions, n)
    query_rows(connection, "ANALYZE TABLE t")
    return read_schema(connection, "b", "t")


def fill(connection: Connection[Any], expressions: str, n: int, first: int = 1) -> None:
    names = ", ".join("abcde"[: len(query_rows(connection, "SHOW COLUMNS FROM t")) - 1])
    series = f"WITH RECURSIVE s (i) AS (SELECT {first} UNION ALL SELECT i + 1 FROM s WHERE i < {first + n - 1})"
    query_rows(connection, f"INSERT IGNORE INTO t ({names}) {series} SELECT {expressions} FROM s")


def planned(connection: Connection[Any], table: TableSchema, chunk_rows: int) -> tuple[list[Chunk], PlanningCost]:
    before = _session_cost(connection)
    chunks = plan_table(connection, 0, table, chunk_rows)
    after = _session_cost(connection)
    return chunks, PlanningCost(after.statements - before.statements - 1, after.rows - before.rows)


def sizes(connection: Connection[Any], table: TableSchema, chunks: list[Chunk]) -> list[int]:
    """Rows of each chunk; fails unless the chunks, one after the other, are the whole table in the server's order."""
    keys = f"SELECT {', '.join(canonical_expression(c) for c in table.key_columns)} FROM t"
    order = f"ORDER BY {key_list(table)}"
    parts = [query_rows(connection, f"{keys} WHERE {chunk_condition(table, chunk)} {order}") for chunk in chunks]
    assert [key for part in parts for key in part] == query_rows(connection, f"{keys} {order}")
    assert all(a.upper == b.lower and not a.includes_upper for a, b in zip(chunks, chunks[1:], strict=False))
    return [len(part) for part in parts]


@pytest.mark.parametrize("kind", KEYS)
def test_uneven_tables(connection: Connection[Any], kind: str) -> None:
    """Chunks of about the wanted size, for far fewer statements than chunks, and without reading the rows."""
    table = make(connection, *KEYS[kind], n=7000)
    count = int(query_value(connection, "SELECT COUNT(*) FROM t") or 0)
    chunks, cost = planned(connection, table, 35)
    found = sizes(connection, table, chunks)
    assert max(found) <= MAX_CHUNK_OVERSIZE * 35
    assert count / 35 / 2 < len(chunks) < count / 35 * 2
    assert cost.statements < len(chunks) / 2
    assert cost.rows < count / 3, "the index was walked"


@pytest.mark.parametrize("key", [("a BIGINT", "i + i DIV 10"), ("a INT, b INT", "7, i")], ids=["one", "composite"])
def test_even_integers_cost_the_same_at_every_size(connection: Connection[Any], key: tuple[str, str]) -> None:
    table = make(connection, *key, n=500)
    small, first = planned(connection, table, 10)
    fill(connection, key[1], 20_000, first=501)
    query_rows(connection, "ANALYZE TABLE t")
    large, second = planned(connection, table, 10)
    assert len(large) > 30 * len(small) > 1000
    assert first.statements == second.statements <= 5
    assert max(first.rows, second.rows) < 150  # of the server's own catalog, mostly


def test_statements_grow_more_slowly_than_chunks(connection: Connection[Any]) -> None:
    key, expressions = KEYS["uuid text"]
    table = make(connection, key, expressions, n=3000)
    few, first = planned(connection, table, 30)
    fill(connection, expressions, 27_000, first=3001)
    query_rows(connection, "ANALYZE TABLE t")
    many, second = planned(connection, table, 30)
    assert len(many) > 6 * len(few)
    assert second.statements < 4 * first.statements and second.statements < len(many) / 10


def test_a_chunk_of_a_composite_key_reads_its_own_rows_only(connection: Connection[Any]) -> None:
    """A hundred thousand rows with one value in the first column: a condition that the server cannot use reads all."""
    key, expressions = KEYS["five, the first always the same"]
    table = make(connection, key, expressions, n=100_000)
    chunks, cost = planned(connection, table, 1000)
    assert 50 < len(chunks) < 200 and cost.statements < len(chunks) / 2
    for chunk in (chunks[0], chunks[len(chunks) // 2], chunks[-1]):
        before = _read(connection)
        found = len(select_rows(connection, table, chunk_condition(table, chunk))[0])
        assert 0 < found <= MAX_CHUNK_OVERSIZE * 1000
        assert _read(connection) - before < found + 100


def _read(connection: Connection[Any]) -> int:
    told = query_pairs(connection, "SHOW SESSION STATUS LIKE 'Handler_read%'")
    return sum(int(n) for name, n in told.items() if not name.endswith("rnd_next"))


@pytest.mark.parametrize("kind", ["growing gaps", "addresses", "five, the first always the same"])
@pytest.mark.parametrize("analyzed", [0, 3, 350, 20_000])
def test_statistics_of_another_time(connection: Connection[Any], kind: str, analyzed: int) -> None:
    """The server believes in far fewer rows than there are (it then limits its estimates), or in far more."""
    table = make(connection, *KEYS[kind], n=3000, options="STATS_AUTO_RECALC=0")
    query_rows(connection, f"UPDATE mysql.innodb_table_stats SET n_rows = {analyzed} WHERE database_name = 'b'")
    for sql in ("FLUSH TABLE t", "RENAME TABLE t TO u", "RENAME TABLE u TO t"):  # MySQL reads it again, then MariaDB
        query_rows(connection, sql)
    assert estimate_rows_and_row_bytes(connection, table)[0] == analyzed
    chunks = plan_table(connection, 0, table, 20)
    found = sizes(connection, table, chunks)
    assert sum(found) == 3000 and max(found) <= (20 if analyzed < 16 * 20 else MAX_CHUNK_OVERSIZE * 20)
    assert len(chunks) < 3000 / 20 * 3


@pytest.mark.parametrize("gone", ["a > 9000", "a < 9000", "a <> 12000", "TRUE"])
def test_rows_that_go_while_they_are_planned(
    connection: Connection[Any], server: MySQLServer, monkeypatch: pytest.MonkeyPatch, gone: str
) -> None:
    """Also the largest key, the smallest one and all of them, after they were read."""
    table = make(connection, "a INT", "i * i", n=400)

    def told(*args: Any) -> tuple[int, int]:
        server.execute(f"DELETE FROM b.t WHERE {gone}")
        return 400, 100

    monkeypatch.setattr(planner, "estimate_rows_and_row_bytes", told)
    chunks = plan_table(connection, 0, table, 10)
    assert chunks[0].lower == (1,) and chunks[-1].upper == (160_000,) and chunks[-1].includes_upper
    sizes(connection, table, chunks)


@pytest.mark.parametrize(
    ("collation", "letters"),
    [
        ("latin1_german1_ci", "aÄézß€ "),
        ("latin2_hungarian_ci", "aÁřšž "),
        ("cp1251_general_ci", "aЖжяЁ"),
        ("koi8r_bin", "aЖжяё"),
        ("sjis_japanese_ci", "aｱ日本語"),
        ("gbk_chinese_ci", "a中文字"),
        ("euckr_korean_ci", "a한국말"),
        ("ucs2_unicode_ci", "aÜ日Ж"),
        ("utf16_general_ci", "aÜ日🎁"),
        ("utf32_bin", "aÜ日🎁"),
    ],
)
def test_keys_in_other_character_sets(
    connection: Connection[Any], monkeypatch: pytest.MonkeyPatch, collation: str, letters: str
) -> None:
    """Bounds and keys travel in UTF-8, and the server converts both: range and owner of each key agree."""
    # Whether such columns are copied is another question.
    monkeypatch.setattr(Column, "unsupported_reason", lambda _: None)
    charset = collation.split("_")[0]
    choice = ", ".join(f"'{letter}'" for letter in letters)
    several = f"CONCAT(ELT(1 + i % {len(letters)}, {choice}), ELT(1 + i DIV 7 % {len(letters)}, {choice}), i)"
    table = make(connection, f"a VARCHAR(20) CHARACTER SET {charset} COLLATE {collation}", several, n=900)
    chunks, _ = planned(connection, table, 30)
    assert max(sizes(connection, table, chunks)) <= MAX_CHUNK_OVERSIZE * 30
    assert len(chunks) > 15
    for number, chunk in enumerate(chunks):
        data = pa.table(select_rows(connection, table, chunk_condition(table, chunk)), names=["a", "v"])
        assert set(find_owning_chunks(connection, table, chunks, keys_of(table, data))) == {number}


def test_keys_that_python_would_sort_otherwise(connection: Connection[Any]) -> None:
    """No cut is proposed rightly where characters sort as several, or not at all: chunks are right all the same."""
    letters = "'ß', 'ss', 'æ', '½', 'a', 'A', 'z', '_', 'é', 'Œ', 'ĳ'"
    table = make(
        connection,
        "a VARCHAR(40) COLLATE utf8mb4_unicode_ci, b INT",
        f"CONCAT(ELT(1 + i % 11, {letters}), ELT(1 + i DIV 11 % 11, {letters}), ELT(1 + i DIV 121 % 11, {letters})), i",
        n=4000,
    )
    chunks = plan_table(connection, 0, table, 20)
    assert max(sizes(connection, table, chunks)) <= MAX_CHUNK_OVERSIZE * 20


@pytest.mark.parametrize("value", ["''", "'x1'"])
def test_a_key_of_another_type_than_it_had(connection: Connection[Any], value: str) -> None:
    """It was altered between the look at its definition and that at its keys."""
    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE t (a BIGINT PRIMARY KEY, b VARCHAR(9))")
        cursor.execute(f"INSERT INTO t VALUES (1, {value}), (2, 'y')")
        table = read_schema(connection, "b", "t")
        cursor.execute("ALTER TABLE t DROP PRIMARY KEY, ADD PRIMARY KEY (b)")
        cursor.execute("ALTER TABLE t RENAME COLUMN a TO b, RENAME COLUMN b TO a")
    with pytest.raises(TableChangedError, match="b.t was altered while its keys were looked up: a is no longer bigint"):
        plan_table(connection, 0, table, 10)
