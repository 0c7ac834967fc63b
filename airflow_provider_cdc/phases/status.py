"""How far a pipeline is, from bookkeeping and sink."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from airflow_provider_cdc.phases.context import Context
from airflow_provider_cdc.phases.snapshot import adopt_published, group_marker, targets
from airflow_provider_cdc.phases.stream import alive
from airflow_provider_cdc.processes import tail
from airflow_provider_cdc.sinks.progress import Progress

#: Lines of a stream's log that the status shows.
LOG_LINES = 10


def status(context: Context) -> dict[str, Any]:
    """State of a pipeline as a JSON value.

    :returns: ``pipeline``; ``phase`` (``snapshot``, ``snapshot_complete``, ``streaming``, ``stopped``);
        ``tables`` (chunks done and total, rows); ``snapshot`` (chunks, rows, seconds, rows_per_second); ``offset``
        (the resume point); ``stream`` (epoch, state, batches, changes, lag in seconds, who supervises it, the end of
        its driver's log), ``null`` before the first.
    """
    plan = context.need_plan()
    store = context.store()
    try:
        tables = targets(context, plan)
        complete = all(
            target.exists() and target.marker(group_marker(plan, group)) is not None
            for index, target in enumerate(tables)
            for group in plan.groups_of(index)
        ) and all(target.exists() for target in tables)
        adopt_published(context, store, plan)
        rows = store.progress(plan.pipeline, plan.generation)
        snapshot = store.snapshot(plan.pipeline, plan.generation)
        seconds = None
        if snapshot is not None and snapshot.finished_at is not None:
            seconds = (snapshot.finished_at - snapshot.created_at).total_seconds()
            if seconds < sum(r.seconds for r in rows) / context.pipeline.snapshot.parallelism:
                seconds = None  # the bookkeeping was rebuilt from the sink: nobody knows how long it took
        total = sum(r.rows for r in rows)
        offset = Progress(context.layout.progress, plan.pipeline).read()
        stream = store.current_stream(plan.pipeline)
        totals = store.batch_totals(plan.pipeline)
        recent = store.recent_batches(plan.pipeline, 1000)
        going = alive(stream)
        phase = "streaming" if going else "stopped" if stream else "snapshot_complete" if complete else "snapshot"
        return {
            "pipeline": plan.pipeline,
            "phase": phase,
            "generation": plan.generation,
            "tables": [
                {
                    "table": f"{r.database}.{r.table}",
                    "chunks_done": r.done,
                    "chunks_total": r.chunks,
                    "rows": r.rows,
                    "corrected": r.corrected,
                }
                for r in rows
            ],
            "snapshot": {
                "complete": complete,
                "chunks_done": sum(r.done for r in rows),
                "chunks_total": len(plan.chunks),
                "rows": total,
                "seconds": seconds,
                "rows_per_second": round(total / seconds) if seconds else None,
            },
            "offset": None if offset is None else offset.to_json(),
            "stream": None
            if stream is None
            else {
                "epoch": stream.epoch,
                "state": stream.state if going or stream.state != "running" else "lost",
                "mode": stream.mode,
                "host": stream.host,
                "error": stream.error,
                "ui": stream.ui,
                "supervisor": stream.supervisor,
                "supervised_seconds_ago": _age(stream.supervised_at),
                "progress_seconds_ago": _age(stream.progress_at),
                "log": stream.log,
                "log_tail": tail(stream.log, LOG_LINES),
                "batches": totals.batches,
                "changes": totals.changes,
                "lag_p50_seconds": _weighted(recent, "lag_p50_ms", 0.5),
                "lag_p95_seconds": _weighted(recent, "lag_p95_ms", 0.95),
            },
        }
    finally:
        store.close()


def _age(moment: datetime | None) -> float | None:
    return None if moment is None else round((datetime.now(UTC) - moment).total_seconds(), 1)


def _weighted(batches: list[Any], name: str, share: float) -> float | None:
    """Percentile over batches, each counted as often as it has changes; seconds."""
    pairs = sorted((getattr(b, name), b.changes) for b in batches if b.changes and getattr(b, name) is not None)
    left = share * sum(n for _, n in pairs)
    for lag, count in pairs:
        left -= count
        if left <= 0:
            return round(float(lag) / 1000, 3)
    return None
