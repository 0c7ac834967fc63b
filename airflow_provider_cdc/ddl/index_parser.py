"""What stands in the definition of an index, and in many clauses: lists of names, and how a change is made."""

from __future__ import annotations

from collections.abc import Callable

from airflow_provider_cdc.ddl.alter_parser import Cursor
from airflow_provider_cdc.ddl.column_parser import read_comment


def neutral(cursor: Cursor) -> bool:
    """Go past what says how a change is made, and not what it changes."""
    word = cursor.any_of("ALGORITHM", "LOCK")
    if word:
        cursor.take("=")
        cursor.name(word)
    return bool(word)


def index_kind(cursor: Cursor) -> str:
    """Go past FULLTEXT or SPATIAL, if one stands here, and INDEX or KEY."""
    kind = cursor.any_of("FULLTEXT", "SPATIAL")
    index = cursor.any_of("INDEX", "KEY")
    return f"{kind} {index}".strip()


def names(cursor: Cursor, where: str) -> None:
    """Go past names in brackets."""
    _listed(cursor, where, lambda: cursor.name(where))


def _listed(cursor: Cursor, where: str, one: Callable[[], object]) -> None:
    cursor.expect("(", where)
    one()
    while cursor.take(","):
        one()
    cursor.expect(")", where)


def index_parts(cursor: Cursor, where: str) -> None:
    """The columns and the options of an index that is not unique."""

    def part() -> None:
        cursor.name(where)
        if cursor.take("("):
            cursor.number(where)
            cursor.expect(")", where)
        cursor.any_of("ASC", "DESC")

    if cursor.take("USING") and not cursor.any_of("BTREE", "HASH"):
        cursor.refuse(where)
    _listed(cursor, where, part)
    while not cursor.over and cursor.peek() not in {",", "ALGORITHM", "LOCK", "WAIT", "NOWAIT"}:
        if cursor.take("USING"):
            cursor.expect("BTREE", where)
        elif cursor.take("COMMENT"):
            read_comment(cursor, where)
        elif cursor.take("KEY_BLOCK_SIZE"):
            cursor.take("=")
            cursor.number(where)
        elif not cursor.any_of("VISIBLE", "INVISIBLE"):
            cursor.refuse(where)


def ending(cursor: Cursor) -> None:
    """Options behind a CREATE INDEX or DROP INDEX."""
    while neutral(cursor) or cursor.take("NOWAIT") or cursor.peek() == "WAIT":
        if cursor.take("WAIT"):
            cursor.number("WAIT")


def renames_index(cursor: Cursor) -> bool:
    """Whether it is a RENAME INDEX."""
    return cursor.peek() == "RENAME" and cursor.peek(1) in {"INDEX", "KEY"}
