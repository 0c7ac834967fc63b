"""The numbers that a pipeline tells of itself, and the text format in which Prometheus reads them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Metric:
    """A number.

    :param name: as in ``cdc.<name>`` for Airflow's stats.
    :param help_text: what it says.
    :param per_table: whether each table has its own; otherwise a pipeline has one.
    :param is_counter: whether it only grows, as long as the bookkeeping is not lost.
    """

    name: str
    help_text: str
    per_table: bool = False
    is_counter: bool = False

    @property
    def prometheus_name(self) -> str:
        """What Prometheus calls it."""
        return f"cdc_{self.name}" + ("_total" if self.is_counter else "")


METRICS = {
    metric.name: metric
    for metric in (
        Metric("running", "1 while a stream gives signs of life, else 0"),
        Metric("paused", "1 while somebody has paused the stream, else 0"),
        Metric("failed", "1 if the newest run of the stream has failed, else 0"),
        Metric("heartbeat_age_seconds", "Seconds since a stream has given the last sign of life"),
        Metric("lag_seconds", "Age of the oldest commit of the source that was not read yet"),
        Metric("bytes_behind", "Bytes of the source's binlog that were not read yet"),
        Metric("hours_to_purge", "Hours until the source may purge binlog that is needed; absent for never"),
        Metric("change_lag_seconds", "Seconds from commit in the source to commit in the sink, p95 of the last batch"),
        Metric("merge_seconds", "Seconds that the last batch took to be applied"),
        Metric("changes", "Changes that streams have applied", is_counter=True),
        Metric("batches", "Batches that streams have applied", is_counter=True),
        Metric("rows", "Rows that the snapshot has read"),
        Metric("chunks_done", "Chunks that the snapshot has read"),
        Metric("chunks_total", "Chunks of the snapshot"),
        Metric("tables", "Tables of the pipeline, without those that were removed from it"),
        Metric("suspended_tables", "Tables that the stream goes on without"),
        Metric("suspended", "1 if the stream goes on without the table, else 0", per_table=True),
        Metric("table_rows", "Rows of the copy", per_table=True),
        Metric("table_bytes", "Bytes of the copy's files", per_table=True),
        Metric("files", "Files of the copy", per_table=True),
        Metric("dead_rows", "Rows in the copy's files that do not count any more", per_table=True),
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
    """A number of one pipeline, or of one of its tables.

    :param name: one of :data:`METRICS`.
    :param table: ``database.table``.
    """

    name: str
    value: float
    pipeline: str
    table: str | None = None

    @property
    def tags(self) -> dict[str, str]:
        """Tags, or labels."""
        return {"pipeline": self.pipeline} | ({"table": self.table} if self.table is not None else {})


def prometheus_text(measurements: Iterable[Measurement]) -> str:
    """The numbers in Prometheus' text format, version 0.0.4: all of a metric in one place."""
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
