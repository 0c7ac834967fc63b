"""How much of the server a snapshot may use, and when a reader has to wait for its turn. Keeps no clock of its own."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class LoadLimits:
    """What a snapshot may ask of the server; ``None`` is no limit.

    :param rows_per_second: rows read, by all readers of one job.
    :param bytes_per_second: bytes of them.
    :param threads_running: ``Threads_running`` of the server above which no chunk is begun.
    :param replica_lag_seconds: how far the server, if it is a replica, may be behind.
    """

    rows_per_second: float | None = None
    bytes_per_second: float | None = None
    threads_running: int | None = None
    replica_lag_seconds: int | None = None

    def per_reader(self, readers: int) -> LoadLimits:
        """The limits of one of so many readers: together they stay within these, and need not talk to each other."""
        return replace(
            self,
            rows_per_second=self.rows_per_second and self.rows_per_second / readers,
            bytes_per_second=self.bytes_per_second and self.bytes_per_second / readers,
        )

    def exceeded_reason(self, threads: int | None = None, lag: int | None = None, replica: bool = False) -> str | None:
        """Why no chunk may be begun now; ``None`` if one may.

        :param threads: ``Threads_running``.
        :param lag: seconds that the server is behind its source; ``None`` where it does not say.
        :param replica: whether it is a replica. One that does not say how far it is behind is waited for.
        """
        if self.threads_running is not None and threads is not None and threads > self.threads_running:
            return f"Threads_running is {threads}, the limit is {self.threads_running}"
        if self.replica_lag_seconds is not None and replica:
            if lag is None:
                return f"the server's replication stands still, the limit of its lag is {self.replica_lag_seconds} s"
            if lag > self.replica_lag_seconds:
                return f"the server is {lag} s behind its source, the limit is {self.replica_lag_seconds} s"
        return None


class RateLimiter:
    """A token bucket that pays afterwards: what was used is waited for before the next use.

    Time that nothing was used in is not saved up. So in any stretch of time the uses that begin in it come to no more
    than the rate allows for that time, and one use more.

    :param rate: units a second; ``None`` for no limit.
    """

    def __init__(self, rate: float | None) -> None:
        self._rate = rate
        self._next_allowed = float("-inf")

    def record_use(self, began: float, amount: float) -> None:
        """A use has happened, after the wait that it asked for.

        :param began: when it began, in seconds of any clock that does not go back.
        :param amount: units.
        """
        if self._rate:
            self._next_allowed = began + amount / self._rate

    def seconds_to_wait(self, now: float) -> float:
        """Seconds to wait before the next use."""
        return max(0.0, self._next_allowed - now)
