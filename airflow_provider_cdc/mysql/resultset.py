"""Result sets of the text protocol, column by column, as the bytes that the server sent.

The driver's own reader makes several calls a value; a snapshot reads many millions of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pymysql.connections import Connection
from pymysql.constants.COMMAND import COM_QUERY
from pymysql.err import raise_mysql_exception

from airflow_provider_cdc.exceptions import TransientError
from airflow_provider_cdc.mysql.session import errors

_LONGEST = 0xFFFFFF


def fetch(connection: Connection[Any], sql: str) -> list[list[bytes | None]]:
    """Run a SELECT and return its columns; NULL is ``None``.

    :raises TransientError: if the connection breaks.
    """
    with errors("reading from the source"):
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
