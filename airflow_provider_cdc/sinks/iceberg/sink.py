"""The Iceberg sink: one Iceberg table per captured table, in a catalog."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass, field, replace
from functools import partial
from typing import ClassVar

import pyarrow as pa

from airflow_provider_cdc.config.catalog_settings import CatalogSettings, catalog_settings, table_identifier
from airflow_provider_cdc.config.delete_policy import SOFT
from airflow_provider_cdc.config.sink_section import Sink
from airflow_provider_cdc.config.store_access import StoreAccess
from airflow_provider_cdc.model.schema import TableSchema
from airflow_provider_cdc.sinks.iceberg.catalogs.open_catalog import open_catalog
from airflow_provider_cdc.sinks.iceberg.catalogs.protocol import Catalog, TableIdentifier
from airflow_provider_cdc.sinks.iceberg.format.schema import check_column_names
from airflow_provider_cdc.sinks.iceberg.log.file_schemas import NEW_TABLE_SCHEMA_ID
from airflow_provider_cdc.sinks.iceberg.resume_point import IcebergResumePoint
from airflow_provider_cdc.sinks.iceberg.table import IcebergSinkTable
from airflow_provider_cdc.sinks.iceberg.table_format import FileSchemaLookup, IcebergTableFormat, schema_number_of
from airflow_provider_cdc.sinks.lake.change_staging import TableChangeStaging
from airflow_provider_cdc.sinks.lake.lake_sink import LakeSink
from airflow_provider_cdc.sinks.lake.log.table_log import FRESH_SECONDS, TableLog
from airflow_provider_cdc.sinks.lake.merge.soft_deletes import with_deleted_column
from airflow_provider_cdc.sinks.lake.resume_point import RESUME_POINT_SCHEMA
from airflow_provider_cdc.sinks.lake.table_options import TableOptions
from airflow_provider_cdc.sinks.protocol import Feature


@dataclass(frozen=True)
class IcebergSink(LakeSink):
    """The sink of one pipeline. :class:`LakeSink` has the other fields.

    The parts of a table's path are its namespace and its name.

    :param catalog: the catalog of the tables.
    """

    catalog: CatalogSettings = field(kw_only=True)
    supports: ClassVar[frozenset[Feature]] = frozenset(Feature)

    @classmethod
    def from_settings(cls, settings: Sink, pipeline: str, access: StoreAccess | None) -> IcebergSink:
        """Make the sink of a pipeline; see :func:`~airflow_provider_cdc.sinks.registry.open_sink`."""
        return cls(**cls.common_settings(settings, pipeline, access), catalog=catalog_settings(settings, access))

    def table(self, table: TableSchema) -> IcebergSinkTable:
        """Return the Iceberg table of a table; see :class:`~airflow_provider_cdc.sinks.protocol.PipelineSink`."""
        table = table.copy
        comments = dict(table.comments)
        table_format = self._format(table)
        options = TableOptions(
            self.uses_deletion_vectors(table),
            self.index_bytes,
            self.deletes.mode_of(table),
            self.table_properties_of(table),
            {c.name: {"comment": comments[c.name]} for c in table.sink_columns if c.name in comments},
            self.adopt,
            self.nullable_columns(table),
            table_format.fields,
            table.shared,
        )
        folder = self.layout.table_folder(table)
        return IcebergSinkTable(
            self.storage.subfolder(folder),
            self._catalog,
            TableIdentifier(*table_identifier(folder)),
            table_format,
            options,
        )

    def check_catalog(self) -> str:
        """Check the catalog; see :class:`~airflow_provider_cdc.sinks.protocol.HasCatalog`."""
        if self.catalog.is_file_in(self.path) and not os.path.exists(self.path):
            return f"SQL catalog {self.catalog.uri}, which is made with the first table"
        return self._catalog().check()

    def change_staging(self) -> TableChangeStaging:
        """Return change staging in the tables' folders, and in a folder for what does not become part of them."""

        def open_log(table: TableSchema) -> TableLog:
            return self.table(table).open_log()

        return TableChangeStaging(
            self.table_storage,
            open_log,
            self.keyless_staging(),
            self.deletes,
            self._staging_format,
        )

    def resume_point(self) -> IcebergResumePoint:
        """Return the resume point: the table ``_cdc_progress``."""
        folder = self.layout.resume_point_folder
        table = IcebergSinkTable(
            self.storage.subfolder(folder),
            self._catalog,
            TableIdentifier(*table_identifier(folder)),
            IcebergTableFormat(RESUME_POINT_SCHEMA),
            TableOptions(deletion_vectors=False),
        )
        return IcebergResumePoint(table, self.pipeline)

    def _format(self, table: TableSchema) -> IcebergTableFormat:
        """Return the format of a table."""
        table = table.copy
        table_format = IcebergTableFormat.for_table(table, self.partition_fields(table))
        check_column_names(table_format.schema.names)
        if self.deletes.mode_of(table) == SOFT:
            return replace(table_format, schema=with_deleted_column(table_format.schema))
        return table_format

    def _staging_format(self, table: TableSchema) -> IcebergTableFormat:
        """Return the format of a table for changes, which are written by many short tasks."""
        lookup = FileSchemaLookup(partial(_find_file_schema, self, table))
        return replace(self._format(table), file_schema_lookup=lookup)

    def _catalog(self) -> Catalog:
        return _open_once(self.catalog)


class _ThreadState(threading.local):
    """What a thread of this process has opened: a catalog is not thread-safe, and must not cross a fork."""

    def __init__(self) -> None:
        self.process_id = os.getpid()
        self.catalogs = dict[CatalogSettings, Catalog]()


_opened = _ThreadState()
#: Schemas of new files by sink and definition, and when each was found: many tasks write few rows each.
_file_schemas = dict[tuple[IcebergSink, str, str, str], tuple[float, pa.Schema]]()


def _open_once(settings: CatalogSettings) -> Catalog:
    if _opened.process_id != os.getpid():
        _opened.process_id, _opened.catalogs = os.getpid(), {}
    catalog = _opened.catalogs.get(settings)
    if catalog is None:
        catalog = _opened.catalogs[settings] = open_catalog(settings)
    return catalog


def _find_file_schema(sink: IcebergSink, table: TableSchema) -> pa.Schema:
    """Return the schema of new files of a table. A commit refuses files if the columns have changed since."""
    key, now = (sink, *table.id, f"{table.key} {table.sink_schema} {table.removed} {table.comments}"), time.monotonic()
    found = _file_schemas.get(key)
    if found is not None and now - found[0] <= FRESH_SECONDS:
        return found[1]
    schema = sink.table(table).find_file_schema()
    if schema_number_of(schema) != NEW_TABLE_SCHEMA_ID:
        _file_schemas[key] = now, schema
    return schema
