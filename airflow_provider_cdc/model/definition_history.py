"""The definitions of a table over time, and where in the binlog each of them applies."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pyarrow as pa

from airflow_provider_cdc.model.json_record import JsonRecord
from airflow_provider_cdc.model.offset import Position
from airflow_provider_cdc.model.schema import TableSchema


class DefinitionHistory(JsonRecord, frozen=True, tag_field="version", tag=1):
    """The definitions of one table, each of which applies from a position in the binlog on.

    :param versions: (position, definition) pairs, oldest first. The first position is ``None`` if the first definition
        applies from the beginning. Otherwise the table was planned again at that position, and earlier events of the
        table are ignored.
    :param revision: how often the table was planned again.
    :param suspended_from: if the table is suspended, the position from which its events are ignored; ``None`` means
        from the beginning.
    :param is_suspended: whether the table is suspended.
    """

    versions: tuple[tuple[Position | None, TableSchema], ...]
    revision: int = 0
    suspended_from: Position | None = None
    is_suspended: bool = False

    @classmethod
    def from_single(cls, definition: TableSchema) -> DefinitionHistory:
        """Make a history of one definition that applies everywhere."""
        return cls(((None, definition),))

    @property
    def newest(self) -> TableSchema:
        """The last definition."""
        return self.versions[-1][1]

    @property
    def start(self) -> Position | None:
        """Where the first definition starts to apply; ``None`` for the beginning."""
        return self.versions[0][0]

    def at(self, position: Position) -> TableSchema | None:
        """Return the definition for a row event or statement that begins at a position.

        :returns: ``None`` if events at this position are ignored.
        """
        if self.is_suspended and (self.suspended_from is None or self.suspended_from <= position):
            return None
        candidates = (definition for since, definition in reversed(self.versions) if since is None or since <= position)
        return next(candidates, None)

    def changes_at(self, position: Position) -> bool:
        """Return whether a definition starts to apply exactly here: a followed DDL ends at this position."""
        return any(since == position for since, _ in self.versions)

    def with_change(self, position: Position, definition: TableSchema) -> DefinitionHistory:
        """Append a definition that applies from a position on, which is the end of the DDL.

        :raises ValueError: if a definition already starts there or later.
        """
        last = self.versions[-1][0]
        if last is not None and position <= last:
            raise ValueError(f"a definition of {definition.label} from {position} on cannot follow one from {last} on")
        return DefinitionHistory((*self.versions, (position, definition)), self.revision)

    def suspended_at(self, position: Position | None) -> DefinitionHistory:
        """Return this history with the table suspended from a position on.

        :param position: ``None`` for the beginning.
        """
        return self.replace(suspended_from=position, is_suspended=True)

    def replanned(self, position: Position, definition: TableSchema) -> DefinitionHistory:
        """Return the history of the table after it was planned again; earlier events are ignored.

        :param position: the low watermark after which the table is read.
        """
        return DefinitionHistory(((position, definition),), self.revision + 1)

    def on_other_server(self) -> DefinitionHistory:
        """Return the history for another server, whose positions all come after those of this one."""
        return DefinitionHistory(((None, self.newest),), self.revision)

    def with_zero_dates(self, policy: str) -> DefinitionHistory:
        """Return the same definitions with another ``zero_dates`` policy, which is not part of a definition."""
        return self.replace(versions=tuple((at, d.with_zero_dates(policy)) for at, d in self.versions))

    def with_full_before_images(self, required: bool) -> DefinitionHistory:
        """Return the same definitions with full before images required or not."""
        return self.replace(versions=tuple((at, d.replace(full_before_images=required)) for at, d in self.versions))


#: The definitions of captured tables by (database, table), in the server's spelling.
CapturedTables = Mapping[tuple[str, str], DefinitionHistory]


def histories_by_table(definitions: Iterable[DefinitionHistory]) -> dict[tuple[str, str], DefinitionHistory]:
    """Map (database, table) to the table's history."""
    return {history.newest.id: history for history in definitions}


class ColumnChanges(JsonRecord, frozen=True):
    """Facts from the text of one statement. Nothing in them is guessed.

    :param renamed: (old name, new name) of each column that is renamed, all at once: names may be exchanged.
    :param defaults: (name, text) of each new column that has a value in all rows that exist; the text is exactly that
        value when it is cast to the column's Arrow type.
    """

    renamed: tuple[tuple[str, str], ...] = ()
    defaults: tuple[tuple[str, str], ...] = ()

    def __bool__(self) -> bool:
        """Return whether there are any."""
        return bool(self.renamed or self.defaults)

    def in_copy(self, before: TableSchema, after: TableSchema) -> ColumnChanges:
        """Return the same changes of the copy's columns, by the names that these have there.

        :param before: the definition before the statement.
        :param after: the definition after it.
        """
        copied = {column.name for column in after.copied_columns}
        renamed = ((before.copy_name(old), after.copy_name(new)) for old, new in self.renamed if new in copied)
        return ColumnChanges(
            tuple((old, new) for old, new in renamed if old != new),
            tuple((after.copy_name(name), text) for name, text in self.defaults if name in copied),
        )


NO_CHANGES = ColumnChanges()


def default_array(text: str, arrow_type: pa.DataType) -> pa.Array:
    """Return the value of a default, as an array of one.

    :raises pa.ArrowInvalid: if the type has no such value.
    """
    return pa.array([text], pa.string()).cast(arrow_type)
