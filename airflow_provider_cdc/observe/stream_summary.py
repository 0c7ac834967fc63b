"""The line that a stream writes to its log once a minute."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from airflow_provider_cdc.model.offset import Position
    from airflow_provider_cdc.observe.lag import Lag


@dataclass
class StreamCounts:
    """What a stream has applied since the last summary.

    :param batches: number of batches.
    :param changes: number of changes in them.
    :param started_at: monotonic time of the last summary, in seconds.
    """

    batches: int = 0
    changes: int = 0
    started_at: float = field(default_factory=time.monotonic)

    def add_batch(self, changes: int) -> None:
        """Count a batch."""
        self.batches += 1
        self.changes += changes


def summary_line(epoch: int, counts: StreamCounts, lag: Lag | None, position: Position) -> str:
    """Return the summary of a stream.

    :param counts: what it has applied since the last summary.
    :param lag: how far it is behind the source; ``None`` if that could not be measured.
    :param position: the end of the last batch.
    """
    seconds = max(time.monotonic() - counts.started_at, 0.001)
    rate = counts.changes / seconds
    work = f"{counts.batches:,} batches, {counts.changes:,} changes, {rate:,.0f} rows/s in the last {seconds:.0f} s"
    if lag is None:
        behind = behind_text(None, None, None, None)
    else:
        hours = None if lag.seconds_to_purge is None else lag.seconds_to_purge / 3600
        behind = behind_text(None if lag.seconds is None else round(lag.seconds, 1), lag.bytes, hours, lag.unknown)
    return f"{summary_prefix(epoch)}{work}; {behind}; at {position}"


def summary_prefix(epoch: int) -> str:
    """Return how every summary of an epoch begins."""
    return f"epoch {epoch}: "


def behind_text(seconds: float | None, size: int | None, hours_to_purge: float | None, unknown: str | None) -> str:
    """Return how far a stream is behind the source.

    :param seconds: lag in seconds; ``None`` if unknown.
    :param size: lag in bytes.
    :param hours_to_purge: hours for which the source keeps the needed binlogs; ``None`` for ever.
    :param unknown: why the lag is unknown.
    """
    if seconds is None:
        text = f"lag unknown{f': {unknown}' if unknown else ' so far'}"
    else:
        text = f"{seconds:g} s and {size or 0:,} bytes behind the source"
    return text if hours_to_purge is None else f"{text}, which keeps the needed binlogs for {hours_to_purge:.1f} h more"
