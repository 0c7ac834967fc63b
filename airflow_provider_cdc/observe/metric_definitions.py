"""The metrics of a pipeline, and their text format for Prometheus."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


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

    @property
    def prometheus_name(self) -> str:
        """Its name in Prometheus."""
        return f"cdc_{self.name}" + ("_total" if self.is_counter else "")


METRICS = {
    metric.name: metric
    for metric in (
        Metric("running", "1 while a stream sends heartbeats, else 0"),
        Metric("paused", "1 while the stream is paused by a user, else 0"),
        Metric("failed", "1 if the newest run of the stream failed, else 0"),
        Metric("heartbeat_age_seconds", "Seconds since the last heartbeat of a stream"),
        Metric("lag_seconds", "Age of the oldest commit in the source that was not read yet"),
        Metric("bytes_behind", "Bytes of the source's binlog that were not read yet"),
        Metric("hours_to_purge", "Hours until the source may purge binlog that is needed; absent for never"),
        Metric("change_lag_seconds", "Seconds from commit in the source to commit in the sink, p95 of the last batch"),
        Metric("merge_seconds", "Seconds it took to apply the last batch"),
        Metric("changes", "Changes that streams have applied", is_counter=True),
        Metric("batches", "Batches that streams have applied", is_counter=True),
        Metric("rows", "Rows that the snapshot has read"),
        Metric("chunks_done", "Chunks that the snapshot has read"),
        Metric("chunks_total", "Chunks of the snapshot"),
        Metric("tables", "Tables of the pipeline, without those that were removed from it"),
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
        Metric("not_comparable", "1 if the table could not be compared at the last try, else 0", per_table=True),
        Metric("verified_age_seconds", "Seconds since source and copy were compared last", per_table=True),
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


def prometheus_text(measurements: Iterable[Measurement]) -> str:
    """Return the measurements in the Prometheus text format, version 0.0.4, grouped by metric."""
    by_name: dict[str, list[Measurement]] = {}
    for one in measurements:
        by_name.setdefault(one.name, []).append(one)
    lines = []
    for name, metric in METRICS.items():
        if name not in by_name:
            continue
        full = metric.prometheus_name
        lines += [f"# HELP {full} {metric.help_text}", f"# TYPE {full} {'counter' if metric.is_counter else 'gauge'}"]
        for one in by_name[name]:
            labels = ",".join(f'{label}="{_escape_label(value)}"' for label, value in one.tags.items())
            lines.append(f"{full}{{{labels}}} {one.value!r}")
    return "".join(f"{line}\n" for line in lines)


def _escape_label(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
