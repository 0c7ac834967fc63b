"""Tables of a pipeline as JSON values: a page of them, or one as a whole."""

from __future__ import annotations

from typing import Any

from airflow_provider_cdc.model.errors import REQUESTED
from airflow_provider_cdc.state.events import EventFilter
from airflow_provider_cdc.state.models import TableStateRow
from airflow_provider_cdc.state.table_reader import PLANNED_STATE, TableQuery, is_troubled
from airflow_provider_cdc.ui.event_views import event_view
from airflow_provider_cdc.ui.json_values import iso_time, row_values
from airflow_provider_cdc.ui.snapshot_progress import SnapshotProgress
from airflow_provider_cdc.ui.troubles import FAILED, IDLE, WORKING, WORKING_PHASES
from airflow_provider_cdc.ui.views import PipelineViews

_OPERATIONS = ("inserts", "updates", "deletes")
_NAMES = ("state", "since", "updated_at", "kind")
_COPY_NAMES = ("files", "bytes", "rows", "dead_rows", "compactions", "compacted_at", "compaction_seconds")
_REASON_LENGTH, _EVENTS, _REQUESTS, _GROUPS = 200, 20, 10, 20
_WORKING_STATES = ("streaming", "snapshot", "rereading", PLANNED_STATE)


def tables_view(views: PipelineViews, query: TableQuery) -> dict[str, Any]:
    """Return a page of tables, and numbers about all of them."""
    overview, progress = views.shown.overview, views.read_progress()
    states, recorded = overview.table_state_counts, sum(overview.table_state_counts.values())
    # A driver first records all tables.
    rows, matching = views.reader.find_tables(
        views.name, views.generation, query, all_recorded=recorded >= overview.tables
    )
    if recorded < overview.tables:
        states[PLANNED_STATE] = states.get(PLANNED_STATE, 0) + overview.tables - recorded
    return {
        "total": sum(states.values()),
        "matching": matching,
        "states": states,
        "troubled": sum(
            one.tables for one in overview.table_counts if is_troubled(one.state, one.kind, one.verified_equal)
        ),
        "rows": [_table_view(views, row, progress) for row in rows],
    }


def table_view(views: PipelineViews, database: str, name: str, *, with_conditions: bool) -> dict[str, Any] | None:
    """Return one table as a whole; ``None`` if the pipeline has no such table.

    :param with_conditions: whether control requests are shown with their conditions.
    """
    label, progress = f"{database}.{name}", views.read_progress()
    row = views.reader.find_table(views.name, views.generation, database, name)
    if row is None:
        return None
    state_row, chunks = views.reader.table_row(views.name, database, name), progress.table_range((database, name))
    groups = progress.table_groups((database, name))
    events = views.reader.filter_events(views.name, EventFilter(table=label), _EVENTS)
    definitions = [] if state_row is None else state_row.definitions
    return {
        **_table_view(views, row, progress),
        "reason": views.complete_text(row.reason, None),
        "position": row.position,
        "last_verified": row.last_verified,
        "definitions": definitions,
        "first": None if chunks is None else chunks.first,
        "groups_total": len(groups),
        "groups": views.group_views(views.list_groups(groups[:_GROUPS], (), slice(0, _GROUPS))) if groups else [],
        "events": [event_view(event, views.names, views.commands) for event in events],
        "requests": views.request_views(_REQUESTS, with_conditions, label),
        "explain": _explain_view(views, label, definitions),
    }


def _explain_view(views: PipelineViews, label: str, definitions: list[Any]) -> dict[str, str] | None:
    """Return the command that explains a row, and what to put in; ``None`` for a table without a key."""
    key = definitions[-1]["key"] if definitions else None
    if key == []:
        return None
    what = f"the value of {', '.join(key)}" if key else "the value of the key"
    hint = f"VALUE is {what}" + (f". {views.commands.hint}" if views.commands.hint else "")
    return {"command": views.commands.explain_command(label, key or ()), "hint": hint}


def _table_view(views: PipelineViews, row: Any, progress: SnapshotProgress) -> dict[str, Any]:
    totals, verified = progress.table_totals((row.database, row.name)), row.last_verified or {}
    return {
        "database": row.database,
        "table": row.name,
        **row_values(row, *_NAMES, *_COPY_NAMES, *_OPERATIONS, "rows_estimate"),
        "level": _table_level(row, views.phase),
        "requested": row.kind == REQUESTED,
        "reason": views.complete_text(row.reason, _REASON_LENGTH),
        "remedy": views.complete_text(row.remedy, None),
        "rates": _rates_view(views, row),
        "chunks": totals.chunks,
        "done": totals.done,
        "rows_read": totals.rows,
        "corrected": totals.corrected,
        "verified_at": iso_time(row.last_verified_at),
        "equal": row.verified_equal,
        "not_comparable": verified.get("not_comparable"),
    }


def _table_level(row: Any, phase: str) -> str:
    """Return the level of a table. Nothing is at work while the pipeline is not."""
    if is_troubled(row.state, row.kind, row.verified_equal):
        return FAILED
    return WORKING if row.state in _WORKING_STATES and phase in WORKING_PHASES else IDLE


def _rates_view(views: PipelineViews, row: Any) -> dict[str, float] | None:
    if row.inserts is None:
        return None
    counted = TableStateRow(pipeline=views.name, database=row.database, name=row.name, updated_at=row.updated_at)
    counted.inserts, counted.updates, counted.deletes = row.inserts, row.updates, row.deletes
    rates = views.shown.database.change_rates(counted)
    return None if rates is None else dict(zip(_OPERATIONS, rates, strict=True))
