"""How statements on other tables can change a captured table: by views, triggers, stored functions and cascades.

With statement logging, the binlog only has the text of a change. Rows that it changes indirectly are nowhere.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from airflow_provider_cdc.ddl.affected_tables import Statement, mentioned_names
from airflow_provider_cdc.model.table_names import TableName, fold_name

#: The server's own databases. They are assumed to lead nowhere, because the server allows no triggers there.
SYSTEM_DATABASES = ("mysql", "sys", "information_schema", "performance_schema")


def names_only_system_tables(statement: Statement) -> bool:
    """Return whether a statement can only name system tables, as the heartbeats of hosted servers do."""
    return all(database in ("", *SYSTEM_DATABASES) for database, _ in statement.mentioned_names)


@dataclass(frozen=True)
class StoredObject:
    """A view, a trigger or a stored routine.

    :param name: (database, name); for a trigger, those of its table.
    :param body: its text; ``None`` if the user is not allowed to see it.
    :param is_routine: whether it is called rather than written to.
    """

    name: TableName
    body: str | None
    is_routine: bool = False


@dataclass(frozen=True)
class IndirectWrites:
    """Names that lead to captured tables, folded by :func:`~airflow_provider_cdc.model.table_names.fold_name`.

    :param write_paths: tables and views; a change of their rows may change a captured table.
    :param call_paths: routines, and objects that call them; even reading from one may change a captured table.
    :param stored_objects: all views, triggers and routines that were considered.
    :param cascades: foreign keys that were considered, see :func:`find_indirect_writes`.
    """

    write_paths: frozenset[TableName] = frozenset()
    call_paths: frozenset[TableName] = frozenset()
    stored_objects: tuple[StoredObject, ...] = field(default=(), repr=False)
    cascades: tuple[tuple[TableName, TableName], ...] = field(default=(), repr=False)

    def paths_used_by(self, statement: Statement) -> list[TableName]:
        """Return the names that a statement may use."""
        return sorted((statement.changed_tables & self.write_paths) | (statement.mentioned_names & self.call_paths))

    def can_change(self, statement: Statement, table: TableName) -> bool:
        """Return whether a statement may change one table indirectly. Slow, because it recomputes all paths: for
        errors.
        """
        return bool(find_indirect_writes([table], self.stored_objects, self.cascades).paths_used_by(statement))


def find_indirect_writes(
    captured: Iterable[TableName],
    stored_objects: Iterable[StoredObject],
    cascades: Iterable[tuple[TableName, TableName]],
) -> IndirectWrites:
    """Find all names that lead to captured tables, directly or in several steps.

    An object that only reads from a captured table counts, too.

    :param stored_objects: all views, triggers and routines other than the server's own.
    :param cascades: (parent, child) of the foreign keys by which a change of the parent changes the child.
    """
    stored_objects, cascades = tuple(stored_objects), tuple(cascades)
    edges = [
        ((fold_name(s.name[0]), fold_name(s.name[1])), s, mentioned_names(s.body, s.name[0]) if s.body else None)
        for s in stored_objects
    ]
    parents = [((fold_name(p[0]), fold_name(p[1])), (fold_name(c[0]), fold_name(c[1]))) for p, c in cascades]
    start = {(fold_name(database), fold_name(table)) for database, table in captured}
    written, called, size = set(start), set[TableName](), -1
    while size != len(written) + len(called):
        size = len(written) + len(called)
        for name, one, words in edges:
            if words is None or not written.isdisjoint(words) or not called.isdisjoint(words):
                (called if one.is_routine else written).add(name)
            if words is not None and not one.is_routine and not called.isdisjoint(words):
                called.add(name)
        written |= {parent for parent, child in parents if child in written}
    return IndirectWrites(frozenset(written - start), frozenset(called), stored_objects, cascades)
