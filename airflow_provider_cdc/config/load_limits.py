"""Limits on the load that a snapshot puts on the server, and when readers must wait. This module reads no clock."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class LoadLimits:
    """Limits for a snapshot; ``None`` means no limit.

    :param rows_per_second: rows read per second, by all readers of one job.
    :param bytes_per_second: bytes read per second, by all readers of one job.
    :param threads_running: ``Threads_running`` of the server above which no chunk is begun.
    :param replica_lag_seconds: lag of the server, if it is a replica, above which no chunk is begun.
    """

    rows_per_second: float | None = None
    bytes_per_second: float | None = None
    threads_running: int | None = None
    replica_lag_seconds: int | None = None

    def per_reader(self, readers: int) -> LoadLimits:
        """Return the limits of one reader, so that all of them stay within these without communicating.

        :param readers: number of readers.
        """
        return replace(
            self,
            rows_per_second=self.rows_per_second and self.rows_per_second / readers,
            bytes_per_second=self.bytes_per_second and self.bytes_per_second / readers,
        )

    def exceeded_reason(self, threads: int | None = None, lag: int | None = None, replica: bool = False) -> str | None:
        """Return why no chunk may be begun now; ``None`` if one may.

        :param threads: ``Threads_running``.
        :param lag: seconds that the server is behind its source; ``None`` if it does not report it.
        :param replica: whether it is a replica. A replica that does not report its lag exceeds the limit.
        """
        if self.threads_running is not None and threads is not None and threads > self.threads_running:
            return f"Threads_running is {threads}, the limit is {self.threads_running}"
        if self.replica_lag_seconds is not None and replica:
            if lag is None:
                return f"the server's replication is not running, the limit of its lag is {self.replica_lag_seconds} s"
            if lag > self.replica_lag_seconds:
                return f"the server is {lag} s behind its source, the limit is {self.replica_lag_seconds} s"
        return None


class RateLimiter:
    """A token bucket that is paid afterwards: each use delays the next one.

    Unused time is not saved up. So in any period, the uses that begin in it exceed the amount that the rate allows by
    at most one use.

    :param rate: units per second; ``None`` for no limit.
    """

    def __init__(self, rate: float | None) -> None:
        self._rate = rate
        self._next_allowed = float("-inf")

    def record_use(self, began: float, amount: float) -> None:
        """Record a use that has happened after the required wait.

        :param began: when it began, in seconds of any monotonic clock.
        :param amount: units used.
        """
        if self._rate:
            self._next_allowed = began + amount / self._rate

    def seconds_to_wait(self, now: float) -> float:
        """Return the seconds to wait before the next use."""
        return max(0.0, self._next_allowed - now)
