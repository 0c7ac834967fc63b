"""A catalog in a SQL database, which Java's ``JdbcCatalog`` and pyiceberg's ``SqlCatalog`` may share."""

from __future__ import annotations

import os
import re
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from sqlalchemy import URL, ColumnElement, Connection, delete, exc, insert, make_url, or_, select, update

from airflow_provider_cdc.config.connections import scrub_secrets
from airflow_provider_cdc.config.store_access import StoreAccess
from airflow_provider_cdc.model.errors import CdcError, NotReadyError, TerminalError, TransientError
from airflow_provider_cdc.sinks.iceberg.catalogs.file_locations import open_file_folder
from airflow_provider_cdc.sinks.iceberg.catalogs.protocol import CatalogTable, CommitOutcome, TableIdentifier
from airflow_provider_cdc.sinks.iceberg.catalogs.sql_tables import (
    EXISTS_PROPERTY,
    ICEBERG_TABLES,
    NAMESPACE_PROPERTIES,
    TABLE_TYPE,
    create_catalog_tables,
    has_catalog_tables,
    make_catalog_engine,
)
from airflow_provider_cdc.sinks.iceberg.format.table_metadata import TableMetadata, parse_metadata
from airflow_provider_cdc.sinks.iceberg.format.table_updates import (
    Requirement,
    Update,
    apply_updates,
    find_unmet_requirement,
)
from airflow_provider_cdc.sinks.storage.disk import why_not_writable

#: Property with the folder of metadata files; by default ``metadata`` below the table's location.
_METADATA_FOLDER = "write.metadata.path"
#: Property that lets writers delete metadata files that are in the log no more.
_DELETE_AFTER_COMMIT = "write.metadata.delete-after-commit.enabled"
_CHECK_DATABASE = (
    "Correct the uri of the catalog, or the login and password in sink.conn_id; its user must have the right to write"
)
_VERSION = re.compile(r"(\d+)-.*")
#: How often a table is looked up whose metadata file is deleted meanwhile.
_LOAD_TRIES = 5
#: The database is unavailable or read-only.
_OUTAGES = (exc.OperationalError, exc.InterfaceError, exc.InternalError, exc.TimeoutError)
#: Messages of outages that a retry does not end.
_UNUSABLE = re.compile(
    "unable to open database file|readonly database|authentication failed|no pg_hba.conf entry|does not exist|"
    "certificate verify failed|server certificate for|does not support SSL|no password supplied"
)


