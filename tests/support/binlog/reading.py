"""Helpers of the binlog tests: read a stretch of a real server's binlog, and ask the server what a row holds."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterable, Mapping
from typing import Any
from uuid import uuid4

import pyarrow as pa

from airflow_provider_cdc.model.definition_history import DefinitionHistory
from airflow_provider_cdc.model.errors import TerminalError
from airflow_provider_cdc.model.offset import Position
from airflow_provider_cdc.model.schema import Column, TableSchema
from airflow_provider_cdc.mysql.binlog.events.binlog_stream import BinlogStream
from airflow_provider_cdc.mysql.binlog.events.event import BinlogEvent
from airflow_provider_cdc.mysql.binlog.events.rows_event import RowsEvent
from airflow_provider_cdc.mysql.binlog.events.transactions import Transaction, read_transactions
from airflow_provider_cdc.mysql.client.catalog import read_schema
from airflow_provider_cdc.mysql.client.charsets import UNICODE_DECODERS, CharsetDecoders
from airflow_provider_cdc.mysql.client.collations import NO_COLLATIONS, Collations
from airflow_provider_cdc.mysql.client.identity import binlog_end
from airflow_provider_cdc.mysql.client.session import connect
from tests.support.binlog.buffer import CountedChanges, counted
from tests.support.binlog.row_decoder import RowImage, decode_rows
from tests.support.servers import MySQLServer

Captured = Mapping[tuple[str, str], TableSchema]
Change = tuple[RowImage | None, RowImage | None]
_asked: list[Collations] = []


def capture(server: MySQLServer, database: str, *tables: str) -> dict[tuple[str, str], TableSchema]:
    """Schemas of tables as the project itself reads them."""
    with contextlib.closing(connect(server.connect_args())) as connection:
        return {(database, table): read_schema(connection, database, table) for table in tables}


def binlog_place(server: MySQLServer) -> Position:
    """The end of any server's binlog now, as the project itself reads it."""
    with contextlib.closing(connect(server.connect_args())) as connection:
        return binlog_end(connection)


def here(server: MySQLServer) -> tuple[str, int]:
    """The end of the binlog now."""
    file, position, *_ = server.execute("SHOW BINARY LOG STATUS")[0]
    return str(file), int(position)


def open_stream(server: MySQLServer, start: tuple[str, int], **kw: Any) -> BinlogStream:
    options: dict[str, Any] = {
        "server_id": random.randint(1 << 20, 1 << 31),
        "replica_uuid": str(uuid4()),
        "file": start[0],
        "position": start[1],
        "blocking": False,
    }
    return BinlogStream(server.connect_args(), **{**options, **kw})


def events_since(server: MySQLServer, start: tuple[str, int]) -> list[BinlogEvent]:
    with open_stream(server, start) as stream:
        _asked[:] = [stream.collations]
        return list(stream)


def collations() -> Collations:
    """Those of the server whose events were read last."""
    return _asked[-1] if _asked else NO_COLLATIONS


def lasting(captured: Captured) -> dict[tuple[str, str], DefinitionHistory]:
    """Definitions that hold everywhere."""
    return {name: DefinitionHistory.from_single(schema) for name, schema in captured.items()}


def read(events: Iterable[BinlogEvent], captured: Captured, known: Collations | None = None) -> list[Transaction]:
    """The transactions in events; ``known``: the collations of their server, if another was read since."""
    found = read_transactions(events, lasting(captured), known or collations())
    return [item for item in found if isinstance(item, Transaction)]


def transactions(server: MySQLServer, start: tuple[str, int], captured: Captured) -> list[Transaction]:
    return read(events_since(server, start), captured)


def everything(events: Iterable[BinlogEvent], captured: Captured) -> list[Transaction | Position]:
    return list(read_transactions(events, lasting(captured), collations()))


def changes(found: Iterable[Transaction]) -> list[Change]:
    """All changes by the plain decoder; the machine code must say the same, or stop as well."""
    events = [rows for transaction in found for rows in transaction.rows]
    for event in events:
        agree(event)
    return [change for event in events for change in decode_rows(event)]


