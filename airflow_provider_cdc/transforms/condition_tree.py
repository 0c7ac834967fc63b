"""A condition on rows as a tree, and its truth for Arrow rows.

The tree has no NOT: a negation is applied to the leaves when the tree is made, which three-valued logic permits. The
truth of a node is NULL where the condition is UNKNOWN.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from functools import lru_cache, reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_cdc.model.errors import REPORT_REMEDY, TerminalError
from airflow_provider_cdc.model.schema import Column

#: A value of a column as its Arrow type has it.
RowValue = int | float | Decimal | str | bytes | date | datetime

_COMPARE = {
    "=": pc.equal,
    "<>": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}
#: What is true exactly where a comparison is false.
OPPOSITES = {"=": "<>", "<>": "=", "<": ">=", ">=": "<", ">": "<=", "<=": ">"}


@dataclass(frozen=True)
class AllOf:
    """Nodes joined by AND."""

    parts: tuple[ConditionNode, ...]


@dataclass(frozen=True)
class AnyOf:
    """Nodes joined by OR."""

    parts: tuple[ConditionNode, ...]


@dataclass(frozen=True)
class Comparison:
    """A comparison of a column with a value that its type can have."""

    column: Column
    operator: str
    value: RowValue


@dataclass(frozen=True)
class Membership:
    """Whether the value of a column is one of several. None of them is NULL; there may be none."""

    column: Column
    values: tuple[RowValue, ...]
    negated: bool = False


@dataclass(frozen=True)
class PatternMatch:
    """Whether a text matches a regular expression of RE2."""

    column: Column
    pattern: str
    negated: bool = False


@dataclass(frozen=True)
class NullTest:
    """Whether the value of a column is NULL."""

    column: Column
    negated: bool = False


@dataclass(frozen=True)
class SameForAll:
    """A comparison with the same outcome for all values; UNKNOWN for NULL, as any other."""

    column: Column
    outcome: bool


@dataclass(frozen=True)
class UnknownForAll:
    """A comparison with NULL, which is UNKNOWN for all values."""

    column: Column


ConditionNode = AllOf | AnyOf | Comparison | Membership | PatternMatch | NullTest | SameForAll | UnknownForAll


def negated(node: ConditionNode) -> ConditionNode:
    """Return the node that is true where this one is false, and UNKNOWN where this one is."""
    match node:
        case AllOf(parts):
            return AnyOf(tuple(map(negated, parts)))
        case AnyOf(parts):
            return AllOf(tuple(map(negated, parts)))
        case Comparison(column, operator, value):
            return Comparison(column, OPPOSITES[operator], value)
        case Membership(column, values, is_negated):
            return Membership(column, values, not is_negated)
        case PatternMatch(column, pattern, is_negated):
            return PatternMatch(column, pattern, not is_negated)
        case NullTest(column, is_negated):
            return NullTest(column, not is_negated)
        case SameForAll(column, outcome):
            return SameForAll(column, not outcome)
        case UnknownForAll():
            return node


def columns_of(node: ConditionNode) -> Iterator[Column]:
    """Yield the columns that a condition reads, each as often as it occurs."""
    if isinstance(node, AllOf | AnyOf):
        for part in node.parts:
            yield from columns_of(part)
    else:
        yield node.column


def truth(node: ConditionNode, rows: pa.Table | pa.RecordBatch) -> Any:
    """Return the truth of a condition for each row: a boolean array, or a scalar if it is the same for every row."""
    match node:
        case AllOf(parts):
            return reduce(pc.and_kleene, (truth(part, rows) for part in parts))
        case AnyOf(parts):
            return reduce(pc.or_kleene, (truth(part, rows) for part in parts))
        case UnknownForAll():
            return pa.scalar(None, pa.bool_())
    values = _values(rows, node.column)
    match node:
        case NullTest(_, is_negated):
            return pc.is_valid(values) if is_negated else pc.is_null(values)
        case SameForAll(_, outcome):
            return _unless_null(values, pa.scalar(outcome))
        case Comparison(_, operator, value):
            return _COMPARE[operator](values, _constants((value,), values.type)[0])
        case PatternMatch(_, pattern, is_negated):
            matches = pc.match_substring_regex(values, pattern)
            return pc.invert(matches) if is_negated else matches
        case Membership(_, listed, is_negated):
            members = pc.is_in(values, value_set=_constants(listed, values.type))  # false for NULL
            return _unless_null(values, pc.invert(members) if is_negated else members)


def _unless_null(values: Any, outcome: Any) -> Any:
    return pc.if_else(pc.is_valid(values), outcome, pa.scalar(None, pa.bool_()))


def _values(rows: pa.Table | pa.RecordBatch, column: Column) -> Any:
    """Return the values of a column; a FLOAT as DOUBLE, which is exact."""
    position = rows.schema.get_field_index(column.name)
    values = rows.column(position) if position >= 0 else None
    if values is None or values.type != column.arrow_type:
        raise TerminalError(
            f"a condition on rows needs column {column.name} with type {column.arrow_type}, and the rows have "
            f"{'none' if values is None else values.type}",
            REPORT_REMEDY,
        )
    return values.cast(pa.float64()) if column.data_type == "float" else values


@lru_cache(maxsize=1024)
def _constants(values: tuple[RowValue, ...], arrow_type: pa.DataType) -> pa.Array:
    """Return the values as an Arrow array, which is made once."""
    return pa.array(values, arrow_type)
