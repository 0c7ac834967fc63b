"""Conditions on rows by chance, each with what it means in plain Python, and rows that are close to their literals."""

from __future__ import annotations

import operator
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from fractions import Fraction
from typing import Any

from airflow_provider_cdc.model.schema import Column

Truth = bool | None
Meaning = Callable[[Mapping[str, Any]], Truth]

_TEXTS = [
    "",
    " ",
    "a",
    "A",
    "a ",
    "ab",
    "AB",
    "á",
    "Á",
    "ss",
    "ß",
    "%",
    "_",
    "a%",
    "\\",
    "a\\b",
    "'",
    "ZZ",
    "aXb",
    "\n",
]


_OPERATORS = {
    "=": operator.eq,
    "<>": operator.ne,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


@dataclass(frozen=True)
class Kind:
    """A type of column.

    :param declared: its type in SQL.
    :param column: how the catalog describes it, but for its name.
    :param values: values of rows.
    :param literals: (SQL, the value that it is).
    :param operators: what it can be compared with.
    """

    declared: str
    column: Mapping[str, Any]
    values: Sequence[Any]
    literals: Sequence[tuple[str, Any]]
    operators: Sequence[str] = ("=", "<>", "!=", "<", "<=", ">", ">=", "<=>")

    @property
    def is_text(self) -> bool:
        """Whether LIKE is possible."""
        return self.column["data_type"] in ("varchar", "char", "enum")


def _numbers(*texts: str) -> list[tuple[str, Fraction]]:
    return [(text, Fraction(text)) for text in texts]


def quoted(text: str, chance: random.Random | None = None) -> str:
    """A text as a literal, in one of the ways in which it can be written."""
    ways = {"'": ["''", "\\'"], "\\": ["\\\\"], "\n": ["\\n", "\n"], "\0": ["\\0"], '"': ['"', '\\"']}
    return "'" + "".join(chance.choice(ways.get(c, [c])) if chance else ways.get(c, [c])[0] for c in text) + "'"


_MEMBERS = ("draft", "paid", "á")
_BOTH = ["1999-12-31", "2000-01-01", "2024-02-29", "9999-12-31", "1000-01-01"]
_TIMES = [datetime(1970, 1, 1, 0, 0, 1), datetime(2024, 2, 29, 12, 30, 15, 123000), datetime(2024, 2, 29)]
_TIME_LITERALS = [
    ("TIMESTAMP '2024-02-29 12:30:15.123'", datetime(2024, 2, 29, 12, 30, 15, 123000)),
    ("'2024-02-29 12:30:15.1234'", datetime(2024, 2, 29, 12, 30, 15, 123400)),
    ("DATE '2024-02-29'", datetime(2024, 2, 29)),
    ("'2024-02-29'", datetime(2024, 2, 29)),
    ("timestamp'1970-01-01 00:00:01'", datetime(1970, 1, 1, 0, 0, 1)),
    ("'2024-02-29T12:30:15'", datetime(2024, 2, 29, 12, 30, 15)),
]

KINDS: dict[str, Kind] = {
    "tiny": Kind(
        "TINYINT",
        {"data_type": "tinyint", "column_type": "tinyint"},
        [-128, -1, 0, 1, 2, 127],
        [
            *_numbers("0", "1", "-1", "1.5", "-128", "127", "128", "-129", "1.0"),
            ("TRUE", Fraction(1)),
            ("false", Fraction(0)),
        ],
    ),
    "big": Kind(
        "BIGINT",
        {"data_type": "bigint", "column_type": "bigint"},
        [-(2**63), -1, 0, 7, 2**53 + 1, 2**63 - 1],
        _numbers(
            "7", "9223372036854775807", "-9223372036854775808", "9223372036854775808", "9007199254740992.5", "-0.5"
        ),
    ),
    "huge": Kind(
        "BIGINT UNSIGNED",
        {"data_type": "bigint", "column_type": "bigint unsigned"},
        [0, 7, 2**63, 2**64 - 2, 2**64 - 1],
        _numbers("0", "-1", "18446744073709551615", "18446744073709551614.5", "18446744073709551616", "7"),
    ),
    "money": Kind(
        "DECIMAL(9,2)",
        {"data_type": "decimal", "column_type": "decimal(9,2)", "precision": 9, "scale": 2},
        [Decimal("-9999999.99"), Decimal("0.00"), Decimal("1.10"), Decimal("1.11"), Decimal("9999999.99")],
        _numbers("1.1", "1.10", "1.105", "-9999999.99", "9999999.995", "10000000", "-1", "0", "99999999999999999999.9"),
    ),
    "precise": Kind(
        "DECIMAL(38,10)",
        {"data_type": "decimal", "column_type": "decimal(38,10)", "precision": 38, "scale": 10},
        [Decimal("1234567890123456789012345678.0000000001"), Decimal("1234567890123456789012345678"), Decimal(0)],
        _numbers("1234567890123456789012345678.0000000001", "1234567890123456789012345678", "0.00000000005"),
    ),
    "word": Kind(
        "VARCHAR(20)",
        {"data_type": "varchar", "column_type": "varchar(20)", "charset": "utf8mb4", "collation": "utf8mb4_bin"},
        _TEXTS,
        [(quoted(text), text) for text in _TEXTS],
    ),
    "status": Kind(
        "ENUM('draft', 'paid', 'á')",
        {"data_type": "enum", "column_type": "enum('draft','paid','á')", "members": _MEMBERS, "charset": "utf8mb4"},
        _MEMBERS,
        [(quoted(text), text) for text in _MEMBERS],
        ("=", "<>", "<=>"),
    ),
    "code": Kind(
        "VARBINARY(4)",
        {"data_type": "varbinary", "column_type": "varbinary(4)"},
        [b"", b"\0", b"a", b"A", b"a ", b"\xff\0"],
        [("x''", b""), ("X'61'", b"a"), ("x'6120'", b"a "), ("x'FF00'", b"\xff\0"), ("x'00'", b"\0")],
    ),
    "day": Kind(
        "DATE",
        {"data_type": "date", "column_type": "date"},
        [date.fromisoformat(text) for text in _BOTH],
        [
            *[(f"DATE '{text}'", date.fromisoformat(text)) for text in _BOTH],
            *[(f"'{text}'", date.fromisoformat(text)) for text in _BOTH],
        ],
    ),
    "moment": Kind(
        "DATETIME(3)",
        {"data_type": "datetime", "column_type": "datetime(3)", "fsp": 3},
        [*_TIMES, datetime(1000, 1, 1), datetime(9999, 12, 31, 23, 59, 59, 999000)],
        [*_TIME_LITERALS, ("'9999-12-31 23:59:59.999999'", datetime(9999, 12, 31, 23, 59, 59, 999999))],
    ),
    "instant": Kind(
        "TIMESTAMP(6) NULL",
        {"data_type": "timestamp", "column_type": "timestamp(6)", "fsp": 6},
        [t.replace(tzinfo=UTC) for t in [*_TIMES, datetime(2038, 1, 19, 3, 14, 7)]],
        [(sql, t.replace(tzinfo=UTC)) for sql, t in [*_TIME_LITERALS, ("'2100-01-01'", datetime(2100, 1, 1))]],
    ),
    "born": Kind(
        "YEAR",
        {"data_type": "year", "column_type": "year"},
        [1901, 1999, 2000, 2155],
        _numbers("1999", "2000", "2155", "1901"),
    ),
    "ratio": Kind(
        "DOUBLE",
        {"data_type": "double", "column_type": "double"},
        [-0.0, 0.0, 0.1, 1.5, 1e300, -1e-300],
        [(text, float(text)) for text in ("0", "-0.0", "0.1", "1.5", "1e300", "-1E-300", "1e-400")],
    ),
    "single": Kind(
        "FLOAT",
        {"data_type": "float", "column_type": "float"},
        [0.0, 1.5, 0.10000000149011612],
        [(text, float(text)) for text in ("0", "1.5", "0.1", "0.10000000149011612")],
    ),
}


def column_of(name: str) -> Column:
    """The column of a kind, under its name."""
    return Column(name=name, nullable=True, **KINDS[name].column)


def random_rows(chance: random.Random, names: Sequence[str], number: int) -> list[dict[str, Any]]:
    """Rows by chance, of which some values are NULL."""
    return [
        {name: None if chance.random() < 0.15 else chance.choice(KINDS[name].values) for name in names}
        for _ in range(number)
    ]


def random_condition(chance: random.Random, names: Sequence[str], depth: int = 3) -> tuple[str, Meaning]:
    """A condition by chance: its text, and what it means."""
    choice = chance.random()
    if depth and choice < 0.5:
        word = chance.choice(["AND", "OR", "and", "Or"])
        parts = [random_condition(chance, names, depth - 1) for _ in range(chance.randint(2, 3))]
        combine = _all if word.upper() == "AND" else _any
        text = f" {word} ".join(f"({text})" for text, _ in parts)
        return text, lambda row: combine([meaning(row) for _, meaning in parts])
    if depth and choice < 0.65:
        text, meaning = random_condition(chance, names, depth - 1)
        return f"NOT ({text})", lambda row: _not(meaning(row))
    text, meaning = _leaf(chance, chance.choice(list(names)))
    if chance.random() < 0.15:  # NOT binds more loosely than comparisons
        return f"NOT {text}", lambda row: _not(meaning(row))
    return text, meaning


def _leaf(chance: random.Random, name: str) -> tuple[str, Meaning]:
    kind = KINDS[name]
    written = chance.choice([name, name.upper(), f"`{name}`"])

    def value() -> tuple[str, Any]:
        return chance.choice(list(kind.literals))

    def literal() -> tuple[str, Any]:
        return ("NULL", None) if chance.random() < 0.05 else value()

    match chance.choice(["compare", "compare", "in", "between", "null", "like"]):
        case "in":
            negated, listed = chance.random() < 0.5, [literal() for _ in range(chance.randint(1, 4))]
            text = f"{written} {'NOT ' if negated else ''}IN ({', '.join(sql for sql, _ in listed)})"
            return text, _maybe_not(negated, lambda row: _any([compare(row[name], "=", v) for _, v in listed]))
        case "between" if "<" in kind.operators:
            negated, (low, least), (high, most) = chance.random() < 0.5, value(), value()
            text = f"{written} {'NOT ' if negated else ''}BETWEEN {low} AND {high}"
            return text, _maybe_not(
                negated, lambda row: _all([compare(row[name], ">=", least), compare(row[name], "<=", most)])
            )
        case "null":
            negated = chance.random() < 0.5
            return f"{written} IS {'NOT ' if negated else ''}NULL", lambda row: (row[name] is None) != negated
        case "like" if kind.is_text:
            negated = chance.random() < 0.5
            pattern = [
                chance.choice(["%", "_", *"aAbáß ", "\\%", "\\_", "\\\\", "\\a"]) for _ in range(chance.randint(0, 4))
            ]
            text = f"{written} {'NOT ' if negated else ''}LIKE {quoted(''.join(pattern), chance)}"
            return text, _maybe_not(negated, lambda row: None if row[name] is None else like(row[name], pattern))
    sign, (sql, right) = chance.choice(list(kind.operators)), literal()
    if chance.random() < 0.3:
        turned = {"<": ">", ">": "<", "<=": ">=", ">=": "<="}.get(sign, sign)
        return f"{sql} {turned} {written}", lambda row: compare(row[name], sign, right)
    return f"{written} {sign} {sql}", lambda row: compare(row[name], sign, right)


def like(text: str, pattern: Sequence[str]) -> bool:
    """Whether a text matches a pattern, whose signs are ``%``, ``_``, characters, and characters after a backslash."""
    if not pattern:
        return not text
    first, *rest = pattern
    if first == "%":
        return any(like(text[at:], rest) for at in range(len(text) + 1))
    return bool(text) and (first == "_" or text[0] == first[-1]) and like(text[1:], rest)


def _maybe_not(negated: bool, meaning: Meaning) -> Meaning:
    return (lambda row: _not(meaning(row))) if negated else meaning


def compare(value: Any, sign: str, literal: Any) -> Truth:
    """The truth of a comparison of a value with a literal."""
    if sign == "<=>":
        return value == literal if value is not None and literal is not None else value is literal
    if value is None or literal is None:
        return None
    if isinstance(value, str):
        value, literal = value.encode(), literal.encode()
    elif isinstance(value, int | Decimal):
        value = Fraction(value)
    return bool(_OPERATORS[sign](value, literal))


def _not(truth: Truth) -> Truth:
    return None if truth is None else not truth


def _all(truths: Sequence[Truth]) -> Truth:
    return False if False in truths else None if None in truths else True


def _any(truths: Sequence[Truth]) -> Truth:
    return True if True in truths else None if None in truths else False
