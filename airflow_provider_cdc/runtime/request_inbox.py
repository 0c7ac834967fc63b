"""Requests of people to a running stream, which come with its heartbeat, through the bookkeeping.

The heartbeat's thread hears and writes; the stream's driver carries out, between two batches. A request that a run has
taken up and not ended, since it died or the bookkeeping was away, is taken up again by the next one: all that a request
asks for may be done twice.
"""

from __future__ import annotations

import threading
from contextlib import suppress

from sqlalchemy.exc import SQLAlchemyError

from airflow_provider_cdc.model.errors import CdcError
from airflow_provider_cdc.state import ControlRequestRow, HeartbeatReply, StateDatabase
from airflow_provider_cdc.state.control_requests import RESNAPSHOT
from airflow_provider_cdc.state.streams import paused_columns
from airflow_provider_cdc.system.failpoints import failpoint


class RequestInbox:
    """The requests to one run of the stream, and whether it is to pause.

    :param epoch_details: what the bookkeeping knows of the run, in case that it loses it: told whether it is paused.
    """

    def __init__(self, state_database: StateDatabase, epoch_details: dict[str, str | None]) -> None:
        self._state_database, self._epoch_details = state_database, epoch_details
        self._lock = threading.Lock()
        self._known_ids: set[int] = set()
        self._new_requests: list[ControlRequestRow] = []
        self._unwritten_outcomes: dict[int, tuple[str, str]] = {}
        #: Who wants the stream to be paused; ``None`` if nobody does.
        self.paused_by: str | None = None

    @property
    def paused(self) -> bool:
        """Whether the stream is to read nothing."""
        return self.paused_by is not None

    @property
    def has_new_requests(self) -> bool:
        """Whether there is something that the driver has not heard of yet."""
        return bool(self._new_requests)

    def receive_reply(self, reply: HeartbeatReply) -> None:
        """Hear what is wanted now, and take requests up; the heartbeat calls it.

        :raises TransientError: if the bookkeeping is away; what was not taken up is heard again.
        """
        epoch_row = reply.epoch_row
        self.paused_by = (epoch_row.paused_by or "") if epoch_row.desired_state == "pause" else None
        for name in paused_columns(""):
            self._epoch_details.pop(name, None)
        self._epoch_details.update({} if self.paused_by is None else paused_columns(self.paused_by))
        self._write_outcomes()
        for request in reply.requests:
            if request.id in self._known_ids or (self.paused and request.kind == RESNAPSHOT):  # which reads
                continue
            if request.state == "open" and not self._state_database.take_request(request.id):
                continue  # it was withdrawn
            failpoint("request.after_take")
            with self._lock:
                self._known_ids.add(request.id)
                self._new_requests.append(request)

    def take_new_requests(self) -> list[ControlRequestRow]:
        """What was taken up since the last call, the oldest first."""
        with self._lock:
            new_requests, self._new_requests = self._new_requests, []
        return new_requests

    def end_request(self, request_id: int, state: str, outcome: str) -> None:
        """Write down what has become of a request; later, if the bookkeeping is away.

        :param state: ``done`` or ``refused``.
        :param outcome: one line for people.
        """
        failpoint("request.before_end")
        with self._lock:
            self._known_ids.add(request_id)
            self._unwritten_outcomes[request_id] = state, outcome
        with suppress(CdcError, SQLAlchemyError):
            self._write_outcomes()

    def _write_outcomes(self) -> None:
        with self._lock:
            outcomes = dict(self._unwritten_outcomes)
        for request_id, (state, outcome) in outcomes.items():
            self._state_database.end_request(request_id, state, outcome)
            with self._lock:
                self._unwritten_outcomes.pop(request_id, None)
