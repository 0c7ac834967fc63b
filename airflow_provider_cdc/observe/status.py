"""The status of a pipeline, from its state database and sink."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from airflow_provider_cdc.chunk_groups.chunk_group import open_sink_tables
from airflow_provider_cdc.model.errors import TerminalError, TransientError
from airflow_provider_cdc.model.plan import Plan
from airflow_provider_cdc.model.progress import ChunkProgress
from airflow_provider_cdc.model.schema import TableSchema
from airflow_provider_cdc.observe.lag import changes_per_second, measure_lag
from airflow_provider_cdc.observe.table_state import PipelineState, describe_definitions, describe_table
from airflow_provider_cdc.resnapshot.dropped_tables import list_emptied_copies
from airflow_provider_cdc.resnapshot.staged_files import tables_pending_publication
from airflow_provider_cdc.resnapshot.suspension import list_suspensions, suspension_remedy, tables_known_missing
from airflow_provider_cdc.runtime.run_context import RunContext
from airflow_provider_cdc.sinks.protocol import Measurable, SinkTable, TableSize
from airflow_provider_cdc.sinks.storage.request_counts import sum_counts
from airflow_provider_cdc.sinks.table_errors import name_table_in_errors
from airflow_provider_cdc.snapshot.progress import group_progress, snapshot_progress
from airflow_provider_cdc.snapshot.run import adopt_published_groups
from airflow_provider_cdc.spark.resource_manager import tail_driver_log
from airflow_provider_cdc.state import ChunkGroupRow, EpochRow, StateDatabase, TableProgress
from airflow_provider_cdc.state.models import BatchRow

#: Lines of a stream's log that the status shows.
LOG_LINES = 10


def read_status(context: RunContext) -> dict[str, Any]:
    """Return the status of a pipeline as a JSON value. The lag is queried from the source, if it can be reached.

    If the log of a copy cannot be read, the ``error`` of its table says why, and its size is left out; see
    :func:`describe_unreadable_copies`.

    :returns: the object that docs/cli.md describes.
    """
    plan = context.plans.require()
    with closing(context.open_state_database()) as store:
        complete, copies = _read_copies(context, store, plan)
        rows = {(row.database, row.table): row for row in store.table_progress(plan.pipeline, plan.generation)}
        groups = group_progress(context, store, plan)
        offset = context.sink.resume_point().read()
        stream, is_running = _find_run(context, store)
        idle_phase = "stopped" if stream else "snapshot_complete"
        lag = measure_lag(context, offset or plan.p0).to_json()
        state = PipelineState(
            plan,
            group_states={group.group_no: group.state for group, _ in groups},
            snapshot_complete=complete,
            stream_running=None if stream is None else is_running,
            position=None if offset is None else str(offset.at),
            pending_resnapshots=tables_pending_publication(context, plan),
            missing=tables_known_missing(context, plan),
            given_up=_tables_given_up(store, plan),
        )
        return {
            "pipeline": plan.pipeline,
            "phase": "streaming" if is_running else idle_phase if complete else "snapshot",
            "generation": plan.generation,
            "start": plan.start,
            "tables": _tables_json(context, state, rows, copies, lag["lag_seconds"]),
            "suspended": [
                {
                    "table": plan.tables[suspension.table].label,
                    **{name: getattr(suspension, name) for name in ("at", "since", "kind", "message")},
                    "remedy": suspension_remedy(plan, suspension),
                }
                for suspension in list_suspensions(context, plan)
                if suspension.table not in state.missing
            ],
            "snapshot": _snapshot_json(context, store, plan, [*rows.values()], groups, complete=complete),
            "groups": [
                {"group": group.group_no, "state": group.state, **progress.to_json(), "traffic": group.traffic}
                for group, progress in groups
            ],
            "sink": [
                {"table": plan.tables[index].label, **copy.size.to_json()}
                for index, copy in copies.items()
                if copy.size is not None
            ],
            "offset": None if offset is None else offset.to_json(),
            **lag,
            "stream": None if stream is None else _stream_json(context, store, stream, is_running),
        }


def _tables_given_up(store: StateDatabase, plan: Plan) -> set[int]:
    """Return the tables that the running stream has left to the user, as its driver has recorded."""
    recorded = {(row.database, row.name) for row in store.table_states(plan.pipeline) if row.state == "suspended"}
    return {index for index, table in enumerate(plan.tables) if table.id in recorded}


def describe_unreadable_copies(status: Mapping[str, Any]) -> str:
    """Return which copies cannot be read, as text; empty if all can be.

    :param status: what :func:`read_status` returned.
    """
    labels = [row["table"] for row in status["tables"] if row["error"]]
    return f"{len(labels)} of {len(status['tables'])} copies cannot be read: {', '.join(labels)}" if labels else ""


@dataclass(frozen=True)
class _CopyView:
    """What is known of the copy of an active table.

    :param size: ``None`` if the sink cannot tell, or there is no copy.
    :param error: why it cannot be read; ``None`` if it can.
    """

    exists: bool
    size: TableSize | None = None
    error: str | None = None


def _read_copies(context: RunContext, store: StateDatabase, plan: Plan) -> tuple[bool, dict[int, _CopyView]]:
    """Return whether the snapshot is complete, and the copies of the active tables, by index.

    If the state database was lost, it is restored from the sink.
    """
    problem = None
    try:
        complete = adopt_published_groups(context, store, plan)
    except TerminalError as error:
        complete, problem = False, error
    tables = open_sink_tables(context, plan)
    copies = {index: _read_copy(plan.tables[index], tables[index]) for index in plan.active_tables}
    unreadable = {plan.tables[index].label for index, copy in copies.items() if copy.error}
    if problem is not None and problem.table not in unreadable:
        raise problem
    return complete and all(copy.exists for copy in copies.values()), copies


def _read_copy(schema: TableSchema, table: SinkTable) -> _CopyView:
    try:
        with name_table_in_errors(schema):
            exists = table.exists()
            return _CopyView(exists, table.table_size() if exists and isinstance(table, Measurable) else None)
    except TerminalError as error:  # the other tables are still shown
        return _CopyView(True, error=str(error))


def _tables_json(
    context: RunContext,
    state: PipelineState,
    rows: Mapping[tuple[str, str], TableProgress],
    copies: Mapping[int, _CopyView],
    lag_seconds: float | None,
) -> list[dict[str, Any]]:
    """Return all tables of the plan, including removed ones."""
    plan = state.plan
    emptied, definitions = list_emptied_copies(context, plan), describe_definitions(plan, context.resume_state(plan)[1])
    tables = []
    for index, table in enumerate(plan.tables):
        progress, copy = rows.get(table.id), copies.get(index)
        described = describe_table(context, state, index, progress, definitions[index])
        is_updated = described.kind is None and described.position is not None
        tables.append(
            {
                "table": table.label,
                "state": described.state,
                "chunks_done": described.chunks_done,
                "chunks_total": described.chunks_total,
                "rows": progress.rows if progress else 0,
                "corrected": progress.corrected if progress else 0,
                "at": described.position,
                "lag_seconds": lag_seconds if is_updated else None,
                "emptied": index in emptied,
                "revision": plan.revision_of(index),
                "definitions": described.definitions,
                "error": None if copy is None else copy.error,
            }
        )
    return tables


def _snapshot_json(
    context: RunContext,
    store: StateDatabase,
    plan: Plan,
    rows: Sequence[TableProgress],
    groups: Sequence[tuple[ChunkGroupRow, ChunkProgress]],
    *,
    complete: bool,
) -> dict[str, Any]:
    snapshot, progress, seconds = store.snapshot(plan.pipeline, plan.generation), snapshot_progress(groups), None
    if snapshot is not None and snapshot.finished_at is not None:
        seconds = (snapshot.finished_at - snapshot.created_at).total_seconds()
        if seconds < sum(row.seconds for row in rows) / context.pipeline.snapshot.parallelism:
            seconds = None  # unknown, since the state database was rebuilt from the sink
    rate = None if complete else progress.rows_per_second
    request_counts = [group.traffic for group, _ in groups if group.traffic]
    return {
        "complete": complete,
        "traffic": sum_counts(request_counts) if request_counts else None,
        **progress.to_json(),
        "rows_per_second": round(sum(row.rows for row in rows) / seconds) if seconds else rate,
        "seconds": seconds,
    }


def _stream_json(context: RunContext, store: StateDatabase, stream: EpochRow, is_running: bool) -> dict[str, Any]:
    totals, recent = store.batch_totals(stream.pipeline), store.last_batches(stream.pipeline, 1000)
    of_run = [batch for batch in recent if batch.epoch == stream.epoch]
    until = datetime.now(UTC) if is_running or not of_run else of_run[0].committed_at
    traffic = stream.traffic and {"last_batch": of_run[0].traffic if of_run else None, "run": stream.traffic}
    return {
        **{name: getattr(stream, name) for name in ("epoch", "mode", "host", "paused_by", "error", "ui", "log")},
        **{name: getattr(stream, name) for name in ("supervisor", "index_bytes", "index_disk_bytes")},
        "state": stream.state if is_running or stream.state != "running" else "lost",
        "supervised_seconds_ago": _seconds_since(stream.supervised_at),
        "progress_seconds_ago": _seconds_since(stream.progress_at),
        "log_tail": tail_driver_log(stream.log, LOG_LINES) or _last_reported_line(store, stream),
        "batches": totals.batches,
        "changes": totals.changes,
        "index_bytes_per_table": context.pipeline.sink.index_bytes,
        "traffic": traffic,
        "changes_per_second": changes_per_second(of_run, stream.started_at, until),
        "lag_p50_seconds": _weighted_percentile(recent, "lag_p50_ms", 0.5),
        "lag_p95_seconds": _weighted_percentile(recent, "lag_p95_ms", 0.95),
    }


def _last_reported_line(store: StateDatabase, stream: EpochRow) -> list[str]:
    """Return what the stream's driver last wrote to its log, if it runs in a cluster: the log of a pod is no file."""
    drivers = (row for row in store.live_drivers(stream.pipeline) if stream.log and row.log == stream.log)
    return [row.last_line for row in drivers if row.last_line]


def _find_run(context: RunContext, store: StateDatabase) -> tuple[EpochRow | None, bool]:
    """Return the newest run, and whether it is running; as recorded, if the state database accepts no writes now."""
    try:
        return context.liveness.wait_until_known(store, context.pipeline.name)
    except TransientError:
        run = store.newest_epoch(context.pipeline.name)
        return run, run is not None and run.state == "running"


def _seconds_since(moment: datetime | None) -> float | None:
    return None if moment is None else round((datetime.now(UTC) - moment).total_seconds(), 1)


def _weighted_percentile(batches: Sequence[BatchRow], name: str, share: float) -> float | None:
    """Return a percentile over batches in seconds, each batch weighted by its number of changes."""
    pairs = sorted((getattr(b, name), b.changes) for b in batches if b.changes and getattr(b, name) is not None)
    left = share * sum(n for _, n in pairs)
    for lag, count in pairs:
        left -= count
        if left <= 0:
            return round(float(lag) / 1000, 3)
    return None
