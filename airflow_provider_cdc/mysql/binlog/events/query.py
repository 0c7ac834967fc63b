"""Query events: a statement's text and its default database."""

from __future__ import annotations

import zlib
from dataclasses import dataclass

from pymysql.charset import charset_by_id

from airflow_provider_cdc.ddl.token_cursor import StatementSession
from airflow_provider_cdc.ddl.tokens import Quoting
from airflow_provider_cdc.model.errors import REPORT_REMEDY, TerminalError
from airflow_provider_cdc.mysql.binlog.events.event import BinlogEvent
from airflow_provider_cdc.mysql.binlog.events.event_types import EXECUTE_LOAD_QUERY, QUERY_COMPRESSED

_HEADER_SIZE = 13  # thread, duration, length of the database name, error code, length of the status variables
_LOAD_HEADER_SIZE = 13  # what EXECUTE_LOAD_QUERY has in addition: about the file
_SQL_MODE, _CHARSET, _ZONE, _CATALOG, _INVOKER, _DATABASES, _UTF8MB4 = 1, 4, 5, 6, 11, 12, 18
#: Sizes in bytes of the status variables with a fixed size.
_FIXED_SIZES = {0: 4, _SQL_MODE: 8, 3: 4, _CHARSET: 6, 7: 2, 8: 2, 9: 8, 10: 4, 13: 3, 16: 1, 17: 8, _UTF8MB4: 2}
#: Number of changed databases that stands for "too many to list".
_TOO_MANY = 254
_REAL_AS_FLOAT, _ANSI_QUOTES, _NO_BACKSLASH_ESCAPES = 1, 4, 1 << 20
#: POSTGRESQL, ORACLE, MSSQL, DB2, MAXDB, MYSQL323, MYSQL40: in some of them, DATE or TIMESTAMP means another type.
_TYPE_CHANGING_MODES = 256 | 512 | 1024 | 2048 | 4096 | 1 << 16 | 1 << 17
#: Possible values of MySQL's default_collation_for_utf8mb4.
_UTF8MB4_COLLATIONS = {45: "utf8mb4_general_ci", 255: "utf8mb4_0900_ai_ci"}
#: Client character sets whose Python codec decodes every character as the server does, or refuses it.
_CODECS = {
    **dict.fromkeys(("utf8", "utf8mb3", "utf8mb4"), "utf-8"),
    "latin1": "cp1252",
    "koi8r": "koi8_r",
    "macroman": "mac_roman",
    **{name: name for name in ("ascii", "latin2", "latin5", "latin7", "tis620", "euckr", "gb2312", "gbk", "cp932")},
    **{name: name for name in ("cp850", "cp852", "cp1250", "cp1251", "cp1257")},
}
#: Other character sets. Their codecs find character boundaries, which matter because a trailing byte may look like a
#: quote or a backslash.
_BOUNDARY_CODECS = {"big5": "big5", "sjis": "shift_jis", "gb18030": "gb18030"}


@dataclass(frozen=True, slots=True)
class QueryEvent:
    """A statement.

    :param database: default database.
    :param sql: text of the statement. A lone surrogate stands for an unknown character: bytes that are invalid in the
        client's character set, and characters of a set that cannot be decoded exactly as the server does.
    :param quoting: the session's quoting rules.
    :param session: other session settings that affect column definitions.
    """

    database: str
    sql: str
    quoting: Quoting
    session: StatementSession


def decompress_mariadb(data: memoryview, event: BinlogEvent) -> bytes:
    """Unpack data that MariaDB has compressed (``log_bin_compress``).

    :param data: one byte with the algorithm and the width of the length, the length (most significant byte first), and
        the zlib stream.
    :raises TerminalError: if the data is damaged.
    """
    width = data[0] & 7 if data else 0
    expected = int.from_bytes(data[1 : 1 + width], "big")
    try:
        if not data or data[0] & 0x70:
            raise zlib.error
        # The length is only a claim: nothing beyond it is unpacked.
        unpacker = zlib.decompressobj()
        content = unpacker.decompress(data[1 + width :], expected + 1)
        if len(content) != expected or not unpacker.eof:
            raise zlib.error
    except zlib.error:
        raise TerminalError(
            f"damaged compressed event at {event.location}",
            "Run again. If the error persists, set log_bin_compress=OFF and start with a fresh sink.path",
        ) from None
    return content


def parse_query_event(event: BinlogEvent) -> QueryEvent:
    """Parse an event of type QUERY, EXECUTE_LOAD_QUERY or QUERY_COMPRESSED.

    :raises TerminalError: if the event is cut off.
    """
    body = event.body
    at = _HEADER_SIZE + (_LOAD_HEADER_SIZE if event.type == EXECUTE_LOAD_QUERY else 0)
    if len(body) < at:
        raise TerminalError(f"cut off statement at {event.location}", REPORT_REMEDY)
    database_size = body[8]
    status_size = int.from_bytes(body[11:13], "little")
    status = _parse_status_variables(body[at : at + status_size])
    at += status_size
    if at + database_size + 1 > len(body):
        raise TerminalError(f"cut off statement at {event.location}", REPORT_REMEDY)
    database = bytes(body[at : at + database_size]).decode("utf-8", "surrogateescape")
    rest = body[at + database_size + 1 :]
    text = decompress_mariadb(rest, event) if event.type == QUERY_COMPRESSED else bytes(rest)
    mode = status.get(_SQL_MODE, 0)
    quoting = Quoting(not mode & _NO_BACKSLASH_ESCAPES, bool(mode & _ANSI_QUOTES))
    session = StatementSession(
        quoting=quoting,
        real_as_float=bool(mode & _REAL_AS_FLOAT),
        standard_types=_SQL_MODE in status and not mode & _TYPE_CHANGING_MODES,
        utf8mb4_collation=_UTF8MB4_COLLATIONS.get(status.get(_UTF8MB4, 0)),
    )
    return QueryEvent(database, _decode_sql(text, _client_charset(status.get(_CHARSET))), quoting, session)


def _decode_sql(text: bytes, charset: str) -> str:
    if text.isascii():
        return text.decode("ascii")
    if charset in _BOUNDARY_CODECS:
        text_found = text.decode(_BOUNDARY_CODECS[charset], "surrogateescape")
        return "".join(c if c.isascii() else "\udcff" for c in text_found)
    return text.decode(_CODECS.get(charset, "ascii"), "surrogateescape")


def _client_charset(collation: int | None) -> str:
    """Return the client's character set; unknown numbers are newer collations, which only Unicode has."""
    try:
        return str(charset_by_id((collation or 0) & 0xFFFF).name)  # type: ignore[attr-defined]
    except KeyError:
        return "utf8mb4"


def _parse_status_variables(variables: memoryview) -> dict[int, int]:
    """Return the status variables as numbers, up to the first one of unknown size."""
    status, at = dict[int, int](), 0
    while at < len(variables):
        kind = variables[at]
        at += 1
        if kind in _FIXED_SIZES:
            status[kind] = int.from_bytes(variables[at : at + _FIXED_SIZES[kind]], "little")
            at += _FIXED_SIZES[kind]
        elif kind in (_CATALOG, _ZONE, _INVOKER):
            for _ in range(2 if kind == _INVOKER else 1):
                at += 1 + (variables[at] if at < len(variables) else 0)
        elif kind == _DATABASES and at < len(variables):
            count, at = variables[at], at + 1
            for _ in range(count if count != _TOO_MANY else 0):
                at += len(bytes(variables[at:]).partition(b"\0")[0]) + 1
        else:
            break
    return status
