"""Does a statement drop a table, for certain?

:mod:`airflow_provider_cdc.ddl.affected_tables` takes a table for changed where it is in doubt. Rows of a copy must go
    only where
there is no doubt, so this errs on the other side.
"""

from __future__ import annotations

from airflow_provider_cdc.ddl.alter_parser import Cursor, NotFollowed, Server, Session
from airflow_provider_cdc.model.table_names import Table, folded


def drops(table: Table, sql: str, default_database: str, session: Session, server: Server, *, exact: bool) -> bool:
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
        named = _named(Cursor(sql, session, server), default_database, table[1])
    except NotFollowed:
        return False
    return table in named if exact else folded(table) in {folded(found) for found in named}


def _named(words: Cursor, default_database: str, of_database: str) -> list[Table]:
    """The tables that a statement drops.

    :param of_database: which table of a database that is dropped as a whole is of concern.
    :raises NotFollowed: if it does something else, or a word of it is not known.
    """
    if not words.take("DROP"):
        words.refuse("its beginning")
    if words.any_of("DATABASE", "SCHEMA"):
        words.take("IF", "EXISTS")
        found = [(words.name("DROP DATABASE"), of_database)]
    elif words.any_of("TABLE", "TABLES"):
        words.take("IF", "EXISTS")
        found = [_table(words, default_database)]
        while words.take(","):
            found.append(_table(words, default_database))
        words.any_of("RESTRICT", "CASCADE")
        if not words.take("NOWAIT") and words.take("WAIT"):
            words.number("WAIT")
    else:
        words.refuse("DROP")
    if not words.over:
        words.refuse("its end")
    return found


def _table(words: Cursor, default_database: str) -> Table:
    name = words.name("DROP TABLE")
    return (name, words.name("DROP TABLE")) if words.take(".") else (default_database, name)
