"""Windows of changes to sink tables, one after another, for asset events.

They come only from the state database. A window begins where the previous one ended, so no change is left out. Each
window is reported once, except that a task that runs again reports its window again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow_provider_cdc.state import StateDatabase, TableCounts

#: (database, name) of a table.
TableId = tuple[str, str]

_COUNTS = ("inserts", "updates", "deletes")
#: Audiences: changes reported by tasks, changes reported by the watcher, and snapshots. Each has its own windows.
CATCH_UPS, WATCHER, SNAPSHOTS = "catch_ups", "watcher", "snapshots"


def window_mark(counts: TableCounts) -> dict[str, Any]:
    """Return the end of a window, as a plain JSON value."""
    values = {name: getattr(counts, name) for name in _COUNTS}
    values |= {"position": counts.position, "reread": counts.last_overwrite_event}
    return {**values, "time": counts.updated_at.isoformat(timespec="seconds")}


def window_between(before: Mapping[str, Any] | None, after: Mapping[str, Any]) -> dict[str, Any]:
    """Return the window between two marks.

    :param before: ``None`` for the beginning; ignored if ``after`` has lower counts, because the state database was
        recreated.
    :returns: ``inserts``, ``updates``, ``deletes``; whether rows were overwritten by a re-snapshot (``reread``); its
        beginning and end in the binlog (``start``, ``end``) and in time (``since``, ``until``).
    """
    if before is not None and any(after[name] < before[name] for name in (*_COUNTS, "reread")):
        before = None
    start: Mapping[str, Any] = before or {}
    return {
        **{name: after[name] - start.get(name, 0) for name in _COUNTS},
        "reread": after["reread"] > start.get("reread", 0),
        "start": start.get("position"),
        "end": after["position"],
        "since": start.get("time"),
        "until": after["time"],
    }


def is_window_empty(asset_window: Mapping[str, Any]) -> bool:
    """Return whether nothing has changed in a window."""
    return not (asset_window["reread"] or any(asset_window[name] for name in _COUNTS))


def take_catch_up_windows(store: StateDatabase, pipeline: str, by: str) -> dict[TableId, dict[str, Any]]:
    """Take the windows of all tables that end now, by (database, name).

    :param by: the task that reports them; if it runs again, its windows begin where they began before.
    """
    marks = {(one.database, one.name): window_mark(one) for one in store.table_counts(pipeline)}
    last_marks = store.advance_windows(pipeline, CATCH_UPS, marks, by)
    return {table: window_between(last_marks[table], mark) for table, mark in marks.items()}


def take_new_snapshots(
    store: StateDatabase, pipeline: str, generation: int, tables: Iterable[TableId], by: str
) -> list[TableId]:
    """Return the tables whose snapshot no other task has reported, and record that this one does.

    :param by: the task that reports them.
    """
    mark = {"generation": generation}
    last_marks = store.advance_windows(pipeline, SNAPSHOTS, dict.fromkeys(tables, mark), by)
    return [table for table, last_mark in last_marks.items() if last_mark != mark]
