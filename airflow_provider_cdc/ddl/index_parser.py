"""What stands in the definition of an index, and in many clauses: lists of names, and how a change is made."""

from __future__ import annotations

from collections.abc import Callable

from airflow_provider_cdc.ddl.alter_parser import Cursor
from airflow_provider_cdc.ddl.column_parser import read_comment


def neutral(words: Cursor) -> bool:
    """Go past what says how a change is made, and not what it changes."""
    word = words.any_of("ALGORITHM", "LOCK")
    if word:
        words.take("=")
        words.name(word)
    return bool(word)


def index_kind(words: Cursor) -> str:
    """Go past FULLTEXT or SPATIAL, if one stands here, and INDEX or KEY."""
    kind = words.any_of("FULLTEXT", "SPATIAL")
    index = words.any_of("INDEX", "KEY")
    return f"{kind} {index}".strip()


def names(words: Cursor, where: str) -> None:
    """Go past names in brackets."""
    _listed(words, where, lambda: words.name(where))


def _listed(words: Cursor, where: str, one: Callable[[], object]) -> None:
    words.expect("(", where)
    one()
    while words.take(","):
        one()
    words.expect(")", where)


def index_parts(words: Cursor, where: str) -> None:
    """The columns and the options of an index that is not unique."""

    def part() -> None:
        words.name(where)
        if words.take("("):
            words.number(where)
            words.expect(")", where)
        words.any_of("ASC", "DESC")

    if words.take("USING") and not words.any_of("BTREE", "HASH"):
        words.refuse(where)
    _listed(words, where, part)
    while not words.over and words.peek() not in {",", "ALGORITHM", "LOCK", "WAIT", "NOWAIT"}:
        if words.take("USING"):
            words.expect("BTREE", where)
        elif words.take("COMMENT"):
            read_comment(words, where)
        elif words.take("KEY_BLOCK_SIZE"):
            words.take("=")
            words.number(where)
        elif not words.any_of("VISIBLE", "INVISIBLE"):
            words.refuse(where)


def ending(words: Cursor) -> None:
    """Options behind a CREATE INDEX or DROP INDEX."""
    while neutral(words) or words.take("NOWAIT") or words.peek() == "WAIT":
        if words.take("WAIT"):
            words.number("WAIT")


def renames_index(words: Cursor) -> bool:
    """Whether it is a RENAME INDEX."""
    return words.peek() == "RENAME" and words.peek(1) in {"INDEX", "KEY"}
