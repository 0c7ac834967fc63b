"""Keys of every type on every kind of server: planning, order, ownership, and keys that change while they are copied.

What belongs where is asked of the server in a way that shares nothing with the project: the rank of every row by
``ORDER BY`` over the whole table, and at the end the whole table against the sink.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_cdc.model.plan import Chunk, Key
from airflow_provider_cdc.model.schema import TableSchema
from airflow_provider_cdc.mysql.chunks import chunk as chunk_module
from airflow_provider_cdc.mysql.chunks.planner import plan_table
from airflow_provider_cdc.mysql.client.catalog import read_schema, why_no_key
from airflow_provider_cdc.mysql.client.key_sql import (
    canonical_expression,
    chunk_condition,
    key_list,
    parse_canonical,
    table_name,
)
from airflow_provider_cdc.mysql.client.session import connect, query_rows
from airflow_provider_cdc.mysql.keys.ownership import find_owning_chunks
from tests.support.cli import Cli
from tests.support.mariadb import MariaDBServer
from tests.support.oracle import compare_all
from tests.support.servers import MySQLServer

_WORDS = "'', 'a', 'A ', 'á', 'ab', 'Z', 'zz', 'ß', 'ss', 'straße ', 'O''Brien', 'Ñandú', '100%', 'back\\\\slash', '~'"
_HEX = "09a4f"
_UNIQUE_WORDS = "'a', 'B', 'c c', 'Ç', 'd', 'é', 'F', 'ö', 'Straße', 'ü', 'Z'"


def _each(values: str | Iterable[str]) -> str:
    return ", ".join(f"({value})" for value in (values.split(", ") if isinstance(values, str) else values))


#: Definition of the key columns, and rows of the table: the key's values and nothing else. Then the key, if it is not
#: simply the primary one.
KEYS: dict[str, tuple[str, ...]] = {
    "tinyint": ("k TINYINT", "(-128), (-1), (0), (1), (2), (3), (100), (127)"),
    "int unsigned": ("k INT UNSIGNED", "(0), (1), (7), (2147483647), (2147483648), (4294967295)"),
    "bigint": ("k BIGINT", "(-9223372036854775808), (-1), (0), (5), (6), (9223372036854775807)"),
    "bigint unsigned": (
        "k BIGINT UNSIGNED",
        "(0), (1), (9223372036854775807), (9223372036854775808), (18446744073709551614), (18446744073709551615)",
    ),
    "decimal": ("k DECIMAL(30,10)", "(-99999999999999999999.9999999999), (-1), (-0.0000000001), (0), (2), (1e19)"),
    "date": ("k DATE", "('1000-01-01'), ('1969-12-31'), ('1970-01-01'), ('2000-02-29'), ('9999-12-31')"),
    "datetime": ("k DATETIME(6)", "('1000-01-01'), ('2000-01-01 00:00:00.000001'), ('2000-01-01'), ('9999-12-31')"),
    "timestamp": (
        "k TIMESTAMP(3) DEFAULT '2000-01-01'",
        "('1970-01-01 00:00:01'), ('2026-03-29 02:30:00.5'), ('2026-10-25 02:30:00'), ('2038-01-19 03:14:07')",
    ),
    "time": ("k TIME(6)", "('-838:59:59'), ('-00:00:00.000001'), ('00:00:00'), ('00:00:00.5'), ('838:59:59')"),
    "year": ("k YEAR", "(0), (1901), (1970), (2000), (2155)"),
    "varchar ci": ("k VARCHAR(40) COLLATE utf8mb4_unicode_520_ci", _each(_UNIQUE_WORDS)),
    "varchar general": ("k VARCHAR(9) COLLATE utf8mb4_general_ci", "('a'), ('B'), ('c'), ('é'), ('Z'), ('日本')"),
    "varchar bin": ("k VARCHAR(40) COLLATE utf8mb4_bin", _each(_WORDS)),
    "char pad": ("k CHAR(20) COLLATE utf8mb4_unicode_ci", "('a'), ('a b'), ('a\\tb'), ('b'), ('aa'), ('Ö'), ('z')"),
    "uuid text": ("k CHAR(36) CHARACTER SET ascii", _each(f"'{i}23e4567-e89b-12d3-a456-4266141740{i}0'" for i in _HEX)),
    "uuid binary": ("k BINARY(16)", _each(f"x'{i}23e4567e89b12d3a4564266141740{i}9'" for i in _HEX)),
    "binary": ("k BINARY(4)", "(''), ('a'), ('a '), (x'00FF'), (x'FFFFFFFF'), (x'61000001')"),
    "varbinary": ("k VARBINARY(20)", "(''), (x'00'), (x'0000'), ('a'), ('A'), ('a '), (x'FF'), (x'FF00'), ('''')"),
    "enum": ("k ENUM('z';'a';'M';'b';'')", "('z'), ('a'), ('M'), ('b'), ('')"),
    "enum and varchar": (
        "a ENUM('z';'a';'m'), b VARCHAR(9) COLLATE utf8mb4_unicode_ci",
        "('a', 'x'), ('a', 'Y'), ('z', 'é'), ('m', ''), ('z', 'x'), ('m', 'y')",
    ),
    "five": (
        "a INT, b VARCHAR(20) COLLATE utf8mb4_unicode_520_ci, c DATE, d DECIMAL(6,2), e VARBINARY(8)",
        ", ".join(
            f"(7, '{b}', '{c}', {d}, '{e}')"
            for b in ("x", "Ä", "y ") for c in ("1999-01-01", "2020-02-02") for d in ("-1.5", "2") for e in ("", "q")
        ),
    ),
    "uuid": ("k UUID", _each(f"'{i}23e4567-e89b-{'1' if i < '5' else '7'}2d3-a456-4266141740{i}0'" for i in _HEX)),
    "inet6": ("k INET6", "('::'), ('::1'), ('::1.2.3.4'), ('1:0:2::'), ('2001:db8::1:0:0:1'), ('ffff::')"),
    **{
        charset: (f"k VARCHAR(9) CHARACTER SET {charset}", "(''), ('a'), ('Ö'), ('日本'), ('か'), ('~'), ('ab ')")
        for charset in ("ucs2", "utf16", "utf16le", "utf32", "gb18030", "utf8mb3")
    },
    "utf16 beyond": ("k CHAR(9) CHARACTER SET utf16 COLLATE utf16_bin", "('a'), ('𝒳'), ('𝒳𝒳'), ('日'), ('￮'), ('龘')"),
    "sorted otherwise": (
        "k VARCHAR(9) CHARACTER SET tis620",
        "('\\0'), ('\\0\\0'), (''), ('\\t'), ('a'), ('aก'), ('เก')",
    ),
    "cp932": ("k VARCHAR(9) CHARACTER SET cp932", "('ソ'), ('Ⅰ'), ('髙'), ('ｱ'), ('\\\\'), (''), ('表')"),
    "nul": ("k VARCHAR(9) COLLATE utf8mb4_bin", "('\\0'), ('a\\0'), ('a'), ('a\\0\\0'), ('\\0a'), ('a \\0'), ('b')"),
    "no pad": ("k VARCHAR(9) COLLATE utf8mb4_0900_ai_ci", "(''), (' '), ('a'), ('a '), ('a  '), ('a\\0b'), ('b')"),
    "no pad bin": (
        "k VARCHAR(9) COLLATE utf8mb4_nopad_bin",
        "(''), ('\\0'), ('a'), ('a\\0'), ('a\\0\\0'), ('b'), ('b\\t')",
    ),
    "wide decimal": ("k DECIMAL(65,30)", "(-1e34), (0), (1e-30), (2e-30), (99999999999999999999999999999999999), (1)"),
    "zerofill": ("k DECIMAL(40,2) ZEROFILL", "(0), (1), (10.5), (2.25), (1e30), (1e37)"),
    "wide bytes": (
        "k VARBINARY(3000)",
        "(''), (REPEAT('a';3000)), (REPEAT('a';2999)), (REPEAT(x'00';3000)), (x'FF'), ('a')",
    ),
    "enum of cp932": ("k ENUM('表';'あ';'ア';'b') CHARACTER SET cp932", "('b'), ('あ'), ('ア'), ('表')"),
    "enum of utf16": ("k ENUM('z';'日';'Ö';'b') CHARACTER SET utf16", "('b'), ('日'), ('Ö'), ('z')"),
    "mixed": (
        "a VARCHAR(5) CHARACTER SET cp932, b CHAR(5) CHARACTER SET utf16, c VARCHAR(5) CHARACTER SET latin1",
        ", ".join(f"('{a}', '{b}', '{c}')" for a in ("ソ", "a") for b in ("é", "日") for c in ("é", "")),
    ),
    "summer time": (
        "k TIMESTAMP(6) DEFAULT '2000-01-01'",
        ", ".join(f"('2026-10-25 0{h}:30:00{f}')" for h in (0, 1, 2) for f in ("", ".000001", ".999999")),
    ),
    "descending": (
        "a VARCHAR(9) COLLATE utf8mb4_unicode_ci, b TIME(3)",
        "('a', '-838:59:59'), ('a', '-00:00:00.001'), ('B', '00:00:00'), ('b ', '00:00:01'), ('é', '838:59:59')",
        "PRIMARY KEY (a DESC, b)",
    ),
    "second key": ("k VARCHAR(9) CHARACTER SET utf32", "('a'), ('B'), ('é'), ('日'), ('z')", "UNIQUE KEY u (k DESC)"),
    "inet4": ("k INET4", "('0.0.0.0'), ('1.0.0.0'), ('9.9.9.9'), ('10.0.0.0'), ('128.0.0.1'), ('255.255.255.255')"),
}  # fmt: skip
_OF_MARIADB, _OF_MYSQL = ("uuid", "inet6", "inet4", "utf8mb4_nopad_bin"), ("gb18030", "utf8mb4_0900_ai_ci")


def _in_turns() -> Iterator[object]:
    """Each kind on each server; every run has each kind on one of them, and the next kind on the other."""
    for number, (kind, (definition, *_)) in enumerate(KEYS.items()):
        word = definition.split()[-1]
        here = "MariaDB" if word.lower() in _OF_MARIADB or (number % 2 and word not in _OF_MYSQL) else "MySQL"
        for server in ("MySQL", "MariaDB"):
            yield pytest.param(server, kind, marks=[] if server == here else pytest.mark.long)


@pytest.fixture
def database(server: MySQLServer) -> Iterator[str]:
    with server.fresh_database("k") as name:
        yield name


def make(server: MySQLServer, definition: str, values: str, key: str = "PRIMARY KEY") -> list[str]:
    """Make the table ``k.t`` with a payload column ``v``; returns the names of the key's columns."""
    if definition.split()[-1].lower() in _OF_MARIADB and not isinstance(server, MariaDBServer):
        pytest.skip("MySQL has no such type or collation")
    if definition.split()[-1] in _OF_MYSQL and isinstance(server, MariaDBServer):
        pytest.skip("MariaDB has no such collation")
    parts = re.sub(r"\((\d+),(\d+)\)", r"(\1;\2)", definition).split(",")
    columns = [part.strip().split()[0] for part in parts]
    nullable = ", ".join(f"{part} NOT NULL" for part in parts).replace(";", ",")
    values = values.replace(";", ",")
    key = key if "(" in key else f"{key} ({', '.join(columns)})"
    server.execute(f"CREATE TABLE k.t ({nullable}, v INT DEFAULT 0, {key}) CHARSET utf8mb4")
    with contextlib.closing(server.connect(init_command="SET time_zone = '+00:00'")) as connection:
        connection.cursor().execute(f"INSERT INTO k.t ({', '.join(columns)}) VALUES {values}")
    return columns


