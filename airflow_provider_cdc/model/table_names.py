"""Names of databases, tables and columns as servers compare them."""

from __future__ import annotations

from collections.abc import Collection
from functools import lru_cache

#: Database and table.
TableName = tuple[str, str]


@lru_cache(1 << 14)
def fold_name(name: str) -> str:
    """Return a name in the form used for comparison: names that any server considers the same are equal.

    This holds for every lower_case_table_names. Servers convert each character independently to one lower-case
    character; ``lower()`` depends on the neighbours of a character and turns some into two. A few names that servers
    distinguish are equal here.
    """
    return name.lower() if name.isascii() else "".join(map(_fold_character, name))


def fold_table(table: TableName) -> TableName:
    """Return the names of a database and a table, each folded by :func:`fold_name`."""
    return fold_name(table[0]), fold_name(table[1])


def _fold_character(character: str) -> str:
    lowered = character.casefold()
    return lowered if len(lowered) == 1 else character.lower()[0]


def may_match(names: Collection[TableName], table: TableName) -> bool:
    """Return whether one of the names in a statement may be that of a table.

    A name that could not be decoded contains lone surrogates and may be any name that is not ASCII.

    :param table: folded by :func:`fold_name`.
    """
    if table in names:
        return True
    if all(part.isascii() for part in table):
        return False
    return any(
        all(a == b or (_is_undecodable(a) and not b.isascii()) for a, b in zip(f, table, strict=True)) for f in names
    )


def _is_undecodable(name: str) -> bool:
    return not name.isascii() and any("\ud800" <= c <= "\udfff" for c in name)
