"""What the sinks of all formats have in common: where a pipeline's tables are, and how they are written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from airflow_provider_cdc.config.delete_policy import ALL_HARD, DeletePolicy
from airflow_provider_cdc.config.patterns import matches_any
from airflow_provider_cdc.config.sink_section import Sink
from airflow_provider_cdc.config.store_access import StoreAccess
from airflow_provider_cdc.config.table_paths import DEFAULT_TABLE_PATHS, TablePaths
from airflow_provider_cdc.config.table_properties import NO_PROPERTIES, TableProperties
from airflow_provider_cdc.model.schema import TableSchema
from airflow_provider_cdc.sinks.files.change_staging import FileChangeStaging
from airflow_provider_cdc.sinks.files.layout import Layout
from airflow_provider_cdc.sinks.lake.merge.partitions import PartitionField
from airflow_provider_cdc.sinks.lake.table_checks import SHARED_PROPERTY, SOURCE_PROPERTY
from airflow_provider_cdc.sinks.lake.table_options import TableOptions
from airflow_provider_cdc.sinks.storage.open_storage import open_storage
from airflow_provider_cdc.sinks.storage.storage import Storage


@dataclass(frozen=True)
class LakeSink:
    """The sink of one pipeline, whatever the format of its tables.

    :param path: ``sink.path``.
    :param pipeline: name of the pipeline.
    :param copy_on_write_tables: patterns ``database.table`` of the tables that use copy-on-write.
    :param index_bytes: memory limit in bytes of the key index of each table.
    :param access: settings and credentials for the object store of ``path``, from a connection.
    :param deletes: how rows that the source deletes are handled.
    :param table_path: how the folders of tables are named.
    :param table_properties: additional table properties.
    :param adopt: whether tables made by other software are adopted.
    :param partition_by: patterns of tables, each with the columns and date units that partition these tables.
    """

    path: str
    pipeline: str
    copy_on_write_tables: tuple[str, ...] = ()
    index_bytes: int = TableOptions.index_bytes
    access: StoreAccess | None = None
    deletes: DeletePolicy = ALL_HARD
    table_path: TablePaths = DEFAULT_TABLE_PATHS
    table_properties: TableProperties = NO_PROPERTIES
    adopt: bool = False
    partition_by: tuple[tuple[str, tuple[tuple[str, str | None], ...]], ...] = ()

    @staticmethod
    def common_settings(settings: Sink, pipeline: str, access: StoreAccess | None) -> dict[str, Any]:
        """Return the values of these fields from the settings of a sink."""
        return {
            "path": settings.path,
            "pipeline": pipeline,
            "copy_on_write_tables": settings.copy_on_write_tables,
            "index_bytes": settings.index_bytes,
            "access": access,
            "deletes": settings.delete_policy,
            "table_path": settings.table_paths,
            "table_properties": TableProperties.parse(settings.table_properties),
            "adopt": settings.adopt,
            "partition_by": settings.partition_fields,
        }

    def uses_deletion_vectors(self, table: TableSchema) -> bool:
        """Return whether rows of a table may be deleted by deletion vectors."""
        return not matches_any(self.copy_on_write_tables, table.database, table.name)

    def partition_fields(self, table: TableSchema) -> list[PartitionField]:
        """Return the partition fields of a table: those of the first pattern in ``partition_by`` that matches."""
        matching = (parts for pattern, parts in self.partition_by if matches_any([pattern], table.database, table.name))
        return [PartitionField(*part) for part in next(matching, ())]

    def table_properties_of(self, table: TableSchema) -> dict[str, str]:
        """Return the properties of a table that come from the settings, and what it is the copy of."""
        origin = {SHARED_PROPERTY: table.shared} if table.shared else {SOURCE_PROPERTY: table.label}
        return {**self.table_properties.properties_of(*table.id), **origin}

    @staticmethod
    def nullable_columns(table: TableSchema) -> frozenset[str]:
        """Return the names of the columns of a copy that may be NULL.

        :param table: the table as the sink has it.
        """
        return frozenset(c.name for c in table.sink_columns if c.nullable or c.name in table.null_date_columns)

    def keyless_staging(self) -> FileChangeStaging:
        """Return the staging of changes that do not become part of a table as they are."""
        return FileChangeStaging(self.storage, self.layout.change_staging_folder)

    def table_storage(self, table: TableSchema) -> Storage:
        """Return the storage of a table's folder."""
        return self.storage.subfolder(self.layout.table_folder(table))

    @property
    def layout(self) -> Layout:
        """Names in the storage."""
        return Layout(self.pipeline, self.table_path)

    @property
    def storage(self) -> Storage:
        """Storage of ``path``."""
        return open_storage(self.path, self.access)
