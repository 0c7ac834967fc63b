"""Rules by chance for the tables of tests/support/altering.py, and what a user does where the stream needs one."""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping, Sequence

from tests.support.altering import KEYS, NAMES, TABLES
from tests.support.chance_rules import (
    ANY_POLICIES,
    HASHED_POLICIES,
    METADATA,
    TEXT_POLICIES,
    Condition,
    Rules,
    draw_key_policies,
    draw_policy,
    same_text,
)

_KEYS = {"num`bers": ["id"], "pairs": ["a", "b"], "Folded names": ["k"], "loose": []}
#: Columns of each table that are not in its key, and which policies they may have.
_COLUMNS = {
    "num`bers": {"v": TEXT_POLICIES, "n": HASHED_POLICIES},
    "pairs": {"v": TEXT_POLICIES, "e": TEXT_POLICIES},
    "Folded names": {
        "v": TEXT_POLICIES,
        "s": TEXT_POLICIES,
        "b": (*HASHED_POLICIES, {"truncate": 2}),
        "d": HASHED_POLICIES,
    },
    "loose": {"n": HASHED_POLICIES, "v": TEXT_POLICIES, "t": HASHED_POLICIES},
}
#: Conditions: some read columns that DDL alters.
_CONDITIONS = {
    "num`bers": (
        Condition("n > 0 OR n IS NULL", "{r}n > 0 OR {r}n IS NULL"),
        Condition("id BETWEEN 0 AND 12", "{r}id BETWEEN 0 AND 12"),
        Condition("v <> 'a' OR v IS NULL", f"{same_text('v', '<>', 'a')} OR {{r}}v IS NULL"),
        Condition("NOT v LIKE 'a%'", f"NOT {same_text('v', 'LIKE', 'a%')}"),
    ),
    "pairs": (
        Condition("a <> 1", "{r}a <> 1"),
        Condition("b > 'A' OR a = 0", f"{same_text('b', '>', 'A')} OR {{r}}a = 0"),
        Condition("v IS NULL OR v > 'Z'", f"{{r}}v IS NULL OR {same_text('v', '>', 'Z')}"),
        Condition("e = 'x'", same_text("e", "=", "x")),
    ),
    "Folded names": (
        Condition("d IS NULL OR d < 0", "{r}d IS NULL OR {r}d < 0"),
        Condition("b <> x'00'", "{r}b <> x'00'"),
        Condition("s IS NOT NULL", "{r}s IS NOT NULL"),
        Condition("k NOT IN ('a', 'S')", f"{same_text('k', '<>', 'a')} AND {same_text('k', '<>', 'S')}"),
    ),
    "loose": (
        Condition("n = 1 OR n IS NULL", "{r}n = 1 OR {r}n IS NULL"),
        Condition("v = 'A' OR n = 2", f"{same_text('v', '=', 'A')} OR {{r}}n = 2"),
        Condition("NOT t < TIMESTAMP '2024-01-01 00:00:00'", "NOT {r}t < '2024-01-01'"),
    ),
}


def key_of(table: str) -> list[str]:
    """Columns of the key; none for a table without one."""
    return _KEYS[table]


def draw_rules(draw: random.Random, database: str, fixed: Collection[str]) -> Rules:
    """Rules for rows and columns, also those that DDL adds.

    :param fixed: tables whose rules never change: no column has one that may not fit.
    """
    rules = Rules(database, metadata=[name for name in METADATA if draw.random() < 0.2])
    key_policies = draw_key_policies(draw)
    for table, columns in _COLUMNS.items():
        if draw.random() < 0.8:
            rules.where[table] = draw.choice(_CONDITIONS[table])
        choices = {**dict.fromkeys(key_of(table), key_policies), **columns}
        policies = {name: draw_policy(draw, choice, name) for name, choice in choices.items()}
        # A pattern must match something when the tables are planned.
        others = [p for p in policies.values() if p in ANY_POLICIES] if table in fixed else [*policies.values()]
        others = [policy for policy in others if not isinstance(policy, dict) or "rename" not in policy]
        for name in NAMES:
            if others and draw.random() < 0.4:
                policies[name] = draw.choice(others)
        rules.columns[table] = policies
    return rules


def fixed_columns(soft: Collection[str], draw: random.Random) -> Mapping[str, Sequence[str]]:
    """Columns that are neither dropped nor renamed: keys, what writers need, and, of some tables, more.

    A table whose deleted rows stay cannot be read under other rules.
    """
    fixed: dict[str, Sequence[str]] = {}
    for table, columns in _COLUMNS.items():
        keys = key_of(table) or [*columns][: KEYS[table]]
        is_kept = table in soft or draw.random() < 0.3
        fixed[table] = [*keys, *columns, *NAMES] if is_kept else [*keys, *([] if draw.random() < 0.5 else columns)]
    return fixed


def decide(rules: Rules, table: str, columns: Collection[str], message: str, draw: random.Random) -> str:
    """Change the rules of a table that the stream does not copy with them; returns what was changed.

    :param columns: names of the columns that it has now.
    :param message: the error.
    """
    policies = rules.columns[table]
    if "transforms.where" in message:
        del rules.where[table]
        return "condition removed"
    if " is gone, whose values transforms.columns" in message:
        if draw.random() < 0.5:
            for name in [name for name in policies if name not in columns]:
                policies[name] = None
            return "policy of a column that is gone removed"
        for name in columns:
            if policies.get(name) is None and name not in key_of(table):
                policies[name] = "null"
        return "policy of a new column added"
    if "which type" in message:
        name = message.partition(", column ")[2].partition(":")[0]
        policies[name] = "null"
        return "policy that does not fit replaced"
    raise AssertionError(message)


assert _COLUMNS.keys() == TABLES.keys()
