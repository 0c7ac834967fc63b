"""Literals in a condition on rows: the values that they are in a column, and comparisons with those that are none."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from fractions import Fraction
from math import ceil, floor, isfinite
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_cdc.model.schema import BINARY_TYPES, INTEGER_TYPES, TEXT_TYPES, Column
from airflow_provider_cdc.transforms.condition_tree import (
    AllOf,
    Comparison,
    ConditionNode,
    NullTest,
    RowValue,
    SameForAll,
    UnknownForAll,
    negated,
)

#: Kinds of literals.
NUMBER, TEXT, HEX, DATE, TIMESTAMP, BOOLEAN, NULL = "number", "text", "hex", "date", "timestamp", "boolean", "NULL"

_DATE = re.compile(r"(\d{4})-(\d\d)-(\d\d)", re.ASCII)
_DATETIME = re.compile(_DATE.pattern + r"(?:[ T](\d\d):(\d\d):(\d\d)(?:\.(\d{1,6}))?)?", re.ASCII)
_INTEGER_BITS = {"tinyint": 8, "smallint": 16, "mediumint": 24, "int": 32, "bigint": 64}
_ORDER = frozenset({"<", "<=", ">", ">="})


@dataclass(frozen=True)
class ConditionLiteral:
    """A literal of a condition.

    :param kind: what it is, such as :data:`NUMBER`.
    :param value: the number, text or date as text; digits of a hexadecimal literal; ``1`` or ``0`` of a boolean.
    """

    kind: str
    value: str = ""


class UnfitLiteral(ValueError):
    """A literal, or an operator, that does not fit a column; with what to write instead."""

    def __init__(self, reason: str, remedy: str) -> None:
        super().__init__(reason)
        self.remedy = remedy


def compare(column: Column, operator: str, literal: ConditionLiteral) -> ConditionNode:
    """Return the node that compares a column with a literal.

    :param operator: one of MySQL's comparison operators, ``<=>`` included.
    :raises UnfitLiteral: if the result would not be exact.
    """
    if literal.kind == NULL:
        return NullTest(column) if operator == "<=>" else UnknownForAll(column)
    if operator == "<=>":
        return AllOf((compare(column, "=", literal), NullTest(column, negated=True)))
    convert, ordered = _conversion(column)
    if operator in _ORDER and not ordered:
        raise UnfitLiteral(
            f"the order of the values of an {column.data_type.upper()} is not that of their texts",
            "List the values: column IN ('a', 'b')",
        )
    value = convert(column, literal)
    arrow_type = column.arrow_type
    if pa.types.is_integer(arrow_type) or pa.types.is_decimal(arrow_type):
        return _compare_number(column, operator, value, arrow_type)
    return Comparison(column, operator, value)


def pattern_of(column: Column, literal: ConditionLiteral) -> str:
    """Return the regular expression for the pattern of LIKE.

    :raises UnfitLiteral: if the column is no text, or the pattern is none or too long.
    """
    if column.data_type not in TEXT_TYPES | {"enum"}:
        raise UnfitLiteral(f"column {column.name} is no text", "LIKE compares only text with a pattern in quotes")
    if literal.kind != TEXT:
        raise UnfitLiteral(f"a pattern is a text, not {_describe(literal)}", "Write the pattern in single quotes")
    pattern, at = r"\A(?s:", 0
    while at < len(literal.value):
        sign, at = literal.value[at], at + 1
        if sign == "\\" and at < len(literal.value):
            sign, at = literal.value[at], at + 1
            pattern += _escape(sign)
        else:
            pattern += {"%": ".*", "_": "."}.get(sign) or _escape(sign)
    pattern += r")\z"
    try:
        pc.match_substring_regex(pa.array([""]), pattern)
    except pa.ArrowInvalid:
        raise UnfitLiteral("the pattern is too long", "Write a shorter pattern, with fewer _ and %") from None
    return pattern


def _escape(sign: str) -> str:
    return sign if sign.isascii() and sign.isalnum() else f"\\x{{{ord(sign):x}}}"


def _conversion(column: Column) -> tuple[Callable[[Column, ConditionLiteral], Any], bool]:
    """Return what converts a literal to a value of the column, and whether such values may be compared by order."""
    kind = column.data_type
    if kind in INTEGER_TYPES:
        return _integer, True
    if kind in TEXT_TYPES:
        return _text, True
    if kind in BINARY_TYPES:
        return _bytes, True
    if kind == "decimal" and (column.precision or 0) > 38:
        raise UnfitLiteral(
            f"column {column.name} is a {column.column_type}, which has more than 38 digits",
            "Only IS NULL and IS NOT NULL are possible on this column",
        )
    conversions = {
        "decimal": (_number, True),
        "float": (_double, True),
        "double": (_double, True),
        "enum": (_member, False),
        "date": (_date, True),
        "datetime": (_datetime, True),
        "timestamp": (_datetime, True),
        "year": (_year, True),
    }
    if kind not in conversions or column.is_two_digit_year:
        raise UnfitLiteral(
            f"values of type {column.column_type} are not compared",
            "Only IS NULL and IS NOT NULL are possible on this column",
        )
    return conversions[kind]


def _number(column: Column, literal: ConditionLiteral) -> Fraction:
    _expect(column, literal, {NUMBER}, "a number, without quotes")
    if "e" in literal.value.lower():
        raise UnfitLiteral(f"{literal.value} is a floating-point number", "Write the number without an exponent")
    return Fraction(literal.value)


def _integer(column: Column, literal: ConditionLiteral) -> Fraction:
    if literal.kind == BOOLEAN:
        return Fraction(literal.value)
    return _number(column, literal)


def _year(column: Column, literal: ConditionLiteral) -> Fraction:
    number = _number(column, literal)
    # The server reads numbers of one or two digits as years of this or of the last century.
    if number.denominator != 1 or not 1901 <= number <= 2155:
        raise UnfitLiteral(f"{literal.value} is not a year that a column can have", "Write a year from 1901 to 2155")
    return number


def _double(column: Column, literal: ConditionLiteral) -> float:
    _expect(column, literal, {NUMBER}, "a number, without quotes")
    number = float(literal.value)
    if not isfinite(number):
        raise UnfitLiteral(f"{literal.value} is too large", "Write a number that a DOUBLE can have")
    return number


def _text(column: Column, literal: ConditionLiteral) -> str:
    _expect(column, literal, {TEXT}, "a text in single quotes")
    return literal.value


def _bytes(column: Column, literal: ConditionLiteral) -> bytes:
    _expect(column, literal, {HEX}, "bytes, such as x'0a1b'")
    return bytes.fromhex(literal.value)


def _member(column: Column, literal: ConditionLiteral) -> str:
    _expect(column, literal, {TEXT}, "a member in single quotes")
    # '' is also how the server shows a value that is no member.
    if literal.value and literal.value not in column.members:
        members = ", ".join(map(repr, column.members))
        raise UnfitLiteral(
            f"{literal.value!r} is not a member of the ENUM", f"Write a member as it was declared: {members}"
        )
    return literal.value


def _date(column: Column, literal: ConditionLiteral) -> date:
    form = "a date, such as DATE '2024-12-31'"
    _expect(column, literal, {TEXT, DATE}, form)
    if match := _DATE.fullmatch(literal.value):
        year, month, day = map(int, match.groups())
        try:
            return date(year, month, day)
        except ValueError:
            pass  # such as 2024-02-30, or a date with year, month or day 0
    raise UnfitLiteral(f"{literal.value!r} is not a date", f"Write {form}")


def _datetime(column: Column, literal: ConditionLiteral) -> datetime:
    """A value of a TIMESTAMP column is in UTC, like those of the copy."""
    form = "a date and time, such as TIMESTAMP '2024-12-31 23:59:59'"
    _expect(column, literal, {TEXT, DATE, TIMESTAMP}, form)
    match = _DATETIME.fullmatch(literal.value)
    if match and (literal.kind == TEXT or (match[4] is None) == (literal.kind == DATE)):
        *whole, fraction = match.groups("0")
        year, month, day, hour, minute, second = map(int, whole)
        zone = UTC if column.data_type == "timestamp" else None
        try:
            return datetime(year, month, day, hour, minute, second, int(fraction.ljust(6, "0")), zone)
        except ValueError:
            pass  # such as 2024-02-30, or a date with year, month or day 0
    raise UnfitLiteral(f"{literal.value!r} is not a date and time", f"Write {form}")


def _expect(column: Column, literal: ConditionLiteral, kinds: set[str], form: str) -> None:
    if literal.kind not in kinds:
        raise UnfitLiteral(
            f"column {column.name} is {column.column_type}, and {_describe(literal)} is not a value of it",
            f"Compare the column with {form}",
        )


def _describe(literal: ConditionLiteral) -> str:
    if literal.kind == BOOLEAN:
        return "TRUE" if literal.value == "1" else "FALSE"
    shown = {TEXT: repr, HEX: "x'{}'".format, DATE: "DATE '{}'".format, TIMESTAMP: "TIMESTAMP '{}'".format}
    return shown.get(literal.kind, str)(literal.value)


def _compare_number(column: Column, operator: str, number: Fraction, arrow_type: pa.DataType) -> ConditionNode:
    """Compare a column with any number, by an equivalent comparison with a value that it can have."""
    if operator == "<>":
        return negated(_compare_number(column, "=", number, arrow_type))
    if operator in (">", ">="):
        return negated(_compare_number(column, "<=" if operator == ">" else "<", number, arrow_type))
    scale, smallest, largest = _range(column)
    units = number * 10**scale
    if operator == "=":
        if units.denominator != 1 or not smallest <= units <= largest:
            return SameForAll(column, False)
        return Comparison(column, "=", _in_units(int(units), scale, arrow_type))
    # Less than 1.5 is less than 2; 1.5 or less is 1 or less.
    bound = ceil(units) if operator == "<" else floor(units)
    if bound > largest:
        return SameForAll(column, True)
    if bound < smallest:
        return SameForAll(column, False)
    return Comparison(column, operator, _in_units(bound, scale, arrow_type))


def _range(column: Column) -> tuple[int, int, int]:
    """Return the scale of a column's numbers, and the smallest and the largest of them without their decimal point."""
    if column.data_type == "decimal":
        largest = 10 ** (column.precision or 10) - 1
        return column.scale or 0, -largest, largest
    if column.data_type == "year":
        return 0, 0, 2155
    # Not that of the Arrow type: MySQL compares lists that have numbers beyond the column's range in a wrong way.
    values = 2 ** _INTEGER_BITS[column.data_type]
    return (0, 0, values - 1) if column.is_unsigned else (0, -values // 2, values // 2 - 1)


def _in_units(units: int, scale: int, arrow_type: pa.DataType) -> RowValue:
    return Decimal(f"{units}E-{scale}") if pa.types.is_decimal(arrow_type) else units