class SqlCatalog:
    """A catalog in a SQL database; see :class:`~airflow_provider_cdc.sinks.iceberg.catalogs.protocol.Catalog`.

    The metadata of a table is in a file, whose location is in the database. A commit writes the next file, and replaces
    the location if it is still the one that the commit is based on.

    :param url: SQLAlchemy URL of the database.
    :param catalog_name: several catalogs may share the database; other clients need this name.
    :param access: settings and credentials of the object store with the tables' files.
    """

    def __init__(self, url: str | URL, catalog_name: str, access: StoreAccess | None = None) -> None:
        self._engine = make_catalog_engine(make_url(url))
        self._write_engine = self._engine.execution_options(cdc_write=True)
        self._catalog_name, self._access = catalog_name, access
        self._tables_exist = False
        self._loaded = dict[TableIdentifier, CatalogTable]()

    @property
    def name(self) -> str:
        """See :class:`Catalog`."""
        # Without the query part: it may contain the password of a key.
        return f"SQL catalog {self._engine.url.set(query={}).render_as_string(hide_password=True)}"

    def check(self) -> str:
        """See :class:`Catalog`. A file of SQLite is made with the first table."""
        url = self._engine.url
        if url.get_backend_name() == "sqlite":
            folder = os.path.dirname(url.database or "")
            if (reason := why_not_writable(folder)) is not None:  # SQLite writes a journal there, too
                raise NotReadyError(
                    f"the {self.name} is not usable: {folder} {reason}",
                    "Create the folder, and give the user that runs this write access to it; or correct the catalog's "
                    "uri",
                )
        if url.get_backend_name() != "sqlite" or os.path.exists(url.database or ""):
            with self._translate_errors(), self._engine.connect() as connection:
                has_catalog_tables(connection)
        return f"{self.name}, name {self._catalog_name}"

    def load_table(self, table: TableIdentifier) -> CatalogTable | None:
        """See :class:`Catalog`."""
        missing_location: str | None = None
        for _ in range(_LOAD_TRIES):
            location = self._find_metadata_location(table)
            if location is None:
                return None
            if location == missing_location:
                break
            loaded = self._loaded.get(table)
            if loaded is not None and loaded.metadata_location == location:
                return loaded  # metadata files never change
            storage, name = open_file_folder(location, self._access)
            data = storage.read(name)
            if data is not None:
                return self._remember(table, parse_metadata(data, location), location)
            missing_location = location  # another writer may have replaced, and deleted, it
        raise TerminalError(
            f"the metadata file {missing_location} of the Iceberg table {table} is missing",
            f"Restore the file from a backup, or register another one in the {self.name}",
        )

    def create_table(self, table: TableIdentifier, metadata: TableMetadata) -> CatalogTable | None:
        """See :class:`Catalog`."""
        key = self._key_of(table)
        location = self._write_metadata(metadata, None)
        row = {**key, "metadata_location": location, "iceberg_type": TABLE_TYPE}

        def insert_row(connection: Connection) -> bool:
            self._prepare_tables(connection)
            self._create_namespace(connection, key["table_namespace"])
            if self._select_row(connection, table) is not None:
                return False
            connection.execute(insert(ICEBERG_TABLES).values(row))
            return True

        done = self._write_row(insert_row, location)
        if done is None:
            raise TransientError(
                f"the {self.name} did not answer whether it has created table {table}", "Run again when it is reachable"
            )
        return self._remember(table, metadata, location) if done else None

    def commit_table(
        self,
        table: TableIdentifier,
        base: CatalogTable,
        requirements: Sequence[Requirement],
        updates: Sequence[Update],
    ) -> tuple[CommitOutcome, CatalogTable | None]:
        """See :class:`Catalog`. It is a conflict whenever the table has changed since it was loaded."""
        if find_unmet_requirement(base.metadata, requirements) is not None:
            return CommitOutcome.CONFLICT, None
        metadata = apply_updates(base.metadata, updates, _now_ms(), base.metadata_location)
        location = self._write_metadata(metadata, base.metadata_location)
        statement = (
            update(ICEBERG_TABLES)
            .where(*self._row_of(table), ICEBERG_TABLES.c.metadata_location == base.metadata_location, _IS_TABLE)
            .values(metadata_location=location, previous_metadata_location=base.metadata_location)
        )
        done = self._write_row(lambda connection: connection.execute(statement).rowcount == 1, location)
        if done is None:
            return CommitOutcome.UNKNOWN, None
        if not done:
            return CommitOutcome.CONFLICT, None
        self._delete_old_files(base.metadata, metadata)
        return CommitOutcome.DONE, self._remember(table, metadata, location)

    def drop_table(self, table: TableIdentifier) -> None:
        """See :class:`Catalog`."""
        if self._find_metadata_location(table) is not None:
            with self._translate_errors(), self._write_engine.begin() as connection:
                connection.execute(delete(ICEBERG_TABLES).where(*self._row_of(table), _IS_TABLE))
        self._loaded.pop(table, None)

    # ---------------------------------------------------------------- the database

    def _write_row(self, write: Callable[[Connection], bool], location: str) -> bool | None:
        """Write a row of a table in one transaction, which refers to a new metadata file.

        :param write: writes the row, and returns whether it did.
        :param location: location of the new file, which is deleted if certainly no row refers to it.
        :return: whether the row was written; ``None`` if that is not known.
        """
        is_committing = False
        try:
            with self._translate_errors(), self._write_engine.connect() as connection:
                transaction = connection.begin()
                if write(connection):
                    is_committing = True
                    transaction.commit()
                    return True
        except CdcError:
            if is_committing:
                return None
            self._delete_files([location])
            raise
        except exc.IntegrityError:  # another process has created the table at the same time
            pass
        self._delete_files([location])
        return False

    def _find_metadata_location(self, table: TableIdentifier) -> str | None:
        url = self._engine.url
        if url.get_backend_name() == "sqlite" and not os.path.exists(url.database or ""):
            return None  # a connection would create it
        with self._translate_errors(), self._engine.connect() as connection:
            self._tables_exist = self._tables_exist or has_catalog_tables(connection)
            row = self._select_row(connection, table) if self._tables_exist else None
        if row is None:
            return None
        if row.iceberg_type not in (TABLE_TYPE, None) or not row.metadata_location:
            what = f"a {row.iceberg_type}" if row.metadata_location else "without a metadata file"
            raise TerminalError(f"{table} in the {self.name} is {what}, and no table", "Use another name")
        return str(row.metadata_location)

    def _select_row(self, connection: Connection, table: TableIdentifier) -> Any:
        columns = ICEBERG_TABLES.c.metadata_location, ICEBERG_TABLES.c.iceberg_type
        return connection.execute(select(*columns).where(*self._row_of(table))).first()

    def _prepare_tables(self, connection: Connection) -> None:
        if not self._tables_exist:
            create_catalog_tables(connection)
            self._tables_exist = has_catalog_tables(connection)

    def _create_namespace(self, connection: Connection, namespace: str) -> None:
        columns = NAMESPACE_PROPERTIES.c
        own = {"catalog_name": self._catalog_name, "namespace": namespace}
        known = select(columns.namespace).where(*(columns[name] == value for name, value in own.items()))
        if connection.execute(known.limit(1)).first() is None:
            with suppress(exc.IntegrityError), connection.begin_nested():  # another process may create it meanwhile
                connection.execute(insert(NAMESPACE_PROPERTIES).values({**own, **EXISTS_PROPERTY}))

    def _key_of(self, table: TableIdentifier) -> dict[str, str]:
        """Return the key of a table's row.

        :raises NotReadyError: if a level of its namespace has a dot: it could be mistaken for two levels.
        """
        if not table.namespace or any("." in level or not level for level in table.namespace):
            raise NotReadyError(
                f"Iceberg table {table} has a namespace that a SQL catalog cannot have",
                "Use at least one level, and no dots in names of databases: set sink.table_path",
            )
        return {
            "catalog_name": self._catalog_name,
            "table_namespace": ".".join(table.namespace),
            "table_name": table.name,
        }

    def _row_of(self, table: TableIdentifier) -> list[ColumnElement[bool]]:
        return [ICEBERG_TABLES.c[name] == value for name, value in self._key_of(table).items()]

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        try:
            yield
        except exc.IntegrityError:
            raise
        except (exc.DBAPIError, exc.TimeoutError) as error:  # their own text would show statements
            lines = str(getattr(error, "orig", None) or error).strip().splitlines()
            text = scrub_secrets(lines[0] if lines else type(error).__name__, [str(self._engine.url.password or "")])
            cause = f"the {self.name} is not usable: {text}"
            if not isinstance(error, _OUTAGES) or _UNUSABLE.search(cause):
                raise NotReadyError(cause, _CHECK_DATABASE) from None
            raise TransientError(cause, "Run again when it is reachable and writable") from None

    # ---------------------------------------------------------------- metadata files

    def _write_metadata(self, metadata: TableMetadata, previous_location: str | None) -> str:
        """Write a new metadata file and return its location."""
        folder = metadata.properties.get(_METADATA_FOLDER) or f"{metadata.location}/metadata"
        previous_name = (previous_location or "").rpartition("/")[2]
        match = _VERSION.fullmatch(previous_name)
        version = int(match[1]) + 1 if match else 0
        location = f"{folder.rstrip('/')}/{version:05}-{uuid.uuid4()}.metadata.json"
        storage, name = open_file_folder(location, self._access)
        storage.write(name, metadata.to_bytes())
        return location

    def _delete_old_files(self, old: TableMetadata, new: TableMetadata) -> None:
        """Delete the metadata files that the log has lost, if the table asks for it."""
        if new.properties.get(_DELETE_AFTER_COMMIT, "").lower() == "true":
            retained = _logged_files(new)
            self._delete_files([location for location in _logged_files(old) if location not in retained])

    def _delete_files(self, locations: Iterable[str]) -> None:
        """Delete files that nothing refers to. One that remains takes room, and does no other harm."""
        for location in locations:
            with suppress(OSError, CdcError):
                storage, name = open_file_folder(location, self._access)
                storage.delete(name)

    def _remember(self, table: TableIdentifier, metadata: TableMetadata, location: str) -> CatalogTable:
        self._loaded[table] = CatalogTable(metadata, location)
        return self._loaded[table]


#: Older clients write no type.
_IS_TABLE = or_(ICEBERG_TABLES.c.iceberg_type == TABLE_TYPE, ICEBERG_TABLES.c.iceberg_type.is_(None))


def _logged_files(metadata: TableMetadata) -> list[str]:
    return [str(entry["metadata-file"]) for entry in metadata.json.get("metadata-log") or ()]


def _now_ms() -> int:
    return int(time.time() * 1000)
