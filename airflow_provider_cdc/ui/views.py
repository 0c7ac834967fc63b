"""The data of the page as JSON values. Times are ISO 8601 in UTC, sizes are in bytes, durations in seconds."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from itertools import groupby
from statistics import median
from typing import Any

from airflow_provider_cdc.state.models import ChunkGroupRow, ChunkRow, EpochRow, EventRow, SnapshotRow, TableStateRow
from airflow_provider_cdc.state.reader import CHUNK_STATES, PipelineOverview, StateDatabaseReader, Throughput
from airflow_provider_cdc.ui.state_databases import ShownPipeline

#: Severity levels, most severe first. The page has a color for each.
FAILED, WARNING, WORKING, IDLE = "failed", "warning", "working", "idle"
_RANKS = (FAILED, WARNING, WORKING, IDLE)
#: Seconds of lag, and hours until the source purges needed binlogs, at which a pipeline is shown as a warning.
LAG_WARNING_SECONDS, PURGE_WARNING_HOURS = 60.0, 12.0
#: Maximum points of a chart, and batches to read for it.
_BINS, _BATCHES = 240, 10_000
_EVENTS, _RUNS, _NEWEST_BATCHES, _REQUESTS = 100, 20, 20, 20


def _columns(row: object, *names: str) -> dict[str, Any]:
    """Return some columns of a row as JSON values."""
    values = {name: getattr(row, name) for name in names}
    return {name: _iso_time(value) if isinstance(value, datetime) else value for name, value in values.items()}


def _iso_time(at: datetime | None) -> str | None:
    return None if at is None else at.isoformat()


def pipeline_summary(shown: ShownPipeline, readable: Collection[str]) -> dict[str, Any]:
    """Return a pipeline for the overview.

    :param readable: DAGs that the user may read. Others are not named.
    """
    overview, is_alive = shown.overview, shown.database.is_stream_alive(shown.overview)
    phase = pipeline_phase(overview, is_alive)
    lost = shown.database.lost_groups(overview)
    level, reason, error = _pipeline_severity(overview, phase, len(lost))
    groups, event, sample = overview.chunk_groups, overview.last_event, overview.last_sample
    return {
        "book": shown.database.key,
        "name": overview.name,
        "where": shown.database.label,
        "dags": sorted(set(shown.dags).intersection(readable)),
        "phase": phase,
        "level": level,
        "says": reason,
        "error": error,
        "tables": sum(overview.table_state_counts.values()) or overview.tables,
        "states": dict(overview.table_state_counts),
        "groups": None
        if groups is None
        else {"total": groups.total, "done": groups.done, "held": len(groups.unfinished), "failed": len(lost)},
        "lag_seconds": _stream_lag(overview) if phase == "streaming" else None,
        "lag_bytes": None if sample is None else sample.lag_bytes,
        "purge_hours": None if sample is None else sample.purge_hours,
        "lag_unknown": None if sample is None else sample.unknown,
        "sampled_at": None if sample is None else _iso_time(sample.at),
        "changes_per_second": None if overview.throughput is None else round(overview.throughput.changes_per_second, 1),
        "event": None if event is None else event_view(event),
    }


def sort_by_severity(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Sort pipelines by severity, then by lag (highest first), then by name."""
    return sorted(lines, key=lambda line: (_RANKS.index(line["level"]), -(line["lag_seconds"] or 0.0), line["name"]))


def pipeline_phase(overview: PipelineOverview, is_alive: bool | None) -> str:
    """Return ``planning``, ``snapshot``, ``handover``, ``streaming``, ``lost``, ``failed``, ``caught_up`` or
    ``stopped``.
    """
    if overview.newest_epoch is not None and (overview.newest_epoch.state != "running" or overview.snapshot is None):
        return overview.newest_epoch.state
    if overview.newest_epoch is not None:
        return "lost" if is_alive is False else "streaming"
    if overview.snapshot is None:
        return "planning"
    return "handover" if overview.snapshot.state == "done" else "snapshot"


def _stream_lag(overview: PipelineOverview) -> float | None:
    """Return the lag of the stream in seconds: the higher of the last sample and the newest batches."""
    candidates = [overview.last_sample.lag_seconds if overview.last_sample is not None else None]
    candidates.append(None if overview.throughput is None else _to_seconds(overview.throughput.lag_p95_ms))
    known = [lag for lag in candidates if lag is not None]
    return max(known, default=None)


def _pipeline_severity(overview: PipelineOverview, phase: str, lost: int) -> tuple[str, str, str | None]:
    """Return the level, the reason, and the error if there is one."""
    stream = overview.newest_epoch
    if phase == "failed" and stream is not None:
        return FAILED, "the stream has failed", stream.error
    if phase == "lost":
        return FAILED, "the stream has no heartbeat", None
    if lost:
        return FAILED, f"{_count_text(lost, 'chunk group')} without a reader: see the log of the task", None
    if suspended := overview.table_state_counts.get("suspended", 0):
        return FAILED, f"{_count_text(suspended, 'table')} suspended", None
    hours = None if overview.last_sample is None else overview.last_sample.purge_hours
    if phase in ("streaming", "snapshot", "handover") and hours is not None and hours < PURGE_WARNING_HOURS:
        return WARNING, f"the source keeps the needed binlogs for {hours:.1f} h", None
    lag = _stream_lag(overview) if phase == "streaming" else None
    if lag is not None and lag >= LAG_WARNING_SECONDS:
        return WARNING, f"lag of {lag:.0f} s", None
    if phase in ("streaming", "snapshot", "planning"):
        return WORKING, "", None
    return IDLE, "", None


