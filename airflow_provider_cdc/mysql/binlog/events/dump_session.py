"""Set up the session in which a server sends its binlog."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pymysql

from airflow_provider_cdc.model.errors import CdcError
from airflow_provider_cdc.mysql.client.collations import Collations, collations_of
from airflow_provider_cdc.mysql.client.identity import check_same_server, is_mariadb, server_identity
from airflow_provider_cdc.mysql.client.session import SESSION_SQL
from airflow_provider_cdc.mysql.client.verified_connection import VerifiedConnection

_COM_BINLOG_DUMP, _SEND_ANNOTATE_ROWS = 0x12, 2
#: Seconds after which the server drops a reader that receives nothing; a slow sink must not lose its stream.
_NET_TIMEOUT = 3600


def open_dump_session(server: str | None, **settings: Any) -> tuple[pymysql.Connection[Any], Collations]:
    """Open a connection and prepare its session for the dump; replaces ``pymysql.connect`` in the library.

    :param server: expected identity of the server; ``None`` accepts any.
    :param settings: keyword arguments of ``pymysql.connect``.
    :returns: the connection, and the server's collations, which cannot be queried once the dump has started.
    """
    connection = VerifiedConnection(**settings, init_command=SESSION_SQL)
    try:
        check_same_server(actual_server := server_identity(connection), server)
        collations = collations_of(connection, actual_server)
    except CdcError:
        connection.close()
        raise
    if is_mariadb(connection):
        connection._write_bytes = partial(_request_annotations, connection._write_bytes)  # type: ignore[attr-defined]
    with connection.cursor() as cursor:
        cursor.execute(f"SET SESSION net_write_timeout = {_NET_TIMEOUT}, SESSION net_read_timeout = {_NET_TIMEOUT}")
        # A reader that supports checksums can read files with and without them. The server's current setting says
        # nothing about older files.
        cursor.execute("SET @source_binlog_checksum = 'CRC32', @master_binlog_checksum = 'CRC32'")
        # Tells MariaDB that this reader understands GTIDs. Other readers get substitute events with other positions.
        cursor.execute("SET @mariadb_slave_capability = 4")
    return connection, collations


def _request_annotations(send: Callable[[bytes], None], data: bytes) -> None:
    """Set the flag of the dump command that makes MariaDB send all events; without it, some are silently omitted."""
    if data[4] == _COM_BINLOG_DUMP:
        data = data[:9] + bytes([data[9] | _SEND_ANNOTATE_ROWS]) + data[10:]
    send(data)
