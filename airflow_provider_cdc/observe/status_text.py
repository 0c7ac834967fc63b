"""What `status` says, in lines for people."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from airflow_provider_cdc.model.progress import duration
from airflow_provider_cdc.model.start_mode import SNAPSHOT, start_text
from airflow_provider_cdc.sinks.storage.request_counts import text_of


def status_lines(found: dict[str, Any]) -> Iterator[str]:
    """Lines that say how a pipeline stands.

    :param found: what :func:`airflow_provider_cdc.observe.status.status` returned.
    """
    snap, flow, offset = found["snapshot"], found["stream"], found["offset"]
    yield f"pipeline {found['pipeline']}: {found['phase']}"
    start = found["start"]
    yield f"  snapshot: {_progress(snap)}" if start == SNAPSHOT else f"  no snapshot: {start_text(start)}"
    if snap["traffic"]:
        yield f"    object store: {text_of(snap['traffic'])}"
    for row in found["groups"]:
        if row["state"] in ("running", "rereading"):
            yield f"    group {row['group']}: {_progress(row)}"
    yield "  tables:"
    for row in found["tables"]:
        yield f"    {_table(row)}"
    if found["sink"]:
        yield "  sink:"
    for row in found["sink"]:
        yield f"    {_size(row)}"
    if flow:
        yield (
            f"  stream: epoch {flow['epoch']} {flow['state']}, {flow['batches']} batches, "
            f"{flow['changes']} changes, {flow['changes_per_second']:,} changes/s{_applied(flow)}"
        )
        if flow["paused_by"] is not None:
            yield f"    paused: {flow['paused_by']} asked for it. To let it go on: airflow-cdc resume"
        if flow["index_bytes"]:
            spilled = f", {flow['index_disk_bytes']:,} more on disk" if flow["index_disk_bytes"] else ""
            most = f"at most {flow['index_bytes_per_table']:,} in memory for a table"
            yield f"    index of keys: {flow['index_bytes']:,} bytes{spilled}; {most}"
        for what, asked in (flow["traffic"] or {}).items():
            if asked:
                yield f"    object store, {what.replace('_', ' ')}: {text_of(asked)}"
        if flow["supervisor"]:
            yield f"    supervised by {flow['supervisor']}, {flow['supervised_seconds_ago']} s ago"
        elif flow["log"] and flow["state"] == "running":
            yield "    no task supervises it"
        if flow["error"]:
            yield f"    {flow['error']}"
        if flow["state"] in ("failed", "lost"):
            for line in flow["log_tail"]:
                yield f"    | {line}"
    for row in found["suspended"]:
        yield f"  suspended: {row['table']} since {row['since']}, at {row['at']}: {row['message']}"
        if row["remedy"]:
            yield f"    {row['remedy']}"
    if offset:
        yield f"  offset: {offset['file']}:{offset['position']} on {offset['server']}"
    yield f"  lag: {_lag(found)}"


def _progress(row: dict[str, Any]) -> str:
    said = f"{row['chunks_done']}/{row['chunks_total']} chunks, {row['rows']} rows"
    said += f", {row['rows_per_second']} rows/s" if row["rows_per_second"] else ""
    said += f", {row['corrected']} corrected"
    said += f", {duration(row['eta_seconds'])} left" if row["eta_seconds"] else ""
    return said + (f"; paused: {row['paused']}" if row["paused"] else "")


def _table(row: dict[str, Any]) -> str:
    said = f"{row['table']}: {row['state']}" + (f" at {row['at']}" if row["at"] else "")
    said += ", its copy was emptied" if row["emptied"] else ""
    if row["chunks_total"]:
        said += f", {row['chunks_done']}/{row['chunks_total']} chunks, {row['rows']} rows, {row['corrected']} corrected"
    if row["revision"]:
        said += f", read again {_times(row['revision'])}"
    more = len(row["definitions"]) - 1
    return f"{said}, altered {_times(more)}" if more else said


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number} times"


def _size(row: dict[str, Any]) -> str:
    """What a table of the sink takes."""
    rows = "" if row["rows"] is None else f"{row['rows']:,} rows in "
    said = f"{row['table']}: {rows}{row['files']:,} files, {row['bytes']:,} bytes"
    said += f", {row['dead_rows']:,} dead rows in {row['files_with_vectors']:,} of them" if row["dead_rows"] else ""
    return said + (f", compacted {row['compactions']:,} times" if row["compactions"] else "")


def _applied(flow: dict[str, Any]) -> str:
    """How late changes were applied; nothing where there were none."""
    half, most = flow["lag_p50_seconds"], flow["lag_p95_seconds"]
    return "" if half is None else f", lag p50 {half} s, p95 {most} s"


def _lag(found: dict[str, Any]) -> str:
    """How far the source is ahead of the resume point, or of P0 before there is one."""
    seconds, size, hours = found["lag_seconds"], found["lag_bytes"], found["purge_in_hours"]
    said = [
        *([] if seconds is None else [f"{seconds:,} s"]),
        *([] if size is None else [f"{size:,} bytes to read"]),
        *([f"unknown: {found['lag_unknown']}"] if found["lag_unknown"] else []),
    ]
    if not found["lag_unknown"]:
        said.append("the source keeps them " + ("for ever" if hours is None else f"for {hours:,} h more"))
    return ", ".join(said)
