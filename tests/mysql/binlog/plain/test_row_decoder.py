"""Every type from the binlog against the server's own word."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import struct
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from airflow_provider_cdc.model.errors import TerminalError
from airflow_provider_cdc.mysql.binlog.events.event import BinlogEvent
from airflow_provider_cdc.mysql.binlog.events.event_types import DELETE_ROWS, UPDATE_ROWS, WRITE_ROWS
from airflow_provider_cdc.mysql.binlog.events.rows_event import RowsEvent
from tests.support.binlog.reading import capture, changes, events_since, here, read, server_says, transactions, we_say
from tests.support.binlog.row_decoder import decode_rows
from tests.support.servers import MySQLServer


def integer(bits: int, unsigned: bool) -> st.SearchStrategy[int]:
    low, high = (0, 2**bits - 1) if unsigned else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    return st.sampled_from([low, high, 0, 1]) | st.integers(low, high)


def decimal(precision: int, scale: int) -> st.SearchStrategy[str]:
    most = 10**precision - 1
    numbers = st.sampled_from([0, 1, -1, most, -most]) | st.integers(-most, most)
    return numbers.map(
        lambda n: f"{'-' * (n < 0)}{abs(n) // 10**scale}.{abs(n) % 10**scale:0{scale}d}" if scale else str(n)
    )


def seconds(low: dt.datetime, high: dt.datetime, fsp: int) -> st.SearchStrategy[str]:
    step = 10 ** (6 - fsp)
    moments = st.sampled_from([low, high]) | st.datetimes(low, high)
    return moments.map(lambda m: str(m.replace(microsecond=m.microsecond // step * step)))


def time(fsp: int) -> st.SearchStrategy[str]:
    most = 838 * 3600 + 59 * 60 + 59

    def text(parts: tuple[str, int, int]) -> str:
        sign, whole, part = parts
        part = 0 if whole == most else part // 10 ** (6 - fsp) * 10 ** (6 - fsp)
        return f"{sign}{whole // 3600:02d}:{whole // 60 % 60:02d}:{whole % 60:02d}.{part:06d}"

    whole = st.sampled_from([0, 1, most]) | st.integers(0, most)
    return st.tuples(st.sampled_from(["", "-"]), whole, st.sampled_from([0, 1, 999_999]) | st.integers(0, 999_999)).map(
        text
    )


def text(size: int) -> st.SearchStrategy[str]:
    return st.text(st.characters(codec="utf-8"), max_size=size)


def to_float32(value: float) -> float:
    return float(struct.unpack("<f", struct.pack("<f", value))[0])


FLOATS = st.floats(allow_nan=False, allow_infinity=False)
JSONS = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | FLOATS | text(30),
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(text(10), inner, max_size=6),
    max_leaves=20,
).map(lambda value: json.dumps(value, ensure_ascii=False))
DATES = st.dates(dt.date(1, 1, 1), dt.date(9999, 12, 31)).map(str)
FIRST, LAST = dt.datetime(1, 1, 1), dt.datetime(9999, 12, 31, 23, 59, 59, 999_999)
STAMP_FIRST, STAMP_LAST = dt.datetime(1970, 1, 1, 0, 0, 1), dt.datetime(2038, 1, 19, 3, 14, 7, 499_999)

#: Column type -> values for it. YEAR stands first: it takes part in the signedness bits of the metadata.
TYPES: dict[str, st.SearchStrategy[Any]] = {
    "YEAR": st.just(0) | st.integers(1901, 2155),
    **{
        f"{name}{' UNSIGNED' * unsigned}": integer(bits, unsigned)
        for name, bits in (("TINYINT", 8), ("SMALLINT", 16), ("MEDIUMINT", 24), ("INT", 32), ("BIGINT", 64))
        for unsigned in (False, True)
    },
    "DECIMAL(10,0)": decimal(10, 0),
    "DECIMAL(9,9)": decimal(9, 9),
    "DECIMAL(38,19)": decimal(38, 19),
    "DECIMAL(5,2)": decimal(5, 2),
    "DECIMAL(65,30)": decimal(65, 30),
    "DECIMAL(39,0)": decimal(39, 0),
    "FLOAT": st.floats(width=32, allow_nan=False, allow_infinity=False).map(to_float32),
    "DOUBLE": FLOATS,
    "CHAR(10)": text(10),
    "CHAR(255)": text(255),
    "VARCHAR(63)": text(63),
    "VARCHAR(300)": text(300),
    "VARCHAR(20) CHARACTER SET ascii": st.text(st.characters(codec="ascii"), max_size=20),
    "VARCHAR(20) CHARACTER SET utf8mb3": st.text(st.characters(codec="utf-8", max_codepoint=0xFFFF), max_size=20),
    "TINYTEXT": text(60),
    "TEXT": text(400),
    "MEDIUMTEXT": text(400),
    "LONGTEXT": text(400),
    "BINARY(16)": st.binary(max_size=16),
    "BINARY(255)": st.binary(max_size=255),
    "VARBINARY(16)": st.binary(max_size=16),
    "VARBINARY(300)": st.binary(max_size=300),
    "TINYBLOB": st.binary(max_size=255),
    "BLOB": st.binary(max_size=300),
    "MEDIUMBLOB": st.binary(max_size=300),
    "LONGBLOB": st.binary(max_size=300),
    "DATE": DATES,
    **{f"DATETIME({fsp})": seconds(FIRST, LAST, fsp) for fsp in range(7)},
    **{f"TIMESTAMP({fsp})": seconds(STAMP_FIRST, STAMP_LAST, fsp) for fsp in range(7)},
    **{f"TIME({fsp})": time(fsp) for fsp in range(7)},
    "ENUM('a','B b','it''s','','ü;`')": st.sampled_from([1, 2, 3, 4, 5]),
    f"ENUM({','.join(repr(f'm{i}') for i in range(300))})": st.integers(1, 300),
    "JSON": JSONS,
}
NAMES = [f"c{i}" for i in range(len(TYPES))]
ROW = st.tuples(*(st.none() | values for values in TYPES.values()))


@pytest.fixture(scope="module")
def table(mysql_server: MySQLServer) -> Iterator[tuple[MySQLServer, str]]:
    """A table of every type in a database with an awkward name."""
    database = "ty.pes `;%"
    quoted = database.replace("`", "``")
    mysql_server.execute(f"DROP DATABASE IF EXISTS `{quoted}`")
    mysql_server.execute(f"CREATE DATABASE `{quoted}` CHARACTER SET utf8mb4")
    columns = ", ".join(f"{name} {kind}" for name, kind in zip(NAMES, TYPES, strict=True))
    mysql_server.execute(f"CREATE TABLE `{quoted}`.t (id INT AUTO_INCREMENT PRIMARY KEY, {columns}) ROW_FORMAT=DYNAMIC")
    yield mysql_server, database
    mysql_server.execute(f"DROP DATABASE `{quoted}`")


def insert(server: MySQLServer, database: str, rows: list[tuple[Any, ...]], **session: str) -> None:
    quoted = database.replace("`", "``")
    with contextlib.closing(server.connect()) as connection, connection.cursor() as cursor:
        cursor.execute("SET time_zone = '+00:00', sql_mode = ''")
        for name, value in session.items():
            cursor.execute(f"SET SESSION {name} = {value}")
        cursor.execute(f"DELETE FROM `{quoted}`.t")
        marks = ", ".join(["%s"] * len(NAMES))
        cursor.execute("BEGIN")
        for row in rows:
            cursor.execute(f"INSERT INTO `{quoted.replace('%', '%%')}`.t ({', '.join(NAMES)}) VALUES ({marks})", row)
        cursor.execute("COMMIT")


@pytest.mark.parametrize("metadata", ["FULL", "MINIMAL"])
@pytest.mark.parametrize("compression", ["OFF", "ON"])
def test_every_type(table: tuple[MySQLServer, str], metadata: str, compression: str) -> None:
    server, database = table
    server.execute(f"SET GLOBAL binlog_row_metadata = {metadata}")
    captured = capture(server, database, "t")
    (schema,) = captured.values()

    @settings(max_examples=8, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
    @given(st.lists(ROW, min_size=1, max_size=20))
    def check(rows: list[tuple[Any, ...]]) -> None:
        start = here(server)
        insert(server, database, rows, binlog_transaction_compression=compression)
        events = events_since(server, start)
        assert (40 in {event.type for event in events}) == (compression == "ON")
        images = [after for _, after in changes(read(events, captured)) if after is not None]
        assert len(images) == len(rows)
        ours, theirs = we_say(schema, images), server_says(server, schema, "id")
        for mine, its in zip(ours, theirs, strict=True):
            for column, a, b in zip(schema.columns, mine, its, strict=True):
                assert a == b, (column.column_type, a, b)
                if isinstance(a, float):
                    assert str(a)[0] == str(b)[0]  # -0.0

    try:
        check()
    finally:
        server.execute("SET GLOBAL binlog_row_metadata = FULL")


def test_updates_and_deletes(mysql_server: MySQLServer, database: str) -> None:
    mysql_server.execute(f"CREATE TABLE {database}.t (a INT PRIMARY KEY, b VARCHAR(9), c BINARY(4))")
    captured = capture(mysql_server, database, "t")
    start = here(mysql_server)
    mysql_server.execute(f"INSERT INTO {database}.t VALUES (1, 'x', 'a'), (2, NULL, NULL)")
    mysql_server.execute(f"UPDATE {database}.t SET b = 'y', a = a + 10 ORDER BY a DESC")
    mysql_server.execute(f"DELETE FROM {database}.t WHERE a = 11")
    found = transactions(mysql_server, start, captured)
    assert [[rows.operation for rows in item.rows] for item in found] == [["insert"], ["update"], ["delete"]]
    assert changes(found) == [
        (None, (1, "x", b"a\0\0\0")),
        (None, (2, None, None)),
        ((2, None, None), (12, "y", None)),
        ((1, "x", b"a\0\0\0"), (11, "y", b"a\0\0\0")),
        ((11, "y", b"a\0\0\0"), None),
    ]


def test_first_version_of_row_events(mysql_server: MySQLServer, database: str) -> None:
    """The older row events lack one header field; present servers do not write them any more."""
    mysql_server.execute(f"CREATE TABLE {database}.t (a INT PRIMARY KEY, b TEXT)")
    captured = capture(mysql_server, database, "t")
    start = here(mysql_server)
    mysql_server.execute(f"INSERT INTO {database}.t VALUES (1, 'x')")
    mysql_server.execute(f"UPDATE {database}.t SET b = 'y'")
    mysql_server.execute(f"DELETE FROM {database}.t")
    old = []
    for event in events_since(mysql_server, start):
        if event.type in (WRITE_ROWS, UPDATE_ROWS, DELETE_ROWS):
            extra = int.from_bytes(event.body[8:10], "little")
            body = memoryview(bytes(event.body[:8]) + bytes(event.body[8 + extra :]))
            event = BinlogEvent(event.type - 7, event.timestamp, body, event.file, event.position, event.start)
        old.append(event)
    assert changes(read(old, captured)) == [(None, (1, "x")), ((1, "x"), (1, "y")), ((1, "y"), None)]


def test_decimals_and_zerofill(mysql_server: MySQLServer, database: str) -> None:
    columns = "d DECIMAL(60,10) ZEROFILL, e DECIMAL(12,2) ZEROFILL, f INT(8) ZEROFILL"
    mysql_server.execute(f"CREATE TABLE {database}.t (a INT PRIMARY KEY, {columns})")
    captured = capture(mysql_server, database, "t")
    start = here(mysql_server)
    mysql_server.execute(f"INSERT INTO {database}.t VALUES (1, 12.5, 12.5, 12)")
    text = str(mysql_server.execute(f"SELECT CAST(d AS CHAR) FROM {database}.t")[0][0])
    assert changes(transactions(mysql_server, start, captured)) == [(None, (1, text, Decimal("12.50"), 12))]


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("DATE", "'0000-00-00'"),
        ("DATE", "'2015-00-21'"),
        ("DATE", "'2015-02-00'"),
        ("DATE", "'2015-02-31'"),
        ("DATETIME", "'0000-00-00 00:00:00'"),
        ("DATETIME(3)", "'2015-00-00 10:00:00.5'"),
        ("TIMESTAMP", "0"),
        ("TIMESTAMP(6)", "0"),
    ],
)
def test_dates_that_are_none(mysql_server: MySQLServer, database: str, kind: str, value: str) -> None:
    mysql_server.execute(f"CREATE TABLE {database}.t (a INT PRIMARY KEY, `when` {kind} NULL)")
    captured = capture(mysql_server, database, "t")
    start = here(mysql_server)
    with contextlib.closing(mysql_server.connect()) as connection, connection.cursor() as cursor:
        cursor.execute("SET sql_mode = 'ALLOW_INVALID_DATES'")
        cursor.execute(f"INSERT INTO {database}.t VALUES (1, {value})")
    with pytest.raises(TerminalError, match=rf"column when of {database}\.t, at .*zero_dates: null"):
        changes(transactions(mysql_server, start, captured))


def test_enum_index_zero(mysql_server: MySQLServer, database: str) -> None:
    mysql_server.execute(f"CREATE TABLE {database}.t (a INT PRIMARY KEY, e ENUM('x','y'))")
    captured = capture(mysql_server, database, "t")
    start = here(mysql_server)
    with contextlib.closing(mysql_server.connect()) as connection, connection.cursor() as cursor:
        cursor.execute("SET sql_mode = ''")
        cursor.execute(f"INSERT INTO {database}.t VALUES (1, 'wrong')")
    assert changes(transactions(mysql_server, start, captured)) == [(None, (1, ""))]


def test_large_row(mysql_server: MySQLServer, database: str) -> None:
    """A row above 16 MiB comes in several packets."""
    mysql_server.execute(f"CREATE TABLE {database}.t (a INT PRIMARY KEY, b LONGBLOB)")
    captured = capture(mysql_server, database, "t")
    start = here(mysql_server)
    mysql_server.execute(f"INSERT INTO {database}.t VALUES (1, REPEAT('0123456789', 2000000))")
    assert changes(transactions(mysql_server, start, captured)) == [(None, (1, b"0123456789" * 2_000_000))]


def test_damaged_rows_are_refused(mysql_server: MySQLServer, database: str) -> None:
    mysql_server.execute(f"CREATE TABLE {database}.t (a INT PRIMARY KEY, b VARCHAR(9), c JSON)")
    captured = capture(mysql_server, database, "t")
    start = here(mysql_server)
    mysql_server.execute(f"INSERT INTO {database}.t VALUES (1, 'xyz', '[1, {{\"a\": 2.5}}]')")
    (good,) = (rows for item in transactions(mysql_server, start, captured) for rows in item.rows)

    def decode(data: bytes) -> object:
        return decode_rows(RowsEvent(good.table, good.operation, memoryview(data), good.location))

    whole = bytes(good.images)
    assert decode(whole) == [(None, (1, "xyz", '[1, {"a": 2.5}]'))]
    for size in range(1, len(whole)):
        with pytest.raises(TerminalError):
            decode(whole[:size])
    for tail in (b"\0", b"\xff", b"\0\1"):
        with pytest.raises(TerminalError):
            decode(whole + tail)
    with pytest.raises(TerminalError, match="not valid text in column b"):
        decode(whole.replace(b"xyz", b"x\xffz"))