def _count_text(n: int, what: str) -> str:
    return f"{n} {what}{'' if n == 1 else 's'}"


def _to_seconds(milliseconds: float | None) -> float | None:
    return None if milliseconds is None else round(milliseconds / 1000, 3)


def pipeline_view(reader: StateDatabaseReader, shown: ShownPipeline, readable: Collection[str]) -> dict[str, Any]:
    """Return everything about a pipeline except its map of chunks and its charts."""
    name = shown.overview.name
    snapshot = reader.snapshot(name)
    generation = 0 if snapshot is None else snapshot.generation
    groups = reader.groups(name, generation)
    runs = reader.newest_epochs(name, _RUNS)
    pace = reader.throughput(runs[0]) if runs else None
    line, lost = pipeline_summary(shown, readable), shown.database.lost_groups(shown.overview)
    return {
        **line,
        "tasks": [{"dag": one.dag_id, "task": one.task_id} for one in shown.tasks if one.dag_id in readable],
        "server": shown.overview.server,
        "generation": generation,
        "snapshot": None if snapshot is None else _snapshot_view(snapshot, groups),
        "groups_list": [_group_view(group, lost) for group in groups],
        "tables_list": _tables_view(reader, shown, generation, line["phase"]),
        "stream": _stream_view(runs[0], pace) if runs else None,
        "runs": [_run_view(run) for run in runs],
        "batches": [_batch_view(row) for row in reader.last_batches(name, _NEWEST_BATCHES)],
        "events": [event_view(event) for event in reader.last_events(name, _EVENTS)],
    }


def event_view(event: EventRow) -> dict[str, Any]:
    """Return an event."""
    names = ("id", "kind", "detail", "table", "remedy", "by", "acknowledged_by", "at", "acknowledged_at")
    return _columns(event, *names)


def _snapshot_view(snapshot: SnapshotRow, groups: Sequence[ChunkGroupRow]) -> dict[str, Any]:
    begun = min((group.started_at for group in groups if group.started_at is not None), default=None)
    # Times at which readers were active, by their clocks. The last one ends the known duration.
    signs = [at for group in groups for at in (group.heartbeat_at, group.finished_at) if at is not None]
    until = snapshot.finished_at or max(signs, default=None)
    seconds = (until - begun).total_seconds() if until is not None and begun is not None else None
    rows = sum(group.rows or 0 for group in groups)
    return {
        "state": snapshot.state,
        "planned_at": _iso_time(snapshot.created_at),
        "begun_at": _iso_time(begun),
        "finished_at": _iso_time(snapshot.finished_at),
        "seconds": seconds,
        "rows": rows,
        "rows_per_second": round(rows / seconds) if seconds and seconds > 0 and rows else None,
    }


def _group_view(group: ChunkGroupRow, lost: Collection[int]) -> dict[str, Any]:
    failed = group.group_no in lost
    return {
        **_columns(group, "attempt", "rows", "started_at", "finished_at"),
        "no": group.group_no,
        "state": "failed" if failed else group.state,
        # Without the host and process, which are shown for a single chunk.
        "holder": group.holder.partition(" [")[0] if group.holder else None,
        "tables": [".".join(map(str, table)) for table in group.tables],
        # Changes when the page has to fetch the states of the group's chunks again.
        "version": f"{group.state} {group.attempt} {_iso_time(group.finished_at)} {failed}",
    }


def _tables_view(
    reader: StateDatabaseReader, shown: ShownPipeline, generation: int, phase: str
) -> list[dict[str, Any]]:
    """Return the tables by name: what the snapshot has read of each, and its state if a driver has recorded one."""
    name = shown.overview.name
    progress = {(row.database, row.table): row for row in reader.table_progress(name, generation)}
    state_rows = {(row.database, row.name): row for row in reader.table_states(name)}
    planned = {(database, table): rows for database, table, rows in reader.table_names(name, generation)}
    lines = []
    for key in sorted({*planned, *state_rows}):
        read, state_row = progress.get(key), state_rows.get(key)
        complete = read is None or read.done == read.chunks
        state = ("streaming" if phase == "streaming" else "copied") if complete else "snapshot"
        values = {column: getattr(read, column, 0) for column in ("chunks", "done", "rows", "bytes", "corrected")}
        line = {"database": key[0], "table": key[1], "state": state, "rows_estimate": planned.get(key), **values}
        lines.append(
            line if state_row is None else line | _table_state_view(state_row, shown.database.change_rates(state_row))
        )
    return lines


