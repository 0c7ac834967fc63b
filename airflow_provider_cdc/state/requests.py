"""Reads and writes of the bookkeeping database that concern what people want of a running stream."""

from __future__ import annotations

from sqlalchemy import Update, select, update

from airflow_provider_cdc.model.errors import NotReadyError
from airflow_provider_cdc.state.database import changed
from airflow_provider_cdc.state.models import EventRow, PipelineRow, RequestRow, StreamRow, clean, now
from airflow_provider_cdc.state.streams import StreamStore, newest_run, paused_by

#: Kinds of requests: a table is suspended, or read again (a suspended one rejoins with that).
SUSPEND, REREAD = "suspend", "reread"
KINDS = (SUSPEND, REREAD)


class RequestStore(StreamStore):
    """What people want of streams. What they do leaves an event with their name; what a stream does for a request
    leaves that to the stream.
    """

    def add_request(self, pipeline: str, kind: str, table: str, by: str, condition: str | None = None) -> int:
        """Want something of the running stream. If none runs, the next one sees to it.

        The same that is wanted already is not written down twice, unless a stream has taken it up: that may have read
        already what somebody has seen to be wrong since.

        :param kind: ``suspend`` or ``reread``.
        :param table: ``database.table``. Whether there is such a table is found out by the stream.
        :param by: who wants it.
        :param condition: a condition on the key: only these rows are read again.
        :return: id of the request, which somebody may have made before.
        :raises ValueError: for another kind, or a condition where there can be none.
        :raises NotReadyError: if the pipeline is not registered.
        """
        if kind not in KINDS or (condition is not None and kind != REREAD):
            raise ValueError(f"there is no request {kind!r}" + (" with a condition" if condition is not None else ""))
        row = RequestRow(pipeline=pipeline, at=now(), kind=kind, state="open", by=clean(by))
        row.table, row.condition = clean(table) or "", clean(condition)
        with self._write_session() as session:
            if session.get(PipelineRow, pipeline, with_for_update=True) is None:  # one asks after the other
                raise NotReadyError(
                    f"pipeline {pipeline} is not in the bookkeeping", "Run `airflow-cdc snapshot` first"
                )
            is_open = RequestRow.pipeline == pipeline, RequestRow.state == "open"
            same_requests = select(RequestRow).where(*is_open, RequestRow.kind == kind, RequestRow.table == row.table)
            for existing in session.scalars(same_requests):
                if existing.condition == row.condition:
                    return existing.id
            session.add(row)
            session.flush()
            return row.id

    def last_requests(self, pipeline: str, limit: int = 20) -> list[RequestRow]:
        """The last requests, the newest first."""
        newest = select(RequestRow).where(RequestRow.pipeline == pipeline).order_by(RequestRow.id.desc())
        with self._read_session() as session:
            return list(session.scalars(newest.limit(limit)))

    def request(self, pipeline: str, request_id: int) -> RequestRow | None:
        """One request, or ``None``."""
        with self._read_session() as session:
            row = session.get(RequestRow, request_id)
            return row if row is not None and row.pipeline == pipeline else None

    def withdraw_request(self, pipeline: str, request_id: int, by: str) -> bool:
        """Take a request back.

        :param by: who does.
        :return: whether that was possible: no stream had taken it up yet.
        """
        with self._write_session() as session:
            values = {"state": "withdrawn", "finished_at": now(), "outcome": clean(f"{by} has withdrawn it")}
            if not changed(session, _request(request_id, "open").where(RequestRow.pipeline == pipeline).values(values)):
                return False
            row = session.get_one(RequestRow, request_id)
            detail = f"the request of {row.by} to {row.kind} {row.table} was withdrawn"
            session.add(event_of(pipeline, "request_withdrawn", detail, table=row.table, by=by))
            return True

    def take_request(self, request_id: int) -> bool:
        """Take a request up; only the running stream does.

        :return: whether it was still open.
        """
        with self._write_session() as session:
            return changed(session, _request(request_id, "open").values(state="taken"))

    def end_request(self, request_id: int, state: str, outcome: str) -> None:
        """Write down what has become of a request that was taken up.

        :param state: ``done`` or ``refused``.
        :param outcome: one line for people, with what to do if it was refused.
        """
        with self._write_session() as session:
            values = {"state": state, "outcome": clean(outcome), "finished_at": now()}
            changed(session, _request(request_id, "taken").values(values))

    # The stream as a whole

    def pause_stream(self, pipeline: str, by: str) -> bool:
        """Want the running stream to pause: it goes on living, and reads nothing.

        :param by: who wants it.
        :return: whether it is paused, or about to be; ``False`` if none runs, or it was asked to stop.
        """
        with self._write_session() as session:
            row: StreamRow | None = session.scalars(newest_run(pipeline).with_for_update()).first()
            if row is None or row.state != "running" or row.desired_state == "stop":
                return False
            if row.desired_state != "pause":
                for name, value in paused_by(clean(by) or "").items():
                    setattr(row, name, value)
                detail = f"the stream was asked to pause (epoch {row.epoch})"
                session.add(event_of(pipeline, "stream_paused", detail, remedy="Resume it: airflow-cdc resume", by=by))
            return True

    def resume_stream(self, pipeline: str, by: str) -> bool:
        """Want the paused stream to go on; one that was lost meanwhile goes on when it is started again.

        :param by: who wants it.
        :return: whether it goes on; ``False`` if no stream runs and none is paused, or if it was asked to stop.
        """
        with self._write_session() as session:
            row: StreamRow | None = session.scalars(newest_run(pipeline).with_for_update()).first()
            if row is None or (row.paused_by is None and (row.state != "running" or row.desired_state == "stop")):
                return False
            if row.paused_by is not None:
                row.paused_by = None
                row.desired_state = "run" if row.desired_state == "pause" else row.desired_state
                session.add(event_of(pipeline, "stream_resumed", f"the stream was resumed (epoch {row.epoch})", by=by))
            return True

    def stop_stream(self, pipeline: str, by: str) -> bool:
        """Want the running stream to end, as a person: as ``airflow-cdc stop`` does.

        :param by: who wants it.
        :return: whether one runs.
        """
        epoch = self.request_stop(pipeline)
        if epoch is None:
            return False
        with self._write_session() as session:
            session.add(event_of(pipeline, "stream_stop", f"the stream was asked to stop (epoch {epoch})", by=by))
        return True


def event_of(
    pipeline: str, kind: str, detail: str, *, table: str | None = None, remedy: str | None = None, by: str | None = None
) -> EventRow:
    """The row of an event; parameters as of :meth:`Store.event`."""
    row = EventRow(pipeline=pipeline, at=now(), kind=kind, detail=clean(detail))
    row.table, row.remedy, row.by = clean(table), clean(remedy) or None, clean(by)
    return row


def _request(request_id: int, state: str) -> Update:
    return update(RequestRow).where(RequestRow.id == request_id, RequestRow.state == state)
