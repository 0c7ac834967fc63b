"""Values of every type through the compiled reader: made by hypothesis, and checked against the server's own words."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pymysql.connections import Connection

from airflow_provider_cdc.model.errors import TerminalError
from airflow_provider_cdc.model.unsupported_values import UnsupportedValue
from airflow_provider_cdc.mysql.chunks.chunk import select_rows
from airflow_provider_cdc.mysql.client.catalog import read_schema
from airflow_provider_cdc.mysql.client.identity import is_mariadb
from airflow_provider_cdc.mysql.client.session import connect
from airflow_provider_cdc.mysql.resultset.reader import query_arrow
from tests.support import plain_reader
from tests.support.mariadb import MariaDBServer
from tests.support.servers import MySQLServer


@dataclass(frozen=True)
class Case:
    """A type, how values of it are written in SQL, and what the server says of them.

    :param values: strategy of SQL literals.
    :param said: SQL expression over ``v`` that is printed as text.
    :param means: the Python value that such a text stands for.
    """

    kind: str
    arrow: pa.DataType
    values: st.SearchStrategy[str]
    said: str
    means: Callable[[str], Any]


def texts(encoding: str, size: int = 40) -> st.SearchStrategy[str]:
    """Literals of text that a charset has."""

    def fits(text: str) -> bool:
        try:
            return text.encode(encoding).decode(encoding) == text
        except UnicodeError:
            return False

    alphabet = st.characters(exclude_categories=["Cs"])
    if encoding in ("utf-16-le", "ucs2"):
        alphabet = st.characters(max_codepoint=0xFFFF, exclude_categories=["Cs"])
    common = st.sampled_from(
        ["", " ", "a", "a ", "é", "ß", "Ω", "я", "日本語", "한", "文字", "\0", "\x7f", "'\"\\%_", "x" * size]
    )
    made = st.one_of(common, st.text(alphabet, max_size=size)).filter(fits)
    return made.map(lambda t: f"_utf8mb4 x'{t.encode().hex()}'" if t else "''")


def blobs(size: int) -> st.SearchStrategy[str]:
    edges = st.sampled_from([b"", b"\0", b" ", b"\xff" * size, b"\xfb\xfc\xfd\xfe"[:size], b"a" * min(size, 251)])
    return st.one_of(edges, st.binary(max_size=size)).map(lambda b: f"x'{b.hex()}'")


def integers(bits: int, unsigned: bool) -> st.SearchStrategy[str]:
    low, high = (0, 2**bits - 1) if unsigned else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    return st.one_of(st.sampled_from([low, low + 1, high - 1, high, 0, 1]), st.integers(low, high)).map(str)


def decimals(precision: int, scale: int) -> st.SearchStrategy[str]:
    top = 10**precision - 1
    numbers = st.one_of(st.sampled_from([top, -top, 0, 1, -1, top // 2]), st.integers(-top, top))
    return numbers.map(lambda n: f"{'-' if n < 0 else ''}{Decimal(abs(n)).scaleb(-scale):f}")


def exact(text: str) -> Decimal:
    return Decimal(text)


def clock(text: str) -> int:
    sign = -1 if text.startswith("-") else 1
    hours, minutes, rest = text.lstrip("-").split(":")
    seconds, _, fraction = rest.partition(".")
    whole = (int(hours) * 60 + int(minutes)) * 60 + int(seconds)
    return sign * (whole * 1_000_000 + int(fraction.ljust(6, "0") or 0))


def clocks(fsp: int) -> st.SearchStrategy[str]:
    top = (838 * 3600 + 59 * 60 + 59) * 10**fsp

    def written(n: int) -> str:
        seconds, fraction = divmod(abs(n), 10**fsp)
        tail = f".{fraction:0{fsp}d}" if fsp else ""
        sign = "-" if n < 0 else ""
        return f"'{sign}{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}{tail}'"

    return st.one_of(st.sampled_from([0, 1, -1, top, -top, -(10**fsp)]), st.integers(-top, top)).map(written)


def moments(fsp: int, first: dt.datetime, last: dt.datetime) -> st.SearchStrategy[str]:
    def written(moment: dt.datetime) -> str:
        text = moment.isoformat(" ", "microseconds")
        return f"'{text[: 19 + (fsp + 1 if fsp else 0)]}'"

    return st.one_of(st.sampled_from([first, last]), st.datetimes(first, last)).map(written)


def unhex(text: str) -> bytes:
    return bytes.fromhex(text)


def word(text: str) -> str:
    return unhex(text).decode()


def bits(text: str) -> bytes:
    return bytes.fromhex(text)


HEX, UTF8 = "HEX(v)", "HEX(CONVERT(v USING utf8mb4))"
FIRST = dt.datetime(1, 1, 1)
LAST = dt.datetime(9999, 12, 31, 23, 59, 59, 999_999)
FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)
DOUBLES = st.floats(allow_nan=False, allow_infinity=False)
NAMES = ("a", "B", "", "it''s", "ünï 🎁", "日本")
WIDTHS = {"TINYINT": 8, "SMALLINT": 16, "MEDIUMINT": 24, "INT": 32, "BIGINT": 64}
SIGNED = {8: pa.int8(), 16: pa.int16(), 24: pa.int32(), 32: pa.int32(), 64: pa.int64()}
UNSIGNED = {8: pa.int16(), 16: pa.int32(), 24: pa.int32(), 32: pa.int64(), 64: pa.decimal128(20, 0)}
CHARSETS = {
    "utf8mb4": "utf-8",
    "utf8mb3": "utf-16-le",
    "latin1": "latin-1",
    "latin2": "iso8859-2",
    "cp1251": "cp1251",
    "koi8r": "koi8-r",
    "greek": "iso8859-7",
    "hebrew": "iso8859-8",
    "gbk": "gbk",
    "big5": "big5",
    "sjis": "shift_jis",
    "ujis": "euc-jp",
    "euckr": "euc-kr",
    "gb18030": "gb18030",
    "utf16": "utf-8",
    "utf16le": "utf-8",
    "utf32": "utf-8",
    "ucs2": "utf-16-le",
    "ascii": "ascii",
    "tis620": "tis-620",
}

CASES = [
    *(Case(k, SIGNED[n], integers(n, False), "CAST(v AS CHAR)", int) for k, n in WIDTHS.items()),
    *(
        Case(f"{k} UNSIGNED", UNSIGNED[n], integers(n, True), "CAST(v AS CHAR)", int if n < 64 else exact)
        for k, n in WIDTHS.items()
    ),
    Case("INT(9) UNSIGNED ZEROFILL", pa.int64(), integers(32, True), "CAST(v + 0 AS CHAR)", int),
    *(
        Case(f"DECIMAL({p},{s})", pa.decimal128(p, s), decimals(p, s), "CAST(v AS CHAR)", exact)
        for p, s in ((1, 0), (9, 9), (18, 0), (19, 19), (20, 1), (37, 19), (38, 0), (38, 30), (12, 2))
    ),
    Case("DECIMAL(65,30)", pa.string(), decimals(65, 30), "CAST(v AS CHAR)", str),
    Case(
        "DECIMAL(30,10) UNSIGNED ZEROFILL",
        pa.decimal128(30, 10),
        decimals(30, 10).map(lambda t: t.lstrip("-")),
        "CAST(v AS CHAR)",
        exact,
    ),
    # As text of 17 digits a double is exact, and a float is exact as a double.
    Case("FLOAT", pa.float32(), FLOATS.map(lambda f: f"{f!r}e0" if "e" not in repr(f) else repr(f)), "v * 1e0", float),
    Case(
        "DOUBLE", pa.float64(), DOUBLES.map(lambda f: f"{f!r}e0" if "e" not in repr(f) else repr(f)), "v * 1e0", float
    ),
    *(
        Case(f"BIT({n})", pa.binary(), integers(n, True), f"LPAD(HEX(v + 0), {(n + 7) // 8 * 2}, '0')", bits)
        for n in (1, 7, 8, 9, 33, 64)
    ),
    Case("DATE", pa.date32(), st.dates(FIRST.date()).map(lambda d: f"'{d}'"), "CAST(v AS CHAR)", dt.date.fromisoformat),
    *(
        Case(
            f"DATETIME({f})", pa.timestamp("us"), moments(f, FIRST, LAST), "CAST(v AS CHAR)", dt.datetime.fromisoformat
        )
        for f in (0, 3, 6)
    ),
    *(
        Case(
            f"TIMESTAMP({f}) NULL",
            pa.timestamp("us", tz="UTC"),
            moments(f, dt.datetime(1970, 1, 1, 0, 0, 1), dt.datetime(2038, 1, 19, 3, 14, 7, 499_999)),
            "CAST(v AS CHAR)",
            dt.datetime.fromisoformat,
        )
        for f in (0, 6)
    ),
    *(Case(f"TIME({f})", pa.int64(), clocks(f), "CAST(v AS CHAR)", clock) for f in (0, 1, 6)),
    Case("YEAR", pa.int16(), st.integers(1901, 2155).map(str) | st.just("0"), "CAST(v AS CHAR)", int),
    *(Case(f"VARCHAR(40) CHARACTER SET {c}", pa.string(), texts(e), UTF8, word) for c, e in CHARSETS.items()),
    Case("CHAR(40)", pa.string(), texts("utf-8"), UTF8, word),
    Case("LONGTEXT CHARACTER SET latin1", pa.string(), texts("latin-1", 300), UTF8, word),
    Case("BINARY(20)", pa.binary(), blobs(20), HEX, unhex),
    Case("VARBINARY(300)", pa.binary(), blobs(300), HEX, unhex),
    Case("LONGBLOB", pa.binary(), blobs(300), HEX, unhex),
    Case(
        f"ENUM({', '.join(f'{chr(39)}{n}{chr(39)}' for n in NAMES)})",
        pa.string(),
        st.integers(1, 6).map(str),
        UTF8,
        word,
    ),
    Case("SET('a', 'b', 'ünï', 'd')", pa.string(), st.integers(0, 15).map(str), UTF8, word),
    Case(
        "JSON",
        pa.string(),
        st.recursive(
            st.none()
            | st.booleans()
            | st.integers(-(2**63), 2**64 - 1)
            | DOUBLES
            | st.text(st.characters(exclude_categories=["Cs"])),
            lambda inner: (
                st.lists(inner, max_size=4)
                | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), max_size=5), inner, max_size=4)
            ),
            max_leaves=8,
        ).map(lambda j: f"CAST(CONVERT(_utf8mb4 x'{json.dumps(j).encode().hex()}' USING utf8mb4) AS JSON)"),
        "HEX(CAST(v AS CHAR CHARACTER SET utf8mb4))",
        word,
    ),
    Case(
        "GEOMETRY",
        pa.binary(),
        st.lists(st.tuples(st.integers(-180, 180), st.floats(-90, 90)), min_size=2, max_size=5).map(
            lambda p: f"ST_GeomFromText('LINESTRING({', '.join(f'{x} {y:.6f}' for x, y in p)})')"
        ),
        HEX,
        unhex,
    ),
    Case(
        "VECTOR(5)",
        pa.list_(pa.float32()),
        st.lists(FLOATS, min_size=1, max_size=5).map(lambda v: f"x'{struct.pack(f'<{len(v)}f', *v).hex()}'"),
        HEX,
        lambda t: list(struct.unpack(f"<{len(t) // 8}f", bytes.fromhex(t))),
    ),
]


#: What MariaDB 10.11 has not: types, a charset, and JSON that is more than text.
NOT_IN_MARIADB = ("VECTOR", "JSON", "VARCHAR(40) CHARACTER SET gb18030")


@pytest.fixture(scope="module", params=["MySQL", "MariaDB"])
def server(request: pytest.FixtureRequest) -> Iterator[MySQLServer]:
    if request.param == "MySQL":
        yield request.getfixturevalue("mysql_server")
    else:
        with MariaDBServer() as found:
            yield found


@pytest.fixture(scope="module")
def connection(server: MySQLServer) -> Iterator[Connection[Any]]:
    server.execute("CREATE DATABASE all_values")
    with contextlib.closing(connect(server.connect_args())) as opened:
        opened.select_db("all_values")
        yield opened
    server.execute("DROP DATABASE all_values")


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.kind[:40])
def test_every_value_is_what_the_server_says(server: MySQLServer, connection: Connection[Any], case: Case) -> None:
    if isinstance(server, MariaDBServer) and case.kind.startswith(NOT_IN_MARIADB):
        pytest.skip("this server does not have it")
    connection.query("DROP TABLE IF EXISTS t")
    connection.query(f"CREATE TABLE t (n INT PRIMARY KEY, v {case.kind})")

    @given(st.lists(st.none() | case.values, min_size=1, max_size=40))
    @settings(max_examples=20, deadline=None)
    def check(values: list[str | None]) -> None:
        connection.query("TRUNCATE TABLE t")
        listed = ", ".join(f"({n}, {'NULL' if v is None else v})" for n, v in enumerate(values))
        connection.query(f"INSERT INTO t VALUES {listed}")
        schema = pa.schema([("n", pa.int32()), ("v", case.arrow)])
        found = query_arrow(connection, "SELECT n, v FROM t ORDER BY n", schema)
        found.validate(full=True)
        said = plain_reader.fetch(connection, f"SELECT {case.said} FROM t ORDER BY n")[0]
        expected = [None if text is None else case.means(text.decode()) for text in said]
        got = found["v"].cast(pa.timestamp("us")) if pa.types.is_timestamp(case.arrow) else found["v"]
        assert repr(got.to_pylist()) == repr(expected)  # repr: -0.0 is not 0.0
        assert [v is None for v in values] == [v is None for v in expected]

    check()


def test_floats_bit_by_bit(connection: Connection[Any]) -> None:
    """FLOAT and DOUBLE against the bits that were sent in, over the whole range of exponents."""
    connection.query("DROP TABLE IF EXISTS t")
    connection.query("CREATE TABLE t (n INT PRIMARY KEY, f FLOAT, d DOUBLE)")

    @given(st.lists(st.tuples(FLOATS, DOUBLES), min_size=1, max_size=50))
    @settings(max_examples=30, deadline=None)
    def check(values: list[tuple[float, float]]) -> None:
        connection.query("TRUNCATE TABLE t")
        listed = ", ".join(f"({n}, {f:.17e}, {d:.17e})" for n, (f, d) in enumerate(values))
        connection.query(f"INSERT INTO t VALUES {listed}")
        schema = pa.schema([("f", pa.float32()), ("d", pa.float64())])
        found = query_arrow(connection, "SELECT f, d FROM t ORDER BY n", schema)
        if is_mariadb(connection):  # for which -0.0 is 0.0, as soon as it is written down
            values = [(f + 0.0, d + 0.0) for f, d in values]
        sent = pa.array([f for f, _ in values], pa.float32()), pa.array([d for _, d in values], pa.float64())
        for i, kind in enumerate((pa.int32(), pa.int64())):
            assert found[i].combine_chunks().view(kind).equals(sent[i].view(kind))

    check()


DATES = {
    "DATE": ("0000-00-00", "2020-00-10", "2020-01-00", "0000-01-05", "2021-02-30", "2023-02-29", "1900-02-29"),
    "DATETIME(6)": ("0000-00-00 00:00:00", "2020-00-10 01:02:03", "0000-01-05 00:00:00.5", "2021-04-31 00:00:00"),
    "TIMESTAMP NULL": ("0000-00-00 00:00:00",),
}


@pytest.mark.parametrize(("kind", "date"), [(kind, date) for kind, dates in DATES.items() for date in dates])
def test_what_is_no_date_is_named(mysql_server: MySQLServer, database: str, kind: str, date: str) -> None:
    mode = "ALLOW_INVALID_DATES"
    with contextlib.closing(mysql_server.connect(database=database)) as writer, writer.cursor() as cursor:
        cursor.execute(f"SET SESSION sql_mode = '{mode}'")
        cursor.execute(f"CREATE TABLE t (id INT PRIMARY KEY, good {kind}, v {kind})")
        cursor.execute(f"INSERT INTO t VALUES (1, '2020-01-01', '2020-02-29'), (2, '2020-01-01', '{date}')")
    with contextlib.closing(connect(mysql_server.connect_args())) as connection:
        table = read_schema(connection, database, "t")
        assert [str(v)[:10] for c in select_rows(connection, table, "id = 1")[1:] for v in c] == [
            "2020-01-01",
            "2020-02-29",
        ]
        with pytest.raises(TerminalError) as caught:
            select_rows(connection, table, "TRUE")
        assert f"{database}.t, column v" in caught.value.message
        assert f"{date[:10]} is not a date" in caught.value.message and caught.value.remedy
    with contextlib.closing(connect(mysql_server.connect_args())) as connection:
        with pytest.raises(UnsupportedValue):
            query_arrow(connection, f"SELECT v FROM `{database}`.t", pa.schema([table.column_schema.field("v")]))
