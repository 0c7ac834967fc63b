"""The batches of a stream as JSON values: the newest ones, and aggregated over time."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from itertools import groupby
from statistics import median
from typing import Any

from airflow_provider_cdc.state.reader import StateDatabaseReader
from airflow_provider_cdc.ui.json_values import iso_time, row_values

#: Maximum points of a chart, and batches to read for it.
_BINS, _BATCHES = 240, 10_000


def offset_view(offset: Any) -> dict[str, Any] | None:
    """Return a position, without the fields that only the stream needs."""
    if not isinstance(offset, dict):
        return None
    return {name: offset.get(name) for name in ("server", "file", "position", "gtid_set")}


def batch_view(row: Any) -> dict[str, Any]:
    """Return a batch."""
    return {
        **row_values(row, "epoch", "changes", "bytes"),
        "batch": row.batch_id,
        "at": iso_time(row.committed_at),
        "seconds": round(row.seconds, 4),
        "lag_p50": to_seconds(row.lag_p50_ms),
        "lag_p95": to_seconds(row.lag_p95_ms),
        "to": offset_view(row.end_offset),
    }


def lag_view(reader: StateDatabaseReader, name: str, minutes: int, now: datetime) -> dict[str, Any]:
    """Return the batches of the last minutes, aggregated in steps of equal length. Steps without a batch are omitted.

    If there is no batch in this time, the minutes before the newest batch are shown.

    Each point is a list: start of the step, changes per second, bytes per second, p50 and p95 of the lag in seconds
    (weighted by changes), and median and maximum duration of a batch in seconds.
    """
    newest_at = next((row.committed_at for row in reader.last_batches(name, 1)), None)
    length, step = timedelta(minutes=minutes), minutes * 60 / _BINS
    until = now if newest_at is None or newest_at > now - length else newest_at
    since = until - length
    rows = reader.batches_since(name, since, _BATCHES)
    points = []
    for number, batches in groupby(rows, key=lambda row: int((row.committed_at - since).total_seconds() // step)):
        step_batches = list(batches)
        points.append(
            [
                round((since + timedelta(seconds=number * step)).timestamp(), 3),
                round(sum(row.changes for row in step_batches) / step, 3),
                round(sum(row.bytes for row in step_batches) / step, 1),
                _weighted_quantile(step_batches, "lag_p50_ms", 0.5),
                _weighted_quantile(step_batches, "lag_p95_ms", 0.95),
                round(median(row.seconds for row in step_batches), 4),
                round(max(row.seconds for row in step_batches), 4),
            ]
        )
    times = {"since": since.timestamp(), "until": until.timestamp(), "newest": newest_at and newest_at.timestamp()}
    return {**times, "step": step, "points": points}


def _weighted_quantile(rows: Sequence[Any], column: str, share: float) -> float | None:
    """Return a quantile over all changes: the lag of the batch in which it falls."""
    lags = sorted((getattr(row, column), row.changes) for row in rows if getattr(row, column) is not None)
    left = share * sum(changes for _, changes in lags)
    for lag, changes in lags:
        left -= changes
        if left <= 0:
            return to_seconds(lag)
    return to_seconds(lags[-1][0]) if lags else None


def to_seconds(milliseconds: float | None) -> float | None:
    """Convert milliseconds to seconds."""
    return None if milliseconds is None else round(milliseconds / 1000, 3)
