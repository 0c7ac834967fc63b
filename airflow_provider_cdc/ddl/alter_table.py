"""Compute a table's definition after a statement that changes it, from the text of the statement alone.

A wrong definition would silently produce wrong rows, so no part of the text is skipped: each token must be expected in
its place, and a second parser must understand each clause as well. Anything uncertain raises :class:`DdlNotFollowed`.
``tests/mysql/client/test_alter.py`` compares the results with the server's catalog.
"""

from __future__ import annotations

from dataclasses import dataclass

from airflow_provider_cdc.ddl.alter_clauses import AlterTableParser
from airflow_provider_cdc.ddl.index_parser import skip_index_options, skip_index_parts
from airflow_provider_cdc.ddl.token_cursor import (
    DdlNotFollowed,
    ParsedClause,
    ServerTraits,
    StatementSession,
    TokenCursor,
    cross_check_with_sqlglot,
)
from airflow_provider_cdc.model.definition_history import NO_CHANGES, ColumnChanges
from airflow_provider_cdc.model.schema import TableSchema
from airflow_provider_cdc.model.table_names import fold_name

__all__ = ["Alteration", "DdlNotFollowed", "ServerTraits", "StatementSession", "apply_ddl"]


@dataclass(frozen=True)
class Alteration:
    """A change of a table's definition.

    :param table: (database, table) as the statement spells them.
    :param definition: the table's definition after the change.
    :param added: names of the new columns, in the order of the statement. They are NULL in all existing rows, unless
        ``columns`` has a default for them.
    :param changed: names of the columns that are redefined, possibly without a difference.
    :param columns: what the definitions alone do not show.
    """

    table: tuple[str, str]
    definition: TableSchema
    added: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    columns: ColumnChanges = NO_CHANGES


def apply_ddl(
    before: TableSchema,
    sql: str,
    default_database: str,
    session: StatementSession,
    server: ServerTraits,
    *,
    in_place: bool = False,
) -> Alteration:
    """Compute the definition of a table after an ALTER TABLE, CREATE INDEX or DROP INDEX.

    :param before: the definition before the statement.
    :param sql: the statement.
    :param default_database: database of names without one.
    :param session: properties of the statement's session.
    :param server: properties of the server.
    :param in_place: whether renamed columns, constant defaults of new columns, and wider types are followed; otherwise,
        new columns are NULL in all existing rows.
    :raises DdlNotFollowed: if the result is not certain.
    """
    if any(c.has_old_temporal_format for c in before.columns):
        raise DdlNotFollowed(
            "the table has a date or time in the old format, which any change may convert to another one"
        )
    cursor = TokenCursor(sql, session, server)
    parser = AlterTableParser(before, cursor, session, server, in_place)
    if cursor.accept("ALTER"):
        cursor.accept("ONLINE")
        cursor.expect("TABLE", "ALTER TABLE")
        cursor.accept("IF", "EXISTS")
        table = _expect_same_table(cursor, before, default_database)
        if not cursor.accept("NOWAIT") and cursor.accept("WAIT"):
            cursor.expect_number("WAIT")
        parser.parse_clauses()
    elif cursor.peek() == "CREATE" and cursor.peek(1) != "TABLE":
        cursor.accept("CREATE")
        table = _parse_create_index(parser, default_database)
    elif cursor.accept("DROP", "INDEX"):
        table = _parse_drop_index(parser, default_database)
    else:
        raise DdlNotFollowed("it is neither an ALTER TABLE nor a change of an index")
    if not cursor.at_end:
        cursor.fail("its end")
    cross_check_with_sqlglot(parser.parsed_clauses)
    definition = parser.build_definition()
    columns = ColumnChanges(tuple(parser.renamed.items()), tuple(parser.defaults.items()))
    return Alteration(table, definition, tuple(parser.added), tuple(sorted(parser.changed)), columns)


def _expect_same_table(cursor: TokenCursor, before: TableSchema, default_database: str) -> tuple[str, str]:
    table = cursor.expect_table("its table", default_database)
    if (fold_name(table[0]), fold_name(table[1])) != (fold_name(before.database), fold_name(before.name)):
        raise DdlNotFollowed("it refers to another table")
    return table


def _parse_create_index(parser: AlterTableParser, default_database: str) -> tuple[str, str]:
    cursor = parser.cursor
    replaces = cursor.accept("OR", "REPLACE")
    kind = cursor.accept_any("FULLTEXT", "SPATIAL")
    if cursor.peek() == "UNIQUE":
        raise DdlNotFollowed("CREATE UNIQUE INDEX is not followed")
    where = "CREATE INDEX"
    cursor.expect("INDEX", where)
    _ = cursor.accept("IF", "NOT", "EXISTS")
    name_at = cursor.at
    index = cursor.expect_name(where)
    if replaces:
        parser.check_index_drop(index, where)
    name = cursor.text_since(name_at)
    using = cursor.accept("USING")
    if using:
        cursor.expect("BTREE", where)
    cursor.expect("ON", where)
    table = _expect_same_table(cursor, parser.before, default_database)
    parts_at = cursor.at
    skip_index_parts(cursor, where)
    text = f"ALTER TABLE `t` ADD {kind} INDEX {name} {cursor.text_since(parts_at)}"
    parser.parsed_clauses.append(ParsedClause(text, where, "AddConstraint"))
    skip_index_options(cursor)
    return table


def _parse_drop_index(parser: AlterTableParser, default_database: str) -> tuple[str, str]:
    cursor = parser.cursor
    cursor.accept("IF", "EXISTS")
    first = cursor.at
    index = cursor.expect_name("DROP INDEX")
    name = cursor.text_since(first)
    cursor.expect("ON", "DROP INDEX")
    table = _expect_same_table(cursor, parser.before, default_database)
    parser.check_index_drop(index, "DROP INDEX")
    parser.parsed_clauses.append(ParsedClause(f"DROP INDEX {name} ON `t`", "DROP INDEX", "Drop"))
    skip_index_options(cursor)
    return table
