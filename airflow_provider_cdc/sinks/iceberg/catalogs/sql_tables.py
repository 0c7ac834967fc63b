"""The tables of a SQL catalog: those of Java's ``JdbcCatalog`` (schema version V1), which others have adopted."""

from __future__ import annotations

from sqlalchemy import URL, Column, Connection, Engine, MetaData, String, Table, create_engine, event, inspect
from sqlalchemy.pool import NullPool

from airflow_provider_cdc.model.errors import NotReadyError

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


def make_catalog_engine(url: URL) -> Engine:
    """Make an engine. Nothing is connected yet.

    :param url: URL of a SQLite database.
    """
    engine = create_engine(
        url, hide_parameters=True, poolclass=NullPool, connect_args={"timeout": _SQLITE_LOCK_SECONDS}
    )
    event.listen(engine, "connect", _sqlite_connect)
    event.listen(engine, "begin", _sqlite_begin)
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
    _METADATA.create_all(connection)


def _sqlite_connect(connection: object, _record: object) -> None:
    connection.isolation_level = None  # type: ignore[attr-defined]  # SQLAlchemy begins transactions, not the driver
    # Otherwise a transaction that was committed could be rolled back after a loss of power: its journal would be back.
    connection.execute("PRAGMA synchronous = EXTRA")  # type: ignore[attr-defined]


def _sqlite_begin(connection: Connection) -> None:
    """Take the write lock right away: a transaction that first reads and then writes would fail instead of waiting."""
    writes = connection.get_execution_options().get("cdc_write")
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")
