"""Connections to the source server: opening them, reading from them, and translating their errors."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pymysql
from pymysql.connections import Connection
from pymysql.constants import SERVER_STATUS
from pymysql.converters import conversions

from airflow_provider_cdc.model.errors import (
    CdcError,
    DamageError,
    NotReadyError,
    TableChangedError,
    TerminalError,
    TransientError,
    UnlistedError,
    mysql_error_text,
)
from airflow_provider_cdc.mysql.client.verified_connection import VerifiedConnection, describe_address

#: Keyword arguments of :class:`VerifiedConnection`. They contain the password, so never print them.
ConnectArgs = Mapping[str, Any]

#: Session settings of every connection, whatever the server's defaults are. DEFAULT would mean the server's value.
_SETTINGS = {
    "time_zone": "'+00:00'",  # so that TIMESTAMP is the same as in the binlog
    "sql_mode": "''",  # PAD_CHAR_TO_FULL_LENGTH would alter CHAR, and MariaDB's EMPTY_STRING_IS_NULL even more
    "sql_select_limit": "18446744073709551615",  # the server's limit would silently truncate every chunk
    "sql_big_selects": "1",
    "sql_safe_updates": "0",
    "completion_type": "'NO_CHAIN'",  # a COMMIT neither begins a transaction nor ends the connection
    "max_sort_length": "8388608",  # whole sort keys
    # Long enough for a slow reader, and for one that waits for its turn between two chunks.
    "net_write_timeout": "600",
    "net_read_timeout": "600",
    "wait_timeout": "86400",
    # Short, because a reader locks no rows, and gives way to a DDL that locks the table.
    "lock_wait_timeout": "60",
    "innodb_lock_wait_timeout": "1",
}
#: Not READ UNCOMMITTED, which would read rows that are rolled back later, nor SERIALIZABLE, which would lock rows.
_MYSQL_SETTINGS = {
    "transaction_isolation": "'REPEATABLE-READ'",
    "transaction_read_only": "0",
    "information_schema_stats_expiry": "0",  # fresh statistics
    "max_execution_time": "0",
}
#: MySQL 8.0.30 and later can hide generated keys. They are columns in the binlog, hidden or not.
_MYSQL_8030_SETTINGS = {"show_gipk_in_create_table_and_information_schema": "1"}
_MARIADB_SETTINGS = {
    "tx_isolation": "'REPEATABLE-READ'",
    "tx_read_only": "0",
    "max_statement_time": "0",
    "idle_transaction_timeout": "0",
    "idle_readonly_transaction_timeout": "0",
}


def _assignments(settings: Mapping[str, str]) -> str:
    return ", ".join(f"{name}={text}" for name, text in settings.items())


#: The first statement of every session. Only MySQL of these versions or later executes the first two comments, and only
#: MariaDB the last one.
SESSION_SQL = (
    f"SET SESSION {_assignments(_SETTINGS)} /*!80000 , {_assignments(_MYSQL_SETTINGS)} *//*!80030 , "
    f"{_assignments(_MYSQL_8030_SETTINGS)} */"
    f"/*M!100600 , {_assignments(_MARIADB_SETTINGS)} */"
)
#: Access denied (database, user, host, table, column, privilege), account locked, password expired, TLS required: the
#: server or the connection has to be reconfigured.
ACCESS_DENIED_CODES = frozenset({1044, 1045, 1130, 1142, 1143, 1227, 1698, 1820, 1862, 3118, 3159, 3955, 4151})
#: The table was changed under an open read view, or under a prepared statement.
_TABLE_CHANGED_CODES = {1412, 1615}
#: SHOW BINLOG EVENTS reached an event that is larger than the session's max_allowed_packet.
_EVENT_TOO_LARGE_CODE = 1220
#: Too many connections or queries (in total or for a user), out of memory or threads; offline or shutting down; the
#: connection broke or was killed; the statement was killed or timed out; a lock wait timed out.
_CONNECTION_LOST_CODES = frozenset(
    {1037, 1040, 1041, 1135, 1203, 1226, 3032, 1053, 1129, 1152, 1158, 1159, 1160, 1161, 1184, 1927}
)
_CONNECTION_LOST_CODES |= {2002, 2003, 2006, 2013, 2055, 3168, 3169, 4031, 1317, 1969, 3024, 1205, 1213}
#: Seconds of silence after which the server counts as lost: during login, and during a statement.
_LOGIN_SECONDS, _ANSWER_SECONDS = 30, 600
#: Exceptions that the driver raises for packets that it cannot parse.
_GARBLED_ERRORS = (AssertionError, AttributeError, IndexError, TypeError, ValueError, struct.error)


def connect(args: ConnectArgs) -> Connection[Any]:
    """Open an autocommit connection whose results are raw bytes; :func:`query_rows` reads them as text.

    :param args: pymysql.connect keyword arguments.
    :raises NotReadyError: if the server refuses the login.
    :raises TransientError: if it cannot be reached.
    """
    encoders = {k: v for k, v in conversions.items() if not isinstance(k, int)}
    with translate_errors(f"connecting to {describe_address(args)}", garbled=_GARBLED_ERRORS):
        connection = VerifiedConnection(
            **{
                "charset": "utf8mb4",
                "connect_timeout": 10,
                "read_timeout": _LOGIN_SECONDS,
                "write_timeout": _LOGIN_SECONDS,  # also limits the TLS handshake, which has no timeout of its own
                **args,
                "conv": encoders,
                "use_unicode": False,
                "autocommit": True,
                "init_command": SESSION_SQL,
            }
        )
    if connection.server_status & SERVER_STATUS.SERVER_STATUS_IN_TRANS:  # type: ignore[attr-defined]
        # The server's init_connect began a transaction, whose read view would be older than every watermark.
        query_bytes(connection, "COMMIT")
    # The login detects a server that hangs. Statements may take longer.
    connection._read_timeout = args.get("read_timeout", _ANSWER_SECONDS)  # type: ignore[attr-defined]
    connection._write_timeout = args.get("write_timeout", _ANSWER_SECONDS)  # type: ignore[attr-defined]
    return connection


def query_bytes(connection: Connection[Any], sql: str) -> tuple[tuple[bytes | None, ...], ...]:
    """Run one statement and return its rows as the server sent them.

    The statement is sent unchanged. The caller inserts values as literals
    (see :mod:`airflow_provider_cdc.mysql.client.key_sql`), and never formats external input into it.
    """
    with translate_errors("reading from the source", garbled=_GARBLED_ERRORS):
        connection.query(sql)
        result = connection._result  # type: ignore[attr-defined]  # the cursor would only add a copy
        return result.rows or ()


def query_rows(connection: Connection[Any], sql: str) -> list[tuple[str | None, ...]]:
    """Run one statement and return its rows as text (NULL is ``None``)."""
    # On the connection of a binlog stream, values are already converted, as the library that opens it requires.
    byte_rows: Iterable[tuple[Any, ...]] = query_bytes(connection, sql)
    return [tuple(v.decode() if isinstance(v, bytes) else v if v is None else str(v) for v in row) for row in byte_rows]


def query_dicts(connection: Connection[Any], sql: str) -> list[dict[str, str | None]]:
    """Run one statement and return its rows as text, keyed by column name."""
    text_rows = query_rows(connection, sql)
    result = connection._result  # type: ignore[attr-defined]
    return [{str(c[0]): v for c, v in zip(result.description or (), row, strict=True)} for row in text_rows]


def query_pairs(connection: Connection[Any], sql: str) -> dict[str, str]:
    """Run SHOW VARIABLES or SHOW STATUS, and return its names and values."""
    return {str(row[0]): str(row[1]) for row in query_rows(connection, sql)}


def query_value(connection: Connection[Any], sql: str) -> str | None:
    """Run one statement and return the first column of its first row; ``None`` if there is no row."""
    text_rows = query_rows(connection, sql)
    return text_rows[0][0] if text_rows else None


@contextmanager
def translate_errors(action: str, garbled: tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """Translate driver errors into the project's: access denied, worth a retry, or in need of a decision.

    :param action: what was being done, for the message.
    :param garbled: exceptions that can only mean that the server's answer cannot be parsed.
    """
    try:
        yield
    except CdcError:
        raise
    except pymysql.err.MySQLError as error:
        code = error.args[0] if error.args and isinstance(error.args[0], int) else 0
        text = mysql_error_text(error)
        if code in ACCESS_DENIED_CODES:
            raise NotReadyError(
                f"{action}: access denied ({text})",
                "Check user, password and grants of the connection: REPLICATION SLAVE, REPLICATION CLIENT, SELECT",
                code=code,
            ) from None
        if not code and isinstance(error, pymysql.err.InternalError | pymysql.err.InterfaceError):
            # An error of the driver itself: packets out of order, or a connection that it closed because of them.
            raise DamageError(f"{action}: {text}") from None
        if code == _EVENT_TOO_LARGE_CODE:
            raise UnlistedError(f"{action}: {text}", "Check the server's error log", code=code) from None
        if code in _TABLE_CHANGED_CODES:
            raise TableChangedError(f"{action}: {text}", "Run again", code=code) from None
        if code in _CONNECTION_LOST_CODES:
            raise TransientError(
                f"{action}: the server cannot be reached, or refused the request ({text})",
                "Check host, port, that the server is running, and its limits, then run the command again",
                code=code,
            ) from None
        remedy = "If a table was altered, start with a fresh sink.path; otherwise check the server's error log"
        raise TerminalError(f"{action}: {text}", remedy, code=code) from None
    except garbled as error:
        what = f"{type(error).__name__} {error}".strip()
        raise DamageError(f"{action}: the server's answer cannot be understood ({what})") from None
    except OSError as error:
        raise TransientError(
            f"{action}: {error}", "Check the network to the server, then run the command again"
        ) from None
