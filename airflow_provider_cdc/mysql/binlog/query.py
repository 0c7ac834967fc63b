"""The query event: default database and text of a statement."""

from __future__ import annotations

import contextlib

from pymysql.charset import charset_by_id

from airflow_provider_cdc.exceptions import TerminalError
from airflow_provider_cdc.mysql.binlog.stream import Event

_HEADER_SIZE = 13  # thread, duration, length of the database name, error code, length of the status variables
_CHARSET = 4
#: Status variables that can stand before the character set, with their sizes.
_FIXED_SIZES = {0: 4, 1: 8, 3: 4}
_CATALOG = 6


def read_query(event: Event, extra: int = 0) -> tuple[str, str]:
    """Default database and text of a statement.

    :param event: a QUERY event.
    :param extra: bytes of a longer header (13 in EXECUTE_LOAD_QUERY).
    :returns: (database, text). Bytes that are not of the statement's character set become lone surrogates.
    :raises TerminalError: if the event is cut off.
    """
    body = event.body
    at = _HEADER_SIZE + extra
    if len(body) < at:
        raise TerminalError(f"cut off statement at {event.where}", "report this")
    database_size = body[8]
    status_size = int.from_bytes(body[11:13], "little")
    status = body[at : at + status_size]
    at += status_size
    if at + database_size + 1 > len(body):
        raise TerminalError(f"cut off statement at {event.where}", "report this")
    database = bytes(body[at : at + database_size]).decode("utf-8", "surrogateescape")
    text = bytes(body[at + database_size + 1 :])
    return database, _decode(text, status)


def _decode(text: bytes, status: memoryview) -> str:
    if not text.isascii():
        with contextlib.suppress(KeyError, IndexError, LookupError, UnicodeDecodeError):
            encoding = charset_by_id(_client_charset(status)).encoding
            if encoding is not None:
                return text.decode(encoding)
    return text.decode("utf-8", "surrogateescape")


def _client_charset(status: memoryview) -> int:
    """Collation id in which the client wrote the statement; ``IndexError`` if it is not told."""
    at = 0
    while True:
        kind = status[at]
        if kind == _CHARSET:
            return int.from_bytes(status[at + 1 : at + 3], "little")
        if kind == _CATALOG:
            at += 2 + status[at + 1]
        elif kind in _FIXED_SIZES:
            at += 1 + _FIXED_SIZES[kind]
        else:
            raise IndexError
