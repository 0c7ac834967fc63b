"""Does a statement of the binlog change a captured table?"""

from __future__ import annotations

from collections.abc import Callable

from airflow_provider_cdc.ddl.affected_tables import Statement
from airflow_provider_cdc.ddl.indirect_writes import IndirectWrites, names_only_system_tables
from airflow_provider_cdc.model.definition_history import CapturedTables
from airflow_provider_cdc.model.errors import DdlError
from airflow_provider_cdc.model.offset import Position
from airflow_provider_cdc.model.schema import TableSchema
from airflow_provider_cdc.model.table_names import TableName, fold_name, fold_table, may_match
from airflow_provider_cdc.mysql.binlog.events.event import BinlogEvent

_USE_ROW_FORMAT = "Let writers use binlog_format=ROW"
_GRANT_CATALOG = "GRANT SELECT, SHOW VIEW, TRIGGER ON *.* TO the user of the connection and run again"
#: A flag of statements: the session uses a temporary table. In a stored procedure it stays set for those that do not.
THREAD_SPECIFIC_FLAG = 4


#: Looks up what leads to captured tables now; ``None``: that may not be seen.
IndirectWritesLookup = Callable[[], IndirectWrites | None]


class StatementGuard:
    """Judges the statements of a binlog, one after the other.

    :param captured: the definitions of captured tables.
    :param lookup: looks up what leads to them. Without it a change by statement is judged by its own words alone: for
        those who read behind one that has judged.
    """

    def __init__(self, captured: CapturedTables, lookup: IndirectWritesLookup | None) -> None:
        # Where names that differ in case are those of several tables, a folded one may be that of each of them.
        self._captured = [
            ((fold_name(database), fold_name(table)), history) for (database, table), history in captured.items()
        ]
        self._lookup = lookup
        self._indirect_writes: IndirectWrites | None = None

    def altered_tables(self, event: BinlogEvent, statement: Statement) -> list[TableSchema]:
        """Captured tables that a DDL changes, and not to what their definitions say already.

        :raises DdlError: if their rows may be changed by a statement. Its text stays unsaid: it may hold secrets.
        """
        here, end = Position(event.file, event.start), Position(event.file, event.position)
        live = [(name, schema) for name, over_time in self._captured if (schema := over_time.at(here)) is not None]
        dropped = {(database, table) for database in statement.dropped_databases for (_, table), _ in live}
        changed = [
            schema
            for name, schema in live
            if may_match(statement.changed_tables | dropped, name) and not _keeps_key(schema, statement.dropped_index)
        ]
        if statement.may_change_any_table and not changed and self._lookup is None:
            changed = [schema for _, schema in live[:1]]
        if changed and statement.kind == "dml":
            # Of the first of them: each of the others has its turn when that one is suspended.
            message = (
                f"{statement.summary} logged by statement may change captured table {changed[0].label}, at "
                f"{event.location}"
            )
            raise DdlError.for_table(
                f"{message}: its rows are not in the binlog",
                changed[0].label,
                place=event.location,
                first=_USE_ROW_FORMAT,
            )
        if live and not changed and self._lookup is not None:
            self._check_indirect_writes(event, statement, self._lookup, live)
        followed = {name for name, over_time in self._captured if over_time.changes_at(end)}
        return sorted(
            (schema for schema in changed if fold_table(schema.id) not in followed), key=lambda schema: schema.label
        )

    def check_truncate(self, event: BinlogEvent, statement: Statement) -> None:
        """Make sure that what is emptied is not a temporary table that hides the captured one.

        :raises DdlError: if it may be one.
        """
        if event.flags & THREAD_SPECIFIC_FLAG:
            label = ".".join(statement.emptied_table or ())
            raise DdlError.for_table(
                f"{statement.summary} by a session that uses temporary tables, at {event.location}: whether of "
                "captured table "
                f"{label} or of a temporary one with its name, the binlog does not tell",
                label,
                place=event.location,
                first="Let such sessions use binlog_format=ROW",
            )

    def _check_indirect_writes(
        self,
        event: BinlogEvent,
        statement: Statement,
        lookup: IndirectWritesLookup,
        live: list[tuple[TableName, TableSchema]],
    ) -> None:
        if statement.kind in ("ddl", "harmless"):
            self._indirect_writes = None  # the catalog may not be what it was
        if not statement.mentioned_names or names_only_system_tables(statement):
            return
        if self._indirect_writes is None:
            self._indirect_writes = lookup()
        if self._indirect_writes is None:
            raise DdlError(
                f"{statement.summary} logged by statement, at {event.location}: whether a view, a trigger or a "
                "function leads "
                "from what it names to a captured table may not be seen",
                f"{_GRANT_CATALOG}; if one does, let writers use binlog_format=ROW, then start with a fresh sink.path",
            )
        if paths := self._indirect_writes.paths_used_by(statement):
            # Of the first of the tables to which it leads: each of the others has its turn when that one is suspended.
            labels = (schema.label for name, schema in live if self._indirect_writes.can_change(statement, name))
            raise DdlError.for_table(
                f"{statement.summary} logged by statement may change captured tables through {'.'.join(paths[0])} (a "
                "view, "
                f"trigger, function or foreign key), at {event.location}: the rows are not in the binlog",
                next(labels, live[0][1].label),
                place=event.location,
                first=_USE_ROW_FORMAT,
            )


def _keeps_key(schema: TableSchema, index: str) -> bool:
    """Whether what is dropped is an index, and not the key."""
    if not index or not schema.key:
        return bool(index)
    return schema.key_index is not None and index != fold_name(schema.key_index)
