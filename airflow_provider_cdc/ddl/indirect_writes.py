"""Ways by which a statement on other tables changes a captured one: views, triggers, stored functions and cascades.

By statement only the text of a change is in the binlog. Rows that it changes by such a way are nowhere.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from airflow_provider_cdc.ddl.affected_tables import Statement, mentioned_names
from airflow_provider_cdc.model.table_names import TableName, fold_name

#: Databases that are the server's own. What they hold is taken to lead nowhere: the server accepts no triggers there.
SYSTEM_DATABASES = ("mysql", "sys", "information_schema", "performance_schema")


def names_only_system_tables(statement: Statement) -> bool:
    """Whether a statement can only name what is the server's own, such as the heartbeats of hosted servers."""
    return all(database in ("", *SYSTEM_DATABASES) for database, _ in statement.mentioned_names)


@dataclass(frozen=True)
class StoredObject:
    """A view, a trigger or a stored routine.

    :param name: (database, name); of a trigger, of its table.
    :param body: what it says; ``None`` if that may not be seen.
    :param is_routine: whether it is called, not written to.
    """

    name: TableName
    body: str | None
    is_routine: bool = False


@dataclass(frozen=True)
class IndirectWrites:
    """Names that lead to captured tables, as :func:`~airflow_provider_cdc.model.table_names.fold_name` writes them.

    :param write_paths: tables and views: what changes their rows may change a captured table.
    :param call_paths: routines, and what calls them: already to read from it may change one.
    :param stored_objects: all views, triggers and routines by which these were found.
    :param cascades: likewise, see :func:`find_detours`.
    """

    write_paths: frozenset[TableName] = frozenset()
    call_paths: frozenset[TableName] = frozenset()
    stored_objects: tuple[StoredObject, ...] = field(default=(), repr=False)
    cascades: tuple[tuple[TableName, TableName], ...] = field(default=(), repr=False)

    def paths_used_by(self, statement: Statement) -> list[TableName]:
        """Those that a statement may take."""
        return sorted((statement.changed_tables & self.write_paths) | (statement.mentioned_names & self.call_paths))

    def can_change(self, statement: Statement, table: TableName) -> bool:
        """Whether a statement may change one table by what it takes. For errors: everything is looked at again."""
        return bool(find_indirect_writes([table], self.stored_objects, self.cascades).paths_used_by(statement))


def find_indirect_writes(
    captured: Iterable[TableName],
    stored_objects: Iterable[StoredObject],
    cascades: Iterable[tuple[TableName, TableName]],
) -> IndirectWrites:
    """Find out what leads to captured tables, in as many steps as it takes. What only reads from one counts, too.

    :param stored_objects: all views, triggers and routines that are not the server's own.
    :param cascades: (parent, child) of the foreign keys by which a change of the one changes the other.
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