def _table_state_view(row: TableStateRow, rates: Sequence[float] | None) -> dict[str, Any]:
    operations = ("inserts", "updates", "deletes")
    names = ("state", "position", "kind", "reason", "remedy", "last_verified", "since", "definitions")
    return {
        **_columns(row, *names, *operations, "compacted_at", "compaction_seconds"),
        "copy": _columns(row, "files", "bytes", "rows", "dead_rows", "compactions"),
        "verified_at": _iso_time(row.last_verified_at),
        "rates": None if rates is None else dict(zip(operations, rates, strict=True)),
    }


def requests_view(reader: StateDatabaseReader, name: str, with_conditions: bool) -> list[dict[str, Any]]:
    """Return the newest control requests.

    :param with_conditions: whether to include the conditions, which have keys that a user has typed.
    """
    return [
        {
            **_columns(row, "id", "kind", "table", "by", "state", "outcome", "at", "finished_at"),
            "condition": row.condition if with_conditions else None,
            "part": row.condition is not None,
        }
        for row in reader.last_requests(name, _REQUESTS)
    ]


def _offset_view(offset: Any) -> dict[str, Any] | None:
    """Return a position, without the fields that only the stream needs."""
    if not isinstance(offset, dict):
        return None
    return {name: offset.get(name) for name in ("server", "file", "position", "gtid_set")}


def _run_view(run: EpochRow) -> dict[str, Any]:
    names = ("epoch", "state", "mode", "host", "started_at", "heartbeat_at", "batches", "changes", "error", "stop_by")
    return _columns(run, *names)


def _stream_view(run: EpochRow, pace: Throughput | None) -> dict[str, Any]:
    names = ("desired_state", "paused_by", "supervisor", "supervised_at", "progress_at", "log", "index_bytes", "bytes")
    return {
        **_run_view(run),
        **_columns(run, *names),
        "ui": run.ui if str(run.ui or "").startswith(("http://", "https://")) else None,
        "at": _offset_view(run.end_offset),
        "changes_per_second": None if pace is None else round(pace.changes_per_second, 1),
    }


def _batch_view(row: Any) -> dict[str, Any]:
    return {
        **_columns(row, "epoch", "changes", "bytes"),
        "batch": row.batch_id,
        "at": _iso_time(row.committed_at),
        "seconds": round(row.seconds, 4),
        "lag_p50": _to_seconds(row.lag_p50_ms),
        "lag_p95": _to_seconds(row.lag_p95_ms),
        "to": _offset_view(row.end_offset),
    }


def chunk_view(chunk: ChunkRow, group: ChunkGroupRow) -> dict[str, Any]:
    """Return one chunk, without its bounds, which the state database does not have."""
    return {
        **_columns(chunk, "state", "attempt", "rows", "bytes", "corrected", "seconds"),
        "no": chunk.chunk_no,
        "table": f"{chunk.database}.{chunk.table_name}",
        "group": chunk.group_no,
        "lw": _watermark_text(chunk.lw),
        "hw": _watermark_text(chunk.hw),
        "group_state": group.state,
        "group_attempt": group.attempt,
        "holder": group.holder,
    }


def _watermark_text(value: Any) -> str | None:
    """Return a watermark as file and position."""
    if isinstance(value, dict):
        return f"{value.get('file')}:{value.get('position')}"
    return ":".join(map(str, value[:2])) if isinstance(value, list) and len(value) >= 2 else None


def chunks_view(
    reader: StateDatabaseReader, shown: ShownPipeline, generation: int, groups: Collection[int] | None
) -> dict[str, Any]:
    """Return the map of chunks, or the part of it that is in some groups."""
    name = shown.overview.name
    runs = reader.chunk_state_runs(name, generation, groups, shown.database.lost_groups(shown.overview))
    answer: dict[str, Any] = {"generation": generation, "states": CHUNK_STATES, "runs": runs}
    if groups is None:
        answer["tables"] = reader.chunk_ranges_by_table(name, generation)
    return answer


def lag_view(reader: StateDatabaseReader, name: str, minutes: int, now: datetime) -> dict[str, Any]:
    """Return the batches of the last minutes, aggregated in steps of equal length. Steps without a batch are omitted.

    Each point is a list: start of the step, changes per second, bytes per second, p50 and p95 of the lag in seconds
    (weighted by changes), and median and maximum duration of a batch in seconds.
    """
    since, step = now - timedelta(minutes=minutes), minutes * 60 / _BINS
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
    return {"since": since.timestamp(), "until": now.timestamp(), "step": step, "points": points}


def _weighted_quantile(rows: Sequence[Any], column: str, share: float) -> float | None:
    """Return a quantile over all changes: the lag of the batch in which it falls."""
    lags = sorted((getattr(row, column), row.changes) for row in rows if getattr(row, column) is not None)
    left = share * sum(changes for _, changes in lags)
    for lag, changes in lags:
        left -= changes
        if left <= 0:
            return _to_seconds(lag)
    return _to_seconds(lags[-1][0]) if lags else None
