"""The tables of a SQL catalog: those of Java's ``JdbcCatalog`` (schema version V1), which others have adopted."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

from sqlalchemy import (
    URL,
    Column,
    Connection,
    Engine,
    MetaData,
    String,
    Table,
    create_engine,
    event,
    func,
    inspect,
    select,
)
from sqlalchemy.pool import NullPool

from airflow_provider_cdc.model.errors import NotReadyError
from airflow_provider_cdc.system.postgres import KEEPALIVE, connection_class_with_timeout

_METADATA = MetaData()
#: A row for each table or view. ``iceberg_type`` is NULL in rows of clients that knew no views.
ICEBERG_TABLES = Table(
    "iceberg_tables",
    _METADATA,
    Column("catalog_name", String(255), primary_key=True),
    Column("table_namespace", String(255), primary_key=True),
    Column("table_name", String(255), primary_key=True),
    Column("metadata_location", String(1000)),
    Column("previous_metadata_location", String(1000)),
    Column("iceberg_type", String(5)),
)
#: A namespace exists if it has a property.
NAMESPACE_PROPERTIES = Table(
    "iceberg_namespace_properties",
    _METADATA,
    Column("catalog_name", String(255), primary_key=True),
    Column("namespace", String(255), primary_key=True),
    Column("property_key", String(255), primary_key=True),
    Column("property_value", String(1000)),
)
#: ``iceberg_type`` of a table.
TABLE_TYPE = "TABLE"
#: The property of a namespace that has no others.
EXISTS_PROPERTY = {"property_key": "exists", "property_value": "true"}
#: Seconds to wait in SQLite for a lock that another process holds.
_SQLITE_LOCK_SECONDS = 30
#: Seconds to connect, and seconds for which a server may be silent.
_CONNECT_SECONDS, SILENCE_SECONDS = 10, 30.0
_ADVISORY_LOCK = 0x63646332  # any number of our own


def make_catalog_engine(url: URL) -> Engine:
    """Make an engine. Nothing is connected yet.

    :param url: URL of a database in SQLite or PostgreSQL.
    :raises NotReadyError: if the URL is for another kind of database, or its driver is not installed.
    """
    if url.get_backend_name() == "sqlite":
        options = {"timeout": _SQLITE_LOCK_SECONDS}
        engine = create_engine(url, hide_parameters=True, poolclass=NullPool, connect_args=options)
        event.listen(engine, "connect", _sqlite_connect)
        event.listen(engine, "begin", _sqlite_begin)
        return engine
    if url.get_backend_name() != "postgresql":
        raise NotReadyError(
            f"the SQL catalog is in {url.get_backend_name()}, which is not supported", "Use SQLite or PostgreSQL"
        )
    if find_spec("psycopg") is None:
        raise NotReadyError(
            "a SQL catalog in PostgreSQL needs psycopg, which is not installed",
            'Run on every host: pip install "airflow-provider-cdc[postgres]"',
        )
    defaults = {"connect_timeout": _CONNECT_SECONDS, **KEEPALIVE}
    engine = create_engine(
        url.set(drivername="postgresql+psycopg"),
        hide_parameters=True,
        pool_pre_ping=True,
        pool_size=1,
        isolation_level="READ COMMITTED",  # a stricter one would raise an error where the caller expects a conflict
        connect_args={name: value for name, value in defaults.items() if name not in url.query},
    )
    event.listen(engine, "do_connect", _psycopg_connect)
    return engine


def has_catalog_tables(connection: Connection) -> bool:
    """Return whether the tables exist.

    :raises NotReadyError: if they are those of an older schema version.
    """
    inspector = inspect(connection)
    if not all(inspector.has_table(table.name) for table in _METADATA.sorted_tables):
        return False
    if "iceberg_type" not in {column["name"] for column in inspector.get_columns(ICEBERG_TABLES.name)}:
        raise NotReadyError(
            f"the SQL catalog {connection.engine.url.set(query={}).render_as_string()} has tables of schema version V0",
            "Upgrade it; no client loses anything: ALTER TABLE iceberg_tables ADD COLUMN iceberg_type VARCHAR(5)",
        )
    return True


def create_catalog_tables(connection: Connection) -> None:
    """Create the tables that do not exist."""
    if connection.dialect.name == "postgresql":  # two processes could not create them at the same time
        connection.execute(select(func.pg_advisory_xact_lock(_ADVISORY_LOCK)))
    _METADATA.create_all(connection)


def _psycopg_connect(_dialect: object, _record: object, args: Any, kwargs: Any) -> Any:
    return connection_class_with_timeout(SILENCE_SECONDS).connect(*args, **kwargs)


def _sqlite_connect(connection: Any, _record: object) -> None:
    connection.isolation_level = None  # SQLAlchemy begins transactions, not the driver
    # Otherwise a transaction that was committed could be rolled back after a loss of power: its journal would be back.
    connection.execute("PRAGMA synchronous = EXTRA")


def _sqlite_begin(connection: Connection) -> None:
    """Take the write lock right away: a transaction that first reads and then writes would fail instead of waiting."""
    writes = connection.get_execution_options().get("cdc_write")
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")
