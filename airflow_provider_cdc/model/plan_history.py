"""What happens to a table after the plan was made: a DDL is followed, the table is suspended, or it rejoins.

Each step is written down once, beside the plan, by the stream's driver. A plan knows all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from airflow_provider_cdc.model.schema import TableSchema


@dataclass(frozen=True)
class FollowedDdl:
    """A DDL that the stream has followed: from its end on, a table has another definition.

    :param table: index of the table in the plan.
    :param revision: revision of the table's definitions that it follows: a table that is planned or read again begins
        anew.
    :param seq: ``_cdc_seq`` of the DDL.
    :param schema: the definition behind it.
    """

    table: int
    revision: int
    seq: int
    schema: TableSchema

    def to_json(self) -> dict[str, Any]:
        """Plain JSON value; :meth:`from_json` turns it back."""
        return {"table": self.table, "revision": self.revision, "seq": self.seq, "followed": self.schema.to_json()}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> FollowedDdl:
        """Inverse of :meth:`to_json`."""
        return cls(value["table"], value["revision"], value["seq"], TableSchema.from_json(value["followed"]))


@dataclass(frozen=True)
class Suspension:
    """A table that the stream goes on without: its copy stands where it was.

    :param table: index of the table in the plan.
    :param revision: revision of the table's definitions that it ends.
    :param seq: ``_cdc_seq`` of the last transaction that its copy has.
    :param at: the same place in the binlog, for people: ``file:position``.
    :param since: when it was suspended, as ISO 8601 in UTC.
    :param kind: name of the class of the error that did it, ``message`` and ``remedy`` its words; or one of
        :mod:`~airflow_provider_cdc.model.suspension_kinds`.
    :param schema: the definition of a table that was added with this step; the plan did not have it before.
    :param dropped: whether a statement of the binlog did it that certainly dropped the table.
    :param first: what has to be done before the table is read again, if anything.
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
        """Plain JSON value; :meth:`from_json` turns it back."""
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
    """A table that was read again as a whole: from a place on, the stream follows it as it was read.

    :param table: index of the table in the plan.
    :param revision: revision of its definitions that begins with it.
    :param seq: ``_cdc_seq`` of the last transaction that the slices have.
    :param schema: its definition there.
    :param slices: JSON values of what takes the place of its rows in the sink.
    :param group: number of the group in which it was read; ``None`` where that was not written down.
    :param keeps_deleted_rows: whether rows that ``sink.deletes`` keeps stay; else all rows go.
    """

    table: int
    revision: int
    seq: int
    schema: TableSchema
    slices: tuple[dict[str, Any], ...] = ()
    group: int | None = None
    keeps_deleted_rows: bool = True

    def to_json(self) -> dict[str, Any]:
        """Plain JSON value; :meth:`from_json` turns it back."""
        return {
            "table": self.table,
            "revision": self.revision,
            "seq": self.seq,
            "rejoined": self.schema.to_json(),
            "slices": list(self.slices),
            **({} if self.group is None else {"group": self.group}),
            **({} if self.keeps_deleted_rows else {"keeps": False}),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Rejoin:
        """Inverse of :meth:`to_json`."""
        schema = TableSchema.from_json(value["rejoined"])
        slices, group, keeps = tuple(value["slices"]), value.get("group"), value.get("keeps", True)
        return cls(value["table"], value["revision"], value["seq"], schema, slices, group, keeps)


Amendment = FollowedDdl | Suspension | Rejoin
_AMENDMENT_CLASSES: dict[str, type[Amendment]] = {"followed": FollowedDdl, "suspended": Suspension, "rejoined": Rejoin}


def kind_of_step(step: Amendment) -> str:
    """Name of the kind of a step, as it is stored: ``followed``, ``suspended`` or ``rejoined``."""
    return next(name for name, kind in _AMENDMENT_CLASSES.items() if isinstance(step, kind))


def parse_amendment(value: Mapping[str, Any]) -> Amendment | None:
    """A step from its JSON value; ``None`` for something else."""
    return next((kind.from_json(value) for name, kind in _AMENDMENT_CLASSES.items() if name in value), None)


def sort_amendments(amendments: Iterable[Amendment]) -> tuple[Amendment, ...]:
    """Each step once, by ``_cdc_seq``: a share of the plan has some of them already."""
    unique = {(type(step), step.table, step.revision, step.seq): step for step in amendments}
    return tuple(sorted(unique.values(), key=lambda step: (step.seq, step.table, step.revision)))


def with_changed_schema(amendment: Amendment, change: Callable[[TableSchema], TableSchema]) -> Amendment:
    """A step with another definition, if it has one."""
    return amendment if amendment.schema is None else replace(amendment, schema=change(amendment.schema))
