"""Observations in the state database for status reports: lag samples and table states."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from airflow_provider_cdc.state.database import Database, retry_conflict
from airflow_provider_cdc.state.event_kinds import COMPACTION_EVENT_SECONDS
from airflow_provider_cdc.state.events import add_event_row, resolve_events
from airflow_provider_cdc.state.models import EventRow, LagSampleRow, TableStateRow, storable_text, utc_now
from airflow_provider_cdc.state.pruning import prune_history
from airflow_provider_cdc.state.values import LastCompaction, TableStatus

#: Up to this many rows are looked up one by one; for more, all rows are read.
_FEW_TABLES = 20
#: Maximum number of tables that the text of an event names.
_LISTED_TABLES = 5
_COUNT_COLUMNS = ("inserts", "updates", "deletes")
_SIZE_COLUMNS = ("files", "bytes", "rows", "dead_rows", "compactions")

#: (database, name) of a table.
TableId = tuple[str, str]


class ObservationRecords(Database):
    """Reads and writes the observations of drivers."""

    def record_sample(
        self,
        pipeline: str,
        epoch: int | None,
        *,
        lag_seconds: float | None,
        lag_bytes: int | None,
        purge_hours: float | None,
        unknown: str | None = None,
    ) -> None:
        """Record the current lag of a pipeline, and prune old history (:mod:`~airflow_provider_cdc.state.pruning`).

        See :class:`LagSampleRow` for the parameters.
        """
        sample = LagSampleRow(pipeline=pipeline, at=utc_now(), epoch=epoch, unknown=storable_text(unknown))
        sample.lag_seconds, sample.lag_bytes, sample.purge_hours = lag_seconds, lag_bytes, purge_hours
        with self._write_session() as session:
            session.merge(sample)
            prune_history(session, pipeline, sample.at)

    def last_sample(self, pipeline: str) -> LagSampleRow | None:
        """Return the newest sample, if there is one."""
        return self._read_first(select(LagSampleRow).filter_by(pipeline=pipeline).order_by(LagSampleRow.at.desc()))

    def table_states(self, pipeline: str) -> list[TableStateRow]:
        """Return the states of all tables, ordered by name."""
        query = select(TableStateRow).filter_by(pipeline=pipeline)
        return self._read_rows(query.order_by(TableStateRow.database, TableStateRow.name))

    def write_table_states(
        self,
        pipeline: str,
        states: Sequence[TableStatus],
        *,
        sizes: Mapping[TableId, Mapping[str, int | None]] | None = None,
        last_compactions: Mapping[TableId, LastCompaction] | None = None,
        applied_counts: Mapping[TableId, Sequence[int]] | None = None,
        delete_others: bool = False,
    ) -> None:
        """Record the states of tables. Rows without a change are not written.

        :param sizes: size of each copy: ``files``, ``bytes``, ``rows``, ``dead_rows``, ``compactions``; known values of
            other tables stay.
        :param last_compactions: the last compaction of each table that was compacted since the last call.
        :param applied_counts: inserts, updates and deletes applied since the last call, which are added.
        :param delete_others: whether to delete the rows of other tables, because the pipeline has no others.
        """
        retry_conflict(
            lambda: self._write_table_states(
                pipeline, states, sizes or {}, last_compactions or {}, applied_counts or {}, delete_others
            )
        )

    def _write_table_states(
        self,
        pipeline: str,
        states: Sequence[TableStatus],
        sizes: Mapping[TableId, Mapping[str, int | None]],
        last_compactions: Mapping[TableId, LastCompaction],
        applied_counts: Mapping[TableId, Sequence[int]],
        delete_others: bool,
    ) -> None:
        moment = utc_now()
        with self._write_session() as session:
            if delete_others or len(states) > _FEW_TABLES:
                query = select(TableStateRow).where(TableStateRow.pipeline == pipeline)
                rows_by_table = {(row.database, row.name): row for row in session.scalars(query)}
            else:
                rows = (session.get(TableStateRow, (pipeline, *standing[:2])) for standing in states)
                rows_by_table = {(row.database, row.name): row for row in rows if row is not None}
            for table_state in states:
                table = table_state[:2]
                row = rows_by_table.pop(table, None)
                values = _comparable_values(table_state)
                values |= {name: sizes[table].get(name) for name in _SIZE_COLUMNS} if table in sizes else {}
                if (last_compaction := last_compactions.get(table)) is not None:
                    values |= {
                        "compacted_at": last_compaction.finished_at,
                        "compaction_seconds": last_compaction.seconds,
                    }
                if row is None:
                    row = TableStateRow(pipeline=pipeline, database=table[0], name=table[1], definitions=[])
                    row.inserts = row.updates = row.deletes = 0
                    session.add(row)
                for name, count in zip(_COUNT_COLUMNS, applied_counts.get(table, ()), strict=False):
                    if count:
                        values[name] = getattr(row, name) + count
                changed = {name: value for name, value in values.items() if getattr(row, name) != value}
                if not changed:
                    continue
                if "state" in changed or (table_state.since and table_state.since != row.since):
                    row.since = table_state.since or moment
                for name, value in changed.items():
                    setattr(row, name, value)
                row.position, row.updated_at = table_state.position, moment
            for row in rows_by_table.values() if delete_others else ():
                session.delete(row)
            if last_compactions:
                _add_compaction_event(session, pipeline, sorted(".".join(table) for table in last_compactions))

    def record_verification(
        self, pipeline: str, results: Mapping[TableId, Mapping[str, Any]], *, by: str | None = None
    ) -> None:
        """Record the results of comparing tables, with an event.

        If a table could not be compared, its last result and the time of that result stay.

        :param results: JSON values, without any values of rows. The result of a table that could not be compared has
            ``not_comparable`` with the reason. Tables without a state row are skipped.
        :param by: the user who requested the comparison, if known.
        """
        with self._write_session() as session:
            compared: dict[str, bool] = {}
            refused: list[str] = []
            for table, result in results.items():
                row = session.get(TableStateRow, (pipeline, *table))
                if row is None:
                    continue
                if result.get("not_comparable") is not None:
                    row.last_verified = {**(row.last_verified or {}), **result}
                    refused.append(".".join(table))
                else:
                    row.last_verified_at, row.last_verified = utc_now(), dict(result)
                    row.verified_equal = compared[".".join(table)] = bool(result.get("equal"))
            if compared or refused:
                _add_verification_event(session, pipeline, compared, refused, by)


def _add_compaction_event(session: Session, pipeline: str, tables: Sequence[str]) -> None:
    """Add an event about compactions, at most one an hour. Each table has the time of its last one anyway."""
    newest = select(EventRow.at).filter_by(pipeline=pipeline, kind="compacted").order_by(EventRow.id.desc()).limit(1)
    at = session.scalar(newest)
    if at is None or (utc_now() - at).total_seconds() > COMPACTION_EVENT_SECONDS:
        only = tables[0] if len(tables) == 1 else None
        add_event_row(session, pipeline, "compacted", f"files of {_list_tables(tables)} were compacted", table=only)


def _add_verification_event(
    session: Session, pipeline: str, compared: Mapping[str, bool], refused: Sequence[str], by: str | None
) -> None:
    unequal = sorted(table for table, is_equal in compared.items() if not is_equal)
    number, named = _count_tables(len(compared)), unequal or list(compared)
    only = named[0] if len(named) == 1 else None
    if unequal:
        detail = f"source and copy differ in {_list_tables(unequal)}; {number} compared"
        remedy = "Repair: `airflow-cdc verify --repair` re-snapshots the rows that differ"
        add_event_row(session, pipeline, "verify_differs", detail, table=only, remedy=remedy, by=by)
        return
    if refused:
        detail = f"{_list_tables(sorted(refused))} could not be compared; {number} compared and equal"
        add_event_row(session, pipeline, "verify_incomplete", detail, by=by)
    else:
        add_event_row(session, pipeline, "verified", f"source and copy are equal; {number} compared", table=only, by=by)
    session.flush()
    tables = select(func.count()).select_from(TableStateRow).filter_by(pipeline=pipeline)
    if not session.scalar(tables.filter_by(verified_equal=False)):
        is_complete = len(compared) >= (session.scalar(tables) or 0)
        resolve_events(session, pipeline, ("verify_differs", "restart") if is_complete else ("verify_differs",))


def _count_tables(number: int) -> str:
    return "1 table was" if number == 1 else f"{number} tables were"


def _list_tables(tables: Sequence[str]) -> str:
    more = len(tables) - _LISTED_TABLES
    return ", ".join(tables[:_LISTED_TABLES]) + (f" and {more} more" if more > 0 else "")


def _comparable_values(table_state: TableStatus) -> dict[str, Any]:
    """Return the values that are compared. The position always moves, so it is only written with other changes."""
    values = table_state._asdict()
    for name in ("database", "name", "position", "since"):
        del values[name]
    for name in ("kind", "reason", "remedy"):
        values[name] = storable_text(values[name])
    return {**values, "kind": values["kind"] and values["kind"][:64], "definitions": list(table_state.definitions)}
