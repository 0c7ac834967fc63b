"""Progress, rate and remaining time of work on chunks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class ChunkProgress:
    """Progress of some work on chunks: a group, a whole snapshot, or one table of ``verify``.

    Chunks that another process has finished earlier count as done, but not for the rate.

    :param label: human-readable name of the work.
    :param chunks_done: chunks that are done.
    :param chunks_total: total number of chunks.
    :param rows: rows in the chunks that are done.
    :param corrected: keys in them that were corrected from the binlog.
    :param fresh_chunks: how many of the finished chunks were read within ``seconds``.
    :param fresh_rows: rows in those chunks.
    :param seconds: time spent on those chunks, in seconds.
    :param paused: why reading is paused; ``None`` if it is not.
    """

    label: str
    chunks_done: int
    chunks_total: int
    rows: int
    corrected: int = 0
    fresh_chunks: int = 0
    fresh_rows: int = 0
    seconds: float = 0.0
    paused: str | None = None

    @property
    def rows_per_second(self) -> int | None:
        """Rows per second; ``None`` before anything was read."""
        return round(self.fresh_rows / self.seconds) if self.fresh_chunks and self.seconds > 0 else None

    @property
    def eta_seconds(self) -> float | None:
        """Estimated seconds until the last chunk is done; ``None`` before anything was read.

        It is based on chunks, because the number of rows in a chunk is only known once it is read.
        """
        remaining = self.chunks_total - self.chunks_done
        if remaining <= 0:
            return 0.0
        return remaining * self.seconds / self.fresh_chunks if self.fresh_chunks and self.seconds > 0 else None

    def projected(self, chunks: int) -> ChunkProgress:
        """Return the progress as if ``chunks`` more chunks had been read in the same time."""
        return replace(self, chunks_done=self.chunks_done + chunks, fresh_chunks=self.fresh_chunks + chunks)

    def to_json(self) -> dict[str, object]:
        """Return a plain JSON value."""
        eta = self.eta_seconds
        return {
            "chunks_done": self.chunks_done,
            "chunks_total": self.chunks_total,
            "rows": self.rows,
            "corrected": self.corrected,
            "rows_per_second": self.rows_per_second,
            "eta_seconds": None if eta is None else round(eta, 1),
            "paused": self.paused,
        }

    def __str__(self) -> str:
        rate, eta = self.rows_per_second, self.eta_seconds
        parts = [f"{self.chunks_done}/{self.chunks_total} chunks", f"{self.rows:,} rows"]
        parts += [] if rate is None else [f"{rate:,} rows/s"]
        parts.append(f"{self.corrected:,} corrected")
        parts += [f"{format_duration(eta)} left"] if eta else []
        return ", ".join(parts) + (f"; paused: {self.paused}" if self.paused else "")


def active_seconds(intervals: Iterable[tuple[float, float]]) -> float:
    """Return the number of seconds that are covered by at least one of some intervals.

    :param intervals: (begin, end) of each, in seconds.
    """
    total, reached = 0.0, float("-inf")
    for begin, end in sorted(intervals):
        total += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    return total


def format_duration(seconds: float) -> str:
    """Return a human-readable duration: ``42 s``, ``7 min``, ``3.5 h``, ``12 d``."""
    for limit, unit, name in ((120, 1, "s"), (7200, 60, "min"), (172_800, 3600, "h")):
        if seconds < limit:
            return f"{seconds / unit:.1f} h" if name == "h" else f"{seconds / unit:.0f} {name}"
    return f"{seconds / 86_400:.0f} d"
