"""Amendments: what happens to a table after planning. A DDL is followed, or the table is suspended or rejoins.

The stream's driver writes each amendment once, next to the plan; a loaded plan contains all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from airflow_provider_cdc.model.schema import TableSchema


@dataclass(frozen=True)
class FollowedDdl:
    """A DDL that the stream has followed: the table has a new definition after it.

    :param table: index of the table in the plan.
    :param revision: revision of the table that it belongs to; planning or re-snapshotting the table starts a new one.
    :param seq: ``_cdc_seq`` of the DDL.
    :param schema: the definition after the DDL.
    """

    table: int
    revision: int
    seq: int
    schema: TableSchema

    def to_json(self) -> dict[str, Any]:
        """Return a plain JSON value, the inverse of :meth:`from_json`."""
        return {"table": self.table, "revision": self.revision, "seq": self.seq, "followed": self.schema.to_json()}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> FollowedDdl:
        """Inverse of :meth:`to_json`."""
        return cls(value["table"], value["revision"], value["seq"], TableSchema.from_json(value["followed"]))


@dataclass(frozen=True)
class Suspension:
    """A table that the stream continues without; its copy is no longer updated.

    :param table: index of the table in the plan.
    :param revision: revision of the table that the suspension ends.
    :param seq: ``_cdc_seq`` of the last transaction in the copy.
    :param at: the same position in human-readable form: ``file:position``.
    :param since: when it was suspended, as ISO 8601 in UTC.
    :param kind: class name of the error that caused it, or one of :mod:`~airflow_provider_cdc.model.suspension_kinds`.
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

    def to_json(self) -> dict[str, Any]:
        """Return a plain JSON value, the inverse of :meth:`from_json`."""
        suspension: dict[str, Any] = {
            "at": self.at,
            "since": self.since,
            "kind": self.kind,
            "message": self.message,
            "remedy": self.remedy,
        }
        suspension |= {"dropped": True} if self.dropped else {}
        suspension |= {"first": self.first} if self.first else {}
        value = {"table": self.table, "revision": self.revision, "seq": self.seq, "suspended": suspension}
        return value if self.schema is None else {**value, "added": self.schema.to_json()}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Suspension:
        """Inverse of :meth:`to_json`."""
        schema = TableSchema.from_json(value["added"]) if "added" in value else None
        return cls(value["table"], value["revision"], value["seq"], **value["suspended"], schema=schema)


@dataclass(frozen=True)
class Rejoin:
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

    def to_json(self) -> dict[str, Any]:
        """Return a plain JSON value, the inverse of :meth:`from_json`."""
        return {
            "table": self.table,
            "revision": self.revision,
            "seq": self.seq,
            "rejoined": self.schema.to_json(),
            "slices": list(self.slices),
            "group": self.group,
            **({} if self.keeps_deleted_rows else {"keeps": False}),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Rejoin:
        """Inverse of :meth:`to_json`."""
        schema = TableSchema.from_json(value["rejoined"])
        slices, group, keeps = tuple(value["slices"]), value["group"], value.get("keeps", True)
        return cls(value["table"], value["revision"], value["seq"], schema, slices, group, keeps)


Amendment = FollowedDdl | Suspension | Rejoin
_AMENDMENT_CLASSES: dict[str, type[Amendment]] = {"followed": FollowedDdl, "suspended": Suspension, "rejoined": Rejoin}


def kind_of_step(step: Amendment) -> str:
    """Return the kind of an amendment as it is stored: ``followed``, ``suspended`` or ``rejoined``."""
    return next(name for name, kind in _AMENDMENT_CLASSES.items() if isinstance(step, kind))


def parse_amendment(value: Mapping[str, Any]) -> Amendment | None:
    """Return the amendment for a JSON value; ``None`` if the value is something else."""
    return next((kind.from_json(value) for name, kind in _AMENDMENT_CLASSES.items() if name in value), None)


def sort_amendments(amendments: Iterable[Amendment]) -> tuple[Amendment, ...]:
    """Sort amendments by ``_cdc_seq`` and drop duplicates, which occur if a part of the plan already has some."""
    unique = {(type(step), step.table, step.revision, step.seq): step for step in amendments}
    return tuple(sorted(unique.values(), key=lambda step: (step.seq, step.table, step.revision)))


def with_changed_schema(amendment: Amendment, change: Callable[[TableSchema], TableSchema]) -> Amendment:
    """Return an amendment with its definition changed, if it has one."""
    return amendment if amendment.schema is None else replace(amendment, schema=change(amendment.schema))
