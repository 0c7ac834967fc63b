"""Connections to the source server: one way to open them, one way to read from them, one way to name their errors."""

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
)
from airflow_provider_cdc.mysql.client.verified_connection import VerifiedConnection, describe_address

#: Keyword arguments of :class:`VerifiedConnection`; they hold the password, so they are never printed.
ConnectArgs = Mapping[str, Any]

#: The session of every connection, whatever the server's defaults are; numbers, since DEFAULT means the server's.
_SETTINGS = {
    "time_zone": "'+00:00'",  # TIMESTAMP reads as the binlog holds it
    "sql_mode": "''",  # PAD_CHAR_TO_FULL_LENGTH would alter CHAR, EMPTY_STRING_IS_NULL of MariaDB even more
    "sql_select_limit": "18446744073709551615",  # a limit of the server's would cut every chunk without a word
    "sql_big_selects": "1",
    "sql_safe_updates": "0",
    "completion_type": "'NO_CHAIN'",  # a COMMIT neither begins a transaction nor ends the connection
    "max_sort_length": "8388608",  # whole sort keys
    # Patience with a slow reader, and with one that waits for its turn between two chunks.
    "net_write_timeout": "600",
    "net_read_timeout": "600",
    "wait_timeout": "86400",
    # None with locks: a reader takes no rows, and gives way to a DDL that holds the table.
    "lock_wait_timeout": "60",
    "innodb_lock_wait_timeout": "1",
}
#: Never READ UNCOMMITTED, which would read what is rolled back, nor SERIALIZABLE, which would lock what is read.
_MYSQL_SETTINGS = {
    "transaction_isolation": "'REPEATABLE-READ'",
    "transaction_read_only": "0",
    "information_schema_stats_expiry": "0",  # fresh statistics
    "max_execution_time": "0",
}
#: MySQL 8.0.30 began to hide keys that it generated. They are columns of the binlog, shown or not.
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


#: The first statement of every session. Only MySQL of these versions executes the first two comments, only MariaDB the
#: last one.
SESSION_SQL = (
    f"SET SESSION {_assignments(_SETTINGS)} /*!80000 , {_assignments(_MYSQL_SETTINGS)} *//*!80030 , "
    f"{_assignments(_MYSQL_8030_SETTINGS)} */"
    f"/*M!100600 , {_assignments(_MARIADB_SETTINGS)} */"
)
#: Access denied (database, user, host, table, column, privilege), account locked, password expired, TLS demanded: a
#: person has to do something at the server or at the connection.
ACCESS_DENIED_CODES = frozenset({1044, 1045, 1130, 1142, 1143, 1227, 1698, 1820, 1862, 3118, 3159, 3955, 4151})
#: The table was changed under an open read view, or under a prepared statement.
_TABLE_CHANGED_CODES = {1412, 1615}
#: SHOW BINLOG EVENTS met an event that the session may not have: it is larger than max_allowed_packet.
_EVENT_TOO_LARGE_CODE = 1220
#: Too many connections or questions (of all, of a user), out of memory or threads; offline or going down; the
#: connection broke, or was killed; the statement was killed, or took too long; locks that were not obtained in time.
_CONNECTION_LOST_CODES = frozenset(
    {1037, 1040, 1041, 1135, 1203, 1226, 3032, 1053, 1129, 1152, 1158, 1159, 1160, 1161, 1184, 1927}
)
_CONNECTION_LOST_CODES |= {2002, 2003, 2006, 2013, 2055, 3168, 3169, 4031, 1317, 1969, 3024, 1205, 1213}
#: Seconds without a word from the server after which it counts as lost: while logging in, and in a statement.
_LOGIN_SECONDS, _ANSWER_SECONDS = 30, 600
#: What the driver raises of packets that it does not understand.
_GARBLED_ERRORS = (AssertionError, AttributeError, IndexError, TypeError, ValueError, struct.error)


