"""Connections to the source server: one way to open them, one way to read from them, one way to name their errors."""

from __future__ import annotations

import ssl
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pymysql
from pymysql.connections import Connection
from pymysql.converters import conversions

from airflow_provider_cdc.exceptions import CdcError, NotReadyError, TerminalError, TransientError

#: pymysql.connect keyword arguments; they hold the password, so they are never printed.
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
_MYSQL = {
    "transaction_isolation": "'REPEATABLE-READ'",
    "transaction_read_only": "0",
    "information_schema_stats_expiry": "0",  # fresh statistics
    "max_execution_time": "0",
    "show_gipk_in_create_table_and_information_schema": "1",  # a generated key is a column of the binlog, shown or not
}
_MARIADB = {
    "tx_isolation": "'REPEATABLE-READ'",
    "tx_read_only": "0",
    "max_statement_time": "0",
    "idle_transaction_timeout": "0",
    "idle_readonly_transaction_timeout": "0",
}


def _assignments(settings: Mapping[str, str]) -> str:
    return ", ".join(f"{name}={text}" for name, text in settings.items())


#: The first statement of every session. Only MySQL executes the first comment, only MariaDB the second.
SESSION = (
    f"SET SESSION {_assignments(_SETTINGS)} /*!80000 , {_assignments(_MYSQL)} */"
    f"/*M!101100 , {_assignments(_MARIADB)} */"
)
_DENIED = {1044, 1045, 1142, 1143, 1227, 1698, 3118}
#: The table was changed under an open read view, or under a prepared statement.
_CHANGED = {1412, 1615}
_LOST = {1040, 1053, 1129, 1158, 1159, 1160, 1161, 1205, 1213, 2002, 2003, 2006, 2013, 2055, 4031}


class TableChangedError(TransientError):
    """The definition of a table changed while it was read: reading it again may do."""


if TYPE_CHECKING:
    _Connection = Connection[Any]
else:
    _Connection = Connection


class FastConnection(_Connection):
    """The driver's connection, without loading the system's certificates for TLS that checks none of them.

    The driver does so wherever nothing is said of TLS, and it takes longer than all the rest of opening a connection.
    """

    def _create_ssl_ctx(self, settings: Any) -> ssl.SSLContext:
        if settings:
            checked: ssl.SSLContext = super()._create_ssl_ctx(settings)  # type: ignore[misc]
            return checked
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        return context


def connect(args: ConnectArgs) -> Connection[Any]:
    """Open an autocommit connection whose results are raw bytes; :func:`rows` reads them as text.

    :param args: pymysql.connect keyword arguments.
    :raises NotReadyError: if the server refuses the login.
    :raises TransientError: if it cannot be reached.
    """
    encoders = {k: v for k, v in conversions.items() if not isinstance(k, int)}
    with errors(f"connecting to {where(args)}"):
        connection = FastConnection(
            **{
                "charset": "utf8mb4",
                "connect_timeout": 10,
                "read_timeout": 600,
                **args,
                "conv": encoders,
                "use_unicode": False,
                "autocommit": True,
                "init_command": SESSION,
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
    # The connection of a binlog stream converts values already: the library that opens it needs that.
    found: Iterable[tuple[Any, ...]] = raw(connection, sql)
    return [tuple(v.decode() if isinstance(v, bytes) else v if v is None else str(v) for v in row) for row in found]


def named(connection: Connection[Any], sql: str) -> list[dict[str, str | None]]:
    """Run one statement and return its rows as text by the names of their columns."""
    found = rows(connection, sql)
    result = connection._result  # type: ignore[attr-defined]
    return [{str(c[0]): v for c, v in zip(result.description or (), row, strict=True)} for row in found]


def pairs(connection: Connection[Any], sql: str) -> dict[str, str]:
    """Names and values of SHOW VARIABLES or SHOW STATUS."""
    return {str(row[0]): str(row[1]) for row in rows(connection, sql)}


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
        if code in _CHANGED:
            raise TableChangedError(f"{doing}: {code}: {text}", "Run again") from None
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
