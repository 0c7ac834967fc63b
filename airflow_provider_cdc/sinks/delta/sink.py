"""The Delta sink: one Delta table a captured table, below one folder."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from airflow_provider_cdc.core.schema import TableSchema
from airflow_provider_cdc.sinks.delta.resume_point import DeltaResumePoint
from airflow_provider_cdc.sinks.delta.table import DeltaTarget
from airflow_provider_cdc.sinks.layout import Layout
from airflow_provider_cdc.sinks.protocol import Feature
from airflow_provider_cdc.sinks.staging import FileStaging


@dataclass(frozen=True)
class DeltaSink:
    """The sink of one pipeline.

    :param path: ``sink.path``.
    :param pipeline: name of the pipeline.
    """

    path: str
    pipeline: str
    supports: ClassVar[frozenset[Feature]] = frozenset(Feature)

    def table(self, table: TableSchema) -> DeltaTarget:
        """Delta table of a captured table."""
        return DeltaTarget(self._layout.table(table), table.sink_schema, table.key, table.integer_key)

    def staging(self, epoch: int) -> FileStaging:
        """Folder in which the batches of an epoch wait."""
        return FileStaging(self._layout.epoch("staging", epoch))

    def resume_point(self) -> DeltaResumePoint:
        """The table ``_cdc_progress``."""
        return DeltaResumePoint(self._layout.progress, self.pipeline)

    @property
    def _layout(self) -> Layout:
        return Layout(self.path, self.pipeline)
