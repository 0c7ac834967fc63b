"""Check whether statements in the binlog change captured tables."""

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

_USE_ROW_FORMAT = "Set binlog_format=ROW in the sessions that write"
_GRANT_CATALOG = "GRANT SELECT, SHOW VIEW, TRIGGER ON *.* TO the user of the connection and run again"
#: Flag of a statement: the session uses a temporary table. In a stored procedure it stays set for later statements.
THREAD_SPECIFIC_FLAG = 4


#: Returns what currently writes to captured tables indirectly; ``None`` if the user may not see that.
IndirectWritesLookup = Callable[[], IndirectWrites | None]


class StatementGuard:
    """Checks the statements of a binlog one after the other.

    :param captured: definitions of the captured tables.
    :param lookup: looks up indirect writes to them. Without it, only a statement's own text is checked, which suffices
        for readers of a range that another reader has checked.
    """

    def __init__(self, captured: CapturedTables, lookup: IndirectWritesLookup | None) -> None:
        # If several tables have names that differ only in case, a folded name may be any of them.
        self._captured = [
            ((fold_name(database), fold_name(table)), history) for (database, table), history in captured.items()
        ]
        self._lookup = lookup
        self._indirect_writes: IndirectWrites | None = None

    def altered_tables(self, event: BinlogEvent, statement: Statement) -> list[TableSchema]:
        """Return the captured tables that a DDL changes, except those whose known definitions include the change.

        :raises DdlError: if a statement may change their rows. The message omits its text, which may contain secrets.
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
            # Only the first table is reported: the others follow once it is suspended.
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
        """Check that a TRUNCATE does not empty a temporary table that hides the captured one.

        :raises DdlError: if it may.
        """
        if event.flags & THREAD_SPECIFIC_FLAG:
            label = ".".join(statement.emptied_table or ())
            raise DdlError.for_table(
                f"{statement.summary} by a session that uses temporary tables, at {event.location}: the binlog does "
                f"not show whether it affects captured table {label} or a temporary table of the same name",
                label,
                place=event.location,
                first="Set binlog_format=ROW in such sessions",
            )

    def _check_indirect_writes(
        self,
        event: BinlogEvent,
        statement: Statement,
        lookup: IndirectWritesLookup,
        live: list[tuple[TableName, TableSchema]],
    ) -> None:
        if statement.kind in ("ddl", "harmless"):
            self._indirect_writes = None  # the catalog may have changed
        if not statement.mentioned_names or names_only_system_tables(statement):
            return
        if self._indirect_writes is None:
            self._indirect_writes = lookup()
        if self._indirect_writes is None:
            raise DdlError(
                f"{statement.summary} logged by statement, at {event.location}: the user of the connection may not see "
                "whether it changes a captured table through a view, a trigger or a function",
                f"{_GRANT_CATALOG}. If it does, set binlog_format=ROW in the sessions that write, then start with a "
                "fresh sink.path",
            )
        if paths := self._indirect_writes.paths_used_by(statement):
            # Only the first affected table is reported: the others follow once it is suspended.
            labels = (schema.label for name, schema in live if self._indirect_writes.can_change(statement, name))
            raise DdlError.for_table(
                f"{statement.summary} logged by statement may change captured tables through {'.'.join(paths[0])} (a "
                f"view, trigger, function or foreign key), at {event.location}: the rows are not in the binlog",
                next(labels, live[0][1].label),
                place=event.location,
                first=_USE_ROW_FORMAT,
            )


def _keeps_key(schema: TableSchema, index: str) -> bool:
    """Return whether a statement drops an index other than the table's key."""
    if not index or not schema.key:
        return bool(index)
    return schema.key_index is not None and index != fold_name(schema.key_index)
