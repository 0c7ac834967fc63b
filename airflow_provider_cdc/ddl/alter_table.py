"""What a table's definition is behind a statement that changes it, computed from the statement's text alone.

A definition that is wrong would be wrong rows without a word, so nothing of a text is passed over: each word must be
one that is known at its place, and another parser must read each clause as well. Whatever is not sure is
:class:`NotFollowed`. The measure is the catalog: ``tests/mysql/client/test_alter.py`` holds both against each other.
"""

from __future__ import annotations

from dataclasses import dataclass

from airflow_provider_cdc.ddl.alter_clauses import Work
from airflow_provider_cdc.ddl.alter_parser import Clause, Cursor, NotFollowed, Server, Session, read_again
from airflow_provider_cdc.ddl.index_parser import ending, index_parts
from airflow_provider_cdc.model.schema import TableSchema
from airflow_provider_cdc.model.table_names import fold

__all__ = ["Alteration", "NotFollowed", "Server", "Session", "alter"]


@dataclass(frozen=True)
class Alteration:
    """A change of a table's definition.

    :param table: (database, table) as the statement spells them.
    :param definition: the table's definition behind it.
    :param added: names of its new columns, in the order in which the statement has them. Their value is NULL in all
        rows that were there before.
    :param changed: names of columns that are defined anew, perhaps as they were.
    """

    table: tuple[str, str]
    definition: TableSchema
    added: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()


def alter(before: TableSchema, sql: str, default_database: str, session: Session, server: Server) -> Alteration:
    """Compute the definition of a table behind an ALTER TABLE, CREATE INDEX or DROP INDEX.

    :param before: its definition before it.
    :param sql: the statement.
    :param default_database: database of names without one.
    :param session: what the statement's session was like.
    :param server: what the server is like.
    :raises NotFollowed: if that is not certain.
    """
    if any(c.old_format for c in before.columns):
        raise NotFollowed("the table has a date or time of the old format, which any change may turn into another one")
    words = Cursor(sql, session, server)
    work = Work(before, words, session, server)
    if words.take("ALTER"):
        words.take("ONLINE")
        words.expect("TABLE", "ALTER TABLE")
        words.take("IF", "EXISTS")
        table = _table(words, before, default_database)
        if not words.take("NOWAIT") and words.take("WAIT"):
            words.number("WAIT")
        work.clauses()
    elif words.peek() == "CREATE" and words.peek(1) != "TABLE":
        words.take("CREATE")
        table = _create_index(work, default_database)
    elif words.take("DROP", "INDEX"):
        table = _drop_index(work, default_database)
    else:
        raise NotFollowed("it is neither an ALTER TABLE nor a change of an index")
    if not words.over:
        words.refuse("its end")
    read_again(work.read)
    return Alteration(table, work.definition(), tuple(work.added), tuple(sorted(work.changed)))


def _table(words: Cursor, before: TableSchema, default_database: str) -> tuple[str, str]:
    name = words.name("its table")
    found = (name, words.name("its table")) if words.take(".") else (default_database, name)
    if (fold(found[0]), fold(found[1])) != (fold(before.database), fold(before.name)):
        raise NotFollowed("it is about another table")
    return found


def _create_index(work: Work, default_database: str) -> tuple[str, str]:
    words = work.words
    replaces = words.take("OR", "REPLACE")
    kind = words.any_of("FULLTEXT", "SPATIAL")
    if words.peek() == "UNIQUE":
        raise NotFollowed("CREATE UNIQUE INDEX is not followed")
    where = "CREATE INDEX"
    words.expect("INDEX", where)
    _ = words.take("IF", "NOT", "EXISTS")
    name_at = words.at
    index = words.name(where)
    if replaces:
        work.check_drop(index, where)
    name = words.text(name_at)
    using = words.take("USING")
    if using:
        words.expect("BTREE", where)
    words.expect("ON", where)
    table = _table(words, work.before, default_database)
    parts_at = words.at
    index_parts(words, where)
    text = f"ALTER TABLE `t` ADD {kind} INDEX {name} {words.text(parts_at)}"
    work.read.append(Clause(text, where, "AddConstraint"))
    ending(words)
    return table


def _drop_index(work: Work, default_database: str) -> tuple[str, str]:
    words = work.words
    words.take("IF", "EXISTS")
    first = words.at
    index = words.name("DROP INDEX")
    name = words.text(first)
    words.expect("ON", "DROP INDEX")
    table = _table(words, work.before, default_database)
    work.check_drop(index, "DROP INDEX")
    work.read.append(Clause(f"DROP INDEX {name} ON `t`", "DROP INDEX", "Drop"))
    ending(words)
    return table
