"""The definitions of a table over time: which one holds where in the binlog."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from airflow_provider_cdc.model.offset import Position
from airflow_provider_cdc.model.schema import TableSchema

_VERSION = 1


@dataclass(frozen=True)
class DefinitionHistory:
    """The definitions of one table, each from a place of the binlog on.

    :param versions: (place, definition), the oldest first. The first place is ``None`` where the first definition holds
        from the beginning; else nothing that the binlog says of the table before it is of concern, since the table was
        planned again there.
    :param revision: how often the table was planned again.
    :param suspended_from: the place from which on nothing is of concern, since the table is suspended, and ``ended``:
        whether it is, with an ``end`` of ``None`` from the beginning.
    """

    versions: tuple[tuple[Position | None, TableSchema], ...]
    revision: int = 0
    suspended_from: Position | None = None
    is_suspended: bool = False

    @classmethod
    def from_single(cls, definition: TableSchema) -> DefinitionHistory:
        """One definition that holds everywhere."""
        return cls(((None, definition),))

    @property
    def newest(self) -> TableSchema:
        """The definition that holds at the end."""
        return self.versions[-1][1]

    @property
    def start(self) -> Position | None:
        """Where the first definition begins to hold; ``None`` for the beginning."""
        return self.versions[0][0]

    def at(self, position: Position) -> TableSchema | None:
        """The definition by which a row event or a statement is read that begins at a place; ``None``: by none, what
        happens there is of no concern.
        """
        if self.is_suspended and (self.suspended_from is None or self.suspended_from <= position):
            return None
        candidates = (definition for since, definition in reversed(self.versions) if since is None or since <= position)
        return next(candidates, None)

    def changes_at(self, position: Position) -> bool:
        """Whether a definition begins to hold exactly at a place: a DDL that ends there has been followed."""
        return any(since == position for since, _ in self.versions)

    def with_change(self, position: Position, definition: TableSchema) -> DefinitionHistory:
        """These definitions, and another one that holds from a place on: the end of the DDL.

        :raises ValueError: if a definition begins to hold there or behind that already.
        """
        last = self.versions[-1][0]
        if last is not None and position <= last:
            raise ValueError(f"a definition of {definition.label} from {position} on cannot follow one from {last} on")
        return DefinitionHistory((*self.versions, (position, definition)), self.revision)

    def suspended_at(self, position: Position | None) -> DefinitionHistory:
        """These definitions, of which none holds from a place on: the table is suspended there.

        :param position: ``None`` for the beginning.
        """
        return replace(self, suspended_from=position, is_suspended=True)

    def replanned(self, position: Position, definition: TableSchema) -> DefinitionHistory:
        """What takes their place when the table is planned again: nothing before a place is of concern any more.

        :param position: the low watermark behind which it is read.
        """
        return DefinitionHistory(((position, definition),), self.revision + 1)

    def on_other_server(self) -> DefinitionHistory:
        """What holds at another server than that of the places, once all of them have been passed."""
        return DefinitionHistory(((None, self.newest),), self.revision)

    def with_zero_dates(self, policy: str) -> DefinitionHistory:
        """The same definitions under another policy, which is no part of them."""
        return replace(self, versions=tuple((at, d.with_zero_dates(policy)) for at, d in self.versions))

    def with_full_before_images(self) -> DefinitionHistory:
        """The same definitions where old rows are wanted whole."""
        return replace(self, versions=tuple((at, replace(d, full_before_images=True)) for at, d in self.versions))

    def to_json(self) -> dict[str, Any]:
        """Plain JSON value; :meth:`from_json` turns it back."""
        steps = [{"since": at.to_json() if at else None, "schema": d.to_json()} for at, d in self.versions]
        return {"version": _VERSION, "revision": self.revision, "definitions": steps}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> DefinitionHistory:
        """Inverse of :meth:`to_json`.

        A value without a version is a bare definition with ``since`` and ``revision`` in it, as plans had it before.

        :raises ValueError: if the value is of a newer version of this software.
        """
        if "version" not in value:
            value = {**value, "version": 0, "definitions": [{"since": value.get("since"), "schema": value}]}
        if value["version"] > _VERSION:
            raise ValueError(f"definitions of version {value['version']}, and {_VERSION} is the newest that is known")
        steps = tuple(
            (Position.from_json(step["since"]) if step["since"] else None, TableSchema.from_json(step["schema"]))
            for step in value["definitions"]
        )
        return cls(steps, value.get("revision", 0))


#: The definitions of captured tables by (database, table), spelled as the server spells them.
CapturedTables = Mapping[tuple[str, str], DefinitionHistory]


def histories_by_table(definitions: Iterable[DefinitionHistory]) -> dict[tuple[str, str], DefinitionHistory]:
    """Definitions by the tables that they are of."""
    return {history.newest.id: history for history in definitions}
