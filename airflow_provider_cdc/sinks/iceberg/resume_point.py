"""The stream's resume point in an Iceberg table."""

from __future__ import annotations

from airflow_provider_cdc.sinks.iceberg.table import IcebergSinkTable
from airflow_provider_cdc.sinks.lake.resume_point import LakeResumePoint

#: Commits after which files are deleted: most runs are too short for regular maintenance.
_CLEAN_UP_INTERVAL = 100


class IcebergResumePoint(LakeResumePoint[IcebergSinkTable]):
    """The resume point of one pipeline."""

    def delete(self) -> None:
        """Delete the table; see :class:`~airflow_provider_cdc.sinks.protocol.Registered`."""
        self.sink_table.delete()

    def _is_clean_up_due(self) -> bool:
        return self.sink_table.commit_count % _CLEAN_UP_INTERVAL == 0