def keys(connection: Any, table: TableSchema) -> list[Key]:
    """All keys in the server's own order."""
    wanted = ", ".join(canonical_expression(column) for column in table.key_columns)
    listed = query_rows(connection, f"SELECT {wanted} FROM {table_name(table)} ORDER BY {key_list(table)}")
    return [tuple(parse_canonical(c, str(v)) for c, v in zip(table.key_columns, row, strict=True)) for row in listed]


@pytest.mark.parametrize("kind", KEYS)
def test_every_key_belongs_to_one_chunk(server: MySQLServer, database: str, kind: str) -> None:
    """Chunks of two rows follow the server's order; the range of each and the owner of each key agree."""
    make(server, *KEYS[kind])
    with contextlib.closing(connect(server.connect_args())) as connection:
        table = read_schema(connection, database, "t")
        ordered = keys(connection, table)
        for chunks in (plan_table(connection, 0, table, 2), two_by_two(ordered)):
            by_range: list[Key] = []
            for chunk in chunks:
                wanted = ", ".join(canonical_expression(column) for column in table.key_columns)
                sql = f"SELECT {wanted} FROM k.t WHERE {chunk_condition(table, chunk)} ORDER BY {key_list(table)}"
                found = query_rows(connection, sql)
                part = [
                    tuple(parse_canonical(c, str(v)) for c, v in zip(table.key_columns, r, strict=True)) for r in found
                ]
                assert find_owning_chunks(connection, table, chunks, part) == [chunks.index(chunk)] * len(part)
                by_range += part
            assert by_range == ordered
        assert len(two_by_two(ordered)) == len(ordered) // 2
        inner = two_by_two(ordered)[1:-1]  # what lies outside of a run of neighbours is nobody's
        if inner:
            outside = find_owning_chunks(connection, table, inner, [ordered[0], ordered[-1]])
            assert outside == [-1, -1]


