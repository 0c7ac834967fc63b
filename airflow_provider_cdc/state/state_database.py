"""The complete state database: pipelines and events here, everything else from the base classes.

Every method is one short transaction, and any number of processes may call them concurrently: where two could conflict,
the write is a compare-and-set on (state, attempt). If the database is unavailable, methods raise
:class:`~airflow_provider_cdc.model.errors.TransientError`.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import select, update

from airflow_provider_cdc.state.alerts import AlertRecords
from airflow_provider_cdc.state.asset_windows import AssetWindowRecords
from airflow_provider_cdc.state.control_requests import ControlRequestRecords, make_event_row
from airflow_provider_cdc.state.database import retry_conflict
from airflow_provider_cdc.state.models import EventRow, PipelineRow, storable_text, utc_now
from airflow_provider_cdc.state.observations import ObservationRecords
from airflow_provider_cdc.state.pipeline_removal import PipelineRemoval
from airflow_provider_cdc.state.snapshots import SnapshotRecords


class StateDatabase(
    SnapshotRecords, ControlRequestRecords, ObservationRecords, AlertRecords, PipelineRemoval, AssetWindowRecords
):
    """The state of all pipelines that share a database."""

    # Pipelines

    def register_pipeline(self, pipeline: str, server_uuid: str) -> None:
        """Register a pipeline. An existing registration stays as it is.

        :param pipeline: name of the pipeline.
        :param server_uuid: identity of the server it reads.
        """
        retry_conflict(lambda: self._register_pipeline(pipeline, server_uuid))

    def _register_pipeline(self, pipeline: str, server_uuid: str) -> None:
        with self._write_session() as session:
            if session.get(PipelineRow, pipeline) is None:
                session.add(PipelineRow(name=pipeline, server_uuid=server_uuid, epoch=0))

    def pipeline_names(self) -> list[str]:
        """Return the names of all pipelines, sorted."""
        return self._read_rows(select(PipelineRow.name).order_by(PipelineRow.name))

    # Events

    def add_event(
        self,
        pipeline: str,
        kind: str,
        detail: str,
        *,
        table: str | None = None,
        remedy: str | None = None,
        by: str | None = None,
    ) -> None:
        """Add an event to the journal of a pipeline.

        :param detail: one line; must not contain secrets.
        :param table: the table concerned, as ``database.table``.
        :param remedy: what to do about it, if anything.
        :param by: the user or task that caused it, if any.
        """
        with self._write_session() as session:
            session.add(make_event_row(pipeline, kind, detail, table=table, remedy=remedy, by=by))

    def acknowledge_event(self, pipeline: str, event_id: int, by: str) -> bool:
        """Record who acknowledged an event. The first acknowledgement stays.

        :param event_id: id of the event.
        :param by: name of the user.
        :return: whether this call acknowledged it.
        """
        event = update(EventRow).filter_by(id=event_id, pipeline=pipeline, acknowledged_at=None)
        return self._update(event.values(acknowledged_by=storable_text(by), acknowledged_at=utc_now()))

    def last_events(self, pipeline: str, limit: int, kinds: Sequence[str] = ()) -> list[EventRow]:
        """Return the last ``limit`` events, the newest first.

        :param kinds: only events of these kinds.
        """
        newest = select(EventRow).filter_by(pipeline=pipeline).order_by(EventRow.id.desc())
        if kinds:
            newest = newest.where(EventRow.kind.in_(kinds))
        return self._read_rows(newest.limit(limit))
