"""Read-only queries about the tables of a pipeline, for status displays: searched, filtered, sorted, page by page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Select, Subquery, and_, case, func, literal, null, or_, select, union_all
from sqlalchemy.orm import Session

from airflow_provider_cdc.model.errors import REQUESTED
from airflow_provider_cdc.state.database import Database
from airflow_provider_cdc.state.models import PlannedTableRow, TableStateRow

#: State of a planned table before a driver has recorded one.
PLANNED_STATE = "waiting"
#: The columns of the table states, except the definitions, which may be large.
_NAMES = tuple(
    column.key
    for column in TableStateRow.__table__.columns
    if column.key not in ("pipeline", "database", "name", "definitions", "chunks_done", "chunks_total")
)


class TableQuery(NamedTuple):
    """Which tables of a pipeline to return.

    :param text: part of the name ``database.table``, in any case.
    :param states: only tables in these states; empty for all.
    :param only_troubled: only tables that need a user.
    :param sort: one of :data:`TABLE_ORDERS`.
    :param descending: whether the order is reversed. Tables without a value come last in any case.
    """

    text: str = ""
    states: Sequence[str] = ()
    only_troubled: bool = False
    sort: str = "name"
    descending: bool = False
    offset: int = 0
    limit: int = 40


def is_troubled(state: str, kind: str | None, verified_equal: bool | None) -> bool:
    """Return whether a table needs a user: it is suspended because of a problem, or its copy is known to differ."""
    return (state == "suspended" and kind != REQUESTED) or verified_equal is False


class TableStateReader(Database):
    """Adds the queries about tables."""

    def find_tables(
        self, pipeline: str, generation: int, query: TableQuery, *, all_recorded: bool = True
    ) -> tuple[list[Any], int]:
        """Return a page of tables, and how many tables match.

        Each has ``database``, ``name``, ``rows_estimate`` (``None`` if it was not planned), and most columns of
        :class:`~airflow_provider_cdc.state.models.TableStateRow`, all ``None`` but ``state`` before a driver has
        recorded them.

        :param all_recorded: whether a driver has recorded all planned tables, which needs less work.
        """
        table = _recorded_tables(pipeline) if all_recorded else _all_tables(pipeline, generation)
        names, order = (table.c.database, table.c.name), TABLE_ORDERS[query.sort](table)
        keys: list[Any] = [] if order is None else [order.is_(None), order.desc() if query.descending else order]
        by_name = [name.desc() if order is None and query.descending else name for name in names]
        matching = select(*names).where(*_conditions(table, query))
        page = matching.order_by(*keys, *by_name).offset(query.offset).limit(query.limit)
        with self._read_session() as session:
            number = session.scalar(select(func.count()).select_from(matching.subquery())) or 0
            found = [(database, name) for database, name in session.execute(page)]
            rows = _rows_by_key(session, pipeline, generation, table, found)
        return [rows[key] for key in found], int(number)

    def find_table(self, pipeline: str, generation: int, database: str, name: str) -> Any | None:
        """Return one table as :meth:`find_tables` does, or ``None``."""
        with self._read_session() as session:
            key = database, name
            for table in (_recorded_tables(pipeline), _all_tables(pipeline, generation)):
                if row := _rows_by_key(session, pipeline, generation, table, [key]).get(key):
                    return row
        return None

    def table_row(self, pipeline: str, database: str, name: str) -> TableStateRow | None:
        """Return the recorded state of one table, with its definitions."""
        return self._read_row(TableStateRow, pipeline, database, name)


def _rows_by_key(
    session: Session, pipeline: str, generation: int, table: Subquery, keys: Sequence[tuple[str, str]]
) -> dict[tuple[str, str], Any]:
    """Return some tables with their planned numbers of rows."""
    planned = PlannedTableRow
    is_same = planned.database == table.c.database, planned.name == table.c.name
    is_planned = and_(planned.pipeline == pipeline, planned.generation == generation, *is_same)
    rows = select(table, planned.rows_estimate).outerjoin(planned, is_planned)
    # Two lists use the index; tables of the same name in another database are left out below.
    databases, names = ({key[part] for key in keys} for part in (0, 1))
    chosen = session.execute(rows.where(table.c.database.in_(databases), table.c.name.in_(names)))
    return {key: row for row in chosen if (key := (row.database, row.name)) in keys}


def _recorded_tables(pipeline: str) -> Subquery:
    row = TableStateRow
    names = (row.database, row.name, *(getattr(row, name) for name in _NAMES))
    return select(*names).where(row.pipeline == pipeline).subquery()


def _all_tables(pipeline: str, generation: int) -> Subquery:
    row, planned = TableStateRow, PlannedTableRow
    recorded = select(row.database, row.name, *(getattr(row, name) for name in _NAMES)).where(row.pipeline == pipeline)
    empty = [(literal(PLANNED_STATE) if name == "state" else null()).label(name) for name in _NAMES]
    unrecorded = _unrecorded_tables(pipeline, generation).with_only_columns(planned.database, planned.name, *empty)
    return union_all(recorded, unrecorded).subquery()


def _unrecorded_tables(pipeline: str, generation: int) -> Select[Any]:
    row, planned = TableStateRow, PlannedTableRow
    is_same = row.pipeline == pipeline, row.database == planned.database, row.name == planned.name
    return select(planned).where(
        planned.pipeline == pipeline, planned.generation == generation, ~select(row.name).where(*is_same).exists()
    )


def _conditions(table: Subquery, query: TableQuery) -> list[ColumnElement[bool]]:
    conditions: list[ColumnElement[bool]] = []
    if query.text:
        label = table.c.database.concat(".").concat(table.c.name)
        conditions.append(label.icontains(query.text, autoescape=True))
    if query.states:
        conditions.append(table.c.state.in_(query.states))
    if query.only_troubled:
        conditions.append(_is_troubled(table))
    return conditions


def _is_troubled(table: Subquery) -> ColumnElement[bool]:
    is_requested = func.coalesce(table.c.kind, "") == REQUESTED
    return or_(and_(table.c.state == "suspended", ~is_requested), table.c.verified_equal.is_(False))


def _severity(table: Subquery) -> ColumnElement[Any]:
    return case(
        (_is_troubled(table), 0),
        (table.c.state == "suspended", 1),
        (table.c.state.in_(("rereading", "snapshot", PLANNED_STATE)), 2),
        else_=3,
    )


#: What tables can be sorted by; ``None`` for the name.
TABLE_ORDERS: dict[str, Any] = {
    "name": lambda table: None,
    "trouble": _severity,
    "rows": lambda table: table.c.rows,
    "bytes": lambda table: table.c.bytes,
    "changes": lambda table: table.c.inserts + table.c.updates + table.c.deletes,
    "dead": lambda table: table.c.dead_rows,
    "verified": lambda table: table.c.last_verified_at,
    "since": lambda table: table.c.since,
}
