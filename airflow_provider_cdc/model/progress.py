"""How far work on chunks is, how fast it goes and how long it still takes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class ChunkProgress:
    """How far a piece of work on chunks is: a group, a whole snapshot, one table of ``verify``.

    What somebody else has done before counts as done, but not for the rate.

    :param label: what is worked on, for people.
    :param chunks_done: chunks that are done.
    :param chunks_total: chunks in all.
    :param rows: rows in the chunks that are done.
    :param corrected: keys in them that were corrected from the binlog.
    :param fresh_chunks: of the chunks that are done, those that were read in ``seconds``.
    :param fresh_rows: rows in those.
    :param seconds: how long has been worked on them, in seconds.
    :param paused: why nothing is read at the moment; ``None`` if it is.
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
        """Rows a second; ``None`` before anything was read."""
        return round(self.fresh_rows / self.seconds) if self.fresh_chunks and self.seconds > 0 else None

    @property
    def eta_seconds(self) -> float | None:
        """Seconds until the last chunk is done, if it goes on like this; ``None`` before anything was read.

        Chunks are counted, not rows: how many rows the others have is known when they are read.
        """
        remaining = self.chunks_total - self.chunks_done
        if remaining <= 0:
            return 0.0
        return remaining * self.seconds / self.fresh_chunks if self.fresh_chunks and self.seconds > 0 else None

    def projected(self, chunks: int) -> ChunkProgress:
        """The same, had so many more chunks been read in the same time."""
        return replace(self, chunks_done=self.chunks_done + chunks, fresh_chunks=self.fresh_chunks + chunks)

    def to_json(self) -> dict[str, object]:
        """Plain JSON value."""
        eta = self.eta_seconds
        return {
            "chunks_done": self.chunks_done,
            "chunks_total": self.chunks_total,
            "rows": self.rows,
            "corrected": self.corrected,
            "rows_per_second": self.rows_per_second,
            "eta_seconds": None if eta is None else round(eta, 1),
        }

    def __str__(self) -> str:
        rate, eta = self.rows_per_second, self.eta_seconds
        parts = [f"{self.chunks_done}/{self.chunks_total} chunks", f"{self.rows:,} rows"]
        parts += [] if rate is None else [f"{rate:,} rows/s"]
        parts.append(f"{self.corrected:,} corrected")
        parts += [f"{format_duration(eta)} left"] if eta else []
        return ", ".join(parts) + (f"; paused: {self.paused}" if self.paused else "")


def active_seconds(intervals: Iterable[tuple[float, float]]) -> float:
    """Seconds in which at least one of some intervals was going on.

    :param intervals: (beginning, end) of each, in seconds.
    """
    total, reached = 0.0, float("-inf")
    for begin, end in sorted(intervals):
        total += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    return total


def format_duration(seconds: float) -> str:
    """Seconds for people: ``42 s``, ``7 min``, ``3.5 h``, ``12 d``."""
    for limit, unit, name in ((120, 1, "s"), (7200, 60, "min"), (172_800, 3600, "h")):
        if seconds < limit:
            return f"{seconds / unit:.1f} h" if name == "h" else f"{seconds / unit:.0f} {name}"
    return f"{seconds / 86_400:.0f} d"
