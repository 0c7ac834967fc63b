"""The status of a pipeline, from its state database and sink."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from airflow_provider_cdc.chunk_groups.chunk_group import open_sink_tables
from airflow_provider_cdc.model.errors import TransientError
from airflow_provider_cdc.observe.lag import changes_per_second, measure_lag
from airflow_provider_cdc.observe.table_state import PipelineState, list_table_statuses
from airflow_provider_cdc.resnapshot.dropped_tables import list_emptied_copies
from airflow_provider_cdc.resnapshot.staged_files import tables_pending_publication
from airflow_provider_cdc.resnapshot.suspension import list_suspensions, suspension_remedy, tables_known_missing
from airflow_provider_cdc.runtime.run_context import RunContext
from airflow_provider_cdc.sinks.protocol import Measurable
from airflow_provider_cdc.sinks.storage.request_counts import sum_counts
from airflow_provider_cdc.snapshot.progress import group_progress, snapshot_progress
from airflow_provider_cdc.snapshot.run import adopt_published_groups
from airflow_provider_cdc.state import EpochRow, StateDatabase
from airflow_provider_cdc.state.models import BatchRow
from airflow_provider_cdc.system.processes import tail_log

#: Lines of a stream's log that the status shows.
LOG_LINES = 10


def read_status(context: RunContext) -> dict[str, Any]:
    """Return the status of a pipeline as a JSON value. The lag is queried from the source, if it can be reached.

    :returns: ``pipeline``; ``phase`` (``snapshot``, ``snapshot_complete``, ``streaming``, ``stopped``); ``tables``
        (for each its state, chunks done and total, rows, position and definitions); ``suspended`` (suspended tables:
        where, since when, why, and the remedy); ``snapshot`` and ``groups`` (chunks, rows, corrected keys, rate, time
        left, why it is paused, requests to an object store); ``sink`` (files, bytes and rows of each existing table,
        if the sink can measure them); ``offset`` (the resume point); ``lag_seconds``, ``lag_bytes``,
        ``purge_in_hours`` (how far the source is ahead of it, and how long it keeps the binlog), ``lag_unknown`` (why
        that is unknown); ``stream`` (epoch, state, batches, changes, rate, lag of applied changes, memory of its key
        index, requests to an object store, who supervises it, who has paused it, the end of its driver's log), which
        is ``null`` before the first stream.
    """
    plan = context.require_plan()
    store = context.open_state_database()
    try:
        open_tables = open_sink_tables(context, plan)
        complete = adopt_published_groups(context, store, plan) and all(
            open_tables[i].exists() for i in plan.active_tables
        )
        rows = store.table_progress(plan.pipeline, plan.generation)
        snapshot = store.snapshot(plan.pipeline, plan.generation)
        seconds = None
        if snapshot is not None and snapshot.finished_at is not None:
            seconds = (snapshot.finished_at - snapshot.created_at).total_seconds()
            if seconds < sum(r.seconds for r in rows) / context.pipeline.snapshot.parallelism:
                seconds = None  # unknown, since the state database was rebuilt from the sink
        total = sum(r.rows for r in rows)
        groups = group_progress(context, store, plan)
        progress_of_all = snapshot_progress(groups)
        offset = context.sink.resume_point().read()
        stream, is_running = _find_run(context, store)
        totals = store.batch_totals(plan.pipeline)
        recent = store.last_batches(plan.pipeline, 1000)
        idle_phase = "stopped" if stream else "snapshot_complete"
        phase = "streaming" if is_running else idle_phase if complete else "snapshot"
        lag = measure_lag(context, offset or plan.p0)
        state = PipelineState(
            group_states={group.group_no: group.state for group, _ in groups},
            snapshot_complete=complete,
            stream_running=None if stream is None else is_running,
            position=None if offset is None else str(offset.at),
            lag_seconds=lag.to_json()["lag_seconds"],
            pending_resnapshots=tables_pending_publication(context, plan),
            missing=tables_known_missing(context, plan),
            emptied=list_emptied_copies(context, plan),
        )
        return {
            "pipeline": plan.pipeline,
            "phase": phase,
            "generation": plan.generation,
            "start": plan.start,
            "tables": list_table_statuses(
                context, plan, context.resume_state(plan)[1], {(row.database, row.table): row for row in rows}, state
            ),
            "suspended": [
                {
                    "table": plan.tables[suspension.table].label,
                    **{name: getattr(suspension, name) for name in ("at", "since", "kind", "message")},
                    "remedy": suspension_remedy(plan, suspension),
                }
                for suspension in list_suspensions(context, plan)
                if suspension.table not in state.missing
            ],
            "snapshot": {
                "complete": complete,
                "traffic": sum_counts(request_counts)
                if (request_counts := [g.traffic for g, _ in groups if g.traffic])
                else None,
                **progress_of_all.to_json(),
                "rows_per_second": round(total / seconds)
                if seconds
                else None
                if complete
                else progress_of_all.rows_per_second,
                "seconds": seconds,
                "paused": progress_of_all.paused,
            },
            "groups": [
                {
                    "group": group.group_no,
                    "state": group.state,
                    **progress.to_json(),
                    "paused": progress.paused,
                    "traffic": group.traffic,
                }
                for group, progress in groups
            ],
            "sink": [
                {"table": schema.label, **table.table_size().to_json()}
                for schema, table in ((plan.tables[i], open_tables[i]) for i in plan.active_tables)
                if isinstance(table, Measurable) and table.exists()
            ],
            "offset": None if offset is None else offset.to_json(),
            **lag.to_json(),
            "stream": None
            if stream is None
            else {
                "epoch": stream.epoch,
                "state": stream.state if is_running or stream.state != "running" else "lost",
                "mode": stream.mode,
                "paused_by": stream.paused_by,
                "host": stream.host,
                "error": stream.error,
                "ui": stream.ui,
                "supervisor": stream.supervisor,
                "supervised_seconds_ago": _seconds_since(stream.supervised_at),
                "progress_seconds_ago": _seconds_since(stream.progress_at),
                "log": stream.log,
                "log_tail": tail_log(stream.log, LOG_LINES),
                "batches": totals.batches,
                "changes": totals.changes,
                "index_bytes": stream.index_bytes,
                "index_disk_bytes": stream.index_disk_bytes,
                "index_bytes_per_table": context.pipeline.sink.index_bytes,
                "traffic": stream.traffic
                and {"last_batch": _last_request_counts(stream, recent), "run": stream.traffic},
                "changes_per_second": _change_rate(stream, recent, is_running),
                "lag_p50_seconds": _weighted_percentile(recent, "lag_p50_ms", 0.5),
                "lag_p95_seconds": _weighted_percentile(recent, "lag_p95_ms", 0.95),
            },
        }
    finally:
        store.close()


def _find_run(context: RunContext, store: StateDatabase) -> tuple[EpochRow | None, bool]:
    """Return the newest run, and whether it is running; as recorded, if the state database accepts no writes now."""
    try:
        return context.liveness.wait_until_known(store, context.pipeline.name)
    except TransientError:
        run = store.newest_epoch(context.pipeline.name)
        return run, run is not None and run.state == "running"


def _change_rate(stream: EpochRow, recent: list[BatchRow], is_running: bool) -> float:
    run_batches = [b for b in recent if b.epoch == stream.epoch]
    return changes_per_second(
        run_batches,
        stream.started_at,
        datetime.now(UTC) if is_running or not run_batches else run_batches[0].committed_at,
    )


def _last_request_counts(stream: EpochRow, recent: list[BatchRow]) -> Any:
    return next((batch.traffic for batch in recent if batch.epoch == stream.epoch), None)


def _seconds_since(moment: datetime | None) -> float | None:
    return None if moment is None else round((datetime.now(UTC) - moment).total_seconds(), 1)


def _weighted_percentile(batches: list[Any], name: str, share: float) -> float | None:
    """Return a percentile over batches in seconds, each batch weighted by its number of changes."""
    pairs = sorted((getattr(b, name), b.changes) for b in batches if b.changes and getattr(b, name) is not None)
    left = share * sum(n for _, n in pairs)
    for lag, count in pairs:
        left -= count
        if left <= 0:
            return round(float(lag) / 1000, 3)
    return None
