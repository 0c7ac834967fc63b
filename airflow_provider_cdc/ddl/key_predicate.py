"""Parse a user's condition on a table's key into key ranges.

The condition must be a range, or a list of ranges, in key order: the first columns of the key each equal one value, and
the next one is within a range or one of a list. Values stay text, because only the server knows what they mean.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from airflow_provider_cdc.ddl.tokens import parse_with_sqlglot

PredicateValue = str | bytes

_EXAMPLES = "Examples: id >= 100 AND id < 200; id IN (5, 7); tenant = 3 AND id BETWEEN 1 AND 9"


class InvalidKeyPredicate(ValueError):
    """A condition that is not valid, with a human-readable reason."""


@dataclass(frozen=True)
class KeyBound:
    """One end of a range.

    :param values: values of the first columns of the key; empty if the range is unbounded there.
    :param included: whether keys that begin with these values belong to the range.
    """

    values: tuple[PredicateValue, ...]
    included: bool = True


@dataclass(frozen=True)
class KeyRange:
    """A range of keys as the user wrote it."""

    lower: KeyBound
    upper: KeyBound


@dataclass
class _ColumnConditions:
    """The conditions on one column."""

    equal: PredicateValue | None = None
    listed: list[PredicateValue] = field(default_factory=list)
    lower: tuple[PredicateValue, bool] | None = None
    upper: tuple[PredicateValue, bool] | None = None


def parse_key_predicate(text: str, key: Sequence[str]) -> list[KeyRange]:
    """Return the key ranges of a condition, in the order in which they are written.

    :param text: the condition, in MySQL's syntax.
    :param key: the key's columns.
    :raises InvalidKeyPredicate: if it cannot be parsed, or is not a range of the key.
    """
    conditions: dict[str, _ColumnConditions] = {}
    names = {name.lower(): name for name in key}
    for name, operator, values in _parse_terms(text):
        if name.lower() not in names:
            raise InvalidKeyPredicate(f"{name} is not a column of the key ({', '.join(key)})")
        column = conditions.setdefault(names[name.lower()], _ColumnConditions())
        _add_condition(column, names[name.lower()], operator, values)
    prefix: tuple[PredicateValue, ...] = ()
    for name in key:
        column = conditions.pop(name, _ColumnConditions())
        if column.equal is None and conditions:
            after = next(iter(conditions))
            raise InvalidKeyPredicate(f"a condition on {after} needs one value of {name}, which precedes it in the key")
        if column.equal is None:
            return list(_column_ranges(prefix, column))
        prefix = (*prefix, column.equal)
    return [KeyRange(KeyBound(prefix), KeyBound(prefix))]


def _column_ranges(prefix: tuple[PredicateValue, ...], column: _ColumnConditions) -> Iterator[KeyRange]:
    """Yield the ranges of a column that follows columns with one value each."""
    if column.listed:
        for value in column.listed:
            yield KeyRange(KeyBound((*prefix, value)), KeyBound((*prefix, value)))
        return
    low, high = (
        KeyBound(prefix) if end is None else KeyBound((*prefix, end[0]), end[1]) for end in (column.lower, column.upper)
    )
    yield KeyRange(low, high)


def _add_condition(column: _ColumnConditions, name: str, operator: str, values: list[PredicateValue]) -> None:
    """Add a term to the conditions on a column."""
    twice = InvalidKeyPredicate(f"the conditions on {name} do not form one range or one list")
    if column.equal is not None or column.listed:
        raise twice
    bounded = column.lower is not None or column.upper is not None
    if operator in ("=", "IN"):
        if bounded:
            raise twice
        column.equal, column.listed = (values[0], []) if len(values) == 1 else (None, values)
        return
    for side, ends in (("lower", (">", ">=")), ("upper", ("<", "<="))):
        if operator in ends:
            if getattr(column, side) is not None:
                raise twice
            setattr(column, side, (values[0], operator == ends[1]))


def _parse_terms(text: str) -> Iterator[tuple[str, str, list[PredicateValue]]]:
    """Yield column, operator and values of each term of a conjunction."""
    from sqlglot import exp
    from sqlglot.errors import SqlglotError

    try:
        # Within a statement, because sqlglot would also parse texts that cannot be a condition.
        statements = parse_with_sqlglot(f"SELECT 1 FROM t WHERE {text}")
    except SqlglotError as error:
        raise InvalidKeyPredicate("it cannot be parsed") from error
    select = statements[0] if len(statements) == 1 else None
    parts = {name: part for name, part in select.args.items() if part} if isinstance(select, exp.Select) else {}
    if "where" not in parts or parts.keys() - {"kind", "expressions", "from", "from_", "where"}:
        raise InvalidKeyPredicate("it is not a condition")
    operators = {exp.EQ: "=", exp.GT: ">", exp.GTE: ">=", exp.LT: "<", exp.LTE: "<="}
    turned = {"=": "=", ">": "<", ">=": "<=", "<": ">", "<=": ">="}
    pending = [parts["where"].this]
    while pending:
        term = pending.pop(0).unnest()
        if isinstance(term, exp.And):
            pending = [term.left, term.right, *pending]
        elif isinstance(term, exp.Between) and not term.args.get("symmetric"):
            yield _column_name(term.this), ">=", [_literal_value(term.args["low"])]
            yield _column_name(term.this), "<=", [_literal_value(term.args["high"])]
        elif isinstance(term, exp.In) and term.expressions:
            yield _column_name(term.this), "IN", [_literal_value(one) for one in term.expressions]
        elif (operator := operators.get(type(term))) is not None:
            left, right = term.left.unnest(), term.right.unnest()
            if isinstance(left, exp.Column):
                yield _column_name(left), operator, [_literal_value(right)]
            else:
                yield _column_name(right), turned[operator], [_literal_value(left)]
        else:
            raise InvalidKeyPredicate(f"{_to_sql(term)} is not a comparison of a key column with a value. {_EXAMPLES}")


def _column_name(expression: object) -> str:
    from sqlglot import exp

    expression = expression.unnest() if isinstance(expression, exp.Expression) else expression
    if not isinstance(expression, exp.Column):
        raise InvalidKeyPredicate(f"{_to_sql(expression)} is not the name of a column. {_EXAMPLES}")
    return str(expression.name)


def _literal_value(expression: object) -> PredicateValue:
    """Return the value of a literal: text and numbers as text, x'..' as bytes."""
    from sqlglot import exp

    expression = expression.unnest() if isinstance(expression, exp.Expression) else expression
    if isinstance(expression, exp.Cast) and isinstance(expression.this, exp.Literal):  # DATE '2024-01-01'
        expression = expression.this
    if isinstance(expression, exp.Literal):
        return str(expression.this)
    if isinstance(expression, exp.Neg) and isinstance(expression.this, exp.Literal) and not expression.this.is_string:
        return f"-{expression.this.this}"
    if isinstance(expression, exp.HexString):
        # sqlglot keeps the digits unchanged, or as a number.
        digits = str(expression.this)
        try:
            return bytes.fromhex(digits)
        except ValueError:
            raise InvalidKeyPredicate(f"x'{digits}' is not made of whole bytes") from None
    raise InvalidKeyPredicate(f"{_to_sql(expression)} is not a value. {_EXAMPLES}")


def _to_sql(expression: object) -> str:
    from sqlglot import exp

    return expression.sql(dialect="mysql") if isinstance(expression, exp.Expression) else str(expression)
