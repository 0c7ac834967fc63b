"""Progress of a snapshot and its groups, from the state database; and totals of each table, from the sink."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from airflow_provider_cdc.chunk_groups.chunk_group import ChunkGroup
from airflow_provider_cdc.model.offset import Position
from airflow_provider_cdc.model.plan import Plan
from airflow_provider_cdc.model.progress import ChunkProgress, active_seconds
from airflow_provider_cdc.model.supervision import LOST_AFTER_SECONDS
from airflow_provider_cdc.runtime.run_context import RunContext

if TYPE_CHECKING:
    from airflow_provider_cdc.state import ChunkGroupRow, StateDatabase


def group_progress(context: RunContext, store: StateDatabase, plan: Plan) -> list[tuple[ChunkGroupRow, ChunkProgress]]:
    """Return the progress of each group, by number. The rate is that of its newest attempt."""
    counts = {row.group_no: row for row in store.group_progress(plan.pipeline, plan.generation)}
    labels = {number: plan.group_label(chunks) for number, chunks in plan.groups().items()}
    result, moment = [], datetime.now(UTC)
    for group in store.groups(plan.pipeline, plan.generation):
        count, interval = counts[group.group_no], _read_interval(group)
        notes = ChunkGroup(context, plan, group.group_no).signals(group.attempt)
        progress = ChunkProgress(
            f"group {labels.get(group.group_no, group.group_no)}",
            count.done,
            count.chunks,
            count.rows,
            count.corrected,
            count.fresh_chunks if interval else 0,
            count.fresh_rows if interval else 0,
            interval[1] - interval[0] if interval else 0.0,
            notes.pause_reason() if _is_alive(group, moment) else None,
        )
        result.append((group, progress))
    return result


def snapshot_progress(groups: Iterable[tuple[ChunkGroupRow, ChunkProgress]]) -> ChunkProgress:
    """Return the progress of the whole snapshot.

    The rate only counts time in which something was being read, so a snapshot that was stopped overnight is not slow.

    :param groups: what :func:`group_progress` returns.
    """
    rows = list(groups)
    timed_groups = [(interval, p) for g, p in rows if (interval := _read_interval(g)) is not None]
    return ChunkProgress(
        "snapshot",
        sum(p.chunks_done for _, p in rows),
        sum(p.chunks_total for _, p in rows),
        sum(p.rows for _, p in rows),
        sum(p.corrected for _, p in rows),
        sum(p.fresh_chunks for _, p in timed_groups),
        sum(p.fresh_rows for _, p in timed_groups),
        active_seconds(interval for interval, _ in timed_groups),
        next((p.paused for _, p in rows if p.paused), None),
    )


def _is_alive(group: ChunkGroupRow, moment: datetime) -> bool:
    beat = group.heartbeat_at if group.state in ("running", "rereading") else None
    return beat is not None and (moment - beat).total_seconds() <= LOST_AFTER_SECONDS


def _read_interval(group: ChunkGroupRow) -> tuple[float, float] | None:
    """Return when the newest attempt at a group began and ended (or was last alive); ``None`` if unknown.

    Both times are by the clock of the reader's host, which may differ from the caller's.
    """
    if group.started_at is None or group.state not in ("running", "rereading", "done"):
        return None
    # Without a heartbeat it failed at an unknown time.
    ended = group.finished_at if group.state == "done" else group.heartbeat_at
    if ended is None or ended <= group.started_at:
        return None
    return group.started_at.timestamp(), ended.timestamp()


@dataclass(frozen=True)
class TableTotals:
    """Totals of one table's snapshot, from the manifests of the published attempts.

    :param table: ``database.table``.
    :param rows: rows in the files.
    :param chunks: chunks of the table.
    :param corrected: keys that were corrected from the binlog.
    :param seconds: time during which the table was being read.
    :param min_lw: lowest low watermark of its chunks; P0 for a table without any.
    :param max_hw: highest high watermark.
    """

    table: str
    rows: int
    chunks: int
    corrected: int
    seconds: float
    min_lw: Position
    max_hw: Position

    def __str__(self) -> str:
        rate = f"{self.rows / self.seconds:,.0f} rows/s" if self.seconds > 0 else "- rows/s"
        return (
            f"{self.table}: {self.rows:,} rows in {self.chunks:,} chunks, {self.seconds:.1f} s, {rate}, "
            f"{self.corrected:,} corrected, min LW {self.min_lw}, max HW {self.max_hw}"
        )


def table_totals(context: RunContext, plan: Plan, groups: Iterable[int] | None = None) -> list[TableTotals]:
    """Return the totals of each table's snapshot, in the order of the plan.

    :param groups: count only these groups and the tables in them; ``None`` for all.
    """
    files_by_table: dict[int, list[dict[str, Any]]] = (
        {} if groups is not None else {i: [] for i in range(len(plan.tables))}
    )
    for number in plan.groups() if groups is None else groups:
        group = ChunkGroup(context, plan, number)
        for entry in group.read_totals(group.published_by_table()).entries:
            files_by_table.setdefault(entry["table"], []).append(entry)
    return [_sum_table(plan, index, files_by_table[index]) for index in sorted(files_by_table)]


def _sum_table(plan: Plan, index: int, files: list[dict[str, Any]]) -> TableTotals:
    chunks = [chunk for entry in files for chunk in entry["chunks"]]
    return TableTotals(
        plan.tables[index].label,
        sum(entry["file"]["rows"] for entry in files),
        len(chunks),
        sum(chunk["corrected"] for chunk in chunks),
        active_seconds((entry["began"], entry["ended"]) for entry in files if "began" in entry),
        min((Position.from_json(chunk["lw"]) for chunk in chunks), default=plan.p0.at),
        max((Position.from_json(chunk["hw"]) for chunk in chunks), default=plan.p0.at),
    )
