"""Does a statement drop a table, for certain?

:mod:`airflow_provider_cdc.ddl.affected_tables` takes a table for changed where it is in doubt. Rows of a copy must go
    only where
there is no doubt, so this errs on the other side.
"""

from __future__ import annotations

from airflow_provider_cdc.ddl.token_cursor import DdlNotFollowed, ServerTraits, StatementSession, TokenCursor
from airflow_provider_cdc.model.table_names import TableName, fold_table


def drops_table(
    table: TableName, sql: str, default_database: str, session: StatementSession, server: ServerTraits, *, exact: bool
) -> bool:
    """Whether a statement is a DROP TABLE of a table, or a DROP DATABASE of its database.

    A RENAME is none, nor is a statement that makes the table anew (``CREATE OR REPLACE``).

    :param table: (database, table).
    :param sql: the statement.
    :param default_database: database of names without one.
    :param session: what the statement's session was like.
    :param server: what the server is like.
    :param exact: whether names that differ in case are those of different tables.
    """
    try:
        dropped = _dropped_tables(TokenCursor(sql, session, server), default_database, table[1])
    except DdlNotFollowed:
        return False
    return table in dropped if exact else fold_table(table) in {fold_table(name) for name in dropped}


def _dropped_tables(cursor: TokenCursor, default_database: str, of_database: str) -> list[TableName]:
    """The tables that a statement drops.

    :param of_database: which table of a database that is dropped as a whole is of concern.
    :raises NotFollowed: if it does something else, or a word of it is not known.
    """
    if not cursor.accept("DROP"):
        cursor.fail("its beginning")
    if cursor.accept_any("DATABASE", "SCHEMA"):
        cursor.accept("IF", "EXISTS")
        tables = [(cursor.expect_name("DROP DATABASE"), of_database)]
    elif cursor.accept_any("TABLE", "TABLES"):
        cursor.accept("IF", "EXISTS")
        tables = [_expect_table(cursor, default_database)]
        while cursor.accept(","):
            tables.append(_expect_table(cursor, default_database))
        cursor.accept_any("RESTRICT", "CASCADE")
        if not cursor.accept("NOWAIT") and cursor.accept("WAIT"):
            cursor.expect_number("WAIT")
    else:
        cursor.fail("DROP")
    if not cursor.at_end:
        cursor.fail("its end")
    return tables


def _expect_table(cursor: TokenCursor, default_database: str) -> TableName:
    name = cursor.expect_name("DROP TABLE")
    return (name, cursor.expect_name("DROP TABLE")) if cursor.accept(".") else (default_database, name)
