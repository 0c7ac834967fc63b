"""The Delta sink: one Delta table per captured table, below one folder."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from airflow_provider_cdc.config.delete_policy import ALL_HARD, SOFT, DeletePolicy
from airflow_provider_cdc.config.patterns import matches_any
from airflow_provider_cdc.config.sink_section import Sink
from airflow_provider_cdc.config.store_access import StoreAccess
from airflow_provider_cdc.config.table_paths import DEFAULT_TABLE_PATHS, TablePaths
from airflow_provider_cdc.config.table_properties import CHANGE_DATA_FEED, NO_PROPERTIES, TableProperties
from airflow_provider_cdc.model.errors import NotReadyError
from airflow_provider_cdc.model.schema import TableSchema
from airflow_provider_cdc.sinks.delta.log.delta_log import DeltaLog
from airflow_provider_cdc.sinks.delta.log.features import has_feed, reserved_by_feed
from airflow_provider_cdc.sinks.delta.resume_point import DeltaResumePoint
from airflow_provider_cdc.sinks.delta.table import DeltaSinkTable
from airflow_provider_cdc.sinks.delta.table_format import DeltaTableFormat
from airflow_provider_cdc.sinks.delta.table_metadata import DeltaTableOptions, build_column_metadata
from airflow_provider_cdc.sinks.files.change_staging import FileChangeStaging
from airflow_provider_cdc.sinks.files.layout import Layout
from airflow_provider_cdc.sinks.lake.change_staging import TableChangeStaging
from airflow_provider_cdc.sinks.lake.merge.partitions import PartitionField
from airflow_provider_cdc.sinks.lake.merge.soft_deletes import with_deleted_column
from airflow_provider_cdc.sinks.lake.table_checks import SOURCE_PROPERTY
from airflow_provider_cdc.sinks.protocol import Feature
from airflow_provider_cdc.sinks.storage.open_storage import open_storage
from airflow_provider_cdc.sinks.storage.storage import Storage


@dataclass(frozen=True)
class DeltaSink:
    """The sink of one pipeline.

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
    index_bytes: int = DeltaTableOptions.index_bytes
    access: StoreAccess | None = None
    deletes: DeletePolicy = ALL_HARD
    table_path: TablePaths = DEFAULT_TABLE_PATHS
    table_properties: TableProperties = NO_PROPERTIES
    adopt: bool = False
    partition_by: tuple[tuple[str, tuple[tuple[str, str | None], ...]], ...] = ()
    supports: ClassVar[frozenset[Feature]] = frozenset(Feature) - {Feature.IN_PLACE}

    @classmethod
    def from_settings(cls, settings: Sink, pipeline: str, access: StoreAccess | None) -> DeltaSink:
        """Make the sink of a pipeline; see :func:`~airflow_provider_cdc.sinks.registry.open_sink`."""
        return cls(
            settings.path,
            pipeline,
            settings.copy_on_write_tables,
            settings.index_bytes,
            access,
            settings.delete_policy,
            settings.table_paths,
            TableProperties.parse(settings.table_properties),
            settings.adopt,
            settings.partition_fields,
        )

    def table(self, table: TableSchema) -> DeltaSinkTable:
        """Return the Delta table of a table; see :class:`~airflow_provider_cdc.sinks.protocol.PipelineSink`."""
        table = table.copy
        table_format = self._format(table)
        properties = {**self.table_properties.properties_of(*table.id), SOURCE_PROPERTY: table.label}
        if has_feed(properties) and (reserved_names := reserved_by_feed(c.name for c in table.sink_columns)):
            raise NotReadyError(
                f"sink.table_properties: table {table.label} has a column {reserved_names[0]}, a name that readers "
                "of a change data feed use themselves",
                f"Do not set {CHANGE_DATA_FEED} for this table, or leave the column out with source.exclude_columns",
            )
        nullable = frozenset(c.name for c in table.sink_columns if c.nullable or c.name in table.null_date_columns)
        options = DeltaTableOptions(
            not matches_any(self.copy_on_write_tables, table.database, table.name),
            self.index_bytes,
            self.deletes.mode_of(table),
            properties,
            build_column_metadata(table),
            adopt=self.adopt,
            nullable_columns=nullable,
            partitioned_by=table_format.fields,
        )
        return DeltaSinkTable(
            self._table_storage(table), table_format.schema, table.key, table.integer_key_column, options
        )

    def change_staging(self) -> TableChangeStaging:
        """Return change staging in the tables' folders, and in a folder for what does not become part of them."""
        keyless_staging = FileChangeStaging(self._storage, self._layout.change_staging_folder)
        return TableChangeStaging(
            self._table_storage,
            lambda table: DeltaLog(self._table_storage(table)),
            keyless_staging,
            self.deletes,
            self._format,
        )

    def resume_point(self) -> DeltaResumePoint:
        """Return the resume point: the table ``_cdc_progress``."""
        return DeltaResumePoint(self._storage.subfolder(self._layout.resume_point_folder), self.pipeline)

    def _format(self, table: TableSchema) -> DeltaTableFormat:
        """Return the format of a table. Of the patterns in ``partition_by``, the first that matches applies."""
        table = table.copy
        matching_fields = (
            parts for pattern, parts in self.partition_by if matches_any([pattern], table.database, table.name)
        )
        table_format = DeltaTableFormat.for_table(table, [PartitionField(*part) for part in next(matching_fields, ())])
        options = DeltaTableOptions(properties=self.table_properties.properties_of(*table.id))
        table_format = replace(table_format, row_group_size=options.row_group_size)
        if self.deletes.mode_of(table) == SOFT:
            return replace(table_format, schema=with_deleted_column(table_format.schema))
        return table_format

    def _table_storage(self, table: TableSchema) -> Storage:
        return self._storage.subfolder(self._layout.table_folder(table))

    @property
    def _layout(self) -> Layout:
        return Layout(self.pipeline, self.table_path)

    @property
    def _storage(self) -> Storage:
        return open_storage(self.path, self.access)
