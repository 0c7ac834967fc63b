"""Parse a condition on rows into a tree."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from airflow_provider_cdc.ddl.tokens import parse_with_sqlglot
from airflow_provider_cdc.model.errors import NotReadyError
from airflow_provider_cdc.model.schema import Column, TableSchema
from airflow_provider_cdc.transforms.condition_literals import (
    BOOLEAN,
    DATE,
    HEX,
    NULL,
    NUMBER,
    TEXT,
    TIMESTAMP,
    ConditionLiteral,
    UnfitLiteral,
    compare,
    pattern_of,
)
from airflow_provider_cdc.transforms.condition_text import ConditionToken, RefusedText, is_well_formed, read_tokens
from airflow_provider_cdc.transforms.condition_tree import (
    AllOf,
    AnyOf,
    Comparison,
    ConditionNode,
    Membership,
    NullTest,
    PatternMatch,
    negated,
)

_BEFORE = "SELECT 1 FROM t WHERE "
_EXAMPLES = "Examples: tenant_id = 7; status IN ('new', 'paid') AND deleted_at IS NULL"
#: Parts of a node of sqlglot's tree that are read.
_READ_PARTS = frozenset({"this", "expression", "expressions", "low", "high"})
#: Characters of a refused part that an error message shows.
_SHOWN = 100
#: Comparison operators when their sides are exchanged.
_EXCHANGED = {"=": "=", "<>": "<>", "<=>": "<=>", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
_KINDS = {"number": NUMBER, "text": TEXT, "hex": HEX}


def parse_tree(text: str, table: TableSchema) -> ConditionNode:
    """Parse a condition on the rows of a table.

    :raises NotReadyError: if a part of it cannot be understood, or cannot be evaluated exactly.
    """
    try:
        return _Parser(text, table).parse()
    except RefusedText as error:
        part = text[error.start : error.end]
        shown = f": {part if len(part) <= _SHOWN else f'{part[:_SHOWN]}...'}" if part else ""
        raise NotReadyError(
            f"condition on the rows of {table.label}: {error}, at character {error.start + 1}{shown}",
            error.remedy,
            table=table.label,
        ) from None


class _Parser:
    """Parses one condition.

    :param text: the condition.
    :param table: the table.
    """

    def __init__(self, text: str, table: TableSchema) -> None:
        self._text = text
        self._columns = {c.name.lower(): c for c in table.columns if not c.is_hidden}
        self._tokens: dict[int, ConditionToken] = {}

    def parse(self) -> ConditionNode:
        """Return the tree."""
        from sqlglot import exp

        tokens = read_tokens(self._text, self._columns.keys())
        self._tokens = {token.start: token for token in tokens if token.is_positioned}
        whole = RefusedText("it cannot be parsed", _EXAMPLES, 0, len(self._text))
        try:
            # Within a statement, because sqlglot would also parse texts that cannot be a condition.
            statements = parse_with_sqlglot(_BEFORE + self._text)
        except Exception:  # texts that are no SQL raise errors of many types there: whichever it is, refuse them
            raise whole from None
        select = statements[0] if len(statements) == 1 else None
        parts = {name: part for name, part in select.args.items() if part} if isinstance(select, exp.Select) else {}
        if "where" not in parts or parts.keys() - {"kind", "expressions", "from", "from_", "where"}:
            raise whole
        condition = parts["where"].this
        if sorted(self._positions(condition)) != sorted(self._tokens):  # each name and literal is where it was written
            raise whole
        try:
            tree = self._node(condition)
        except RecursionError:
            raise RefusedText("it has too many levels", "Write fewer parentheses", 0, len(self._text)) from None
        if not is_well_formed(tokens):
            raise whole
        return tree

    def _node(self, expression: Any) -> ConditionNode:
        from sqlglot import exp

        expression = expression.unnest()
        # A part that is not read below would change the meaning.
        parts = {name for name, part in expression.args.items() if part}
        if parts - (_READ_PARTS | ({"negate"} if isinstance(expression, exp.Like) else set())):
            raise self._refused(expression, "this is not understood", _EXAMPLES)
        if isinstance(expression, exp.And | exp.Or):
            nodes = tuple(self._node(part) for part in expression.flatten())
            return AllOf(nodes) if isinstance(expression, exp.And) else AnyOf(nodes)
        if isinstance(expression, exp.Not):
            return negated(self._node(expression.this))
        operators = {exp.EQ: "=", exp.NEQ: "<>", exp.NullSafeEQ: "<=>"}
        operators |= {exp.GT: ">", exp.GTE: ">=", exp.LT: "<", exp.LTE: "<="}
        if (operator := operators.get(type(expression))) is not None:
            return self._comparison(expression, operator)
        if isinstance(expression, exp.Between):
            low, high = expression.args["low"], expression.args["high"]
            if any(isinstance(bound.unnest(), exp.Null) for bound in (low, high)):  # servers differ in what it means
                raise self._refused(expression, "a bound of BETWEEN is NULL", "Write a bound that is a value")
            return AllOf((self._compare(expression, ">=", low), self._compare(expression, "<=", high)))
        if isinstance(expression, exp.In) and expression.expressions:
            return _one_of([self._compare(expression, "=", one) for one in expression.expressions])
        if isinstance(expression, exp.Is) and isinstance(expression.expression, exp.Null):
            return NullTest(self._column(expression.this))
        if isinstance(expression, exp.Like):
            column, literal = self._column(expression.this), self._literal(expression.expression)
            try:
                return PatternMatch(column, pattern_of(column, literal), bool(expression.args.get("negate")))
            except UnfitLiteral as error:
                raise self._refused(expression, str(error), error.remedy) from None
        raise self._refused(expression, "this is not a comparison of a column with a literal", _EXAMPLES)

    def _comparison(self, expression: Any, operator: str) -> ConditionNode:
        from sqlglot import exp

        left, right = expression.left.unnest(), expression.right.unnest()
        if not isinstance(left, exp.Column):
            left, right, operator = right, left, _EXCHANGED[operator]
        if isinstance(left, exp.Column) and isinstance(right, exp.Column):
            raise self._refused(expression, "this compares two columns", "Compare each column with a literal")
        return self._compare_with(expression, left, operator, right)

    def _compare(self, expression: Any, operator: str, literal: Any) -> ConditionNode:
        return self._compare_with(expression, expression.this, operator, literal)

    def _compare_with(self, expression: Any, column_name: Any, operator: str, value: Any) -> ConditionNode:
        from sqlglot import exp

        column, literal = self._column(column_name), self._literal(value)
        try:
            return compare(column, operator, literal)
        except UnfitLiteral as error:
            part = value if isinstance(expression, exp.In) else expression  # a list may be long
            raise self._refused(part, str(error), error.remedy) from None

    def _column(self, expression: Any) -> Column:
        from sqlglot import exp

        expression = expression.unnest()
        token = self._token(expression.this) if isinstance(expression, exp.Column) else None
        if token is None or token.kind != "name" or len([*expression.find_all(exp.Identifier)]) != 1:
            raise self._refused(expression, "this is not the name of a column", _EXAMPLES)
        return self._columns[token.value.lower()]

    def _literal(self, expression: Any) -> ConditionLiteral:
        from sqlglot import exp

        expression = expression.unnest()
        if isinstance(expression, exp.Null):
            return ConditionLiteral(NULL)
        if isinstance(expression, exp.Boolean):
            return ConditionLiteral(BOOLEAN, "1" if expression.this else "0")
        sign, kind, literal = "", None, expression
        if isinstance(expression, exp.Cast):  # DATE '2024-01-01': read_tokens refuses CAST
            types = {exp.DType.DATE: DATE, exp.DType.TIMESTAMPTZ: TIMESTAMP, exp.DType.TIMESTAMP: TIMESTAMP}
            kind, literal = types.get(expression.to.this), expression.this
        elif isinstance(expression, exp.Neg):
            sign, literal = "-", expression.this
        token = self._token(literal) if isinstance(literal, exp.Literal | exp.HexString) else None
        if token is not None and (sign == "" or token.kind == "number"):
            if not isinstance(expression, exp.Cast):
                return ConditionLiteral(_KINDS[token.kind], sign + token.value)
            if kind is not None and token.kind == "text":
                return ConditionLiteral(kind, token.value)
        raise self._refused(expression, "this is not a literal", _EXAMPLES)

    def _token(self, expression: Any) -> ConditionToken | None:
        return self._tokens.get(expression.meta.get("start", -1) - len(_BEFORE))

    def _positions(self, expression: Any) -> Iterator[int]:
        """Yield where the names and literals of an expression begin in the text."""
        for node in expression.walk():
            if "start" in node.meta:
                yield node.meta["start"] - len(_BEFORE)

    def _refused(self, expression: Any, reason: str, remedy: str) -> RefusedText:
        positions = [at for at in self._positions(expression) if at in self._tokens]
        start, end = (min(positions), self._tokens[max(positions)].end) if positions else (0, len(self._text))
        return RefusedText(reason, remedy, start, end)


def _one_of(nodes: list[ConditionNode]) -> ConditionNode:
    """Join comparisons of one column with the values of a list."""
    equal = [n for n in nodes if isinstance(n, Comparison)]
    others = [n for n in nodes if not isinstance(n, Comparison)]
    if not equal or equal[0].column.data_type in ("float", "double"):
        return AnyOf(tuple(nodes))  # 0 and -0 are equal, but not the same value of a set
    values = tuple(dict.fromkeys(node.value for node in equal))
    members = Membership(equal[0].column, values)
    return AnyOf((members, *others)) if others else members
