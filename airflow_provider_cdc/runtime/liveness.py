"""Liveness of a stream: the running stream sends heartbeats, and other processes check for them.

Refusing to take over a live stream only saves work and trouble; the fence in the sink is what keeps the rows correct.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from airflow_provider_cdc.model.errors import AlreadyRunningError, CdcError
from airflow_provider_cdc.model.supervision import HEARTBEAT_SECONDS, LOST_AFTER_SECONDS, HeartbeatMonitor
from airflow_provider_cdc.runtime.background import BackgroundLoop
from airflow_provider_cdc.runtime.outages import tolerate_outage
from airflow_provider_cdc.system.processes import has_died_here, process_start_time

if TYPE_CHECKING:
    from airflow_provider_cdc.state import EpochRow, HeartbeatReply, StateDatabase

_POLL_SECONDS = 0.2


def process_identity() -> tuple[str, int, float]:
    """Return how the state database identifies the calling process: host, process id and start time."""
    return socket.gethostname(), os.getpid(), process_start_time(os.getpid())


class Heartbeat(BackgroundLoop):
    """Reports that a run of a stream is alive, and receives stop requests.

    :param pipeline: name of the pipeline.
    :param epoch: epoch of the run.
    :param details: other columns of the run in the state database, to restore if the database is lost.
    :param stop: set when the run is to stop.
    :param has_progressed: returns whether the run has made progress since the last heartbeat.
    :param lease_seconds: seconds for which the run continues without a supervising task; ``None`` for no limit. Time in
        which the state database was unavailable does not count, because the task could not write to it either.
    :param on_reply: called with the reply to each heartbeat, which includes the control requests.
    """

    def __init__(
        self,
        state_database: StateDatabase,
        pipeline: str,
        epoch: int,
        details: Mapping[str, Any],
        stop: threading.Event,
        has_progressed: Callable[[], bool],
        lease_seconds: float | None = None,
        on_reply: Callable[[HeartbeatReply], None] = lambda _: None,
    ) -> None:
        super().__init__("heartbeat", HEARTBEAT_SECONDS)
        self._on_reply = on_reply
        self._state_database, self._pipeline, self._epoch, self._details = state_database, pipeline, epoch, details
        self._stop, self._has_progressed, self._lease_seconds = stop, has_progressed, lease_seconds
        self._lease_monitor = self._new_lease_monitor()

    def _run(self) -> None:
        self._step()  # at once
        super()._run()

    def _step(self) -> None:
        reply, row, started = None, None, time.monotonic()
        with tolerate_outage():  # an outage does not stop the stream; the next beat tries again
            reply = self._state_database.record_heartbeat(self._pipeline, self._epoch, self._has_progressed())
            row = None if reply is None else reply.epoch_row
            if row is None:  # the state database was lost and re-created
                self._state_database.restore_epoch(self._pipeline, self._epoch, *process_identity(), self._details)
        if reply is not None:
            with tolerate_outage():
                self._on_reply(reply)
        if row is None or time.monotonic() - started > HEARTBEAT_SECONDS:
            self._lease_monitor = self._new_lease_monitor()  # the tasks have waited for the state database, too
        if row is not None and row.desired_state == "stop":
            self._stop.set()
        elif (
            row is not None
            and self._lease_monitor
            and self._lease_monitor.observe((row.supervised_at,), time.monotonic()) is False
        ):
            self._stop.set()
            with tolerate_outage():
                by = f"its lease: no task has supervised it for {self._lease_seconds:g} s"
                self._state_database.request_stop(self._pipeline, self._epoch, by=by)

    def _new_lease_monitor(self) -> HeartbeatMonitor | None:
        """Return a monitor of the supervising task; like the stream's liveness, it is judged by successive checks."""
        return HeartbeatMonitor(self._lease_seconds) if self._lease_seconds else None


class LivenessMonitor:
    """Checks whether a stream is alive. It remembers what it has seen, so that later checks may take no time."""

    def __init__(self) -> None:
        self._heartbeat_monitor = HeartbeatMonitor(LOST_AFTER_SECONDS)

    def is_alive(self, epoch_row: EpochRow | None) -> bool | None:
        """Check a run once.

        :param epoch_row: the newest run of the stream.
        :returns: whether it is alive; ``None`` if that takes more checks.
        """
        # If the process died on this host, there is no need to wait for its heartbeat to time out.
        if (
            epoch_row is None
            or epoch_row.state != "running"
            or has_died_here(epoch_row.host, epoch_row.machine, epoch_row.pid, epoch_row.pid_started)
        ):
            return False
        return self._heartbeat_monitor.observe((epoch_row.epoch, epoch_row.heartbeat_at), time.monotonic())

    def check_once(self, state_database: StateDatabase, pipeline: str) -> tuple[EpochRow | None, bool | None]:
        """Check the newest run in the state database once.

        :returns: the newest run, and the result of :meth:`is_alive` for it.
        :raises TransientError: if the state database is unavailable or read-only. A missing heartbeat proves nothing
            then, and earlier observations are discarded.
        """
        try:
            epoch_row = state_database.probe_newest_epoch(pipeline)
        except CdcError:
            self._heartbeat_monitor = HeartbeatMonitor(LOST_AFTER_SECONDS)
            raise
        return epoch_row, self.is_alive(epoch_row)

    def wait_until_known(self, state_database: StateDatabase, pipeline: str) -> tuple[EpochRow | None, bool]:
        """Check until it is known whether the newest run is alive.

        For a live stream that takes one heartbeat; for one that was lost on another host, much longer.

        :returns: the newest run, and whether it is alive.
        :raises TransientError: as :meth:`check_once`.
        """
        while True:
            epoch_row, alive = self.check_once(state_database, pipeline)
            if alive is not None:
                return epoch_row, alive
            time.sleep(_POLL_SECONDS)

    def refuse_if_running(self, state_database: StateDatabase, pipeline: str) -> None:
        """Refuse to start while another run is alive.

        :raises AlreadyRunningError: naming the live run.
        """
        epoch_row, alive = self.wait_until_known(state_database, pipeline)
        if epoch_row is not None and alive:
            raise _already_running_error(epoch_row)

    def confirm_not_running(self, epoch_row: EpochRow | None) -> None:
        """Refuse to take over a run that is not still known to be dead. Called inside the transaction that takes over.

        :raises AlreadyRunningError: naming the run.
        """
        if epoch_row is not None and self.is_alive(epoch_row) is not False:
            raise _already_running_error(epoch_row)


def _already_running_error(epoch_row: EpochRow) -> AlreadyRunningError:
    return AlreadyRunningError(
        f"a stream of {epoch_row.pipeline} is running (epoch {epoch_row.epoch}, process {epoch_row.pid} on "
        f"{epoch_row.host})",
        "Stop it with `airflow-cdc stop`, and run this again when it has ended",
    )
