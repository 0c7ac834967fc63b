"""Connections to the source server: one way to open them, one way to read from them, one way to name their errors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pymysql
from pymysql.connections import Connection
from pymysql.converters import conversions

from airflow_provider_cdc.exceptions import CdcError, NotReadyError, TerminalError, TransientError

#: pymysql.connect keyword arguments; they hold the password, so they are never printed.
ConnectArgs = Mapping[str, Any]

#: The session of every connection. UTC, so that TIMESTAMP reads as the binlog holds it; never READ UNCOMMITTED, which
#: a server may have as default; no sql_mode, since PAD_CHAR_TO_FULL_LENGTH would alter CHAR; whole sort keys; fresh
#: statistics; patience with a slow reader.
_SESSION = (
    "SET SESSION time_zone='+00:00', transaction_isolation='REPEATABLE-READ', sql_mode='', max_sort_length=8388608, "
    "information_schema_stats_expiry=0, net_write_timeout=600, max_execution_time=0"
)
_DENIED = {1044, 1045, 1142, 1143, 1227, 1698, 3118}
_LOST = {1040, 1053, 1129, 1158, 1159, 1160, 1161, 1205, 1213, 2002, 2003, 2006, 2013, 2055, 4031}


def connect(args: ConnectArgs) -> Connection[Any]:
    """Open an autocommit connection whose results are raw bytes; :func:`rows` reads them as text.

    :param args: pymysql.connect keyword arguments.
    :raises NotReadyError: if the server refuses the login.
    :raises TransientError: if it cannot be reached.
    """
    encoders = {k: v for k, v in conversions.items() if not isinstance(k, int)}
    with errors(f"connecting to {where(args)}"):
        connection = pymysql.connect(
            **{
                "charset": "utf8mb4",
                "connect_timeout": 10,
                "read_timeout": 600,
                **args,
                "conv": encoders,
                "use_unicode": False,
                "autocommit": True,
                "init_command": _SESSION,
            }
        )
    return connection


def where(args: ConnectArgs) -> str:
    """Host and port for messages."""
    return str(args.get("unix_socket") or f"{args.get('host', '127.0.0.1')}:{args.get('port', 3306)}")


def raw(connection: Connection[Any], sql: str) -> tuple[tuple[bytes | None, ...], ...]:
    """Run one statement and return its rows as the server sent them.

    The statement is sent as it stands: values are put in by the caller as literals, never by string formatting of
    anything that came from outside (see :mod:`airflow_provider_cdc.mysql.keys`).
    """
    with errors("reading from the source"):
        connection.query(sql)
        result = connection._result  # type: ignore[attr-defined]  # the cursor would only add a copy
        return result.rows or ()


def rows(connection: Connection[Any], sql: str) -> list[tuple[str | None, ...]]:
    """Run one statement and return its rows as text (NULL is ``None``)."""
    return [tuple(None if v is None else v.decode() for v in row) for row in raw(connection, sql)]


def value(connection: Connection[Any], sql: str) -> str | None:
    """First column of the first row of a statement, ``None`` if there is no row."""
    found = rows(connection, sql)
    return found[0][0] if found else None


@contextmanager
def errors(doing: str) -> Iterator[None]:
    """Turn driver errors into the project's: what was denied, what is worth a retry, what needs a person.

    :param doing: what was going on, for the message.
    """
    try:
        yield
    except CdcError:
        raise
    except pymysql.err.MySQLError as error:
        code = error.args[0] if error.args and isinstance(error.args[0], int) else 0
        text = str(error.args[1]) if len(error.args) > 1 else str(error)
        if code in _DENIED:
            raise NotReadyError(
                f"{doing}: access denied ({code}: {text})",
                "Check user, password and grants of the connection: REPLICATION SLAVE, REPLICATION CLIENT, SELECT",
            ) from None
        if code in _LOST:
            raise TransientError(
                f"{doing}: the server cannot be reached, or gave up ({code}: {text})",
                "Check host, port and that the server runs, then run the command again",
            ) from None
        remedy = "If a table was altered, start with a fresh sink.path; else look at the server's error log"
        raise TerminalError(f"{doing}: {code}: {text}", remedy) from None
    except OSError as error:
        raise TransientError(
            f"{doing}: {error}", "Check the network to the server, then run the command again"
        ) from None