def agree(event: RowsEvent, texts: CharsetDecoders = UNICODE_DECODERS) -> None:
    """Both decoders give the same rows of an event, or both stop."""
    try:
        found = list(decode_rows(event, texts))
        plain: list[Any] | str = flat(event.operation, found)
    except TerminalError as error:
        plain = error.message
    try:
        buffer = CountedChanges(event.schema, texts, both=True)
        buffer.add(event, 7, 9)
        made = buffer.take()
        made.validate(full=True)
        assert made.schema == event.schema.sink_schema
        assert set(made["_cdc_seq"].to_pylist()) <= {7} and set(made["_cdc_ts"].cast(pa.int64()).to_pylist()) <= {9}
        names = event.schema.column_schema.names
        compiled: list[Any] | str = list(zip(made["_cdc_op"].to_pylist(), rows_of(made.select(names)), strict=True))
    except TerminalError as error:
        compiled = error.message
    if isinstance(plain, str) or isinstance(compiled, str):
        assert isinstance(plain, str) and isinstance(compiled, str), (plain, compiled)
        assert plain.partition(", at ")[0] == compiled.partition(", at ")[0]
    else:
        images = as_arrow(event.schema, [image for _, image in plain])
        expected = [(op, image) for (op, _), image in zip(plain, images, strict=True)]
        assert repr(compiled) == repr(expected)  # repr: -0.0 is not 0.0
        assert counted(event) == len(found)


def flat(kind: str, found: Iterable[Change]) -> list[tuple[str, RowImage]]:
    """Images one after the other, each with the operation that a change table has for it."""
    ops = {"insert": ("", "c"), "update": ("b", "u"), "delete": ("d", "")}[kind]
    return [(op, image) for change in found for op, image in zip(ops, change, strict=True) if image is not None]


def as_arrow(schema: TableSchema, images: list[RowImage]) -> list[tuple[Any, ...]]:
    """The images on their way through Arrow and back: what will be written."""
    if not images:
        return []
    columns = zip(schema.columns, zip(*images, strict=True), strict=True)
    arrays = [pa.array(list(v), type=c.arrow_type) for c, v in columns if c.name not in schema.excluded]
    return rows_of(pa.table(arrays, schema=schema.column_schema))


def rows_of(table: pa.Table) -> list[tuple[Any, ...]]:
    """Rows with dates and times as numbers."""
    plain = [a.cast(pa.int64()) if pa.types.is_timestamp(a.type) else a for a in table.columns]
    plain = [a.cast(pa.int32()) if pa.types.is_date(a.type) else a for a in plain]
    return list(zip(*(a.to_pylist() for a in plain), strict=True))


def quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def oracle(column: Column) -> str:
    """SQL expression by which the server itself says what a value is, as a number or hexadecimal text."""
    name = quoted(column.name)
    kind = column.data_type
    if kind == "date":
        return f"TO_DAYS({name}) - 719528"
    if kind in ("datetime", "timestamp"):
        return f"TIMESTAMPDIFF(MICROSECOND, '1970-01-01 00:00:00', {name})"
    if kind == "time":
        return (
            f"(TIME_TO_SEC(TIME({name})) DIV 1) * 1000000 + IF({name} < 0, -1, 1) * MICROSECOND({name})"
            if column.fsp
            else f"TIME_TO_SEC({name}) * 1000000"
        )
    if kind in ("float", "double"):
        return f"{name} * 1e0"  # FLOAT prints six digits; a sum would lose the sign of -0
    if kind == "year":
        return f"{name} + 0"
    if kind in ("json", "enum"):
        return f"HEX(CONVERT(CAST({name} AS CHAR) USING utf8mb4))"
    if column.charset:
        return f"HEX(CONVERT({name} USING utf8mb4))"
    if pa.types.is_binary(column.arrow_type):
        return f"HEX({name})"
    return f"CAST({name} AS CHAR)"


def comparable(column: Column, value: Any) -> Any:
    """A decoded value in the form of the oracle's answer."""
    if value is None:
        return None
    if isinstance(value, str) and column.data_type != "decimal":
        return value.encode().hex().upper()
    if isinstance(value, bytes):
        return value.hex().upper()
    if column.data_type in ("date", "datetime", "timestamp", "time", "year"):
        return int(value)
    if column.data_type in ("float", "double"):
        return float(value)
    return f"{value:f}" if column.data_type == "decimal" and not isinstance(value, str) else str(value)


def server_says(server: MySQLServer, schema: TableSchema, order: str) -> list[tuple[Any, ...]]:
    """Every row of a table in the form of :func:`comparable`."""
    expressions = ", ".join(oracle(column) for column in schema.columns)
    with contextlib.closing(server.connect()) as connection, connection.cursor() as cursor:
        cursor.execute("SET time_zone = '+00:00', sql_mode = ''")
        cursor.execute(f"SELECT {expressions} FROM {quoted(schema.database)}.{quoted(schema.name)} ORDER BY {order}")
        rows = cursor.fetchall()
    whole = {"date", "datetime", "timestamp", "time", "year"}
    return [
        tuple(
            int(value) if value is not None and column.data_type in whole else value
            for column, value in zip(schema.columns, row, strict=True)
        )
        for row in rows
    ]


def we_say(schema: TableSchema, images: list[RowImage]) -> list[tuple[Any, ...]]:
    return [
        tuple(comparable(column, value) for column, value in zip(schema.columns, row, strict=True))
        for row in as_arrow(schema, images)
    ]
