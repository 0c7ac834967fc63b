"""The stream's resume point in a Delta table."""

from __future__ import annotations

from airflow_provider_cdc.config.table_properties import LOG_RETENTION
from airflow_provider_cdc.sinks.delta.table import DeltaSinkTable
from airflow_provider_cdc.sinks.delta.table_metadata import DeltaTableOptions
from airflow_provider_cdc.sinks.lake.resume_point import RESUME_POINT_SCHEMA, LakeResumePoint
from airflow_provider_cdc.sinks.storage.storage import Storage


class DeltaResumePoint(LakeResumePoint[DeltaSinkTable]):
    """The resume point of one pipeline.

    :param storage: storage of the table's folder.
    :param pipeline: name of the pipeline.
    """

    def __init__(self, storage: Storage, pipeline: str) -> None:
        options = DeltaTableOptions(deletion_vectors=False)
        super().__init__(DeltaSinkTable(storage, RESUME_POINT_SCHEMA, options=options), pipeline)

    def create(self) -> None:
        """Create the table if it does not exist."""
        self.sink_table.create(self._pipeline, {LOG_RETENTION: "interval 1 hours"})

    def _is_clean_up_due(self) -> bool:
        return self.sink_table.is_checkpoint_due()
