"""The metrics of pipelines, from the state database alone. Neither the source nor the sink is accessed."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from airflow_provider_cdc.model.errors import REQUESTED

if TYPE_CHECKING:
    from airflow_provider_cdc.state import StateDatabase, TableStateRow

#: Seconds after which a stream without a heartbeat no longer counts as running, and after which a sample is outdated.
_ALIVE_SECONDS, FRESH_SECONDS = 60.0, 300.0


@dataclass(frozen=True)
class Metric:
    """Definition of a metric.

    :param name: as in ``cdc.<name>`` for Airflow's stats.
    :param help_text: one-line description.
    :param per_table: whether each table has its own value; otherwise a pipeline has one.
    :param is_counter: whether it only grows, as long as the state database is not lost.
    """

    name: str
    help_text: str
    per_table: bool = False
    is_counter: bool = False


METRICS = {
    metric.name: metric
    for metric in (
        Metric("running", "1 while a stream sends heartbeats, else 0"),
        Metric("paused", "1 while the stream is paused by a user, else 0"),
        Metric("failed", "1 if the newest run of the stream failed, else 0"),
        Metric("heartbeat_age_seconds", "Seconds since the last heartbeat of a stream"),
        Metric("lag_seconds", "Age of the oldest commit in the source that has not been read yet"),
        Metric("bytes_behind", "Bytes of the source's binlog that have not been read yet"),
        Metric("hours_to_purge", "Hours until the source may purge binlog that is needed; absent if never"),
        Metric("change_lag_seconds", "Seconds from commit in the source to commit in the sink, p95 of the last batch"),
        Metric("merge_seconds", "Seconds it took to apply the last batch"),
        Metric("changes", "Changes that streams have applied", is_counter=True),
        Metric("batches", "Batches that streams have applied", is_counter=True),
        Metric("rows", "Rows that the snapshot has read"),
        Metric("chunks_done", "Chunks that the snapshot has read"),
        Metric("chunks_total", "Chunks of the snapshot"),
        Metric("tables", "Tables of the pipeline, excluding those that were removed from it"),
        Metric("suspended_tables", "Tables that are suspended because of a problem"),
        Metric("suspended", "1 if the table is suspended because of a problem, else 0", per_table=True),
        Metric("table_rows", "Rows of the copy", per_table=True),
        Metric("table_bytes", "Bytes of the copy's files", per_table=True),
        Metric("files", "Files of the copy", per_table=True),
        Metric("dead_rows", "Deleted rows that are still in the copy's files", per_table=True),
        Metric("compactions", "Compactions of the copy's files", per_table=True, is_counter=True),
        Metric("compaction_seconds", "Seconds that the last compaction of the copy took", per_table=True),
        Metric("inserts", "Inserts that streams have applied", per_table=True, is_counter=True),
        Metric("updates", "Updates that streams have applied", per_table=True, is_counter=True),
        Metric("deletes", "Deletes that streams have applied", per_table=True, is_counter=True),
        Metric("verified_equal", "1 if source and copy were equal at the last comparison, else 0", per_table=True),
        Metric("not_comparable", "1 if the table could not be compared in the last attempt, else 0", per_table=True),
        Metric("verified_age_seconds", "Seconds since the last comparison of source and copy", per_table=True),
    )
}


@dataclass(frozen=True)
class Measurement:
    """A value of a metric, for a pipeline or one of its tables.

    :param name: one of :data:`METRICS`.
    :param table: ``database.table``.
    """

    name: str
    value: float
    pipeline: str
    table: str | None = None

    @property
    def tags(self) -> dict[str, str]:
        """Its tags (Airflow) or labels (Prometheus)."""
        return {"pipeline": self.pipeline} | ({"table": self.table} if self.table is not None else {})


def measure_pipeline(store: StateDatabase, pipeline: str) -> list[Measurement]:
    """Return the current metrics of a pipeline.

    Unknown values are left out, for example the lag if the source was not queried within the last five minutes.
    """
    from airflow_provider_cdc.state import utc_now

    moment, tables = utc_now(), [row for row in store.table_states(pipeline) if row.state != "removed"]
    values_by_table: list[tuple[str | None, Values]] = [
        (None, _pipeline_values(store, pipeline, moment)),
        (None, {"tables": len(tables), "suspended_tables": sum(map(is_suspended, tables))}),
        *((f"{row.database}.{row.name}", _table_values(row, moment)) for row in tables),
    ]
    return [
        Measurement(name, float(value), pipeline, table)
        for table, values in values_by_table
        for name, value in values.items()
        if value is not None
    ]


#: Values by name of the metric; ``None`` if unknown.
Values = dict[str, float | None]


def _pipeline_values(store: StateDatabase, pipeline: str, moment: datetime) -> Values:
    totals, values = store.batch_totals(pipeline), Values()
    if (run := store.newest_epoch(pipeline)) is not None:
        age = max(0.0, (moment - run.heartbeat_at).total_seconds())
        values |= {
            "running": run.state == "running" and age < _ALIVE_SECONDS,
            "paused": run.paused_by is not None,
            "failed": run.state == "failed",
            "heartbeat_age_seconds": age,
        }
    sample = store.last_sample(pipeline)
    if sample is not None and (moment - sample.at).total_seconds() < FRESH_SECONDS:
        values |= {
            "lag_seconds": sample.lag_seconds,
            "bytes_behind": sample.lag_bytes,
            "hours_to_purge": sample.purge_hours,
        }
    for batch in store.last_batches(pipeline, 1):
        values["change_lag_seconds"] = None if batch.lag_p95_ms is None else batch.lag_p95_ms / 1000
        values["merge_seconds"] = batch.seconds
    values |= {"changes": totals.changes, "batches": totals.batches}
    if (snapshot := store.snapshot(pipeline)) is not None:
        progress = store.table_progress(pipeline, snapshot.generation)
        values["rows"] = sum(table.rows for table in progress)
        values["chunks_done"] = sum(table.done for table in progress)
        values["chunks_total"] = sum(table.chunks for table in progress)
    return values


def _table_values(row: TableStateRow, moment: datetime) -> Values:
    values: Values = {"suspended": is_suspended(row), "table_rows": row.rows, "table_bytes": row.bytes}
    values |= {name: getattr(row, name) for name in ("files", "dead_rows", "compactions", "compaction_seconds")}
    values |= {"inserts": row.inserts, "updates": row.updates, "deletes": row.deletes}
    if verified := row.last_verified or {}:
        values["not_comparable"] = verified.get("not_comparable") is not None
    if row.last_verified_at is not None:
        values["verified_equal"] = bool(verified.get("equal"))
        values["verified_age_seconds"] = max(0.0, (moment - row.last_verified_at).total_seconds())
    return values


def is_suspended(row: TableStateRow) -> bool:
    """Return whether a table is suspended because of a problem, and not by request."""
    return row.state == "suspended" and row.kind != REQUESTED
