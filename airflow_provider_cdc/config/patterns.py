"""Patterns of tables and columns: regular expressions over dot-separated names, which may contain dots themselves."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable
from functools import lru_cache

from airflow_provider_cdc.model.value_checks import invalid_value

# A dot in any notation that is not repeated (only such a dot can separate database and table), or else an escaped
# character, a character class, or any other character.
_PATTERN_PARTS = re.compile(r"(?P<dot>(?:\\\.|\[\.\]|\.)(?![*+?{]))|\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|.", re.DOTALL)


def check_patterns(key: str, value: object, dots: int = 1) -> tuple[str, ...]:
    """Check a list of patterns of tables or columns, and return it as a tuple.

    :param key: its name in messages.
    :param dots: 1 for tables, 2 for columns.
    :raises NotReadyError: if it is not valid.
    """
    example = "shop.order_.*" if dots == 1 else "shop.customer.phone_.*"
    if isinstance(value, str) or not isinstance(value, list | tuple):
        raise invalid_value(key, value, f"a list of regular expressions such as {example}")
    for pattern in value:
        if not isinstance(pattern, str) or not pattern:
            raise invalid_value(key, pattern, f"a list of regular expressions such as {example}")
        try:
            compiled = _compile_pattern(pattern, dots)
        except re.error as error:
            raise invalid_value(key, pattern, f"a list of valid regular expressions ({error})") from None
        if not compiled:
            between = "a dot between database and table" if dots == 1 else "dots between database, table and column"
            raise invalid_value(key, pattern, f"a regular expression with {between}, such as {example}")
    return tuple(value)


def matches_any(patterns: Iterable[str], *names: str) -> bool:
    """Return whether a table (database and name), or a column of it, fully matches one of some patterns."""
    name = "\0".join(names)
    return any(
        compiled.fullmatch(name) for pattern in patterns for compiled in _compile_pattern(pattern, len(names) - 1)
    )


def match_pattern(pattern: str, *names: str) -> re.Match[str] | None:
    """Return the match of a pattern and a table (database and name); ``None`` if it does not match.

    In what groups have captured, NUL stands for the dot between database and table.
    """
    name, candidates = "\0".join(names), _compile_pattern(pattern, len(names) - 1)
    return next((match for compiled in candidates if (match := compiled.fullmatch(name))), None)


@lru_cache(maxsize=4096)
def _compile_pattern(pattern: str, count: int) -> tuple[re.Pattern[str], ...]:
    """Compile one pattern for each dot (or pair of dots) that may separate database, table and column.

    Names may contain dots, and an unescaped dot matches any character: ``shop.order_.*`` against the joined name would
    also match table ``x`` of a database ``shop1order_``. The dot is therefore replaced by NUL, which no name can
    contain.
    """
    re.compile(pattern)
    compiled = []
    for dots in itertools.combinations([m.span() for m in _PATTERN_PARTS.finditer(pattern) if m["dot"]], count):
        starts, ends = [0, *(end for _, end in dots)], [*(start for start, _ in dots), len(pattern)]
        parts = (pattern[start:end] for start, end in zip(starts, ends, strict=True))
        compiled.append(re.compile("\0".join(parts), re.DOTALL))
    return tuple(compiled)