def connect(args: ConnectArgs) -> Connection[Any]:
    """Open an autocommit connection whose results are raw bytes; :func:`rows` reads them as text.

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
                "write_timeout": _LOGIN_SECONDS,  # of the TLS handshake, too, which would have none
                **args,
                "conv": encoders,
                "use_unicode": False,
                "autocommit": True,
                "init_command": SESSION_SQL,
            }
        )
    if connection.server_status & SERVER_STATUS.SERVER_STATUS_IN_TRANS:  # type: ignore[attr-defined]
        # init_connect of the server has begun one: its read view would be older than every watermark.
        query_bytes(connection, "COMMIT")
    # A server that hangs is found at the login; what takes long are statements.
    connection._read_timeout = args.get("read_timeout", _ANSWER_SECONDS)  # type: ignore[attr-defined]
    connection._write_timeout = args.get("write_timeout", _ANSWER_SECONDS)  # type: ignore[attr-defined]
    return connection


def query_bytes(connection: Connection[Any], sql: str) -> tuple[tuple[bytes | None, ...], ...]:
    """Run one statement and return its rows as the server sent them.

    The statement is sent as it stands: values are put in by the caller as literals, never by string formatting of
    anything that came from outside (see :mod:`airflow_provider_cdc.mysql.client.key_sql`).
    """
    with translate_errors("reading from the source", garbled=_GARBLED_ERRORS):
        connection.query(sql)
        result = connection._result  # type: ignore[attr-defined]  # the cursor would only add a copy
        return result.rows or ()


def query_rows(connection: Connection[Any], sql: str) -> list[tuple[str | None, ...]]:
    """Run one statement and return its rows as text (NULL is ``None``)."""
    # The connection of a binlog stream converts values already: the library that opens it needs that.
    byte_rows: Iterable[tuple[Any, ...]] = query_bytes(connection, sql)
    return [tuple(v.decode() if isinstance(v, bytes) else v if v is None else str(v) for v in row) for row in byte_rows]


def query_dicts(connection: Connection[Any], sql: str) -> list[dict[str, str | None]]:
    """Run one statement and return its rows as text by the names of their columns."""
    text_rows = query_rows(connection, sql)
    result = connection._result  # type: ignore[attr-defined]
    return [{str(c[0]): v for c, v in zip(result.description or (), row, strict=True)} for row in text_rows]


def query_pairs(connection: Connection[Any], sql: str) -> dict[str, str]:
    """Names and values of SHOW VARIABLES or SHOW STATUS."""
    return {str(row[0]): str(row[1]) for row in query_rows(connection, sql)}


def query_value(connection: Connection[Any], sql: str) -> str | None:
    """First column of the first row of a statement, ``None`` if there is no row."""
    text_rows = query_rows(connection, sql)
    return text_rows[0][0] if text_rows else None


@contextmanager
def translate_errors(action: str, garbled: tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """Turn driver errors into the project's: what was denied, what is worth a retry, what needs a decision.

    :param action: what was going on, for the message.
    :param garbled: what is raised only if the server's words cannot be understood.
    """
    try:
        yield
    except CdcError:
        raise
    except pymysql.err.MySQLError as error:
        code = error.args[0] if error.args and isinstance(error.args[0], int) else 0
        text = str(error.args[1]) if len(error.args) > 1 else str(error)
        if code in ACCESS_DENIED_CODES:
            raise NotReadyError(
                f"{action}: access denied ({code}: {text})",
                "Check user, password and grants of the connection: REPLICATION SLAVE, REPLICATION CLIENT, SELECT",
                code=code,
            ) from None
        if not code and isinstance(error, pymysql.err.InternalError | pymysql.err.InterfaceError):
            # The driver's own: packets out of order, or a connection that it has closed because of them.
            raise DamageError(f"{action}: {text}") from None
        if code == _EVENT_TOO_LARGE_CODE:
            raise UnlistedError(f"{action}: {code}: {text}", "Look at the server's error log", code=code) from None
        if code in _TABLE_CHANGED_CODES:
            raise TableChangedError(f"{action}: {code}: {text}", "Run again", code=code) from None
        if code in _CONNECTION_LOST_CODES:
            raise TransientError(
                f"{action}: the server cannot be reached, or refused ({code}: {text})",
                "Check host, port, that the server runs, and its limits, then run the command again",
                code=code,
            ) from None
        remedy = "If a table was altered, start with a fresh sink.path; else look at the server's error log"
        raise TerminalError(f"{action}: {code}: {text}", remedy, code=code) from None
    except garbled as error:
        what = f"{type(error).__name__} {error}".strip()
        raise DamageError(f"{action}: the server's answer cannot be understood ({what})") from None
    except OSError as error:
        raise TransientError(
            f"{action}: {error}", "Check the network to the server, then run the command again"
        ) from None
