"""The human-readable output of ``status``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from airflow_provider_cdc.model.progress import format_duration
from airflow_provider_cdc.model.start_mode import SNAPSHOT, format_start
from airflow_provider_cdc.sinks.storage.request_counts import format_counts


def status_lines(status: dict[str, Any]) -> Iterator[str]:
    """Yield the lines that describe the status of a pipeline.

    :param status: what :func:`airflow_provider_cdc.observe.status.read_status` returned.
    """
    snapshot, stream, offset = status["snapshot"], status["stream"], status["offset"]
    yield f"pipeline {status['pipeline']}: {status['phase']}"
    start = status["start"]
    yield f"  snapshot: {_progress_text(snapshot)}" if start == SNAPSHOT else f"  no snapshot: {format_start(start)}"
    if snapshot["traffic"]:
        yield f"    object store: {format_counts(snapshot['traffic'])}"
    for row in status["groups"]:
        if row["state"] in ("running", "rereading"):
            yield f"    group {row['group']}: {_progress_text(row)}"
    yield "  tables:"
    for row in status["tables"]:
        yield f"    {_table_text(row)}"
    if status["sink"]:
        yield "  sink:"
    for row in status["sink"]:
        yield f"    {_sink_size_text(row)}"
    if stream:
        yield (
            f"  stream: epoch {stream['epoch']} {stream['state']}, {stream['batches']} batches, "
            f"{stream['changes']} changes, {stream['changes_per_second']:,} changes/s{_apply_lag_text(stream)}"
        )
        if stream["paused_by"] is not None:
            yield f"    paused: {stream['paused_by']} asked for it. To resume it: airflow-cdc resume"
        if stream["index_bytes"]:
            spilled = f", {stream['index_disk_bytes']:,} more on disk" if stream["index_disk_bytes"] else ""
            limit_text = f"at most {stream['index_bytes_per_table']:,} in memory for a table"
            yield f"    index of keys: {stream['index_bytes']:,} bytes{spilled}; {limit_text}"
        for what, requests in (stream["traffic"] or {}).items():
            if requests:
                yield f"    object store, {what.replace('_', ' ')}: {format_counts(requests)}"
        if stream["supervisor"]:
            yield f"    supervised by {stream['supervisor']}, {stream['supervised_seconds_ago']} s ago"
        elif stream["log"] and stream["state"] == "running":
            yield "    no task supervises it"
        if stream["error"]:
            yield f"    {stream['error']}"
        if stream["state"] in ("failed", "lost"):
            for line in stream["log_tail"]:
                yield f"    | {line}"
    for row in status["suspended"]:
        yield f"  suspended: {row['table']} since {row['since']}, at {row['at']}: {row['message']}"
        if row["remedy"]:
            yield f"    {row['remedy']}"
    if offset:
        yield f"  offset: {offset['file']}:{offset['position']} on {offset['server']}"
    yield f"  lag: {_lag_text(status)}"


def _progress_text(row: dict[str, Any]) -> str:
    text = f"{row['chunks_done']}/{row['chunks_total']} chunks, {row['rows']} rows"
    text += f", {row['rows_per_second']} rows/s" if row["rows_per_second"] else ""
    text += f", {row['corrected']} corrected"
    text += f", {format_duration(row['eta_seconds'])} left" if row["eta_seconds"] else ""
    return text + (f"; paused: {row['paused']}" if row["paused"] else "")


def _table_text(row: dict[str, Any]) -> str:
    text = f"{row['table']}: {row['state']}" + (f" at {row['at']}" if row["at"] else "")
    text += ", its copy was emptied" if row["emptied"] else ""
    if row["chunks_total"]:
        text += f", {row['chunks_done']}/{row['chunks_total']} chunks, {row['rows']} rows, {row['corrected']} corrected"
    if row["revision"]:
        text += f", re-snapshotted {_times_text(row['revision'])}"
    if (alterations := len(row["definitions"]) - 1) > 0:
        text += f", altered {_times_text(alterations)}"
    return f"{text}; {row['error']}" if row["error"] else text


def _times_text(number: int) -> str:
    return "once" if number == 1 else f"{number} times"


def _sink_size_text(row: dict[str, Any]) -> str:
    """Return the size of a sink table, as text."""
    rows = "" if row["rows"] is None else f"{row['rows']:,} rows in "
    text = f"{row['table']}: {rows}{row['files']:,} files, {row['bytes']:,} bytes"
    text += f", {row['dead_rows']:,} dead rows in {row['files_with_vectors']:,} of them" if row["dead_rows"] else ""
    return text + (f", compacted {row['compactions']:,} times" if row["compactions"] else "")


def _apply_lag_text(stream: dict[str, Any]) -> str:
    """Return the lag with which changes were applied, as text; empty if there were none."""
    median, p95 = stream["lag_p50_seconds"], stream["lag_p95_seconds"]
    return "" if median is None else f", lag p50 {median} s, p95 {p95} s"


def _lag_text(status: dict[str, Any]) -> str:
    """Return the lag of the resume point (or of P0, before there is one) behind the source, as text."""
    seconds, size, hours = status["lag_seconds"], status["lag_bytes"], status["purge_in_hours"]
    parts = [
        *([] if seconds is None else [f"{seconds:,} s"]),
        *([] if size is None else [f"{size:,} bytes to read"]),
        *([f"unknown: {status['lag_unknown']}"] if status["lag_unknown"] else []),
    ]
    if not status["lag_unknown"]:
        parts.append("the source keeps them " + ("for ever" if hours is None else f"for {hours:,} h more"))
    return ", ".join(parts)
