"""A pipeline as JSON values. Times are ISO 8601 in UTC, sizes are in bytes, durations in seconds.

No value depends on the time of the request, as an age would, so an unchanged pipeline has an unchanged answer. No list
grows with the number of tables, chunks or events.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from statistics import median
from typing import Any

from airflow_provider_cdc.config.spark_conf import reachable_url
from airflow_provider_cdc.state.chunk_reader import CHUNK_STATES
from airflow_provider_cdc.state.events import EventFilter
from airflow_provider_cdc.state.models import ChunkGroupRow, ChunkRow, EpochRow
from airflow_provider_cdc.state.reader import StateDatabaseReader
from airflow_provider_cdc.state.snapshots import holder_name
from airflow_provider_cdc.state.table_reader import TableQuery
from airflow_provider_cdc.ui.batch_views import offset_view
from airflow_provider_cdc.ui.cli_commands import PipelineCommands
from airflow_provider_cdc.ui.event_views import event_view
from airflow_provider_cdc.ui.json_values import cut_text, iso_time, row_values
from airflow_provider_cdc.ui.snapshot_progress import ChunkRange, SnapshotProgress
from airflow_provider_cdc.ui.state_databases import NotRunPipeline, ShownPipeline
from airflow_provider_cdc.ui.task_names import TaskNames
from airflow_provider_cdc.ui.troubles import (
    FAILED,
    IDLE,
    LEVELS,
    OPEN_EVENTS,
    Trouble,
    find_troubles,
    pipeline_level,
    pipeline_phase,
    purge_time,
    stream_lag,
)

_TROUBLES, _GROUPS, _GROUP_TABLES, _OPEN_EVENTS, _MERGES = 8, 12, 4, 4, 20
_ERROR_LENGTH = 600
#: Values of a summary that a pipeline which has not run does not have.
_RUN_NAMES = ("started_at", "stopped_at", "stopped_by", "paused_at", "paused_by")
_OPTIONAL_NAMES = (
    *("book", "source", "groups", "lag_seconds", "lag_bytes", "lag_unknown", "sampled_at", "purges_at"),
    *("changes_per_second", "last_change_at"),
)


@dataclass(frozen=True)
class PipelineViews:
    """The JSON values of one pipeline for one user.

    :param shown: the pipeline.
    :param names: what the user may see of its tasks.
    """

    shown: ShownPipeline
    names: TaskNames

    @cached_property
    def reader(self) -> StateDatabaseReader:
        """Its state database."""
        return self.shown.database.open_reader()

    @property
    def name(self) -> str:
        """Its name."""
        return self.shown.overview.name

    @property
    def generation(self) -> int:
        """Number of its newest snapshot; 0 if there is none."""
        snapshot = self.shown.overview.snapshot
        return 0 if snapshot is None else snapshot.generation

    @cached_property
    def commands(self) -> PipelineCommands:
        """Commands that work on it."""
        return PipelineCommands.for_pipeline(self.name, self.shown.tasks, self.names.readable)

    def complete_text(self, text: str | None, length: int | None = _ERROR_LENGTH) -> str | None:
        """Return a recorded text with complete commands, and without tasks that the user may not read.

        :param length: maximum length of the recorded text; ``None`` for no limit.
        """
        masked = self.names.mask_text(text)
        return self.commands.complete_text(masked if length is None else cut_text(masked, length))

    @cached_property
    def lost_groups(self) -> frozenset[int]:
        """Chunk groups that were begun and that no process reads any more."""
        return self.shown.database.lost_groups(self.shown.overview)

    @cached_property
    def is_alive(self) -> bool | None:
        """Whether the newest run of its stream is alive."""
        return self.shown.database.is_stream_alive(self.shown.overview)

    @cached_property
    def phase(self) -> str:
        """Its phase."""
        return pipeline_phase(self.shown.overview, self.is_alive)

    def read_progress(self) -> SnapshotProgress:
        """Return the progress of its newest snapshot."""
        progress = self.shown.database.snapshot_progress(self.name, self.generation)
        progress.refresh(self.reader)
        return progress

    def summarize(self, *, with_tables: bool = False) -> dict[str, Any]:
        """Return the pipeline for the overview.

        :param with_tables: whether its troubles name tables, and the events that need attention are listed apart.
        """
        overview, now = self.shown.overview, datetime.now(UTC)
        readable = [one for one in self.shown.tasks if one.dag_id in self.names.readable]
        troubles = find_troubles(overview, self.phase, len(self.lost_groups), now, readable)
        level = pipeline_level(self.phase, troubles)
        views = [self._view_trouble(one) for one in troubles if not (with_tables and one.code == OPEN_EVENTS)]
        if with_tables and any(one.code in ("tables_suspended", "tables_unequal") for one in troubles):
            views = [*self._name_tables(), *views]
        groups, sample, pace, run = overview.chunk_groups, overview.last_sample, overview.throughput, _newest_run(self)
        return {
            "book": self.shown.database.key,
            "name": self.name,
            "where": self.shown.database.label,
            "dags": sorted(set(self.shown.dags).intersection(self.names.readable)),
            "phase": self.phase,
            "level": level,
            "source": _source_view(overview.source, overview.server),
            "troubles": views[:_TROUBLES],
            "troubles_more": max(0, len(views) - _TROUBLES),
            "tables": _table_counts(overview.table_state_counts, overview.tables),
            "groups": None
            if groups is None
            else {
                "total": groups.total,
                "done": groups.done,
                "running": len(groups.unfinished) - len(self.lost_groups),
                "failed": len(self.lost_groups),
            },
            "lag_seconds": stream_lag(overview) if self.phase == "streaming" else None,
            "lag_bytes": None if sample is None else sample.lag_bytes,
            "lag_unknown": None if sample is None else cut_text(sample.unknown, _ERROR_LENGTH),
            "sampled_at": None if sample is None else iso_time(sample.at),
            "purges_at": iso_time(purge_time(overview)),
            "changes_per_second": round(pace.changes_per_second, 1) if pace and self.phase == "streaming" else None,
            "last_change_at": None if pace is None else iso_time(pace.committed_at),
            "lag_line": list(overview.lag_line),
            **run,
        }

    def _view_trouble(self, trouble: Trouble) -> dict[str, Any]:
        times = {name: iso_time(getattr(trouble, name)) for name in ("since", "due_at")}
        who = self.names.describe_task(trouble.by)
        texts = {"error": self.complete_text(trouble.error), "remedy": self.complete_text(trouble.remedy)}
        return {**trouble._asdict(), **times, **texts, "acts": list(trouble.acts), "by": who and who["label"]}

    def _name_tables(self) -> list[dict[str, Any]]:
        query = TableQuery(only_troubled=True, sort="since", descending=True, limit=3)
        rows, _ = self.reader.find_tables(self.name, self.generation, query)
        troubles = []
        for row in rows:
            table, is_suspended = f"{row.database}.{row.name}", row.state == "suspended"
            text = f"{table} is suspended" if is_suspended else f"{table} differs from the source"
            error, remedy = (row.reason, row.remedy) if is_suspended else (None, "Repair it")
            since = row.since if is_suspended else row.last_verified_at
            code, acts = ("table_suspended", ("reread",)) if is_suspended else ("table_unequal", ("repair",))
            about = {"view": "table", "table": table}
            trouble = Trouble(code, FAILED, text, about, since, error=error, remedy=remedy, acts=acts)
            troubles.append(self._view_trouble(trouble))
        return troubles

    def describe(self) -> dict[str, Any]:
        """Return everything about the pipeline that does not grow with it."""
        open_events = EventFilter(needs_attention=True)
        events = self.reader.filter_events(self.name, open_events, 100)
        return {
            **self.summarize(with_tables=True),
            "tasks": self._tasks_view(),
            "reload": self.commands.complete_text("`airflow-cdc reload`"),
            "generation": self.generation,
            "snapshot": self._snapshot_view(),
            "groups": self._groups_view(),
            "stream": self._stream_view(),
            "events": {
                "attention": len(events),
                "newest": [event_view(event, self.names, self.commands) for event in events[:_OPEN_EVENTS]],
            },
        }

    def _tasks_view(self) -> list[dict[str, str]]:
        readable = [one for one in self.shown.tasks if one.dag_id in self.names.readable]
        return [{"dag": one.dag_id, "task": one.task_id} for one in readable[:20]]

    def _snapshot_view(self) -> dict[str, Any] | None:
        snapshot = self.shown.overview.snapshot
        if snapshot is None:
            return None
        progress = self.read_progress()
        begun_at, last_sign = self.reader.snapshot_times(self.name, self.generation)
        until = snapshot.finished_at or last_sign
        seconds = None if until is None or begun_at is None else (until - begun_at).total_seconds()
        totals = progress.totals
        return {
            "state": snapshot.state,
            "planned_at": iso_time(snapshot.created_at),
            "begun_at": iso_time(begun_at),
            "finished_at": iso_time(snapshot.finished_at),
            "seconds": None if snapshot.finished_at is None else seconds,
            "tables": self.shown.overview.tables,
            **totals._asdict(),
            "rows_estimate": snapshot.rows_estimate,
            "reading": progress.count_reading(self.lost_groups),
            "rows_per_second": round(totals.rows / seconds) if seconds and totals.rows else None,
        }

    def _groups_view(self) -> dict[str, Any] | None:
        groups = self.shown.overview.chunk_groups
        if groups is None:
            return None
        lost = sorted(self.lost_groups)
        running = [one.group_no for one in groups.unfinished if one.group_no not in self.lost_groups]
        numbers = [*lost, *running][:_GROUPS]
        rows = {row.group_no: row for row in self.list_groups(numbers, (), slice(0, _GROUPS))} if numbers else {}
        return {"total": groups.total, "states": self.group_states(), "shown": self.group_views(rows.values(), numbers)}

    def group_states(self) -> dict[str, int]:
        """Return the number of chunk groups by state. Those without a reader count as failed."""
        groups = self.shown.overview.chunk_groups
        states = dict(groups.by_state) if groups is not None else {}
        for one in groups.unfinished if groups is not None else ():
            if one.group_no in self.lost_groups:
                states[one.state] -= 1
                states[FAILED] = states.get(FAILED, 0) + 1
        return {state: n for state, n in states.items() if n}

    def list_groups(self, numbers: Sequence[int] | None, states: Sequence[str], page: slice) -> list[ChunkGroupRow]:
        """Return a page of chunk groups."""
        return self.reader.groups_page(self.name, self.generation, numbers, states, page)

    def group_views(self, rows: Any, order: Sequence[int] | None = None) -> list[dict[str, Any]]:
        """Return chunk groups.

        :param order: their numbers in the order to use.
        """
        progress = self.read_progress()
        views = {row.group_no: self._group_view(row, progress) for row in rows}
        return [views[number] for number in (order or views) if number in views]

    def _group_view(self, group: ChunkGroupRow, progress: SnapshotProgress) -> dict[str, Any]:
        totals, tables = progress.group_totals(group.group_no), [".".join(map(str, table)) for table in group.tables]
        return {
            "no": group.group_no,
            "state": FAILED if group.group_no in self.lost_groups else group.state,
            **row_values(group, "attempt", "rows", "started_at", "finished_at"),
            "reader": self.names.describe_task(holder_name(group.holder)),
            "tables": tables[:_GROUP_TABLES],
            "tables_more": max(0, len(tables) - _GROUP_TABLES),
            "chunks": totals.chunks,
            "done": totals.done,
            "retry": False,
        }

    def _stream_view(self) -> dict[str, Any] | None:
        run = self.shown.overview.newest_epoch
        if run is None:
            return None
        names = ("desired_state", "supervised_at", "progress_at", "log", "index_bytes", "index_disk_bytes", "bytes")
        merges = [row.seconds for row in self.reader.last_batches(self.name, _MERGES) if row.epoch == run.epoch]
        is_beating = run.state == "running" and self.is_alive is not False
        view = {**self.run_view(run), **row_values(run, *names), "alive": self.is_alive}
        # While these move all the time, they would make every answer a new one.
        view |= {"heartbeat_at": None, "progress_at": None, "supervised_at": None} if is_beating else {}
        return {
            **view,
            "supervisor": self.names.describe_task(run.supervisor),
            "ui": reachable_url(run.ui),
            "at": offset_view(run.end_offset),
            "merge_seconds": round(median(merges), 4) if merges else None,
        }

    def run_view(self, run: EpochRow) -> dict[str, Any]:
        """Return a run of the stream."""
        names = ("epoch", "state", "mode", "host", "started_at", "ended_at", "heartbeat_at", "batches", "changes")
        newest, values = self.shown.overview.newest_epoch, row_values(run, *names)
        if self.phase == "lost" and newest is not None and run.epoch == newest.epoch:
            values["state"] = "lost"
        error = self.complete_text(run.error)
        return {**values, "error": error, "stop_by": self._who(run.stop_user or run.stop_by)}

    def _who(self, name: str | None) -> str | None:
        task = self.names.describe_task(name)
        return None if task is None else str(task["label"])

    def request_views(self, limit: int, with_conditions: bool, table: str | None = None) -> list[dict[str, Any]]:
        """Return the newest control requests.

        :param with_conditions: whether to include the conditions, which have keys that a user has typed.
        :param table: only requests about this table.
        """
        rows = self.reader.last_requests(self.name, limit if table is None else 100)
        return [
            {
                **row_values(row, "id", "kind", "table", "state", "at", "finished_at"),
                "outcome": self.complete_text(row.outcome),
                "by": self._who(row.by),
                "condition": row.condition if with_conditions else None,
                "part": row.condition is not None,
            }
            for row in rows
            if table in (None, row.table)
        ][:limit]

    def chunk_map(self, chunks: ChunkRange | None, max_cells: int) -> dict[str, Any]:
        """Return the map of chunks, or of some of them."""
        drawn = self.read_progress().draw_map(self.lost_groups, chunks, max_cells)
        return {"generation": self.generation, "states": CHUNK_STATES, **drawn}

    def chunk_view(self, chunk: ChunkRow, group: ChunkGroupRow) -> dict[str, Any]:
        """Return one chunk, without its bounds, which the state database does not have."""
        return {
            **row_values(chunk, "state", "attempt", "rows", "bytes", "corrected", "seconds"),
            "no": chunk.chunk_no,
            "table": f"{chunk.database}.{chunk.table_name}",
            "group": chunk.group_no,
            "lw": _watermark_text(chunk.lw),
            "hw": _watermark_text(chunk.hw),
            "group_state": group.state,
            "group_attempt": group.attempt,
            "reader": self.names.describe_task(holder_name(group.holder)),
        }


def not_run_view(pipeline: NotRunPipeline, readable: frozenset[str]) -> dict[str, Any]:
    """Return a pipeline that has not run yet, for the overview."""
    empty: dict[str, Any] = dict.fromkeys((*_OPTIONAL_NAMES, *_RUN_NAMES))
    dags = sorted(readable.intersection(pipeline.dags))
    return {
        **empty,
        "name": pipeline.name,
        "where": pipeline.where,
        "dags": dags,
        "phase": "not_run_yet",
        "level": IDLE,
        "troubles": [],
        "troubles_more": 0,
        "hint": pipeline.hint,
        "tables": _table_counts({}, 0),
        "lag_line": [],
    }


def sort_by_severity(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Sort pipelines by severity, then by lag (highest first), then by name."""
    return sorted(lines, key=lambda line: (LEVELS.index(line["level"]), -(line["lag_seconds"] or 0.0), line["name"]))


