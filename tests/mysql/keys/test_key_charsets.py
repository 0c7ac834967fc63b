"""Keys in every character set: each code that goes to Unicode and back is a key, and no other ever passes for it."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_provider_cdc.model.definition_history import DefinitionHistory
from airflow_provider_cdc.model.errors import TerminalError
from airflow_provider_cdc.model.offset import Timeline
from airflow_provider_cdc.model.schema import ROUND_TRIP_CHARSETS, TableSchema
from airflow_provider_cdc.mysql.binlog.events.binlog_source import BinlogSource
from airflow_provider_cdc.mysql.chunks.chunk import select_rows
from airflow_provider_cdc.mysql.chunks.planner import plan_table
from airflow_provider_cdc.mysql.chunks.window_reader import WindowReader
from airflow_provider_cdc.mysql.client.catalog import read_schema
from airflow_provider_cdc.mysql.client.charsets import load_decoders
from airflow_provider_cdc.mysql.client.identity import binlog_end, server_identity
from airflow_provider_cdc.mysql.client.key_sql import chunk_condition, keys_of, text_literal
from airflow_provider_cdc.mysql.client.session import connect, query_rows
from airflow_provider_cdc.mysql.keys.ownership import find_owning_chunks
from airflow_provider_cdc.resnapshot.purged_binlog import replan_if_purged
from airflow_provider_cdc.runtime.run_context import RunContext
from airflow_provider_cdc.verify.report import check_equal
from airflow_provider_cdc.verify.run import verify_tables
from tests.support.cli import Cli
from tests.support.mariadb import MariaDBServer
from tests.support.oracle import compare_database
from tests.support.servers import MySQLServer

#: A code that comes back from Unicode as another one, and that other one: two keys to the server, one text to a copy.
ONE_WAY = {
    "cp932": ("FA4A", "8754"),
    "big5": ("A240", "A2CE"),
    "eucjpms": ("8FF3FD", "ADB5"),
    "sjis": ("5C", "815F"),
    "swe7": ("7F", "3F"),
    "tis620": ("A0", "FF"),
    "gb18030": ("8F398130", "3F"),
    "ucs2": ("D800", "0041"),
    "ascii": ("C3A9", "3F3F"),
}


@pytest.fixture
def database(server: MySQLServer) -> Iterator[str]:
    with server.fresh_database("c") as name:
        yield name


def text(charset: str, code: str) -> str:
    return f"CONVERT(x'{code}' USING {charset})"


def known(server: MySQLServer) -> dict[str, tuple[str, str]]:
    """The cases of one kind of server: MySQL takes nothing into ascii that is not, MariaDB has no gb18030."""
    absent = "gb18030" if isinstance(server, MariaDBServer) else "ascii"
    return {charset: codes for charset, codes in ONE_WAY.items() if charset != absent}


def make(connection: Any, charset: str, *codes: str) -> None:
    query_rows(connection, "DROP TABLE IF EXISTS c.t")
    query_rows(connection, f"CREATE TABLE c.t (k VARCHAR(9) CHARACTER SET {charset} PRIMARY KEY, v INT)")
    listed = ", ".join(f"({text(charset, code)}, {number})" for number, code in enumerate(codes))
    query_rows(connection, f"INSERT INTO c.t VALUES {listed}")


def stops(code: str, otherwise: str, stage: Callable[..., Any], *args: Any) -> None:
    with pytest.raises(TerminalError) as caught:
        stage(*args)
    message = caught.value.message
    assert "c.t" in message and "column k" in message, message
    if otherwise not in message:
        assert f"no way back from Unicode (x'{code.lower()}'" in message and "utf8mb4" in caught.value.remedy, message


def compare(context: RunContext) -> None:
    """Compare source and copy, as a command does: a table that cannot be compared fails it in the end."""
    check_equal(verify_tables(context), hint="--repair")


def read(server: MySQLServer, table: TableSchema) -> list[pa.ChunkedArray]:
    """The rows of a table as the snapshot reads them, over a connection of their own: what is refused may close it."""
    with contextlib.closing(connect(server.connect_args())) as connection:
        return select_rows(connection, table, "TRUE")


def window(server: MySQLServer, connection: Any, statement: str) -> Any:
    """The changes of ``c.t`` that one statement makes, as the binlog has them."""
    table, before = read_schema(connection, "c", "t"), binlog_end(connection)
    query_rows(connection, statement)

    texts = load_decoders(lambda: contextlib.nullcontext(connection), [table])
    source = BinlogSource(server.connect_args(), server_identity(connection))
    with contextlib.closing(
        WindowReader(source, DefinitionHistory.from_single(table), Timeline("", before.file), texts)
    ) as log:
        return log.read_window(before, binlog_end(connection)).changes


def test_a_key_without_a_way_back_stops(server: MySQLServer, database: str) -> None:
    """As a bound, first and last; between bounds; in the binlog. Its twin, which comes back, is a key like others."""
    with contextlib.closing(connect(server.connect_args())) as connection:
        for charset, (one_way, twin) in known(server).items():
            low, high = ("0021", "FFEE") if charset == "ucs2" else ("21", "7E")
            for codes in [(one_way,), (low, one_way), (one_way, high), (low, one_way, twin, high)]:
                make(connection, charset, *codes)
                table = read_schema(connection, "c", "t")
                if low not in codes or high not in codes:
                    stops(one_way, "x'eda080'", plan_table, connection, 0, table, 2)
                stops(one_way, "not UTF-8", read, server, table)
            make(connection, charset, twin, low + one_way, high)
            stops(low + one_way, "not UTF-8", read, server, table)

            make(connection, charset, twin)
            assert len(plan_table(connection, 0, table, 2)) == 1
            assert read(server, table)[0].null_count == 0
            for statement in (
                f"INSERT INTO c.t VALUES ({text(charset, one_way)}, 7)",
                f"UPDATE c.t SET k = {text(charset, low + one_way)} WHERE v = 7",
                "DELETE FROM c.t WHERE v = 7",
            ):
                code = low + one_way if "DELETE" in statement else one_way  # an update has the key before it as well
                stops(code, "not valid text", window, server, connection, statement)
            assert window(server, connection, "DELETE FROM c.t").num_rows == 1


def test_a_pipeline_stops(server: MySQLServer, database: str, tmp_path: Path) -> None:
    """Two keys with one text are never one row of the copy, ``verify`` says so as well, and there is a way out."""
    one_way, twin = ONE_WAY["cp932"]
    with contextlib.closing(connect(server.connect_args())) as connection:
        make(connection, "cp932", "41", twin)
    cli = Cli(tmp_path / "1", server, r"c\.t")
    cli.snapshot()
    server.execute(f"INSERT INTO c.t VALUES ({text('cp932', one_way)}, 7)")
    stops(one_way, "?", cli.catch_up)
    stops(one_way, "?", compare, cli.context)
    stops(one_way, "?", Cli(tmp_path / "2", server, r"c\.t", name="p2").snapshot)
    server.execute(f"UPDATE c.t SET k = {text('cp932', one_way + '41')} WHERE v = 7")
    server.execute("ALTER TABLE c.t MODIFY k VARCHAR(9) CHARACTER SET utf8mb4")
    again = Cli(tmp_path / "3", server, r"c\.t", name="p3")
    again.snapshot()
    server.execute("UPDATE c.t SET v = v + 1")
    again.catch_up()
    assert compare_database(server, "c", again.sink) == []
    assert all(v.is_equal for v in verify_tables(again.context))


def codes_of(connection: Any, charset: str, characters: Iterable[int]) -> list[str]:
    """What the server makes of characters in a charset, where it makes the same of it again."""
    listed = [chr(c).encode().hex() for c in characters if not 0xD800 <= c < 0xE000]
    found = []
    for start in range(0, len(listed), 4000):
        asked = " UNION ALL ".join(f"SELECT _utf8mb4 x'{c}' AS c" for c in listed[start : start + 4000])
        there, back = f"CONVERT(c USING {charset})", f"CONVERT(CONVERT(c USING {charset}) USING utf8mb4)"
        found += query_rows(connection, f"SELECT HEX({there}) FROM ({asked}) AS l WHERE HEX({back}) = HEX(c)")
    return [str(code) for (code,) in found]


@pytest.mark.parametrize("stride", [pytest.param(947, id="a share"), pytest.param(1, id="all", marks=pytest.mark.long)])
def test_codes_of_every_charset_as_keys(server: MySQLServer, database: str, stride: int, tmp_path: Path) -> None:
    """They come, change, take other keys and go before the snapshot, while it is handed over, and in the stream."""
    with contextlib.closing(connect(server.connect_args())) as connection:
        charsets = [
            str(c)
            for (c,) in query_rows(connection, "SELECT character_set_name FROM information_schema.character_sets")
        ]
        charsets.remove("binary")
        characters = [*range(0, 0x80, 9), *range(0x80, 0x3100, -(-stride // 9)), *range(0x3100, 0x10000, stride)]
        characters += range(0x10000, 0x110000, 40 * stride)
        keys = {charset: codes_of(connection, charset, characters) for charset in charsets}
        assert min(len(codes) for codes in keys.values()) > 13
        assert "gb18030" not in keys or "90308130" in keys["gb18030"]  # beyond U+FFFF

        def fill(part: int) -> None:
            """Every second code, with another value each; codes that the collation holds to be one come once."""
            for charset, codes in keys.items():
                listed = [f"({text(charset, code)}, {n})" for n, code in enumerate(codes)][part::2]
                for start in range(0, len(listed), 5000):
                    values = ", ".join(listed[start : start + 5000])
                    for name in (charset, f"{charset}_b"):
                        query_rows(connection, f"INSERT IGNORE INTO c.{name} VALUES {values}")

        def change(part: int) -> None:
            for charset in charsets:
                for name in (charset, f"{charset}_b"):
                    query_rows(connection, f"UPDATE IGNORE c.{name} SET k = CONCAT(k, k, k) WHERE v % 7 = {part}")
                    query_rows(connection, f"UPDATE c.{name} SET v = v + 7 WHERE v % 7 = {part + 1}")
                    query_rows(connection, f"DELETE FROM c.{name} WHERE v % 7 = {part + 2}")

        for charset in charsets:
            for name, collation in ((charset, ""), (f"{charset}_b", f"COLLATE {charset}_bin")):
                query_rows(
                    connection,
                    f"CREATE TABLE c.{name} (k VARCHAR(9) CHARACTER SET {charset} {collation} PRIMARY KEY, v INT)",
                )
        cli = Cli(
            tmp_path, server, r"c\..*", snapshot={"chunk_rows": 7 if stride > 1 else 3000, "group_rows": 10_000_000}
        )
        fill(0)
        with cli.opened() as (context, store):
            replan_if_purged(context, store)
        change(0)
        fill(1)
        cli.snapshot()
        change(3)
        fill(1)
        cli.catch_up()
        change(1)
        fill(0)
        cli.catch_up()
    assert [str(d) for d in compare_database(server, "c", cli.sink)] == []
    assert [v.table for v in verify_tables(cli.context) if not v.is_equal] == []


def test_charsets_that_need_no_look(server: MySQLServer) -> None:
    """Of these every code that is text comes back from Unicode, so keys are read without asking whether they do."""
    with contextlib.closing(connect(server.connect_args())) as connection:
        listed = {
            str(c)
            for (c,) in query_rows(connection, "SELECT character_set_name FROM information_schema.character_sets")
        }
        single = sorted(ROUND_TRIP_CHARSETS & listed - {c for c in ROUND_TRIP_CHARSETS if c.startswith("utf")})
        assert len(single) > 9
        every = " UNION ALL ".join(f"SELECT x'{byte:02x}' AS b" for byte in range(256))
        for charset in single:
            back = f"CONVERT(CONVERT(CONVERT(b USING {charset}) USING utf8mb4) USING {charset})"
            assert query_rows(connection, f"SELECT HEX(b) FROM ({every}) AS l WHERE HEX({back}) <> HEX(b)") == [], (
                charset
            )


#: Of these a server sorts otherwise than it compares, and so than its index is.
SORTED_OTHERWISE = (
    *("tis620_thai_ci", "latin7_general_ci", "big5_chinese_ci", "cp1250_czech_cs", "gb18030_chinese_ci"),
    *("latin1_nopad_bin", "utf8mb4_nopad_bin", "utf16_general_nopad_ci", "ujis_japanese_nopad_ci"),
)
LETTERS = [chr(n) for n in range(0x20)] + list(" '-aAbBzZ~\x7f09|{ßéöŜǆ日本ก แ ำאاﷺ가ｱがΣςİı𝒳\u0301\u200b\u0345")


def collations(connection: Any) -> dict[str, str]:
    """Collations of a server and their character sets; not those of bytes."""
    view = "collation_character_set_applicability WHERE character_set_name <> 'binary'"
    name = "full_collation_name" if "MariaDB" in str(query_rows(connection, "SELECT VERSION()")) else "collation_name"
    return dict(query_rows(connection, f"SELECT {name}, character_set_name FROM information_schema.{view}"))  # type: ignore[arg-type]


@pytest.mark.parametrize("which", ["a share", pytest.param("all", marks=pytest.mark.long)])
def test_owners_are_found_by_comparison(server: MySQLServer, database: str, which: str) -> None:
    """Ranges of the snapshot are compared. A sort puts some keys elsewhere: by it a change would have another owner."""
    draw = random.Random(which)
    with contextlib.closing(connect(server.connect_args())) as connection:
        known = collations(connection)
        for collation in sorted(known) if which == "all" else [c for c in SORTED_OTHERWISE if c in known]:
            charset = known[collation]
            words = {
                "",
                *LETTERS,
                *("".join(draw.choices([*LETTERS, "\0", " "], k=draw.randrange(1, 5))) for _ in range(250)),
            }
            codes = query_rows(
                connection,
                "SELECT DISTINCT CAST(HEX(k) AS BINARY) FROM (SELECT CONVERT(c USING {0}) AS k FROM ({1}) AS l "
                "WHERE HEX(CONVERT(CONVERT(c USING {0}) USING utf8mb4)) = HEX(c)) AS l".format(
                    charset, " UNION ALL ".join(f"SELECT {text_literal(word)} AS c" for word in sorted(words))
                ),
            )
            listed = ", ".join(f"({text(charset, str(code))}, {n})" for n, (code,) in enumerate(codes))
            for name, key in (("t", "k"), ("asked", "v")):
                query_rows(connection, f"DROP TABLE IF EXISTS c.{name}")
                column = f"VARCHAR(9) CHARACTER SET {charset} COLLATE {collation} NOT NULL"
                query_rows(connection, f"CREATE TABLE c.{name} (k {column}, v INT NOT NULL, PRIMARY KEY ({key}))")
                query_rows(connection, f"INSERT IGNORE INTO c.{name} VALUES {listed}")
            query_rows(connection, "DELETE FROM c.t WHERE v % 3 = 0")
            table, probe = (read_schema(connection, "c", name) for name in ("t", "asked"))
            chunks = plan_table(connection, 0, table, 4)
            asked = pa.table(select_rows(connection, probe, "TRUE"), names=["k", "v"])
            found = find_owning_chunks(connection, table, chunks, keys_of(table, asked))
            case = " ".join(f"WHEN {chunk_condition(table, chunk)} THEN {i}" for i, chunk in enumerate(chunks))
            said = query_rows(connection, f"SELECT CASE {case} ELSE -1 END FROM c.asked ORDER BY v")
            assert found == [int(str(n)) for (n,) in said], collation
            assert len(chunks) > 5 and len(set(found)) > 5


def test_an_enum_key_that_is_no_member(server: MySQLServer, database: str) -> None:
    """It is shown as '', as the member '' is: two keys to the server, one text to a copy."""
    with contextlib.closing(connect(server.connect_args())) as connection:
        query_rows(connection, "CREATE TABLE c.t (k ENUM('a', '') PRIMARY KEY, v INT)")
        query_rows(connection, "INSERT INTO c.t VALUES ('', 1), ('a', 2)")
        table = read_schema(connection, "c", "t")
        assert read(server, table)[0].to_pylist() == ["a", ""]
        with pytest.raises(TerminalError, match="no member of the ENUM"):
            window(server, connection, "INSERT INTO c.t VALUES (0, 3)")
        with pytest.raises(TerminalError, match="no member of the ENUM"):
            read(server, table)
        with pytest.raises(TerminalError, match="no member of the ENUM"):
            plan_table(connection, 0, table, 2)
