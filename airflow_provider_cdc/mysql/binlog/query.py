"""The query event: default database and text of a statement."""

from __future__ import annotations

import contextlib
import zlib

from pymysql.charset import charset_by_id

from airflow_provider_cdc.exceptions import TerminalError
from airflow_provider_cdc.mysql.binlog.stream import Event

_HEADER_SIZE = 13  # thread, duration, length of the database name, error code, length of the status variables
_CHARSET = 4
#: Status variables that can stand before the character set, with their sizes.
_FIXED_SIZES = {0: 4, 1: 8, 3: 4}
_CATALOG = 6


def inflate(data: memoryview, event: Event) -> bytes:
    """Unpack what MariaDB has compressed (``log_bin_compress``).

    :param data: one byte with the algorithm and the width of the length, the length (most significant byte first),
        then what zlib made of it.
    :raises TerminalError: if it is damaged.
    """
    width = data[0] & 7 if data else 0
    expected = int.from_bytes(data[1 : 1 + width], "big")
    try:
        if not data or data[0] & 0x70:
            raise zlib.error
        # The length is a claim: nothing beyond it is unpacked.
        unpacker = zlib.decompressobj()
        found = unpacker.decompress(data[1 + width :], expected + 1)
        if len(found) != expected or not unpacker.eof:
            raise zlib.error
    except zlib.error:
        raise TerminalError(
            f"damaged compressed event at {event.where}",
            "run again; if it stays, set log_bin_compress=OFF and start with a fresh sink.path",
        ) from None
    return found


def read_query(event: Event, extra: int = 0, compressed: bool = False) -> tuple[str, str]:
    """Default database and text of a statement.

    :param event: a QUERY event.
    :param extra: bytes of a longer header (13 in EXECUTE_LOAD_QUERY).
    :param compressed: whether the text is (MariaDB's QUERY_COMPRESSED).
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
    rest = body[at + database_size + 1 :]
    text = inflate(rest, event) if compressed else bytes(rest)
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
