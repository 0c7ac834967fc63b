"""Recognize statements on partitions that preserve all rows and columns of a table."""

from __future__ import annotations

from collections.abc import Sequence

from airflow_provider_cdc.ddl.tokens import Token, word_set

#: Actions on named partitions. DROP, TRUNCATE, EXCHANGE, DISCARD and IMPORT change rows, and REPAIR may lose some.
_ROW_PRESERVING_VERBS = word_set("ANALYZE CHECK OPTIMIZE REBUILD REORGANIZE")
_CHECK_OPTIONS = word_set("FOR UPGRADE QUICK FAST MEDIUM EXTENDED CHANGED")


def only_rearranges_partitions(clauses: Sequence[Token]) -> bool:
    """Return whether the clauses of an ALTER TABLE only rearrange its partitions.

    Servers allow no other clause in such a statement. It fails if a row would have no partition afterwards, unless it
    is an ALTER IGNORE TABLE.

    :param clauses: the tokens after the table's name.
    """
    keys = [word.keyword for word in clauses]
    while keys and keys[-1] == ";":
        keys.pop()
    if keys == ["REMOVE", "PARTITIONING"]:
        return True
    if keys[1:2] != ["PARTITION"]:
        return False
    verb, rest = keys[0], keys[2:]
    if rest and rest[0] in ("LOCAL", "NO_WRITE_TO_BINLOG"):
        rest = rest[1:]
    if verb == "COALESCE":
        return len(rest) == 1 and rest[0].isdigit()
    if verb == "ADD":
        return _is_bracketed(rest) or (len(rest) == 2 and rest[0] == "PARTITIONS" and rest[1].isdigit())
    if verb not in _ROW_PRESERVING_VERBS:
        return False
    if verb == "REORGANIZE":
        into = rest.index("INTO") if "INTO" in rest else len(rest)
        return not rest or (_is_list(rest[:into]) and _is_bracketed(rest[into + 1 :]))
    while rest and rest[-1] in _CHECK_OPTIONS and verb == "CHECK":
        rest = rest[:-1]
    return _is_list(rest)


def _is_list(keys: Sequence[str]) -> bool:
    """Return whether these are names with commas between them; a quoted name has no keyword."""
    return len(keys) % 2 == 1 and all((key == ",") == bool(at % 2) for at, key in enumerate(keys))


def _is_bracketed(keys: Sequence[str]) -> bool:
    """Return whether these tokens are one pair of parentheses with its content."""
    depth, closed = 0, False
    for at, key in enumerate(keys):
        depth += (key == "(") - (key == ")")
        closed = depth == 0
        if closed and at < len(keys) - 1:
            return False
    return closed
