"""Engines for the state database, with timeouts so that no connection waits forever for a silent server."""

from __future__ import annotations

import time
from typing import Any

from sqlalchemy import URL, Connection, Engine, create_engine, event
from sqlalchemy.pool import NullPool

from airflow_provider_cdc.system.postgres import KEEPALIVE

#: Connect timeout in seconds, and seconds for which a server may be silent during a query.
CONNECT_SECONDS, SILENCE_SECONDS = 10, 30.0
#: Seconds to wait in SQLite for a lock that another process holds.
SQLITE_LOCK_SECONDS = 30


def make_engine(url: URL, *, for_migration: bool = False) -> Engine:
    """Make an engine. Nothing is connected yet.

    :param for_migration: whether statements run without a timeout, as migrations need.
    """
    kind = url.get_backend_name()
    connect: dict[str, Any] = {}
    if kind == "sqlite":
        engine = create_engine(url, hide_parameters=True, connect_args={"timeout": SQLITE_LOCK_SECONDS})
        event.listen(engine, "connect", _sqlite_connect)
        event.listen(engine, "begin", _sqlite_begin)
        return engine
    if kind == "postgresql":
        # Settings in the URL take precedence. No statement_timeout: connection poolers refuse "options".
        options = {"connect_timeout": CONNECT_SECONDS, **KEEPALIVE}
        connect = {name: value for name, value in options.items() if name not in url.query}
    elif not for_migration:
        connect = {
            "connect_timeout": CONNECT_SECONDS,
            "read_timeout": SILENCE_SECONDS,
            "write_timeout": SILENCE_SECONDS,
        }
    engine = create_engine(
        url,
        hide_parameters=True,
        pool_pre_ping=True,
        connect_args=connect,
        poolclass=NullPool if for_migration else None,
    )
    if kind in ("mysql", "mariadb"):
        event.listen(engine, "do_connect", _mysql_connect)
    elif url.get_driver_name() == "psycopg" and not for_migration:
        event.listen(engine, "do_connect", _psycopg_connect)
    return engine


def _mysql_connect(_dialect: object, _record: object, _args: Any, kwargs: Any) -> Any:
    from airflow_provider_cdc.mysql.client.verified_connection import VerifiedConnection

    return VerifiedConnection(**kwargs)


def _psycopg_connect(_dialect: object, _record: object, args: Any, kwargs: Any) -> Any:
    from airflow_provider_cdc.system.postgres import connection_class_with_timeout

    return connection_class_with_timeout(SILENCE_SECONDS).connect(*args, **kwargs)


def _sqlite_connect(connection: Any, _record: object) -> None:
    """Turn on the write-ahead log, so that readers and the writer do not wait for each other."""
    connection.isolation_level = None  # SQLAlchemy begins transactions, not the driver
    deadline = time.monotonic() + SQLITE_LOCK_SECONDS
    while connection.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except Exception as error:
            # The only statement that does not wait for the lock while another process runs it.
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.02)
    connection.execute("PRAGMA synchronous = NORMAL")


def _sqlite_begin(connection: Connection) -> None:
    """Take the write lock right away: a transaction that first reads and then writes would fail instead of waiting."""
    writes = connection.get_execution_options().get("cdc_write")
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")
