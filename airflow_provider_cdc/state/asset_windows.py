"""Reads and writes of the bookkeeping database that concern windows: what has happened to tables, and who was told."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from sqlalchemy import exc, func, select

from airflow_provider_cdc.state.database import Database
from airflow_provider_cdc.state.models import AssetWindowRow, EventRow, TableStateRow, utc_now
from airflow_provider_cdc.state.values import TableCounts

#: Kinds of events that say that rows of a copy were exchanged, though no change of them was applied.
OVERWRITE_EVENTS = ("table_rejoined", "part_reread", "table_emptied")

#: (database, name) of a table.
TableId = tuple[str, str]


class AssetWindowRecords(Database):
    """What has happened to tables since somebody was told last."""

    def table_counts(self, pipeline: str, table: TableId | None = None) -> list[TableCounts]:
        """What has happened to the copies, by name.

        :param table: only this one.
        """
        row = TableStateRow
        query = select(
            row.database, row.name, row.inserts, row.updates, row.deletes, row.position, row.updated_at
        ).where(row.pipeline == pipeline)
        events = select(EventRow.table, func.max(EventRow.id)).where(
            EventRow.pipeline == pipeline, EventRow.kind.in_(OVERWRITE_EVENTS)
        )
        if table is not None:
            query = query.where(row.database == table[0], row.name == table[1])
            events = events.where(EventRow.table == ".".join(table))
        with self._read_session() as session:
            overwrite_events = dict(session.execute(events.group_by(EventRow.table)).tuples().all())
            counted_tables = session.execute(query.order_by(row.database, row.name)).all()
        return [
            TableCounts(*counted, last_overwrite_event=overwrite_events.get(f"{counted.database}.{counted.name}", 0))
            for counted in counted_tables
        ]

    def window_end(self, pipeline: str, audience: str, table: TableId) -> Any | None:
        """Up to where an audience was told of a table; ``None`` if it never was."""
        with self._read_session() as session:
            row = session.get(AssetWindowRow, (pipeline, audience, *table))
            return None if row is None else row.after

    def advance_windows(self, pipeline: str, audience: str, ends: Mapping[TableId, Any], by: str) -> dict[TableId, Any]:
        """Note up to where an audience is told of tables now.

        :param ends: the places, as JSON values.
        :param by: who tells. If it has told the last window as well, it tells it again: that may have been in vain.
        :return: where each window begins; ``None`` where nobody has told before.
        """
        for is_last_try in (False, True):
            try:
                return self._advance_windows(pipeline, audience, ends, by)
            except exc.IntegrityError:  # another process was faster to tell of a table for the first time
                if is_last_try:
                    raise
        raise AssertionError("unreachable")

    def _advance_windows(
        self, pipeline: str, audience: str, ends: Mapping[TableId, Any], by: str
    ) -> dict[TableId, Any]:
        moment, starts = utc_now(), {}
        with self._write_session() as session:
            for table, end in _in_lock_order(ends):
                row = session.get(AssetWindowRow, (pipeline, audience, *table), with_for_update=True)
                if row is None:
                    row = AssetWindowRow(pipeline=pipeline, audience=audience, database=table[0], name=table[1])
                    session.add(row)
                elif row.by != by:
                    row.before = row.after
                row.by, row.after, row.at = by, end, moment
                starts[table] = row.before
        return starts


def _in_lock_order(ends: Mapping[TableId, Any]) -> Iterable[tuple[TableId, Any]]:
    """So that two who tell of the same tables never wait for each other."""
    return sorted(ends.items(), key=lambda one: one[0])
