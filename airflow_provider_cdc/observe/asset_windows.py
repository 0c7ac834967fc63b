"""What has happened to the copies of tables since somebody was told last: windows, one behind the other.

Only the bookkeeping is asked. A window begins where the one before ended, so none is left out. One that was told by a
task that is run again is told again; all others are told once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow_provider_cdc.state import StateDatabase, TableCounts

#: (database, name) of a table.
TableId = tuple[str, str]

_COUNTS = ("inserts", "updates", "deletes")
#: Audiences: those who are told of changes by tasks, by a watcher, and of snapshots.
CATCH_UPS, WATCHER, SNAPSHOTS = "catch_ups", "watcher", "snapshots"


def window_mark(counts: TableCounts) -> dict[str, Any]:
    """Where a window ends, as JSON."""
    values = {name: getattr(counts, name) for name in (*_COUNTS, "position", "reread")}
    return {**values, "time": counts.updated_at.isoformat(timespec="seconds")}


def window_between(before: Mapping[str, Any] | None, after: Mapping[str, Any]) -> dict[str, Any]:
    """What lies between two marks.

    :param before: ``None`` for the beginning. So it is taken if ``after`` counts less: the bookkeeping was made anew.
    :return: ``inserts``, ``updates``, ``deletes``; whether rows were exchanged otherwise (``reread``); where it begins
        and ends in the binlog (``start``, ``end``), and when (``since``, ``until``).
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
    """Whether nothing has happened in a window."""
    return not (asset_window["reread"] or any(asset_window[name] for name in _COUNTS))


def take_catch_up_windows(store: StateDatabase, pipeline: str, by: str) -> dict[TableId, dict[str, Any]]:
    """Windows of all tables that end now, by database and name.

    :param by: the task that tells of them: if it is run again, they begin where they began.
    """
    marks = {(one.database, one.name): window_mark(one) for one in store.table_counts(pipeline)}
    last_marks = store.advance_windows(pipeline, CATCH_UPS, marks, by)
    return {table: window_between(last_marks[table], mark) for table, mark in marks.items()}


def take_new_snapshots(
    store: StateDatabase, pipeline: str, generation: int, tables: Iterable[TableId], by: str
) -> list[TableId]:
    """Tables of whose snapshot no other task has told."""
    mark = {"generation": generation}
    last_marks = store.advance_windows(pipeline, SNAPSHOTS, dict.fromkeys(tables, mark), by)
    return [table for table, last_mark in last_marks.items() if last_mark != mark]
