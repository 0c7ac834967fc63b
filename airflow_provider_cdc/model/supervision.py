"""What can be said of a stream from its row in the bookkeeping, looked at again and again.

No clocks of two hosts are compared: a heartbeat that stands still for so long on the watcher's own clock is lost. The
time in which the bookkeeping could not be asked does not count, since the stream could not write to it either.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Protocol, TypeGuard

#: Seconds between two heartbeats, and after how many without one a stream counts as lost.
HEARTBEAT_SECONDS, LOST_AFTER_SECONDS = 1.0, 15.0
#: Seconds before the first restart, which each further one doubles, and the longest wait.
FIRST_DELAY_SECONDS, LONGEST_DELAY_SECONDS = 1, 60
#: Drivers that may be lost within so many seconds of running.
MAX_LOSSES, LOSS_WINDOW_SECONDS = 5, 600.0


def is_superseded_by(own_try: str, newest: str | None) -> TypeGuard[str]:
    """Whether a later try of the same task supervises the stream now.

    :param own_try: a try, as the bookkeeping names supervisors: ``<task>, try <number>``.
    :param newest: who looked last.
    """
    task, _, number = own_try.rpartition(", try ")
    other, _, newer = (newest or "").rpartition(", try ")
    return other == task and number.isdecimal() and newer.isdecimal() and int(newer) > int(number)


class StreamRun(Protocol):
    """What the bookkeeping says of one run of a stream."""

    @property
    def epoch(self) -> int:
        """Its number."""

    @property
    def state(self) -> str:
        """``running``, or how it ended."""

    @property
    def heartbeat_at(self) -> datetime:
        """Its last sign of life."""


class WatchOutcome(StrEnum):
    """Why a watch is over."""

    CAUGHT_UP = "caught_up"
    STOPPED = "stopped"
    FAILED = "failed"
    LOST = "lost"
    SUPERSEDED = "superseded"


@dataclass
class HeartbeatMonitor:
    """Whether the owner of a heartbeat is alive, looked at again and again.

    :param patience: seconds for which it may stand still.
    """

    patience: float = LOST_AFTER_SECONDS
    _last_heartbeat: object = None
    _last_change: float = 0.0
    _has_moved: bool = False

    def observe(self, heartbeat: object, now: float) -> bool | None:
        """Look once.

        :param heartbeat: whose it is, and when the last one was by a clock that need not be right. Not ``None``.
        :param now: seconds on the watcher's own monotonic clock.
        :returns: ``True`` if it moved while it was looked at, ``False`` if it stood still for too long, ``None`` before
            either can be said.
        """
        if heartbeat != self._last_heartbeat:
            self._has_moved, self._last_heartbeat, self._last_change = self._last_heartbeat is not None, heartbeat, now
        if now - self._last_change > self.patience:
            return False
        return True if self._has_moved else None


@dataclass
class EpochWatch:
    """Watches one epoch.

    :param epoch: the epoch.
    :param patience: seconds without a heartbeat after which it counts as lost.
    """

    epoch: int
    patience: float = LOST_AFTER_SECONDS
    _monitor: HeartbeatMonitor | None = None

    def observe(self, newest: StreamRun | None, now: float) -> WatchOutcome | None:
        """Look at the newest run of the stream.

        :param newest: its row; ``None`` when the bookkeeping could not be asked, or has lost it.
        :param now: seconds on the watcher's own monotonic clock.
        :returns: ``None`` while the stream goes on.
        """
        if newest is None or newest.epoch < self.epoch:
            self._monitor = None  # begins to count anew when the bookkeeping is back
            return None
        if newest.epoch > self.epoch:
            return WatchOutcome.SUPERSEDED
        if newest.state != "running":
            return WatchOutcome(newest.state)
        self._monitor = self._monitor or HeartbeatMonitor(self.patience)
        return WatchOutcome.LOST if self._monitor.observe(newest.heartbeat_at, now) is False else None


@dataclass(frozen=True)
class RestartHistory:
    """What has gone wrong with a stream, as far as it counts for the next restart.

    Plain values, since they travel from one process of a task to the next, and only durations: each of the processes
    may be on a host with another clock.

    :param failures: in a row, since the stream last got further.
    :param seconds: that runs and waits have taken since then.
    :param losses: how many seconds the last drivers lived that ended without saying why.
    """

    failures: int = 0
    seconds: float = 0.0
    losses: tuple[float, ...] = ()

    def with_failure(self, lived: float, *, made_progress: bool, lost: bool) -> RestartHistory:
        """Count one more end that nobody wanted.

        :param lived: seconds for which the stream, or the try to start it, lasted.
        :param made_progress: whether it has got further. One that has run for long has, too: its source may be idle.
        :param lost: whether the driver ended without saying why, as one does that is killed for its memory.
        """
        renewed = made_progress or lived >= LOSS_WINDOW_SECONDS
        return RestartHistory(
            1 if renewed else self.failures + 1,
            0.0 if renewed else self.seconds + lived,
            (*self.losses, lived)[-MAX_LOSSES:] if lost else self.losses,
        )

    def after_delay(self) -> RestartHistory:
        """The same after :attr:`delay`."""
        return replace(self, seconds=self.seconds + self.delay)

    @property
    def delay(self) -> float:
        """Seconds to wait before the next restart."""
        return (
            float(min(FIRST_DELAY_SECONDS << min(self.failures - 1, 30), LONGEST_DELAY_SECONDS))
            if self.failures
            else 0.0
        )

    @property
    def is_crash_looping(self) -> bool:
        """Whether drivers are lost so often that another one would be lost as well."""
        return len(self.losses) == MAX_LOSSES and sum(self.losses) < LOSS_WINDOW_SECONDS
