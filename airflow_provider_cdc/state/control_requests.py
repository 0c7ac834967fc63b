"""Control requests in the state database: what users want from a running stream."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Update, select, update

from airflow_provider_cdc.state.database import execute_update
from airflow_provider_cdc.state.events import add_event_row
from airflow_provider_cdc.state.models import ControlRequestRow, PipelineRow, storable_text, utc_now
from airflow_provider_cdc.state.streams import StreamRecords, lock_pipeline, select_newest_epoch

#: Kinds of requests: suspend a table; re-snapshot it, which also lets a suspended table rejoin; compare a table or all
#: tables with their copies; compare them and re-snapshot the rows that differ.
SUSPEND, RESNAPSHOT, VERIFY, REPAIR = "suspend", "reread", "verify", "repair"
REQUEST_KINDS = (SUSPEND, RESNAPSHOT, VERIFY, REPAIR)


class ControlRequestRecords(StreamRecords):
    """Reads and writes control requests.

    Actions of users add events with their names. The stream itself adds events for what it does for a request.
    """

    def add_request(self, pipeline: str, kind: str, table: str, by: str, condition: str | None = None) -> int:
        """Add a request to the running stream. If none is running, the next one handles it.

        An identical open request is not added twice. One that a stream has taken up does not count: the stream may
        have read the rows before the requester saw that they are wrong.

        :param kind: one of :data:`REQUEST_KINDS`.
        :param table: ``database.table``. The stream checks whether there is such a table. Empty for all tables, if the
            request is to verify or repair.
        :param by: name of the requester.
        :param condition: condition on the key: re-snapshot only the matching rows.
        :return: id of the request, which may be an existing one.
        :raises ValueError: for another kind, a condition with a kind that does not accept one, or no table with a kind
            that needs one.
        :raises NotReadyError: if the pipeline is not registered.
        """
        if kind not in REQUEST_KINDS or (condition is not None and kind != RESNAPSHOT):
            raise ValueError(f"there is no request {kind!r}" + (" with a condition" if condition is not None else ""))
        if not table and kind not in (VERIFY, REPAIR):
            raise ValueError(f"a request to {kind} needs a table")
        row = ControlRequestRow(pipeline=pipeline, at=utc_now(), kind=kind, state="open", by=storable_text(by))
        row.table, row.condition = storable_text(table) or "", storable_text(condition)
        with self._write_session() as session:
            lock_pipeline(session, pipeline)
            open_requests = select(ControlRequestRow).filter_by(pipeline=pipeline, state="open")
            for existing in session.scalars(open_requests.filter_by(kind=kind, table=row.table)):
                if existing.condition == row.condition:
                    return existing.id
            session.add(row)
            session.flush()
            return row.id

    def last_requests(self, pipeline: str, limit: int = 20) -> list[ControlRequestRow]:
        """Return the last requests, the newest first."""
        newest = select(ControlRequestRow).filter_by(pipeline=pipeline).order_by(ControlRequestRow.id.desc())
        return self._read_rows(newest.limit(limit))

    def request(self, pipeline: str, request_id: int) -> ControlRequestRow | None:
        """Return one request, or ``None``."""
        row = self._read_row(ControlRequestRow, request_id)
        return row if row is not None and row.pipeline == pipeline else None

    def withdraw_request(self, pipeline: str, request_id: int, by: str) -> bool:
        """Withdraw a request.

        :param by: name of the user who withdraws it.
        :return: whether it was withdrawn; ``False`` if a stream had already taken it up.
        """
        withdrawn = _update_request(request_id, "open").filter_by(pipeline=pipeline)
        withdrawn = withdrawn.values(_end_columns("withdrawn", f"{by} has withdrawn it"))
        with self._write_session() as session:
            if not execute_update(session, withdrawn):
                return False
            row = session.get_one(ControlRequestRow, request_id)
            detail = f"the request of {row.by} to {row.kind} {row.table or 'all tables'} was withdrawn"
            add_event_row(session, pipeline, "request_withdrawn", detail, table=row.table or None, by=by)
            return True

    def take_request(self, request_id: int) -> bool:
        """Mark a request as taken up. Only the running stream calls this.

        :return: whether it was still open.
        """
        return self._update(_update_request(request_id, "open").values(state="taken"))

    def end_request(self, request_id: int, state: str, outcome: str) -> None:
        """Record the outcome of a request that was taken up.

        :param state: ``done`` or ``refused``.
        :param outcome: one human-readable line, with a remedy if the request was refused.
        """
        self._update(_update_request(request_id, "taken").values(_end_columns(state, outcome)))

    # The stream as a whole

    def pause_stream(self, pipeline: str, by: str) -> bool:
        """Ask the running stream to pause: it stays alive but reads nothing.

        :param by: name of the requester.
        :return: whether the stream is paused or about to be; ``False`` if none is running or it was asked to stop.
        """
        with self._write_session() as session:
            row = session.scalars(select_newest_epoch(pipeline).with_for_update()).first()
            if row is None or row.state != "running" or row.desired_state == "stop":
                return False
            if row.desired_state != "pause":
                row.desired_state, row.paused_by, row.paused_at = "pause", storable_text(by), utc_now()
                detail, remedy = f"the stream was asked to pause (epoch {row.epoch})", "Resume it: airflow-cdc resume"
                add_event_row(session, pipeline, "stream_paused", detail, remedy=remedy, by=by)
            return True

    def resume_stream(self, pipeline: str, by: str) -> bool:
        """Ask the paused stream to continue. One that has died in the meantime continues when it is restarted.

        :param by: name of the requester.
        :return: whether it continues; ``False`` if no stream is running or paused, or if it was asked to stop.
        """
        with self._write_session() as session:
            row = session.scalars(select_newest_epoch(pipeline).with_for_update()).first()
            if row is None or (row.paused_by is None and (row.state != "running" or row.desired_state == "stop")):
                return False
            if row.paused_by is not None:
                row.paused_by = row.paused_at = None
                row.desired_state = "run" if row.desired_state == "pause" else row.desired_state
                detail = f"the stream was resumed (epoch {row.epoch})"
                add_event_row(session, pipeline, "stream_resumed", detail, by=by)
            return True

    def stop_stream(self, pipeline: str, by: str) -> int | None:
        """Ask the stream to stop on behalf of a user, as ``airflow-cdc stop`` does.

        This is final: no run begins until :meth:`allow_stream`, also if one is starting or about to be restarted.

        :param by: name of the requester.
        :return: the epoch that was asked, or ``None`` if no stream is running.
        """
        requester = storable_text(by)
        with self._write_session() as session:
            row = session.get(PipelineRow, pipeline, with_for_update=True)
            newest = session.scalars(select_newest_epoch(pipeline).with_for_update()).first()
            epoch = None
            if newest is not None:
                newest.paused_by = newest.paused_at = None  # a pause lasts until a user stops the stream
                if newest.state == "running":
                    newest.desired_state, newest.stop_by, newest.stop_user = "stop", None, requester
                    epoch = newest.epoch
            if epoch is not None or (row is not None and row.stop_requested_by is None):
                detail = "the stream was asked " + ("not to begin" if epoch is None else f"to stop (epoch {epoch})")
                add_event_row(session, pipeline, "stream_stop", detail, by=by)
            if row is not None:
                row.stop_requested_by = requester
        return epoch

    def allow_stream(self, pipeline: str, request: str | None = None) -> None:
        """Let the stream begin again, although a user has asked it to stop before.

        :param request: identity of what starts it, the same for all tries of a task: only the first one counts.
        """
        with self._write_session() as session:
            row = session.get(PipelineRow, pipeline, with_for_update=True)
            if row is not None and (request is None or request != row.start_request):
                row.stop_requested_by, row.start_request = None, request

    def stop_requester(self, pipeline: str) -> str | None:
        """Return the user who has asked the stream to stop since it was started; ``None`` if nobody has."""
        row = self._read_row(PipelineRow, pipeline)
        return row.stop_requested_by if row is not None else None


def _update_request(request_id: int, state: str) -> Update:
    return update(ControlRequestRow).filter_by(id=request_id, state=state)


def _end_columns(state: str, outcome: str) -> dict[str, Any]:
    """Return the column values of a request that has ended."""
    return {"state": state, "outcome": storable_text(outcome), "finished_at": utc_now()}