def two_by_two(ordered: list[Key]) -> list[Chunk]:
    """Chunks of two keys, the last one of two or three."""
    lowers = ordered[: len(ordered) // 2 * 2 : 2]
    uppers = [*lowers[1:], ordered[-1]]
    return [
        Chunk(i, 0, 0, low, high, i == len(lowers) - 1)
        for i, (low, high) in enumerate(zip(lowers, uppers, strict=True))
    ]


@pytest.mark.parametrize(("server", "kind"), _in_turns(), indirect=["server"])
def test_keys_that_change_while_they_are_copied(
    server: MySQLServer, database: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the watermarks of every chunk a row at one end of the table takes a free key at the other end."""
    columns = make(server, *KEYS[kind])
    listed, same = ", ".join(columns), " AND ".join(f"t.{c} = g.{c}" for c in columns)
    with contextlib.closing(server.connect(init_command="SET time_zone = '+00:00'")) as writer:
        cursor = writer.cursor()
        cursor.execute("CREATE DATABASE IF NOT EXISTS aside")
        writer.select_db("aside")
        for table in ("free", "gone"):
            cursor.execute(f"DROP TABLE IF EXISTS {table}")
            cursor.execute(f"CREATE TABLE {table} AS SELECT {listed} FROM k.t ORDER BY {listed} LIMIT 1")
        cursor.execute(f"DELETE t FROM k.t t JOIN gone g ON {same}")
        moves = [0]

        def move() -> None:
            moves[0] += 1
            way = ", ".join(f"{c} {'DESC' if moves[0] % 2 else ''}" for c in columns)
            cursor.execute("DELETE FROM gone")
            cursor.execute(f"INSERT INTO gone SELECT {listed} FROM k.t ORDER BY {way} LIMIT 1")
            changes = ", ".join(f"t.{c} = f.{c}" for c in columns)
            assert cursor.execute(f"UPDATE k.t t JOIN gone g ON {same} JOIN free f SET {changes}, t.v = t.v + 1")
            cursor.execute("DELETE FROM free")
            cursor.execute("INSERT INTO free SELECT * FROM gone")

        def at(name: str) -> None:
            if name in ("chunk.after_lw", "chunk.after_select"):
                move()

        monkeypatch.setattr(chunk_module, "failpoint", at)
        cli = Cli(tmp_path, server, r"k\.t", snapshot={"chunk_rows": 2, "group_rows": 4, "parallelism": 1})
        cli.snapshot()
        move()
        cli.catch_up()
        assert moves[0] > 4
        for _ in range(2):
            assert compare_all(writer, "k", cli.sink) == []
            move()
            cli.catch_up()
        assert compare_all(writer, "k", cli.sink) == []


def test_which_key_is_taken(server: MySQLServer, database: str) -> None:
    """A NOT NULL unique key stands in for a primary key; one that allows NULL, or a part of a column, does not."""
    made: dict[str, tuple[str, str | tuple[str, ...]]] = {
        "u": ("a INT NULL, b INT NOT NULL, UNIQUE KEY x (a), UNIQUE KEY y (b)", ("b",)),
        "p": ("a INT NOT NULL, b VARCHAR(200) NOT NULL, UNIQUE KEY x (b(5)), UNIQUE KEY y (b, a)", ("b", "a")),
        "n": ("a INT NULL, UNIQUE KEY x (a)", " (x: a may be NULL)"),
        "m": ("a INT NOT NULL, b INT NULL, UNIQUE KEY x (a, b)", " (x: b may be NULL)"),
        "e": ("a ENUM('x','?') NOT NULL PRIMARY KEY", "PRIMARY: a member of a has a question mark"),
        "none": ("a INT NOT NULL, KEY x (a)", ""),
        "f": ("a FLOAT NOT NULL PRIMARY KEY", " (PRIMARY: a is of type float)"),
        "d": (
            "a ENUM(x'8754',x'FA4A') CHARACTER SET cp932 NOT NULL PRIMARY KEY",
            "two members of a have the same text",
        ),
    }
    if isinstance(server, MariaDBServer):
        made["c"] = ("a CHAR(9) COLLATE utf8mb4_nopad_bin NOT NULL PRIMARY KEY", "another order in the index")
    with contextlib.closing(connect(server.connect_args())) as connection:
        for name, (definition, expected) in made.items():
            server.execute(f"CREATE TABLE k.{name} ({definition})")
            found = read_schema(connection, database, name)
            if isinstance(expected, tuple):
                assert found.key == expected
            else:
                assert found.key == () and expected in why_no_key(connection, found)
                assert bool(expected) == bool(why_no_key(connection, found))


@pytest.mark.parametrize("shown", ["ON", "OFF"])
def test_a_generated_invisible_key(server: MySQLServer, database: str, shown: str, tmp_path: Path) -> None:
    """The server may be set to hide it from the catalog; it is in every row event all the same."""
    if isinstance(server, MariaDBServer):
        pytest.skip("MariaDB makes none")
    server.execute(f"SET GLOBAL show_gipk_in_create_table_and_information_schema = {shown}")
    with contextlib.closing(server.connect(database="k")) as connection, connection.cursor() as cursor:
        cursor.execute("SET sql_generate_invisible_primary_key = ON")
        cursor.execute("CREATE TABLE t (v INT)")
        cursor.execute("INSERT INTO t VALUES (1), (1), (2)")
        cli = Cli(tmp_path, server, r"k\.t")
        cli.snapshot()
        cursor.execute("UPDATE t SET v = 3 WHERE v = 1 LIMIT 1")
        cursor.execute("INSERT INTO t VALUES (1)")
        cli.catch_up()
        cursor.execute("SET GLOBAL show_gipk_in_create_table_and_information_schema = ON")
    assert sorted(cli.rows("k", "t")["my_row_id"].to_pylist()) == [1, 2, 3, 4]
    assert sorted(cli.rows("k", "t")["v"].to_pylist()) == [1, 1, 2, 3]
