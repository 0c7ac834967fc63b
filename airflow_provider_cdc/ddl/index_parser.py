"""Parts of index definitions that also occur in other clauses: lists of names, and options such as ALGORITHM."""

from __future__ import annotations

from collections.abc import Callable

from airflow_provider_cdc.ddl.column_parser import parse_comment
from airflow_provider_cdc.ddl.token_cursor import TokenCursor


def accept_algorithm_or_lock(cursor: TokenCursor) -> bool:
    """Consume ALGORITHM or LOCK, which affect how a change is made and not its result."""
    word = cursor.accept_any("ALGORITHM", "LOCK")
    if word:
        cursor.accept("=")
        cursor.expect_name(word)
    return bool(word)


def parse_index_kind(cursor: TokenCursor) -> str:
    """Consume INDEX or KEY, with FULLTEXT or SPATIAL before it if present."""
    kind = cursor.accept_any("FULLTEXT", "SPATIAL")
    index = cursor.accept_any("INDEX", "KEY")
    return f"{kind} {index}".strip()


def skip_name_list(cursor: TokenCursor, where: str) -> None:
    """Consume names in parentheses."""
    _skip_list(cursor, where, lambda: cursor.expect_name(where))


def _skip_list(cursor: TokenCursor, where: str, one: Callable[[], object]) -> None:
    cursor.expect("(", where)
    one()
    while cursor.accept(","):
        one()
    cursor.expect(")", where)


def skip_index_parts(cursor: TokenCursor, where: str) -> None:
    """Consume the columns and options of an index that is not unique."""

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
    """Consume the options at the end of a CREATE INDEX or DROP INDEX."""
    while accept_algorithm_or_lock(cursor) or cursor.accept("NOWAIT") or cursor.peek() == "WAIT":
        if cursor.accept("WAIT"):
            cursor.expect_number("WAIT")


def is_rename_index(cursor: TokenCursor) -> bool:
    """Return whether a RENAME INDEX follows."""
    return cursor.peek() == "RENAME" and cursor.peek(1) in {"INDEX", "KEY"}
