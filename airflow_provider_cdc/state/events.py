"""The event journal of a pipeline in the state database."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sqlalchemy import Select, select, update
from sqlalchemy.orm import Session

from airflow_provider_cdc.state.database import Database, execute_update
from airflow_provider_cdc.state.event_kinds import EVENT_KINDS, INFO
from airflow_provider_cdc.state.models import EventRow, storable_text, utc_now


class EventFilter(NamedTuple):
    """Which events to return. Empty values mean all.

    :param table: ``database.table``.
    :param needs_attention: whether to return only those that a user has to look at.
    :param before: only events with a lower id.
    """

    kinds: Sequence[str] = ()
    levels: Sequence[str] = ()
    table: str | None = None
    needs_attention: bool = False
    before: int | None = None


class EventRecords(Database):
    """Reads and writes events."""

    def add_event(
        self,
        pipeline: str,
        kind: str,
        detail: str,
        *,
        table: str | None = None,
        remedy: str | None = None,
        by: str | None = None,
        level: str | None = None,
    ) -> None:
        """Add an event to the journal of a pipeline.

        :param kind: one of :data:`~airflow_provider_cdc.state.event_kinds.EVENT_KINDS`.
        :param detail: one line; must not contain secrets.
        :param table: the table concerned, as ``database.table``.
        :param remedy: what to do about it, if anything.
        :param by: the user or task that caused it, if any.
        :param level: its severity, if it is not that of the kind.
        :raises ValueError: if there is no such kind.
        """
        with self._write_session() as session:
            add_event_row(session, pipeline, kind, detail, table=table, remedy=remedy, by=by, level=level)

    def acknowledge_event(self, pipeline: str, event_id: int, by: str) -> bool:
        """Record who acknowledged an event that needs attention. The first acknowledgement stays.

        :param event_id: id of the event.
        :param by: name of the user.
        :return: whether this call acknowledged it; ``False`` also if it needs nobody, or the problem is over.
        """
        event = update(EventRow).filter_by(id=event_id, pipeline=pipeline, needs_attention=True)
        values = {"acknowledged_by": storable_text(by), "acknowledged_at": utc_now(), "needs_attention": False}
        return self._update(event.values(values))

    def event(self, pipeline: str, event_id: int) -> EventRow | None:
        """Return one event, or ``None``."""
        row = self._read_row(EventRow, event_id)
        return row if row is not None and row.pipeline == pipeline else None

    def last_events(self, pipeline: str, limit: int, kinds: Sequence[str] = ()) -> list[EventRow]:
        """Return the last ``limit`` events, the newest first.

        :param kinds: only events of these kinds.
        """
        return self.filter_events(pipeline, EventFilter(kinds), limit)

    def filter_events(self, pipeline: str, event_filter: EventFilter, limit: int) -> list[EventRow]:
        """Return the newest events that a filter lets through, the newest first."""
        return self._read_rows(_select_events(pipeline, event_filter).order_by(EventRow.id.desc()).limit(limit))


def add_event_row(
    session: Session,
    pipeline: str,
    kind: str,
    detail: str,
    *,
    table: str | None = None,
    remedy: str | None = None,
    by: str | None = None,
    level: str | None = None,
) -> None:
    """Add an event within a transaction. See :meth:`EventRecords.add_event` for the parameters."""
    if kind not in EVENT_KINDS:
        raise ValueError(f"there is no kind of event {kind!r}")
    kind_of_event = EVENT_KINDS[kind]
    resolve_events(session, pipeline, kind_of_event.resolves, table=table)
    row = EventRow(pipeline=pipeline, at=utc_now(), kind=kind, detail=storable_text(detail))
    row.level = level or kind_of_event.level
    row.needs_attention = kind_of_event.needs_attention and row.level != INFO
    row.table, row.remedy, row.by = storable_text(table), storable_text(remedy) or None, storable_text(by)
    session.add(row)


def resolve_events(
    session: Session, pipeline: str, kinds: Sequence[str], *, table: str | None = None, detail_prefix: str = ""
) -> None:
    """Note that earlier events no longer need attention, because the problem is over.

    :param table: only events about this table.
    :param detail_prefix: only events whose text begins with this.
    """
    if not kinds:
        return
    resolved = update(EventRow).filter_by(pipeline=pipeline, needs_attention=True).where(EventRow.kind.in_(kinds))
    if table is not None:
        resolved = resolved.filter_by(table=storable_text(table))
    if detail_prefix:
        resolved = resolved.where(EventRow.detail.startswith(detail_prefix, autoescape=True))
    execute_update(session, resolved.values(needs_attention=False))


def name_event_source(session: Session, pipeline: str, kinds: Sequence[str], detail_prefix: str, by: str) -> None:
    """Record who caused an event, if that was not known when it was recorded.

    :param detail_prefix: beginning of its text.
    """
    unnamed = update(EventRow).filter_by(pipeline=pipeline, by=None).where(EventRow.kind.in_(kinds))
    unnamed = unnamed.where(EventRow.detail.startswith(detail_prefix, autoescape=True))
    execute_update(session, unnamed.values(by=storable_text(by)))


def _select_events(pipeline: str, event_filter: EventFilter) -> Select[EventRow]:
    query = select(EventRow).filter_by(pipeline=pipeline)
    if event_filter.kinds:
        query = query.where(EventRow.kind.in_(event_filter.kinds))
    if event_filter.levels:
        query = query.where(EventRow.level.in_(event_filter.levels))
    if event_filter.table is not None:
        query = query.filter_by(table=event_filter.table)
    if event_filter.needs_attention:
        query = query.filter_by(needs_attention=True)
    return query if event_filter.before is None else query.where(EventRow.id < event_filter.before)
