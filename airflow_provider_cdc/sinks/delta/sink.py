"""The Delta sink: one Delta table a captured table, below one folder."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from airflow_provider_cdc.core.patterns import matches
from airflow_provider_cdc.core.schema import TableSchema
from airflow_provider_cdc.sinks.delta.partitions import Part, Partitioning
from airflow_provider_cdc.sinks.delta.resume_point import DeltaResumePoint
from airflow_provider_cdc.sinks.delta.staging import DeltaStaging
from airflow_provider_cdc.sinks.delta.table import DeltaTarget, Options
from airflow_provider_cdc.sinks.layout import Layout
from airflow_provider_cdc.sinks.protocol import Feature
from airflow_provider_cdc.sinks.staging import FileStaging
from airflow_provider_cdc.sinks.storage import Storage, storage_at


@dataclass(frozen=True)
class DeltaSink:
    """The sink of one pipeline.

    :param path: ``sink.path``.
    :param pipeline: name of the pipeline.
    :param copies: patterns ``database.table`` of the tables that are merged by copies.
    :param index_bytes: what the index of a table's keys may take in memory.
    :param partition_by: for patterns of tables, the columns and units of what they are partitioned by.
    """

    path: str
    pipeline: str
    copies: tuple[str, ...] = ()
    index_bytes: int = Options.index_bytes
    partition_by: tuple[tuple[str, tuple[tuple[str, str | None], ...]], ...] = ()
    supports: ClassVar[frozenset[Feature]] = frozenset(Feature)

    def table(self, table: TableSchema) -> DeltaTarget:
        """Delta table of a captured table.

        :raises NotReadyError: if it cannot be partitioned as the settings say.
        """
        vectors = not matches(self.copies, table.database, table.name)
        options = Options(vectors, self.index_bytes, self._partitioning(table).parts)
        return DeltaTarget(self._folder(table), table.sink_schema, table.key, table.integer_key, options)

    def staging(self) -> DeltaStaging:
        """Beside the rows of the tables, and a folder for what does not become part of them."""
        return DeltaStaging(self._folder, FileStaging(self._storage, self._layout.staging), self._partitioning)

    def resume_point(self) -> DeltaResumePoint:
        """The table ``_cdc_progress``."""
        return DeltaResumePoint(self._storage.within(self._layout.progress), self.pipeline)

    def _partitioning(self, table: TableSchema) -> Partitioning:
        """The first pattern that fits counts."""
        found = (parts for pattern, parts in self.partition_by if matches([pattern], table.database, table.name))
        return Partitioning.of(table, [Part(*part) for part in next(found, ())])

    def _folder(self, table: TableSchema) -> Storage:
        return self._storage.within(self._layout.table(table))

    @property
    def _layout(self) -> Layout:
        return Layout(self.pipeline)

    @property
    def _storage(self) -> Storage:
        return storage_at(self.path)
