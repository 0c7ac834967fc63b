"""Whether the binlog that a stream has to begin with is still there when the snapshot is done. Keeps no clock."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_provider_cdc.model.progress import format_duration

#: What one reader is taken to read before anybody knows: rows and bytes a second. A cautious guess.
ASSUMED_ROWS_PER_SECOND, ASSUMED_BYTES_PER_SECOND = 20_000, 20_000_000


@dataclass(frozen=True)
class Retention:
    """How long the server keeps a binlog file.

    A server removes a file a fixed time after its *end*: after the moment at which the next one was begun. The file in
    use is never removed.

    :param expire_seconds: seconds that the server's settings keep a file after its end; ``None`` for ever.
    :param observed_seconds: seconds after which files were seen to go earlier than that (a full disk, a limit of the
        total size, a person, a managed service); ``None`` if none was.
    """

    expire_seconds: float | None
    observed_seconds: float | None = None

    @property
    def keep_seconds(self) -> float | None:
        """Seconds that a file is kept after its end; ``None`` for ever, as far as anybody can tell."""
        return min((s for s in (self.expire_seconds, self.observed_seconds) if s is not None), default=None)

    def seconds_to_purge(self, now: float, ended: float | None) -> float | None:
        """Seconds until a file may be removed; ``None`` for never.

        :param now: the server's time.
        :param ended: when the file ended, by the same clock; ``None`` while it is in use.
        """
        if self.keep_seconds is None:
            return None
        return self.keep_seconds if ended is None else max(0.0, ended + self.keep_seconds - now)

    def with_observed_purge(self, now: float, oldest_began: float) -> Retention:
        """A file has gone: what that says about how long others are kept.

        :param oldest_began: when the oldest file that is left was begun, which is when the last one that went ended.
        """
        age = max(0.0, now - oldest_began)
        return Retention(self.expire_seconds, age) if self.expire_seconds is None or age < self.expire_seconds else self


def assess_retention(seconds_to_purge: float | None, needed_seconds: float | None) -> str:
    """``fine``, ``tight`` (more than half of the time is needed) or ``lost``.

    :param seconds_to_purge: seconds until the binlog goes; ``None`` for never.
    :param needed_seconds: seconds that the snapshot still takes; ``None`` if nobody knows.
    """
    if seconds_to_purge is None or needed_seconds is None or needed_seconds * 2 <= seconds_to_purge:
        return "fine"
    return "lost" if needed_seconds > seconds_to_purge else "tight"


def estimate_seconds(
    rows: int, size: int, readers: int, rows_per_second: float | None = None, bytes_per_second: float | None = None
) -> float:
    """Seconds that a snapshot may take, before anything of it was read.

    :param rows: rows of all tables, about.
    :param size: their bytes, about.
    :param readers: chunks read at the same time.
    :param rows_per_second: limit of all readers.
    :param bytes_per_second: limit of all readers.
    """
    by_rows = rows / min(readers * ASSUMED_ROWS_PER_SECOND, rows_per_second or float("inf"))
    by_size = size / min(readers * ASSUMED_BYTES_PER_SECOND, bytes_per_second or float("inf"))
    return max(by_rows, by_size)


def retention_text(seconds: float | None) -> str:
    """How long binlogs are kept, for people."""
    return "for ever" if seconds is None else f"for {format_duration(seconds)}"
