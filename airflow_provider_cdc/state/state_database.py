"""The complete state database: pipelines, timelines and events here, everything else from the base classes.

Every method is one short transaction, and any number of processes may call them concurrently: where two could conflict,
the write is a compare-and-set on (state, attempt). If the database is unavailable, methods raise
:class:`~airflow_provider_cdc.model.errors.TransientError`.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import delete, exc, select, update

from airflow_provider_cdc.state.alerts import AlertRecords
from airflow_provider_cdc.state.asset_windows import AssetWindowRecords
from airflow_provider_cdc.state.control_requests import ControlRequestRecords, make_event_row
from airflow_provider_cdc.state.database import execute_update
from airflow_provider_cdc.state.models import EventRow, PipelineRow, TimelineRow, storable_text, utc_now
from airflow_provider_cdc.state.observations import ObservationRecords
from airflow_provider_cdc.state.pipeline_removal import PipelineRemoval
from airflow_provider_cdc.state.snapshots import SnapshotRecords
from airflow_provider_cdc.state.values import TimelineSegment


class StateDatabase(
    SnapshotRecords, ControlRequestRecords, ObservationRecords, AlertRecords, PipelineRemoval, AssetWindowRecords
):
    """The state of all pipelines that share a database."""

    # Pipelines

    def register_pipeline(self, pipeline: str, server_uuid: str) -> str:
        """Register a pipeline. An existing registration stays as it is.

        :param pipeline: name of the pipeline.
        :param server_uuid: identity of the server it reads.
        :return: the recorded identity, which may be that of another server.
        """
        try:
            with self._write_session() as session:
                row = session.get(PipelineRow, pipeline)
                if row is None:
                    row = PipelineRow(name=pipeline, server_uuid=server_uuid, created_at=utc_now(), epoch=0)
                    session.add(row)
                return row.server_uuid
        except exc.IntegrityError:  # another process was faster
            return self.server_uuid(pipeline) or server_uuid

    def server_uuid(self, pipeline: str) -> str | None:
        """Return the identity of the server that a pipeline reads; ``None`` if the pipeline is not known."""
        with self._read_session() as session:
            row = session.get(PipelineRow, pipeline)
            return row.server_uuid if row else None

    def pipeline_names(self) -> list[str]:
        """Return the names of all pipelines, sorted."""
        with self._read_session() as session:
            return list(session.scalars(select(PipelineRow.name).order_by(PipelineRow.name)))

    # Timeline and events

    def set_timeline(self, pipeline: str, segments: Sequence[TimelineSegment]) -> None:
        """Replace the timeline of a pipeline.

        :param segments: all segments, the oldest first.
        """
        with self._write_session() as session:
            session.get(PipelineRow, pipeline, with_for_update=True)  # serializes runs that plan at the same time
            session.execute(delete(TimelineRow).where(TimelineRow.pipeline == pipeline))
            session.add_all(
                TimelineRow(pipeline=pipeline, segment_no=number, **TimelineSegment(*segment)._asdict())
                for number, segment in enumerate(segments)
            )

    def timeline(self, pipeline: str) -> list[TimelineSegment]:
        """Return the timeline of a pipeline, the oldest segment first."""
        query = select(TimelineRow).where(TimelineRow.pipeline == pipeline).order_by(TimelineRow.segment_no)
        with self._read_session() as session:
            rows = session.scalars(query).all()
        return [TimelineSegment(row.server, row.start_file, row.start_position, row.base_ordinal) for row in rows]

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
        is_unacknowledged = EventRow.id == event_id, EventRow.pipeline == pipeline, EventRow.acknowledged_at.is_(None)
        values = {"acknowledged_by": storable_text(by), "acknowledged_at": utc_now()}
        with self._write_session() as session:
            return execute_update(session, update(EventRow).where(*is_unacknowledged).values(values))

    def last_events(self, pipeline: str, limit: int, kinds: Sequence[str] = ()) -> list[EventRow]:
        """Return the last ``limit`` events, the newest first.

        :param kinds: only events of these kinds.
        """
        newest = select(EventRow).where(EventRow.pipeline == pipeline).order_by(EventRow.id.desc())
        if kinds:
            newest = newest.where(EventRow.kind.in_(kinds))
        with self._read_session() as session:
            return list(session.scalars(newest.limit(limit)))
