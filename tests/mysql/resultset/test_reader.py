"""The compiled reader of result sets: how it reads, whatever the packets look like. Values are in test_values.py."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pymysql.connections import Connection

from airflow_provider_cdc.model.errors import CdcError, TerminalError, TransientError
from airflow_provider_cdc.model.unsupported_values import UnsupportedValue
from airflow_provider_cdc.mysql.chunks.chunk import select_rows
from airflow_provider_cdc.mysql.client.catalog import read_schema
from airflow_provider_cdc.mysql.client.session import connect, query_value
from airflow_provider_cdc.mysql.resultset import reader as resultset
from airflow_provider_cdc.mysql.resultset.reader import query_arrow, query_arrow_batches
from airflow_provider_cdc.native import buffers
from tests.support import plain_reader
from tests.support.servers import MySQLServer
from tests.support.workload_tables import SETS, make_foreign

#: Numbers from 0, without a table.
NUMBERS = "(WITH RECURSIVE s (n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM s WHERE n < {}) SELECT n FROM s) AS s"


@pytest.fixture(params=[False, True], ids=["plain", "tls"])
def connection(mysql_server: MySQLServer, request: pytest.FixtureRequest) -> Iterator[Connection[Any]]:
    args = {**mysql_server.connect_args(), "ssl_disabled": not request.param}
    with contextlib.closing(connect(args)) as opened:
        assert (
            bool(
                query_value(
                    opened,
                    "SELECT NULLIF(VARIABLE_VALUE, '') FROM performance_schema.session_status "
                    "WHERE VARIABLE_NAME = 'Ssl_cipher'",
                )
            )
            == request.param
        )
        opened.query("SET SESSION cte_max_recursion_depth = 10000000")
        yield opened


def one(kind: pa.DataType, *more: pa.DataType) -> pa.Schema:
    return pa.schema([(str(i), k) for i, k in enumerate((kind, *more))])


@pytest.fixture(scope="module")
def foreign(mysql_server: MySQLServer) -> Iterator[str]:
    with contextlib.closing(mysql_server.connect()) as opened:
        make_foreign(opened, "foreign_reader", scale=0.01)
    yield "foreign_reader"
    mysql_server.execute("DROP DATABASE foreign_reader")


def same_bits(a: pa.ChunkedArray, b: pa.Array) -> bool:
    a = a.combine_chunks()
    if pa.types.is_floating(a.type):
        bits = pa.int32() if a.type == pa.float32() else pa.int64()
        a, b = a.view(bits), b.view(bits)
    return bool(a.equals(b))


@pytest.mark.parametrize("block", [256 << 10, 1, 57])
@pytest.mark.parametrize("table", [t.name for t in SETS["foreign"]])
def test_as_the_plain_reader(
    connection: Connection[Any], foreign: str, table: str, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two protocols, two implementations; the second time with blocks that end anywhere."""
    monkeypatch.setattr(resultset, "_RECEIVE_BYTES", block)
    schema = read_schema(connection, foreign, table)
    for condition in ("TRUE", "FALSE", "TRUE"):  # the space for columns is used again
        found, wanted = select_rows(connection, schema, condition), plain_reader.select(connection, schema, condition)
        for column, a, b in zip(schema.columns, found, wanted, strict=True):
            assert a.type == column.arrow_type
            a.validate(full=True)
            assert same_bits(a, b), column


