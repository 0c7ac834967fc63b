"""What stands in the definition of an index, and in many clauses: lists of names, and how a change is made."""

from __future__ import annotations

from collections.abc import Callable

from airflow_provider_cdc.ddl.column_parser import parse_comment
from airflow_provider_cdc.ddl.token_cursor import TokenCursor


def accept_algorithm_or_lock(cursor: TokenCursor) -> bool:
    """Go past what says how a change is made, and not what it changes."""
    word = cursor.accept_any("ALGORITHM", "LOCK")
    if word:
        cursor.accept("=")
        cursor.expect_name(word)
    return bool(word)


def parse_index_kind(cursor: TokenCursor) -> str:
    """Go past FULLTEXT or SPATIAL, if one stands here, and INDEX or KEY."""
    kind = cursor.accept_any("FULLTEXT", "SPATIAL")
    index = cursor.accept_any("INDEX", "KEY")
    return f"{kind} {index}".strip()


def skip_name_list(cursor: TokenCursor, where: str) -> None:
    """Go past names in brackets."""
    _skip_list(cursor, where, lambda: cursor.expect_name(where))


def _skip_list(cursor: TokenCursor, where: str, one: Callable[[], object]) -> None:
    cursor.expect("(", where)
    one()
    while cursor.accept(","):
        one()
    cursor.expect(")", where)


def skip_index_parts(cursor: TokenCursor, where: str) -> None:
    """The columns and the options of an index that is not unique."""

    def part() -> None:
        cursor.expect_name(where)
        if cursor.accept("("):
            cursor.expect_number(where)
            cursor.expect(")", where)
        cursor.accept_any("ASC", "DESC")

    if cursor.accept("USING") and not cursor.accept_any("BTREE", "HASH"):
        cursor.fail(where)
    _skip_list(cursor, where, part)
    while not cursor.at_end and cursor.peek() not in {",", "ALGORITHM", "LOCK", "WAIT", "NOWAIT"}:
        if cursor.accept("USING"):
            cursor.expect("BTREE", where)
        elif cursor.accept("COMMENT"):
            parse_comment(cursor, where)
        elif cursor.accept("KEY_BLOCK_SIZE"):
            cursor.accept("=")
            cursor.expect_number(where)
        elif not cursor.accept_any("VISIBLE", "INVISIBLE"):
            cursor.fail(where)


def skip_index_options(cursor: TokenCursor) -> None:
    """Options behind a CREATE INDEX or DROP INDEX."""
    while accept_algorithm_or_lock(cursor) or cursor.accept("NOWAIT") or cursor.peek() == "WAIT":
        if cursor.accept("WAIT"):
            cursor.expect_number("WAIT")


def is_rename_index(cursor: TokenCursor) -> bool:
    """Whether it is a RENAME INDEX."""
    return cursor.peek() == "RENAME" and cursor.peek(1) in {"INDEX", "KEY"}
