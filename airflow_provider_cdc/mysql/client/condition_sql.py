"""Conditions on rows as SQL: what the server can leave out before the rows are read.

The SQL is true for each row for which the condition is true, and perhaps for others, because collations of the server
have more texts equal, and because a part is left out wherever server and Arrow might differ. It never decides which
rows are copied.
"""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from functools import lru_cache

from airflow_provider_cdc.model.schema import (
    BINARY_TYPES,
    INTEGER_TYPES,
    ROUND_TRIP_CHARSETS,
    TEXT_TYPES,
    Column,
    TableSchema,
)
from airflow_provider_cdc.mysql.client.key_sql import FULL_COLLATIONS, quote_name, text_literal
from airflow_provider_cdc.transforms.condition import Condition, parse_condition
from airflow_provider_cdc.transforms.condition_tree import (
    AllOf,
    AnyOf,
    Comparison,
    ConditionNode,
    Membership,
    NullTest,
    RowValue,
    SameForAll,
    UnknownForAll,
)

#: Types that server and Arrow compare in the same way, with every operator.
_EXACT_TYPES = INTEGER_TYPES | {"decimal", "date", "datetime", "timestamp", "year"}
#: What every server can store in a TIMESTAMP; beyond, servers compare in different ways.
_FIRST_TIMESTAMP, _LAST_TIMESTAMP = datetime(1970, 1, 2, tzinfo=UTC), datetime(2038, 1, 18, tzinfo=UTC)


def implied_condition(table: TableSchema) -> str:
    """Return SQL that is true for each row that the table's condition selects; empty if every row may be one."""
    return "" if table.condition is None else _implied_by(table)


@lru_cache(maxsize=1024)
def _implied_by(table: TableSchema) -> str:
    return implied_sql(parse_condition(str(table.condition), table)) or ""


def implied_sql(condition: Condition) -> str | None:
    """Return SQL that is true for each row of the source for which the condition is true; ``None`` if there is none.

    The session must be one of :func:`~airflow_provider_cdc.mysql.client.session.connect`, whose time zone is UTC.
    """
    return _implied(condition.tree, condition.null_date_columns)


def _implied(node: ConditionNode, null_date_columns: frozenset[str]) -> str | None:
    match node:
        case AllOf(parts):
            implied = [sql for part in parts if (sql := _implied(part, null_date_columns)) is not None]
            return f"({' AND '.join(implied)})" if implied else None
        case AnyOf(parts):
            alternatives = [_implied(part, null_date_columns) for part in parts]
            return None if None in alternatives else f"({' OR '.join(map(str, alternatives))})"
        case NullTest(column, negated):
            if negated:
                return f"{quote_name(column.name)} IS NOT NULL"
            # An invalid date is not NULL on the server, but in the copy.
            return None if column.name in null_date_columns else f"{quote_name(column.name)} IS NULL"
        case SameForAll(column, True):
            return f"{quote_name(column.name)} IS NOT NULL"
        case SameForAll() | UnknownForAll():
            return "FALSE"
        case Comparison(column, operator, value):
            literal = _literal(column, value) if operator == "=" or column.data_type in _EXACT_TYPES else None
            return None if literal is None else f"{quote_name(column.name)} {operator} {literal}"
        case Membership(column, values, negated):
            if negated and column.data_type not in _EXACT_TYPES:
                return None
            literals = [_literal(column, value) for value in values]
            if None in literals:
                return None
            return f"{quote_name(column.name)} {'NOT ' if negated else ''}IN ({', '.join(map(str, literals))})"
    return None


def _literal(column: Column, value: RowValue) -> str | None:
    """Return a value as an SQL literal that the server finds equal to each value that Arrow finds equal."""
    if column.data_type in INTEGER_TYPES | {"decimal", "year"}:
        return format(value, "f") if isinstance(value, Decimal) else str(value)
    if column.data_type in TEXT_TYPES:
        return _text_literal(column, str(value))
    if column.data_type in BINARY_TYPES and isinstance(value, bytes):
        return f"x'{value.hex()}'" if value else "_binary ''"
    if isinstance(value, datetime):
        if column.data_type == "timestamp" and not _FIRST_TIMESTAMP <= value <= _LAST_TIMESTAMP:
            return None
        if value.microsecond % 10 ** (6 - column.fsp):
            return None  # the column has no such value, and a server might round it
        return f"TIMESTAMP'{value.replace(tzinfo=None).isoformat(sep=' ', timespec='microseconds')}'"
    if isinstance(value, date):
        return f"DATE'{value.isoformat()}'"
    return None


def _text_literal(column: Column, text: str) -> str | None:
    """Return a text in the column's character set and collation, so that an index can be used.

    A text that the character set does not have becomes another one. It is equal to no value of the column, so that any
    SQL will do.
    """
    if column.charset == "ascii":
        # MariaDB shows bytes that are no characters as question marks.
        if not text.isascii() or "?" in text:
            return None
    elif column.charset not in ROUND_TRIP_CHARSETS or column.collation in FULL_COLLATIONS:
        return None  # two values of the column may be the same text
    return f"CONVERT({text_literal(text)} USING {column.charset}) COLLATE {column.collation}"
