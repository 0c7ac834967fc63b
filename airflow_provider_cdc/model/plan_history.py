"""Amendments: what happens to a table after planning. A DDL is followed, or the table is suspended or rejoins.

The stream's driver writes each amendment once, next to the plan; a loaded plan contains all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, cast

from airflow_provider_cdc.model.definition_history import NO_CHANGES, ColumnChanges, DefinitionHistory
from airflow_provider_cdc.model.json_record import JsonRecord
from airflow_provider_cdc.model.schema import TableSchema


class FollowedDdl(JsonRecord, frozen=True, tag_field="amendment", tag="followed"):
    """A DDL that the stream has followed: the table has a new definition after it.

    :param table: index of the table in the plan.
    :param revision: revision of the table that it belongs to; planning or re-snapshotting the table starts a new one.
    :param seq: ``_cdc_seq`` of the DDL.
    :param schema: the definition after the DDL.
    :param columns: what the definitions do not show.
    """

    table: int
    revision: int
    seq: int
    schema: TableSchema
    columns: ColumnChanges = NO_CHANGES


class Suspension(JsonRecord, frozen=True, tag_field="amendment", tag="suspended"):
    """A table that the stream continues without; its copy is no longer updated.

    :param table: index of the table in the plan.
    :param revision: revision of the table that the suspension ends.
    :param seq: ``_cdc_seq`` of the last transaction in the copy.
    :param at: the same position in human-readable form: ``file:position``.
    :param since: when it was suspended, as ISO 8601 in UTC.
    :param kind: class name of the error that caused it, or one of
        :data:`~airflow_provider_cdc.model.errors.NO_ERROR_KINDS`.
    :param message: message of the error.
    :param remedy: remedy of the error.
    :param schema: the definition of a table that this amendment adds to the plan; ``None`` for a planned table.
    :param dropped: whether the cause is a statement in the binlog that certainly dropped the table.
    :param first: what must be done before the table is re-snapshotted, if anything.
    """

    table: int
    revision: int
    seq: int
    at: str
    since: str
    kind: str
    message: str
    remedy: str
    schema: TableSchema | None = None
    dropped: bool = False
    first: str | None = None


class Rejoin(JsonRecord, frozen=True, tag_field="amendment", tag="rejoined"):
    """A table that was re-snapshotted as a whole: the stream follows it from a position on.

    :param table: index of the table in the plan.
    :param revision: revision of the table that starts here.
    :param seq: ``_cdc_seq`` of the last transaction in the slices.
    :param schema: its definition at that position.
    :param slices: JSON values of the slices that replace its rows in the sink.
    :param group: number of the group in which it was read; 0 until the read has a number.
    :param keeps_deleted_rows: whether rows that ``sink.deletes`` keeps are retained; otherwise all rows are replaced.
    """

    table: int
    revision: int
    seq: int
    schema: TableSchema
    slices: tuple[dict[str, Any], ...] = ()
    group: int = 0
    keeps_deleted_rows: bool = True


class Replan(JsonRecord, frozen=True, tag_field="amendment", tag="replanned"):
    """A table that was planned again, because it was altered during its snapshot.

    :param table: index of the table in the plan.
    :param definitions: its definitions, with their revision.
    :param lower: first key in its chunks; ``None`` if it has none.
    :param upper: last key in its chunks; ``None`` if it has none.
    """

    table: int
    definitions: DefinitionHistory
    lower: tuple[int | str, ...] | None
    upper: tuple[int | str, ...] | None


Amendment = FollowedDdl | Suspension | Rejoin
#: An amendment or a replanned table, as stored next to the plan.
StoredAmendment = Amendment | Replan
STORED_AMENDMENT = cast(type[StoredAmendment], StoredAmendment)


def sort_amendments(amendments: Iterable[Amendment]) -> tuple[Amendment, ...]:
    """Sort amendments by ``_cdc_seq`` and drop duplicates, which occur if a part of the plan already has some."""
    unique = {(type(step), step.table, step.revision, step.seq): step for step in amendments}
    return tuple(sorted(unique.values(), key=lambda step: (step.seq, step.table, step.revision)))


def with_changed_schema(amendment: Amendment, change: Callable[[TableSchema], TableSchema]) -> Amendment:
    """Return an amendment with its definition changed, if it has one."""
    return amendment if amendment.schema is None else amendment.replace(schema=change(amendment.schema))
