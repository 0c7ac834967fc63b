"""Asset windows in the state database: what has happened to tables, and up to where that was reported."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import func, select

from airflow_provider_cdc.state.database import Database, retry_conflict
from airflow_provider_cdc.state.models import AssetWindowRow, EventRow, TableStateRow
from airflow_provider_cdc.state.values import TableCounts

#: Kinds of events that report that rows of a copy were replaced other than by applying changes.
OVERWRITE_EVENTS = ("table_rejoined", "part_reread", "table_emptied")

#: (database, name) of a table.
TableId = tuple[str, str]


class AssetWindowRecords(Database):
    """Reads and writes asset windows."""

    def table_counts(self, pipeline: str, table: TableId | None = None) -> list[TableCounts]:
        """Return the change counts of the copies, ordered by table name.

        :param table: return only this table.
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
        """Return the end of the last window reported to an audience for a table; ``None`` if there was none."""
        row = self._read_row(AssetWindowRow, pipeline, audience, *table)
        return None if row is None else row.after

    def advance_windows(self, pipeline: str, audience: str, ends: Mapping[TableId, Any], by: str) -> dict[TableId, Any]:
        """Record the ends of the windows that are reported to an audience now.

        :param ends: end of each table's window, as a JSON value.
        :param by: the reporting task. If it also reported the last window, it reports that one again, because the first
            report may have been lost.
        :return: the beginning of each window; ``None`` for the first window of a table.
        """
        return retry_conflict(lambda: self._advance_windows(pipeline, audience, ends, by))

    def _advance_windows(
        self, pipeline: str, audience: str, ends: Mapping[TableId, Any], by: str
    ) -> dict[TableId, Any]:
        starts = {}
        with self._write_session() as session:
            # In a fixed order, so that two processes with the same tables cannot deadlock.
            for table, end in sorted(ends.items(), key=lambda one: one[0]):
                row = session.get(AssetWindowRow, (pipeline, audience, *table), with_for_update=True)
                if row is None:
                    row = AssetWindowRow(pipeline=pipeline, audience=audience, database=table[0], name=table[1])
                    session.add(row)
                elif row.by != by:
                    row.before = row.after
                row.by, row.after = by, end
                starts[table] = row.before
        return starts
