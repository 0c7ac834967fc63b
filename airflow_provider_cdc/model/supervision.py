"""How a stream is supervised: its state is judged from its row in the state database, which is polled.

Clocks of different hosts are never compared: a heartbeat counts as lost if it has not changed for a time measured on
the watcher's own clock. Time in which the state database is unreachable does not count, because the stream cannot write
to it either.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Protocol, TypeGuard

#: Seconds between two heartbeats, and seconds without one after which a stream counts as lost.
HEARTBEAT_SECONDS, LOST_AFTER_SECONDS = 1.0, 15.0
#: Seconds before the first restart, doubled for each further one, and the longest wait.
FIRST_DELAY_SECONDS, LONGEST_DELAY_SECONDS = 1, 60
#: Number of lost drivers within this many seconds of running that counts as a crash loop.
MAX_LOSSES, LOSS_WINDOW_SECONDS = 5, 600.0


def is_superseded_by(own_try: str, newest: str | None) -> TypeGuard[str]:
    """Return whether a later try of the same task supervises the stream now.

    :param own_try: a supervisor's name in the state database: ``<task>, try <number>``.
    :param newest: name of the last supervisor.
    """
    task, _, number = own_try.rpartition(", try ")
    other, _, newer = (newest or "").rpartition(", try ")
    return other == task and number.isdecimal() and newer.isdecimal() and int(newer) > int(number)


class StreamRun(Protocol):
    """One run of a stream, as recorded in the state database."""

    @property
    def epoch(self) -> int:
        """Its number."""

    @property
    def state(self) -> str:
        """``running``, or how it ended."""

    @property
    def heartbeat_at(self) -> datetime:
        """Time of its last heartbeat."""


class WatchOutcome(StrEnum):
    """Why a watch has ended."""

    CAUGHT_UP = "caught_up"
    STOPPED = "stopped"
    FAILED = "failed"
    LOST = "lost"
    SUPERSEDED = "superseded"


@dataclass
class HeartbeatMonitor:
    """Decides from repeated observations whether the owner of a heartbeat is alive.

    :param patience: seconds for which the heartbeat may stay unchanged.
    """

    patience: float = LOST_AFTER_SECONDS
    _last_heartbeat: object = None
    _last_change: float = 0.0
    _has_moved: bool = False

    def observe(self, heartbeat: object, now: float) -> bool | None:
        """Record one observation.

        :param heartbeat: identifies the owner and its last heartbeat, by a clock that need not be right. Not ``None``.
        :param now: seconds on the watcher's own monotonic clock.
        :returns: ``True`` if the heartbeat has changed while being observed, ``False`` if it has been unchanged for too
            long, ``None`` if neither is known yet.
        """
        if heartbeat != self._last_heartbeat:
            self._has_moved, self._last_heartbeat, self._last_change = self._last_heartbeat is not None, heartbeat, now
        if now - self._last_change > self.patience:
            return False
        return True if self._has_moved else None


@dataclass
class EpochWatch:
    """Watches one epoch.

    :param epoch: number of the epoch.
    :param patience: seconds without a heartbeat after which it counts as lost.
    """

    epoch: int
    patience: float = LOST_AFTER_SECONDS
    _monitor: HeartbeatMonitor | None = None

    def observe(self, newest: StreamRun | None, now: float) -> WatchOutcome | None:
        """Evaluate the newest run of the stream.

        :param newest: its row; ``None`` if the state database could not be reached or has lost it.
        :param now: seconds on the watcher's own monotonic clock.
        :returns: ``None`` while the stream is running.
        """
        if newest is None or newest.epoch < self.epoch:
            self._monitor = None  # restarts the count when the state database is back
            return None
        if newest.epoch > self.epoch:
            return WatchOutcome.SUPERSEDED
        if newest.state != "running":
            return WatchOutcome(newest.state)
        self._monitor = self._monitor or HeartbeatMonitor(self.patience)
        return WatchOutcome.LOST if self._monitor.observe(newest.heartbeat_at, now) is False else None


@dataclass(frozen=True)
class RestartHistory:
    """Failures of a stream that affect its next restart.

    These are plain values, because they are passed between the processes of a task, and only durations, because the
    processes may run on hosts with different clocks.

    :param failures: failures in a row since the stream last made progress.
    :param seconds: duration of runs and waits since then.
    :param losses: for the last drivers that ended without giving a reason, how many seconds each of them ran.
    """

    failures: int = 0
    seconds: float = 0.0
    losses: tuple[float, ...] = ()

    def with_failure(self, lived: float, *, made_progress: bool, lost: bool) -> RestartHistory:
        """Count one more unwanted end.

        :param lived: seconds for which the stream, or the attempt to start it, lasted.
        :param made_progress: whether it made progress. A long run counts as progress, too: its source may be idle.
        :param lost: whether the driver ended without giving a reason, for example killed for its memory use.
        """
        renewed = made_progress or lived >= LOSS_WINDOW_SECONDS
        return RestartHistory(
            1 if renewed else self.failures + 1,
            0.0 if renewed else self.seconds + lived,
            (*self.losses, lived)[-MAX_LOSSES:] if lost else self.losses,
        )

    def after_delay(self) -> RestartHistory:
        """Return the history after waiting for :attr:`delay`."""
        return replace(self, seconds=self.seconds + self.delay)

    @property
    def delay(self) -> float:
        """Seconds to wait before the next restart."""
        if not self.failures:
            return 0.0
        return float(min(FIRST_DELAY_SECONDS << min(self.failures - 1, 30), LONGEST_DELAY_SECONDS))

    @property
    def is_crash_looping(self) -> bool:
        """Whether drivers are lost so often that another restart is pointless."""
        return len(self.losses) == MAX_LOSSES and sum(self.losses) < LOSS_WINDOW_SECONDS
