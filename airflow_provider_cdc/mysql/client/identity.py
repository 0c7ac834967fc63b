"""The server that a connection reaches: its product, its identity, the end of its binlog, its open XA transactions."""

from __future__ import annotations

from typing import Any

from pymysql.connections import Connection

from airflow_provider_cdc.ddl.affected_tables import format_xid
from airflow_provider_cdc.model.errors import NotReadyError, OtherServerError, TerminalError
from airflow_provider_cdc.model.offset import Position
from airflow_provider_cdc.mysql.client.product import Product
from airflow_provider_cdc.mysql.client.session import query_bytes, query_pairs, query_rows

#: The server's error for a user without the privilege.
_XAER_RMERR = 1401
#: Unless each of these variables is 1, the server may lose commits in a crash.
DURABILITY_VARIABLES = ("sync_binlog", "innodb_flush_log_at_trx_commit")


def product_of(connection: Connection[Any]) -> Product:
    """Return the server's product and version, by its greeting (no round trip)."""
    return Product.parse(str(connection.get_server_info()))  # type: ignore[no-untyped-call]


def is_mariadb(connection: Connection[Any]) -> bool:
    """Return whether the server is MariaDB, by its greeting (no round trip)."""
    return product_of(connection).is_mariadb


def server_identity(connection: Connection[Any]) -> str:
    """Return the identity of the server, which its positions belong to.

    On MySQL this is ``server_uuid``, which belongs to the data folder. MariaDB has none; there it is
    ``mariadb:<server_id>:<server_uid>`` (``<hostname>:<port>`` if there is no ``server_uid``), which belongs to the
    machine (docs/decisions/0015).
    """
    if not is_mariadb(connection):
        return str(query_rows(connection, "SELECT @@server_uuid")[0][0])
    names = "('server_id', 'server_uid', 'hostname', 'port')"
    variables = query_pairs(connection, f"SHOW GLOBAL VARIABLES WHERE Variable_name IN {names}")
    return f"mariadb:{variables['server_id']}:{variables.get('server_uid') or '{hostname}:{port}'.format(**variables)}"


def is_gtid_mode_on(connection: Connection[Any]) -> bool:
    """Return whether the server is MySQL and gives a GTID to every transaction that begins from now on."""
    return not is_mariadb(connection) and query_rows(connection, "SELECT @@global.gtid_mode")[0][0] == "ON"


def check_same_server(actual: str, expected: str | None) -> None:
    """Refuse to continue on another server than the one that the pipeline began on.

    :raises OtherServerError: if they differ.
    """
    if expected is not None and actual != expected:
        raise OtherServerError(
            f"the connection reaches server {actual}, but this pipeline began on {expected}",
            "Point the connection to the original server (not a load balancer), or start with a fresh sink.path",
        )


def binlog_status(connection: Connection[Any]) -> tuple[Position, str, str]:
    """Return the end of the binlog, the databases it is restricted to, and those it leaves out (empty: none).

    The server runs the statement under the binlog's lock, so the position is the end of a complete transaction.

    :raises NotReadyError: if the server writes no binlog.
    """
    status = query_rows(connection, product_of(connection).binlog_status_sql)
    if not status:
        raise NotReadyError("the server writes no binary log", "Start it with --log-bin and binlog_format=ROW")
    file, position, do, ignore = status[0][:4]
    return Position(str(file), int(position or 0)), do or "", ignore or ""


def binlog_end(connection: Connection[Any]) -> Position:
    """Return the end of the binlog; see :func:`binlog_status`."""
    return binlog_status(connection)[0]


def open_xa_transactions(connection: Connection[Any]) -> frozenset[str]:
    """Return the names of XA transactions that are prepared and not finished, including those just being finished.

    :raises NotReadyError: if the user lacks the privilege (MySQL only).
    """
    try:
        recovered = query_bytes(connection, "XA RECOVER")
    except TerminalError as error:
        if error.code != _XAER_RMERR:
            raise
        raise NotReadyError(
            "the user may not list XA transactions", "GRANT XA_RECOVER_ADMIN ON *.* TO the user of the connection"
        ) from None
    transactions = ((int(row[0] or 0), int(row[1] or 0), bytes(row[3] or b"")) for row in recovered)
    return frozenset(format_xid(format_id, name[:size], name[size:]) for format_id, size, name in transactions)
