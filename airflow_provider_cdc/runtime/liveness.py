"""Signs of life of a stream: the one that runs gives them, and the others look for them.

That nobody takes over a stream that lives only saves work and trouble; the fence in the sink is what keeps rows right.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from airflow_provider_cdc.model.errors import AlreadyRunningError, CdcError
from airflow_provider_cdc.model.supervision import HEARTBEAT_SECONDS, LOST_AFTER_SECONDS, HeartbeatMonitor
from airflow_provider_cdc.system.processes import has_died_here, process_start_time

if TYPE_CHECKING:
    from airflow_provider_cdc.state import EpochRow, HeartbeatReply, StateDatabase

_POLL_SECONDS = 0.2


def process_identity() -> tuple[str, int, float]:
    """What the bookkeeping calls the calling process: host, process id, and when it started."""
    return socket.gethostname(), os.getpid(), process_start_time(os.getpid())


class Heartbeat:
    """Says that a run of a stream is alive, and hears whether it shall stop: a thread, as long as the block lasts.

    :param pipeline: name of the pipeline.
    :param epoch: the run.
    :param details: what else the bookkeeping knows of it, in case that it loses it.
    :param stop: set when somebody wants it to stop.
    :param has_progressed: whether it has got further since the last beat.
    :param lease_seconds: seconds for which it continues without a task that supervises it; ``None``: for ever. Time in
        which the bookkeeping could not be queried does not count: the task could not write to it either.
    :param on_reply: gets what people want of the stream, with each beat.
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
        self._on_reply = on_reply
        self._state_database, self._pipeline, self._epoch, self._details = state_database, pipeline, epoch, details
        self._stop, self._has_progressed, self._lease_seconds = stop, has_progressed, lease_seconds
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        from sqlalchemy.exc import SQLAlchemyError

        lease_monitor = self._new_lease_monitor()
        while True:
            reply, row, started = None, None, time.monotonic()
            with suppress(CdcError, SQLAlchemyError):  # an outage does not stop the stream; the next beat tries again
                reply = self._state_database.record_heartbeat(self._pipeline, self._epoch, self._has_progressed())
                row = None if reply is None else reply.epoch_row
                if row is None:  # the bookkeeping was lost and made anew
                    self._state_database.restore_epoch(self._pipeline, self._epoch, *process_identity(), self._details)
            if reply is not None:
                with suppress(CdcError, SQLAlchemyError):
                    self._on_reply(reply)
            if row is None or time.monotonic() - started > HEARTBEAT_SECONDS:
                lease_monitor = self._new_lease_monitor()  # the tasks have waited for the bookkeeping, too
            if row is not None and row.desired_state == "stop":
                self._stop.set()
            elif (
                row is not None
                and lease_monitor
                and lease_monitor.observe((row.supervised_at,), time.monotonic()) is False
            ):
                self._stop.set()
                with suppress(CdcError, SQLAlchemyError):
                    by = f"its lease: no task has supervised it for {self._lease_seconds:g} s"
                    self._state_database.request_stop(self._pipeline, self._epoch, by=by)
            if self._ended.wait(HEARTBEAT_SECONDS):
                return

    def _new_lease_monitor(self) -> HeartbeatMonitor | None:
        """Whether a task supervises the stream is decided like its own life: by checks that follow one another."""
        return HeartbeatMonitor(self._lease_seconds) if self._lease_seconds else None


class LivenessMonitor:
    """Looks whether a stream is going on. What it has seen it remembers, so that the next look may take no time."""

    def __init__(self) -> None:
        self._heartbeat_monitor = HeartbeatMonitor(LOST_AFTER_SECONDS)

    def is_alive(self, epoch_row: EpochRow | None) -> bool | None:
        """Look once.

        :param epoch_row: the newest run of the stream.
        :returns: whether it is going on; ``None`` if it takes more looks to tell.
        """
        # Of one that died on this host there is no need to wait until its heartbeat has stood still for long.
        if (
            epoch_row is None
            or epoch_row.state != "running"
            or has_died_here(epoch_row.host, epoch_row.machine, epoch_row.pid, epoch_row.pid_started)
        ):
            return False
        return self._heartbeat_monitor.observe((epoch_row.epoch, epoch_row.heartbeat_at), time.monotonic())

    def check_once(self, state_database: StateDatabase, pipeline: str) -> tuple[EpochRow | None, bool | None]:
        """Look once into the bookkeeping.

        :returns: the newest run, and what :meth:`lives` says of it.
        :raises TransientError: if the bookkeeping cannot be asked, or takes no writes: that a heartbeat stands still
            proves nothing then, and what was seen before is forgotten.
        """
        try:
            epoch_row = state_database.probe_newest_epoch(pipeline)
        except CdcError:
            self._heartbeat_monitor = HeartbeatMonitor(LOST_AFTER_SECONDS)
            raise
        return epoch_row, self.is_alive(epoch_row)

    def wait_until_known(self, state_database: StateDatabase, pipeline: str) -> tuple[EpochRow | None, bool]:
        """Look for as long as it takes: of a stream that lives a heartbeat, of one that was lost elsewhere much more.

        :returns: the newest run, and whether it is going on.
        :raises TransientError: as :meth:`look`.
        """
        while True:
            epoch_row, alive = self.check_once(state_database, pipeline)
            if alive is not None:
                return epoch_row, alive
            time.sleep(_POLL_SECONDS)

    def refuse_if_running(self, state_database: StateDatabase, pipeline: str) -> None:
        """Refuse to start beside a run that is alive.

        :raises AlreadyRunningError: naming it.
        """
        epoch_row, alive = self.wait_until_known(state_database, pipeline)
        if epoch_row is not None and alive:
            raise _already_running_error(epoch_row)

    def confirm_not_running(self, epoch_row: EpochRow | None) -> None:
        """Refuse to take over, in the transaction that does so, any run that is not still as it was when it was over.

        :raises AlreadyRunningError: naming it.
        """
        if epoch_row is not None and self.is_alive(epoch_row) is not False:
            raise _already_running_error(epoch_row)


def _already_running_error(epoch_row: EpochRow) -> AlreadyRunningError:
    return AlreadyRunningError(
        f"a stream of {epoch_row.pipeline} is running (epoch {epoch_row.epoch}, process {epoch_row.pid} on "
        f"{epoch_row.host})",
        "Stop it with `airflow-cdc stop`, and run this again when it has ended",
    )
