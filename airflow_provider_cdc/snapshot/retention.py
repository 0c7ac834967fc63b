"""Estimate whether the binlog that a stream must begin with outlives the snapshot. Callers pass the time."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_provider_cdc.model.progress import format_duration

#: Assumed rate of one reader (rows and bytes per second) before any was measured: a conservative guess.
ASSUMED_ROWS_PER_SECOND, ASSUMED_BYTES_PER_SECOND = 20_000, 20_000_000


@dataclass(frozen=True)
class Retention:
    """How long the server keeps a binlog file.

    A server removes a file a fixed time after its *end*, which is when the next file was begun. The file in use is
    never removed.

    :param expire_seconds: seconds that a file is kept after its end by the server's settings; ``None`` for ever.
    :param observed_seconds: seconds after which files were observed to be removed earlier than that (by a full disk, a
        limit of the total size, a person, a managed service); ``None`` if none was.
    """

    expire_seconds: float | None
    observed_seconds: float | None = None

    @property
    def keep_seconds(self) -> float | None:
        """Seconds that a file is kept after its end, as far as is known; ``None`` for ever."""
        return min((s for s in (self.expire_seconds, self.observed_seconds) if s is not None), default=None)

    def seconds_to_purge(self, now: float, ended: float | None) -> float | None:
        """Return the seconds until a file may be removed; ``None`` for never.

        :param now: the server's time, in seconds since 1970.
        :param ended: when the file ended, by the same clock; ``None`` while it is in use.
        """
        if self.keep_seconds is None:
            return None
        return self.keep_seconds if ended is None else max(0.0, ended + self.keep_seconds - now)

    def with_observed_purge(self, now: float, oldest_began: float) -> Retention:
        """Return the retention as corrected by the observation that a file was removed.

        :param now: the server's time, in seconds since 1970.
        :param oldest_began: when the oldest remaining file was begun, which is when the last removed one ended.
        """
        age = max(0.0, now - oldest_began)
        return Retention(self.expire_seconds, age) if self.expire_seconds is None or age < self.expire_seconds else self


def assess_retention(seconds_to_purge: float | None, needed_seconds: float | None) -> str:
    """Return ``fine``, ``tight`` (more than half of the time is needed) or ``lost``.

    :param seconds_to_purge: seconds until the binlog may be removed; ``None`` for never.
    :param needed_seconds: seconds that the snapshot still needs; ``None`` if unknown.
    """
    if seconds_to_purge is None or needed_seconds is None or needed_seconds * 2 <= seconds_to_purge:
        return "fine"
    return "lost" if needed_seconds > seconds_to_purge else "tight"


def estimate_seconds(
    rows: int, size: int, readers: int, rows_per_second: float | None = None, bytes_per_second: float | None = None
) -> float:
    """Estimate the seconds that a snapshot takes, before any of it was read.

    :param rows: approximate rows of all tables.
    :param size: approximate bytes of all tables.
    :param readers: chunks read at the same time.
    :param rows_per_second: limit for all readers together.
    :param bytes_per_second: limit for all readers together.
    """
    by_rows = rows / min(readers * ASSUMED_ROWS_PER_SECOND, rows_per_second or float("inf"))
    by_size = size / min(readers * ASSUMED_BYTES_PER_SECOND, bytes_per_second or float("inf"))
    return max(by_rows, by_size)


def retention_text(seconds: float | None) -> str:
    """Return how long binlogs are kept, as text."""
    return "for ever" if seconds is None else f"for {format_duration(seconds)}"
