"""The Delta sink: one Delta table per captured table, below one folder."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from airflow_provider_cdc.config.delete_policy import SOFT
from airflow_provider_cdc.config.sink_section import Sink
from airflow_provider_cdc.config.store_access import StoreAccess
from airflow_provider_cdc.config.table_properties import CHANGE_DATA_FEED
from airflow_provider_cdc.model.errors import NotReadyError
from airflow_provider_cdc.model.schema import TableSchema
from airflow_provider_cdc.sinks.delta.log.delta_log import DeltaLog
from airflow_provider_cdc.sinks.delta.log.features import has_feed, reserved_by_feed
from airflow_provider_cdc.sinks.delta.resume_point import DeltaResumePoint
from airflow_provider_cdc.sinks.delta.table import DeltaSinkTable
from airflow_provider_cdc.sinks.delta.table_format import DeltaTableFormat
from airflow_provider_cdc.sinks.delta.table_metadata import DeltaTableOptions, build_column_metadata
from airflow_provider_cdc.sinks.lake.change_staging import TableChangeStaging
from airflow_provider_cdc.sinks.lake.lake_sink import LakeSink
from airflow_provider_cdc.sinks.lake.merge.soft_deletes import with_deleted_column
from airflow_provider_cdc.sinks.protocol import Feature


@dataclass(frozen=True)
class DeltaSink(LakeSink):
    """The sink of one pipeline. :class:`LakeSink` has its fields."""

    supports: ClassVar[frozenset[Feature]] = frozenset(Feature) - {Feature.IN_PLACE}

    @classmethod
    def from_settings(cls, settings: Sink, pipeline: str, access: StoreAccess | None) -> DeltaSink:
        """Make the sink of a pipeline; see :func:`~airflow_provider_cdc.sinks.registry.open_sink`."""
        return cls(**cls.common_settings(settings, pipeline, access))

    def table(self, table: TableSchema) -> DeltaSinkTable:
        """Return the Delta table of a table; see :class:`~airflow_provider_cdc.sinks.protocol.PipelineSink`."""
        table = table.copy
        table_format = self._format(table)
        properties = self.table_properties_of(table)
        if has_feed(properties) and (reserved_names := reserved_by_feed(c.name for c in table.sink_columns)):
            raise NotReadyError(
                f"sink.table_properties: table {table.label} has a column {reserved_names[0]}, a name that readers "
                "of a change data feed use themselves",
                f"Do not set {CHANGE_DATA_FEED} for this table, or leave the column out with source.exclude_columns",
            )
        options = DeltaTableOptions(
            self.uses_deletion_vectors(table),
            self.index_bytes,
            self.deletes.mode_of(table),
            properties,
            build_column_metadata(table),
            adopt=self.adopt,
            nullable_columns=self.nullable_columns(table),
            partitioned_by=table_format.fields,
            shared=table.shared,
        )
        source = table.label if table.shared else None
        return DeltaSinkTable(
            self.table_storage(table), table_format.schema, table.key, table.integer_key_column, options, source
        )

    def change_staging(self) -> TableChangeStaging:
        """Return change staging in the tables' folders, and in a folder for what does not become part of them."""
        return TableChangeStaging(
            self.table_storage,
            lambda table: DeltaLog(self.table_storage(table)),
            self.keyless_staging(),
            self.deletes,
            self._format,
        )

    def resume_point(self) -> DeltaResumePoint:
        """Return the resume point: the table ``_cdc_progress``."""
        return DeltaResumePoint(self.storage.subfolder(self.layout.resume_point_folder), self.pipeline)

    def _format(self, table: TableSchema) -> DeltaTableFormat:
        """Return the format of a table."""
        table = table.copy
        table_format = DeltaTableFormat.for_table(table, self.partition_fields(table))
        options = DeltaTableOptions(properties=self.table_properties.properties_of(*table.id))
        table_format = replace(table_format, row_group_size=options.row_group_size)
        if self.deletes.mode_of(table) == SOFT:
            return replace(table_format, schema=with_deleted_column(table_format.schema))
        return table_format