def count_levels(lines: list[dict[str, Any]]) -> dict[str, int]:
    """Return the number of pipelines by level."""
    return {level: sum(line["level"] == level for line in lines) for level in LEVELS}


def _newest_run(views: PipelineViews) -> dict[str, Any]:
    run = views.shown.overview.newest_epoch
    if run is None:
        return dict.fromkeys(_RUN_NAMES)
    has_ended = run.state != "running"
    stopped_by = views._who(run.stop_user or run.stop_by) if has_ended else None
    stopped_at = iso_time(run.ended_at or run.heartbeat_at) if has_ended else None
    times = (iso_time(run.started_at), stopped_at, stopped_by, iso_time(run.paused_at), views._who(run.paused_by))
    return dict(zip(_RUN_NAMES, times, strict=True))


def _table_counts(states: dict[str, int], planned: int) -> dict[str, Any]:
    return {"total": sum(states.values()) or planned, "states": states}


def _source_view(source: Any, uuid: str) -> dict[str, Any]:
    """Return how people know the source. Before a driver has recorded that, its identity."""
    known = {name: (source or {}).get(name) for name in ("conn_id", "host", "port", "version")}
    host = f"{known['host']}:{known['port']}" if known["port"] else known["host"]
    where = " at ".join(str(part) for part in (known["version"], host) if part)
    label = ": ".join(part for part in (known["conn_id"], where) if part)
    return {"label": label or f"server {uuid}", "uuid": uuid, **known}


def _watermark_text(value: Any) -> str | None:
    """Return a watermark as file and position."""
    if isinstance(value, dict):
        return f"{value.get('file')}:{value.get('position')}"
    return ":".join(map(str, value[:2])) if isinstance(value, list) and len(value) >= 2 else None
