"""The complete state database: pipelines here, everything else from the base classes.

Every method is one short transaction, and any number of processes may call them concurrently: where two could conflict,
the write is a compare-and-set on (state, attempt). If the database is unavailable, methods raise
:class:`~airflow_provider_cdc.model.errors.TransientError`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import select

from airflow_provider_cdc.state.alerts import AlertRecords
from airflow_provider_cdc.state.asset_windows import AssetWindowRecords
from airflow_provider_cdc.state.control_requests import ControlRequestRecords
from airflow_provider_cdc.state.database import retry_conflict
from airflow_provider_cdc.state.drivers import DriverRecords
from airflow_provider_cdc.state.events import EventRecords
from airflow_provider_cdc.state.models import PipelineRow
from airflow_provider_cdc.state.observations import ObservationRecords
from airflow_provider_cdc.state.pipeline_removal import PipelineRemoval
from airflow_provider_cdc.state.snapshots import SnapshotRecords


class StateDatabase(
    SnapshotRecords,
    ControlRequestRecords,
    ObservationRecords,
    EventRecords,
    AlertRecords,
    PipelineRemoval,
    AssetWindowRecords,
    DriverRecords,
):
    """The state of all pipelines that share a database."""

    # Pipelines

    def register_pipeline(self, pipeline: str, server_uuid: str) -> None:
        """Register a pipeline. An existing registration stays as it is.

        :param pipeline: name of the pipeline.
        :param server_uuid: identity of the server it reads.
        """
        retry_conflict(lambda: self._register_pipeline(pipeline, server_uuid))

    def record_source(self, pipeline: str, source: Mapping[str, Any]) -> None:
        """Record the human-readable description of the server that a pipeline reads.

        :param source: ``conn_id``, ``host`` and ``port``, and, if known, ``version``, the identity of the ``server``
            and ``running_since``; never a user or a password. A value that is not given stays as it was recorded.
        """
        with self._write_session() as session:
            row = session.get(PipelineRow, pipeline)
            if row is not None and (known := {**(row.source or {}), **source}) != row.source:
                row.source = known

    def _register_pipeline(self, pipeline: str, server_uuid: str) -> None:
        with self._write_session() as session:
            if session.get(PipelineRow, pipeline) is None:
                session.add(PipelineRow(name=pipeline, server_uuid=server_uuid, epoch=0))

    def source(self, pipeline: str) -> dict[str, Any] | None:
        """Return what :meth:`record_source` has recorded, or ``None``."""
        row = self._read_row(PipelineRow, pipeline)
        return None if row is None else row.source

    def pipeline_names(self) -> list[str]:
        """Return the names of all pipelines, sorted."""
        return self._read_rows(select(PipelineRow.name).order_by(PipelineRow.name))
