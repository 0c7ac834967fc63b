"""Tables with odd keys for schedules by chance; partitions, and rules for their rows and columns."""

from __future__ import annotations

import random
from typing import Any

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

#: Tables: the columns that tell their rows apart, the key, and values of these columns. All have three more columns.
TABLES: dict[str, tuple[dict[str, str], str, list[tuple[str, ...]]]] = {
    "whole": ({"k": "INT"}, "k", [("-3",), ("0",), ("1",), ("70",), ("-2147483648",), ("2147483647",)]),
    "huge": ({"k": "BIGINT UNSIGNED"}, "k", [("0",), ("5",), ("9223372036854775808",), ("18446744073709551615",)]),
    "folded": (
        {"k": "VARCHAR(20) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci"},
        "k",
        [("'a'",), ("'A'",), ("'á'",), ("'a '",), ("'b'",), ("''",), ("' '",), ("'ß'",), ("'S'",)],
    ),
    "padded": (
        {"k": "CHAR(9)", "n": "DECIMAL(12,3)"},
        "n, k",
        [("'a'", "1"), ("'a'", "-1"), ("'A'", "1"), ("'b'", "0"), ("''", "99999999.999"), ("'a'", "-0.001")],
    ),
    "raw": (
        {"k": "VARBINARY(9)"},
        "k",
        [("x'00'",), ("x'0000'",), ("''",), ("x'ff'",), ("'a'",), ("'A'",), ("x'ff00'",)],
    ),
    "dated": (
        {"d": "DATE", "t": "DATETIME(6)"},
        "d, t",
        [
            ("'2020-01-01'", "'2020-01-01 00:00:00.000001'"),
            ("'2020-01-01'", "'1969-12-31'"),
            ("'9999-01-01'", "'2020-01-01'"),
        ],
    ),
    "loose": (
        {"k": "FLOAT", "n": "VARCHAR(9)"},
        "",
        [("1.5", "'a'"), ("NULL", "NULL"), ("NULL", "'a'"), ("0", "'A'"), ("-0e0", "'A'"), ("1.5", "NULL")],
    ),
}
#: By what they may be partitioned.
PARTITIONS: dict[str, list[list[str | dict[str, str]]]] = {
    "whole": [["k"], ["p", {"month": "at"}]],
    "huge": [["k"], [{"hour": "at"}]],
    "folded": [["p"], [{"year": "at"}, "p"]],
    "padded": [["n"], ["p"]],
    "raw": [["p"], [{"day": "at"}]],
    "dated": [["d"], [{"year": "t"}], ["p"]],
    "loose": [["p"], ["p", {"month": "at"}]],
}
_NOT_EARLY = "NOT {r}at BETWEEN '1969-01-01' AND '1970-01-01'"
#: Which rows may be copied: conditions of all tables, and of one more.
_CONDITIONS = (
    Condition("p = 'x'", same_text("p", "=", "x")),
    Condition("p <> 'x' OR p IS NULL", f"{same_text('p', '<>', 'x')} OR {{r}}p IS NULL"),
    Condition("NOT (p LIKE 'y%')", f"NOT ({same_text('p', 'LIKE', 'y%')})"),
    Condition("at IS NULL OR at < TIMESTAMP '2000-01-01 00:00:00'", "{r}at IS NULL OR {r}at < '2000-01-01'"),
    Condition("NOT at BETWEEN TIMESTAMP '1969-01-01 00:00:00' AND TIMESTAMP '1970-01-01 00:00:00'", _NOT_EARLY),
    Condition("v < 120 AND p IS NOT NULL OR v >= 200", "{r}v < 120 AND {r}p IS NOT NULL OR {r}v >= 200"),
)
_OWN_CONDITIONS = {
    "whole": Condition("k > 0 OR v > 90 AND p = 'x'", f"{{r}}k > 0 OR {{r}}v > 90 AND {same_text('p', '=', 'x')}"),
    "huge": Condition("k IN (5, 18446744073709551615)", "{r}k IN (5, 18446744073709551615)"),
    "folded": Condition("k <> 'a'", same_text("k", "<>", "a")),
    "padded": Condition("k = 'a' AND n < 1.5", f"{same_text('k', '=', 'a')} AND {{r}}n < 1.5"),
    "raw": Condition("NOT k = x'00' OR p = 'x'", f"NOT {{r}}k = x'00' OR {same_text('p', '=', 'x')}"),
    "dated": Condition("d < DATE '2020-01-02'", "{r}d < '2020-01-02'"),
    "loose": Condition("n = 'a' OR k = 1.5", f"{same_text('n', '=', 'a')} OR {{r}}k = 1.5"),
}
PARTS = ("NULL", "'x'", "'y/ z'")
MOMENTS = ("NULL", "'2024-02-29 23:59:59.999999'", "'1969-12-31 23:00:00'")


def draw_rules(draw: random.Random, database: str) -> Rules:
    """Rules for rows and columns of the tables."""
    rules = Rules(database, metadata=[name for name in METADATA if draw.random() < 0.3])
    key_policies = draw_key_policies(draw)
    for table, (columns, key, _) in TABLES.items():
        if draw.random() < 0.8:
            rules.where[table] = draw.choice([*_CONDITIONS, *[_OWN_CONDITIONS[table]] * 2])
        kinds: dict[str, tuple[Any, ...]] = dict.fromkeys(columns, key_policies) if key else {}
        if not key:
            kinds = {"k": ANY_POLICIES, "n": TEXT_POLICIES}
        kinds |= {"p": TEXT_POLICIES, "at": HASHED_POLICIES, "v": (*HASHED_POLICIES, None, None)}
        rules.columns[table] = {column: draw_policy(draw, choice, column) for column, choice in kinds.items()}
    return rules


def partitions_of(copy: list[str | dict[str, str]], rules: Rules, table: str) -> list[str | dict[str, str]]:
    """The same partitions by the names of the copy, without columns that cannot be one there."""
    found: list[str | dict[str, str]] = []
    for part in copy:
        column = part if isinstance(part, str) else next(iter(part.values()))
        policy, name = rules.policy(table, column), rules.copy_name(table, column)
        hashed = policy == "hash" or (isinstance(policy, dict) and "hash" in policy)
        if name is not None and (isinstance(part, str) or not hashed) and "binary" not in str(policy):
            found.append(name if isinstance(part, str) else {next(iter(part)): name})
    return found