def test_answers_of_every_size(connection: Connection[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is waited for once the end is there, wherever in a block that is."""
    monkeypatch.setattr(resultset, "_RECEIVE_BYTES", 20_000)
    connection._read_timeout = 3  # type: ignore[attr-defined]
    for size in range(10_000, 45_000, 61):
        rest, rows = size % 900, size // 900
        sql = f"SELECT REPEAT('x', IF(n = 0, {rest}, 900)) FROM {NUMBERS.format(rows)}"
        found = query_arrow(connection, sql, one(pa.string()))
        assert len(found) == rows + 1 and found["0"][0].as_py() == rest * "x"


def test_rows_of_several_packets(connection: Connection[Any], mysql_server: MySQLServer) -> None:
    """A packet holds at most 0xFFFFFF bytes; a row of just so many has an empty one behind it."""
    # The row's payload: a zero byte, a byte of NULL bits, the number's 8, a length of 4, and the value.
    sizes = [0xFFFFFF - 14 + d for d in (-1, 0, 1)] + [2 * 0xFFFFFF - 19 + d for d in (-1, 0, 1)] + [40_000_000, 5]
    cases = " ".join(f"WHEN {i} THEN {size}" for i, size in enumerate(sizes))
    sql = f"SELECT CAST(n AS SIGNED), REPEAT(CHAR(97 + n), CASE n {cases} END) FROM {NUMBERS.format(len(sizes) - 1)}"
    found = query_arrow(connection, sql, one(pa.int64(), pa.binary()))
    assert found["0"].to_pylist() == list(range(len(sizes)))
    for n, content in enumerate(found["1"].to_pylist()):
        assert content == bytes([97 + n]) * sizes[n], sizes[n]
    assert query_value(connection, "SELECT 7") == "7"


def test_much_text_comes_in_pieces(connection: Connection[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buffers, "MAX_STRING_BYTES", 5000)
    sql = f"SELECT n, REPEAT('x', n MOD 700), IF(n MOD 3, n, NULL) FROM {NUMBERS.format(999)}"
    found = query_arrow(connection, sql, one(pa.int64(), pa.string(), pa.int64()))
    assert found["1"].num_chunks > 50 and max(c.nbytes for c in found["1"].chunks) < 20_000
    found.validate(full=True)
    expected = [(n, "x" * (n % 700), n if n % 3 else None) for n in range(1000)]
    assert list(zip(*(c.to_pylist() for c in found.columns), strict=True)) == expected


def test_a_value_larger_than_a_piece(connection: Connection[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buffers, "MAX_STRING_BYTES", 100)
    found = query_arrow(connection, f"SELECT REPEAT('y', 150 * n) FROM {NUMBERS.format(4)}", one(pa.string()))
    assert found["0"].to_pylist() == ["y" * (150 * n) for n in range(5)]


def test_six_hundred_columns(connection: Connection[Any]) -> None:
    """NULL bits over 75 bytes, each in its place."""
    listed = [("n" if i % 2 else "CONCAT('r', n)") for i in range(600)]
    wanted = ", ".join(f"IF((n * 7 + {i}) MOD 5, {e}, NULL)" for i, e in enumerate(listed))
    kinds = [pa.int64() if i % 2 else pa.string() for i in range(600)]
    found = query_arrow(connection, f"SELECT {wanted} FROM {NUMBERS.format(2999)}", one(*kinds))
    for i in range(600):
        expected = [(n if i % 2 else f"r{n}") if (n * 7 + i) % 5 else None for n in range(3000)]
        assert found[i].to_pylist() == expected, i


def test_an_error_in_the_middle(connection: Connection[Any]) -> None:
    """The server has sent thousands of rows by then; afterwards the connection goes on."""
    sql = f"SELECT n, IF(n < 20000, 1, (SELECT 1 UNION SELECT 2)) FROM {NUMBERS.format(30_000)}"
    with pytest.raises(TerminalError, match="1242: Subquery returns more than 1 row"):
        query_arrow(connection, sql, one(pa.int64(), pa.int64()))
    assert query_arrow(connection, "SELECT 8", one(pa.int64()))["0"].to_pylist() == [8]


def test_an_error_at_once(connection: Connection[Any]) -> None:
    for sql in ("SELECT 1 FROM nowhere.t", "SELECT", "SELECT (SELECT 1 UNION SELECT 2)"):
        with pytest.raises(TerminalError):
            query_arrow(connection, sql, one(pa.int64()))
        assert query_arrow(connection, "SELECT 8", one(pa.int64()))["0"].to_pylist() == [8]


@pytest.mark.parametrize("what", ["KILL {}", "KILL QUERY {}"])
def test_killed_in_the_middle(connection: Connection[Any], mysql_server: MySQLServer, what: str) -> None:
    number = query_value(connection, "SELECT CONNECTION_ID()")

    def kill() -> None:
        time.sleep(0.5)
        mysql_server.execute(what.format(number))

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        sql = f"SELECT n, REPEAT('x', 100), IF(SLEEP(IF(n < 2000, 0, 0.01)), 1, 1) FROM {NUMBERS.format(9000)}"
        with pytest.raises(CdcError) as caught:
            query_arrow(connection, sql, one(pa.int64(), pa.string(), pa.int64()))
    finally:
        thread.join()
    assert isinstance(caught.value, TransientError)
    if what == "KILL {}":
        with pytest.raises(CdcError):  # never rows of an answer that was left
            query_arrow(connection, "SELECT 8", one(pa.int64()))
    else:
        assert "1317" in caught.value.message


def test_a_reader_that_is_interrupted_leaves_nothing_behind(connection: Connection[Any]) -> None:
    """What is still on its way must not be taken for the answer to the next question."""
    with pytest.raises(UnsupportedValue, match="0000-00-00 is not a date"):
        query_arrow(
            connection,
            f"SELECT CAST(IF(n, '2020-01-02', '0000-00-00') AS DATE) FROM {NUMBERS.format(50_000)}",
            one(pa.date32()),
        )
    assert not connection.open
    with pytest.raises(CdcError):
        query_arrow(connection, "SELECT 8", one(pa.int64()))


@pytest.mark.parametrize(
    ("expression", "wanted"),
    [
        ("CAST(1 AS SIGNED)", pa.int32()),
        ("CAST(1 AS UNSIGNED)", pa.int64()),
        ("1.50", pa.decimal128(9, 3)),
        ("1.50", pa.float64()),
        ("'a'", pa.binary()),
        ("x'61'", pa.string()),
        ("CAST('{}' AS JSON)", pa.binary()),
        ("DATE'2020-01-02'", pa.timestamp("us")),
        ("1e0", pa.float32()),
    ],
)
def test_other_types_than_expected_are_refused(
    connection: Connection[Any], expression: str, wanted: pa.DataType
) -> None:
    with pytest.raises(TerminalError, match=r"column v: the server's type"):
        query_arrow(connection, f"SELECT {expression}", pa.schema([("v", wanted)]))
    with pytest.raises(CdcError):
        query_arrow(connection, f"SELECT {expression}, 2", pa.schema([("v", wanted)]))


def test_an_altered_column_is_noticed_by_the_reader(
    mysql_server: MySQLServer, connection: Connection[Any], database: str
) -> None:
    mysql_server.execute(f"CREATE TABLE `{database}`.t (id INT PRIMARY KEY, v INT)")
    table = read_schema(connection, database, "t")
    assert len(select_rows(connection, table, "TRUE")) == 2
    mysql_server.execute(f"ALTER TABLE `{database}`.t MODIFY v BIGINT")
    with pytest.raises(TerminalError, match=r"column v: the server's type"):
        select_rows(connection, table, "TRUE")


def test_statements_are_closed(connection: Connection[Any]) -> None:
    """The server allows so many prepared statements in all; a snapshot has more chunks than that."""
    for _ in range(50):
        query_arrow(connection, "SELECT 1", one(pa.int64()))
        with pytest.raises(TerminalError):
            query_arrow(connection, "SELECT (SELECT 1 UNION SELECT 2)", one(pa.int64()))
    mine = "performance_schema.prepared_statements_instances WHERE OWNER_THREAD_ID = PS_CURRENT_THREAD_ID()"
    assert query_value(connection, f"SELECT COUNT(*) FROM {mine}") == "0"


def test_text_that_is_not_utf8_never_passes(connection: Connection[Any]) -> None:
    connection.query("SET character_set_results = NULL")  # what a proxy or an init_connect might do
    with pytest.raises(UnsupportedValue, match="not UTF-8") as caught:
        query_arrow(connection, "SELECT 1, CONVERT('ok é' USING latin1)", one(pa.int64(), pa.string()))
    assert caught.value.column == 1


def test_in_pieces(connection: Connection[Any]) -> None:
    """The same rows, few at a time; whoever stops in the middle has no connection left."""
    sql = f"SELECT n, IF(n % 7, REPEAT('x', n % 200), NULL), IF(n = 900, REPEAT('y', 300000), 'z') FROM {NUMBERS}"
    schema = one(pa.int64(), pa.string(), pa.string())
    whole = query_arrow(connection, sql.format(3000), schema)
    for size in (1 << 13, 1 << 16, 1 << 30):
        pieces = list(query_arrow_batches(connection, sql.format(3000), schema, size=size))
        assert pa.Table.from_batches(pieces, schema=schema).equals(whole)
        assert (len(pieces) > 4) == (size < 1 << 20)
        # What is held for one column grows by doubling, so a piece is not exactly as large as it was asked to be.
        assert all(piece.nbytes < 4 * size for piece in pieces if piece.nbytes < 300000)
    assert [
        p.num_rows for p in query_arrow_batches(connection, sql.format(3000) + " WHERE n < 0", schema, size=10)
    ] == [0]
    started = query_arrow_batches(connection, sql.format(3000), schema, size=1 << 13)
    next(started)
    started.close()
    assert not connection.open
