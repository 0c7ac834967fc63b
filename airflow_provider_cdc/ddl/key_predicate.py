"""A condition on a table's key, as a person writes it: which ranges of keys it means.

It must be a range, or a list of them, in the order of the key: the first columns of the key equal one value each, the
next one lies between two, or is one of a list. Values stay text here: only the server knows what they mean.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

Value = str | bytes

_EXAMPLES = "Such as: id >= 100 AND id < 200; id IN (5, 7); tenant = 3 AND id BETWEEN 1 AND 9"


class BadPredicate(ValueError):
    """What is wrong with a condition, for people."""


@dataclass(frozen=True)
class Bound:
    """One end of a range.

    :param values: values of the first columns of the key; none: it has no end there.
    :param included: whether keys that begin with these values belong to the range.
    """

    values: tuple[Value, ...]
    included: bool = True


@dataclass(frozen=True)
class Written:
    """A range of keys as it is written."""

    lower: Bound
    upper: Bound


@dataclass
class _Column:
    """What is said of one column."""

    equal: Value | None = None
    listed: list[Value] = field(default_factory=list)
    lower: tuple[Value, bool] | None = None
    upper: tuple[Value, bool] | None = None


def parse(text: str, key: Sequence[str]) -> list[Written]:
    """The ranges that a condition means, in the order in which they are written.

    :param text: the condition, in MySQL's words.
    :param key: the key's columns.
    :raises BadPredicate: if it is not understood, or is not a range of the key.
    """
    conditions: dict[str, _Column] = {}
    names = {name.lower(): name for name in key}
    for name, operator, values in _terms(text):
        if name.lower() not in names:
            raise BadPredicate(f"{name} is not a column of the key ({', '.join(key)})")
        column = conditions.setdefault(names[name.lower()], _Column())
        _note(column, names[name.lower()], operator, values)
    prefix: tuple[Value, ...] = ()
    for name in key:
        column = conditions.pop(name, _Column())
        if column.equal is None and conditions:
            after = next(iter(conditions))
            raise BadPredicate(f"a condition on {after} needs one value of {name}, which stands before it in the key")
        if column.equal is None:
            return list(_ranges(prefix, column))
        prefix = (*prefix, column.equal)
    return [Written(Bound(prefix), Bound(prefix))]


def _ranges(prefix: tuple[Value, ...], column: _Column) -> Iterator[Written]:
    """The ranges of a column behind others that have one value each."""
    if column.listed:
        for value in column.listed:
            yield Written(Bound((*prefix, value)), Bound((*prefix, value)))
        return
    low, high = (
        Bound(prefix) if end is None else Bound((*prefix, end[0]), end[1]) for end in (column.lower, column.upper)
    )
    yield Written(low, high)


def _note(column: _Column, name: str, operator: str, values: list[Value]) -> None:
    """Add a term to what is said of a column."""
    twice = BadPredicate(f"the conditions on {name} are not one range or one list")
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


def _terms(text: str) -> Iterator[tuple[str, str, list[Value]]]:
    """Column, operator and values of each part of a conjunction."""
    import sqlglot
    from sqlglot import exp
    from sqlglot.errors import SqlglotError

    logger = logging.getLogger("sqlglot")
    disabled, logger.disabled = logger.disabled, True  # it would log the values
    try:
        # In a statement: else words that cannot be a condition are taken for one.
        statements = sqlglot.parse(f"SELECT 1 FROM t WHERE {text}", read="mysql")
    except SqlglotError as error:
        raise BadPredicate("it cannot be parsed") from error
    finally:
        logger.disabled = disabled
    select = statements[0] if len(statements) == 1 else None
    where = select.args.get("where") if isinstance(select, exp.Select) else None
    extra = isinstance(select, exp.Select) and {k for k, v in select.args.items() if v} - {
        "kind",
        "expressions",
        "from",
        "from_",
        "where",
    }
    if where is None or extra:
        raise BadPredicate("it is not a condition")
    operators = {exp.EQ: "=", exp.GT: ">", exp.GTE: ">=", exp.LT: "<", exp.LTE: "<="}
    turned = {"=": "=", ">": "<", ">=": "<=", "<": ">", "<=": ">="}
    pending = [where.this]
    while pending:
        term = pending.pop(0).unnest()
        if isinstance(term, exp.And):
            pending = [term.left, term.right, *pending]
        elif isinstance(term, exp.Between) and not term.args.get("symmetric"):
            yield _name(term.this), ">=", [_value(term.args["low"])]
            yield _name(term.this), "<=", [_value(term.args["high"])]
        elif isinstance(term, exp.In) and term.expressions:
            yield _name(term.this), "IN", [_value(one) for one in term.expressions]
        elif (operator := operators.get(type(term))) is not None:
            left, right = term.left.unnest(), term.right.unnest()
            if isinstance(left, exp.Column):
                yield _name(left), operator, [_value(right)]
            else:
                yield _name(right), turned[operator], [_value(left)]
        else:
            raise BadPredicate(f"{_shown(term)} is not a comparison of a key's column with a value. {_EXAMPLES}")


def _name(expression: object) -> str:
    from sqlglot import exp

    expression = expression.unnest() if isinstance(expression, exp.Expression) else expression
    if not isinstance(expression, exp.Column):
        raise BadPredicate(f"{_shown(expression)} is not the name of a column. {_EXAMPLES}")
    return str(expression.name)


def _value(expression: object) -> Value:
    """A literal: text and numbers as text, x'..' as bytes."""
    from sqlglot import exp

    expression = expression.unnest() if isinstance(expression, exp.Expression) else expression
    if isinstance(expression, exp.Cast) and isinstance(expression.this, exp.Literal):  # DATE '2024-01-01'
        expression = expression.this
    if isinstance(expression, exp.Literal):
        return str(expression.this)
    if isinstance(expression, exp.Neg) and isinstance(expression.this, exp.Literal) and not expression.this.is_string:
        return f"-{expression.this.this}"
    if isinstance(expression, exp.HexString):
        # sqlglot keeps the digits as they stand, or as a number.
        digits = str(expression.this)
        try:
            return bytes.fromhex(digits)
        except ValueError:
            raise BadPredicate(f"x'{digits}' has half a byte") from None
    raise BadPredicate(f"{_shown(expression)} is not a value. {_EXAMPLES}")


def _shown(expression: object) -> str:
    from sqlglot import exp

    return expression.sql(dialect="mysql") if isinstance(expression, exp.Expression) else str(expression)
