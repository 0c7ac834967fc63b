"""Control requests to a running stream, which arrive through the state database with the stream's heartbeat.

The heartbeat's thread receives requests and writes outcomes; the stream's driver carries the requests out between two
batches. If a run has taken up a request and not ended it, because the run died or the state database was unavailable,
the next run takes it up again. All requests may safely be carried out twice.
"""

from __future__ import annotations

import threading

from airflow_provider_cdc.runtime.outages import tolerate_outage
from airflow_provider_cdc.state import ControlRequestRow, HeartbeatReply, StateDatabase
from airflow_provider_cdc.state.control_requests import SUSPEND
from airflow_provider_cdc.system.failpoints import failpoint


class RequestInbox:
    """The control requests to one run of the stream, and whether the stream is paused.

    :param epoch_details: columns to restore if the state database is lost; kept up to date with the pause.
    """

    def __init__(self, state_database: StateDatabase, epoch_details: dict[str, str | None]) -> None:
        self._state_database, self._epoch_details = state_database, epoch_details
        self._lock = threading.Lock()
        self._known_ids: set[int] = set()
        self._new_requests: list[ControlRequestRow] = []
        self._unwritten_outcomes: dict[int, tuple[str, str]] = {}
        #: Name of the requester of the pause; ``None`` if the stream is not paused.
        self.paused_by: str | None = None

    @property
    def paused(self) -> bool:
        """Whether the stream is paused, so that it must not read."""
        return self.paused_by is not None

    @property
    def has_new_requests(self) -> bool:
        """Whether there are requests that the driver has not taken yet."""
        return bool(self._new_requests)

    def receive_reply(self, reply: HeartbeatReply) -> None:
        """Process the reply to a heartbeat: update the pause and take up requests. The heartbeat calls this.

        :raises TransientError: if the state database is unavailable; requests that were not taken up arrive again.
        """
        epoch_row = reply.epoch_row
        self.paused_by = (epoch_row.paused_by or "") if epoch_row.desired_state == "pause" else None
        desired_state = "run" if self.paused_by is None else "pause"
        self._epoch_details.update(desired_state=desired_state, paused_by=self.paused_by)
        self._write_outcomes()
        for request in reply.requests:
            if request.id in self._known_ids or (self.paused and request.kind != SUSPEND):  # the others read
                continue
            if request.state == "open" and not self._state_database.take_request(request.id):
                continue  # it was withdrawn
            failpoint("request.after_take")
            with self._lock:
                self._known_ids.add(request.id)
                self._new_requests.append(request)

    def take_new_requests(self) -> list[ControlRequestRow]:
        """Return the requests that were taken up since the last call, the oldest first."""
        with self._lock:
            new_requests, self._new_requests = self._new_requests, []
        return new_requests

    def end_request(self, request_id: int, state: str, outcome: str) -> None:
        """Record the outcome of a request; later, if the state database is unavailable.

        :param state: ``done`` or ``refused``.
        :param outcome: one human-readable line.
        """
        failpoint("request.before_end")
        with self._lock:
            self._known_ids.add(request_id)
            self._unwritten_outcomes[request_id] = state, outcome
        with tolerate_outage():
            self._write_outcomes()

    def _write_outcomes(self) -> None:
        with self._lock:
            outcomes = dict(self._unwritten_outcomes)
        for request_id, (state, outcome) in outcomes.items():
            self._state_database.end_request(request_id, state, outcome)
            with self._lock:
                self._unwritten_outcomes.pop(request_id, None)
