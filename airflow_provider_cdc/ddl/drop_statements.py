"""Determine whether a statement certainly drops a table.

:mod:`airflow_provider_cdc.ddl.affected_tables` treats a table as changed if in doubt. Rows of a copy may only be
removed if there is no doubt, so this module errs on the other side.
"""

from __future__ import annotations

from airflow_provider_cdc.ddl.token_cursor import DdlNotFollowed, ServerTraits, StatementSession, TokenCursor
from airflow_provider_cdc.model.table_names import TableName, fold_table


def drops_table(
    table: TableName, sql: str, default_database: str, session: StatementSession, server: ServerTraits, *, exact: bool
) -> bool:
    """Return whether a statement is a DROP TABLE of a table, or a DROP DATABASE of its database.

    A RENAME does not count, nor does a statement that recreates the table (``CREATE OR REPLACE``).

    :param table: (database, table).
    :param sql: the statement.
    :param default_database: database of names without one.
    :param session: properties of the statement's session.
    :param server: properties of the server.
    :param exact: whether names that differ only in case belong to different tables.
    """
    try:
        dropped = _dropped_tables(TokenCursor(sql, session, server), default_database, table[1])
    except DdlNotFollowed:
        return False
    return table in dropped if exact else fold_table(table) in {fold_table(name) for name in dropped}


def _dropped_tables(cursor: TokenCursor, default_database: str, of_database: str) -> list[TableName]:
    """Return the tables that a statement drops.

    :param of_database: for a DROP DATABASE, the one table of the database to return.
    :raises DdlNotFollowed: if the statement does something else, or has an unknown token.
    """
    if not cursor.accept("DROP"):
        cursor.fail("its beginning")
    if cursor.accept_any("DATABASE", "SCHEMA"):
        cursor.accept("IF", "EXISTS")
        tables = [(cursor.expect_name("DROP DATABASE"), of_database)]
    elif cursor.accept_any("TABLE", "TABLES"):
        cursor.accept("IF", "EXISTS")
        tables = [cursor.expect_table("DROP TABLE", default_database)]
        while cursor.accept(","):
            tables.append(cursor.expect_table("DROP TABLE", default_database))
        cursor.accept_any("RESTRICT", "CASCADE")
        if not cursor.accept("NOWAIT") and cursor.accept("WAIT"):
            cursor.expect_number("WAIT")
    else:
        cursor.fail("DROP")
    if not cursor.at_end:
        cursor.fail("its end")
    return tables
