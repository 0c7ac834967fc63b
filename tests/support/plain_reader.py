"""A second reader of tables, to compare the compiled one with: the text protocol, in plain Python.

It shares nothing with the other: the server prints the values, and Arrow parses what was printed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pymysql.connections import Connection
from pymysql.constants.COMMAND import COM_QUERY
from pymysql.err import raise_mysql_exception

from airflow_provider_cdc.model.errors import TransientError
from airflow_provider_cdc.model.schema import Column, TableSchema
from airflow_provider_cdc.mysql.client.key_sql import key_list, quote_name, table_name
from airflow_provider_cdc.mysql.client.session import translate_errors

_LONGEST = 0xFFFFFF


def select(connection: Connection[Any], table: TableSchema, condition: str) -> list[pa.Array]:
    """What :func:`airflow_provider_cdc.mysql.chunks.chunk.select_rows` returns, found in another way."""
    wanted = ", ".join(_projection(c) for c in table.columns)
    values = fetch(connection, f"SELECT {wanted} FROM {table_name(table)} WHERE {condition} ORDER BY {key_list(table)}")
    return [_to_arrow(column, v) for column, v in zip(table.columns, values, strict=True)]


def _projection(column: Column) -> str:
    name = quote_name(column.name)
    if column.data_type == "float":
        return f"({name} * 1e0)"  # a plain FLOAT is sent with six digits only; + 0e0 would lose the sign of -0.0
    if column.data_type == "time":
        # Microseconds as an integer: exact for negative values with fractions and beyond 24 hours.
        return f"(TIME_TO_SEC({name}) DIV 1 * 1000000 + IF({name} < 0, -1, 1) * MICROSECOND({name}))"
    return name


def _to_arrow(column: Column, values: list[bytes | None]) -> pa.Array:
    binary, kind, wanted = pa.array(values, pa.binary()), column.data_type, column.arrow_type
    if wanted == pa.binary():
        return binary
    text = binary.cast(pa.string())
    if kind == "float":
        return text.cast(pa.float64()).cast(pa.float32(), safe=False)
    if kind == "timestamp":
        return pc.assume_timezone(text.cast(pa.timestamp("us")), "UTC")
    return text if wanted == pa.string() else text.cast(wanted)


def fetch(connection: Connection[Any], sql: str) -> list[list[bytes | None]]:
    """Run a SELECT and return its columns as the server printed them; NULL is ``None``."""
    with translate_errors("reading from the source"):
        wire: Any = connection  # what follows is below the driver's public face
        wire._execute_command(COM_QUERY, sql)
        count = wire._read_packet().read_length_encoded_integer()
        for _ in range(count + 1):  # column definitions, then their end
            wire._read_packet()
        return _rows(wire._rfile.read, count)


def _rows(read: Callable[[int], bytes], count: int) -> list[list[bytes | None]]:
    columns: list[list[bytes | None]] = [[] for _ in range(count)]
    adders = [c.append for c in columns]
    while True:
        row = _packet(read)
        first = row[0]
        if first == 0xFE and len(row) < 9:
            return columns
        if first == 0xFF:
            raise_mysql_exception(row)  # the server gave up in the middle of the result
        at = 0
        for add in adders:
            size = row[at]
            at += 1
            if size > 250:
                if size == 251:
                    add(None)
                    continue
                width = {252: 2, 253: 3, 254: 8}[size]
                size = int.from_bytes(row[at : at + width], "little")
                at += width
            end = at + size
            add(row[at:end])
            at = end


def _packet(read: Callable[[int], bytes]) -> bytes:
    whole = b""
    while True:
        header = read(4)
        size = header[0] | header[1] << 8 | header[2] << 16 if len(header) == 4 else -1
        body = read(size) if size >= 0 else b""
        if len(body) != size:
            raise TransientError("the server closed the connection in the middle of a result", "Run again")
        if size < _LONGEST and not whole:
            return body
        whole += body
        if size < _LONGEST:
            return whole
