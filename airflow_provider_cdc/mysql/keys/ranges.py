"""Ranges of keys that a person has written, as chunks: their values become canonical, and the server says in which
order they stand.
"""

from __future__ import annotations

import ipaddress
import re
import uuid
from collections.abc import Sequence
from dataclasses import replace
from datetime import date, datetime
from decimal import Decimal, InvalidOperation
from typing import Any

from pymysql.connections import Connection

from airflow_provider_cdc.ddl.key_predicate import (
    InvalidKeyPredicate,
    KeyBound,
    KeyRange,
    PredicateValue,
    parse_key_predicate,
)
from airflow_provider_cdc.model.plan import Chunk, Key, KeyValue
from airflow_provider_cdc.model.schema import (
    BINARY_TYPES,
    INTEGER_TYPES,
    TEXT_TYPES,
    Column,
    TableSchema,
    unknown_type_error,
)
from airflow_provider_cdc.mysql.client.key_sql import count_passed_bounds, format_time, key_literal, row_literal
from airflow_provider_cdc.mysql.client.session import query_rows, query_value

#: Values in one list: the server compares each with each.
_MAX_VALUES = 1000
_INTEGER_BITS = {"tinyint": 8, "smallint": 16, "mediumint": 24, "int": 32, "bigint": 64}
_HEX = re.compile(r"[xX]'((?:[0-9a-fA-F]{2})*)'")
_TIME = re.compile(r"(-?)(\d{1,3}):([0-5]\d)(?::([0-5]\d)(?:\.(\d{1,6}))?)?")


def parse_key_ranges(connection: Connection[Any], table: TableSchema, index: int, text: str) -> list[Chunk]:
    """The ranges of keys that a condition means, in the order of the key, none of which overlap.

    :param index: index of the table in the plan.
    :param text: the condition; see :func:`airflow_provider_cdc.ddl.key_predicate.parse_key_predicate`.
    :returns: chunks whose bounds may be the first values of a key, or none: then they have no end there.
    :raises BadPredicate: if the condition is no range of the key.
    """
    chunks = []
    for written in parse_key_predicate(text, table.key):
        lower, upper = (_canonical_values(connection, table, end) for end in (written.lower, written.upper))
        chunks.append(_range_to_chunk(table, index, written, lower, upper))
    if len(chunks) > _MAX_VALUES:
        raise InvalidKeyPredicate(f"a list may have {_MAX_VALUES:,} values, and this one has {len(chunks):,}")
    return _sort_ranges(connection, table, chunks)


def keys_as_ranges(connection: Connection[Any], table: TableSchema, index: int, keys: Sequence[Key]) -> list[Chunk]:
    """Single keys as ranges, in the order of the key, each once; integers that follow each other are one range.

    :param index: index of the table in the plan.
    :param keys: canonical keys, no more than a thousand: the server compares each with each.
    """
    if not keys:
        return []
    if table.integer_key_column is not None:
        chunks = list[Chunk]()
        for number in sorted({int(key[0]) for key in keys}):
            if chunks and int(chunks[-1].upper[0]) == number - 1:
                chunks[-1] = replace(chunks[-1], upper=(number,))
            else:
                chunks.append(Chunk(0, index, 0, (number,), (number,), True))
        return chunks
    ranked = query_rows(connection, count_passed_bounds(table, keys, [(key, False) for key in keys]))
    key_by_rank = {int(str(rank)): keys[int(str(number))] for number, rank in ranked}
    return [Chunk(0, index, 0, key_by_rank[rank], key_by_rank[rank], True) for rank in sorted(key_by_rank)]


def parse_key(connection: Connection[Any], table: TableSchema, values: Sequence[str]) -> Key:
    """A key that a person has written. Those of a binary column are text, or hexadecimal digits: ``x'00ff'``.

    :param values: the values of the key's columns.
    :raises BadPredicate: if a column cannot have its value.
    """
    parsed = list[PredicateValue]()
    for column, text in zip(table.key_columns, values, strict=True):
        digits = _HEX.fullmatch(text) if column.data_type in BINARY_TYPES else None
        parsed.append(text if digits is None else bytes.fromhex(digits[1]))
    return _canonical_values(connection, table, KeyBound(tuple(parsed)))


def _canonical_values(connection: Connection[Any], table: TableSchema, bound: KeyBound) -> tuple[KeyValue, ...]:
    columns = table.key_columns[: len(bound.values)]
    return tuple(_canonical_value(connection, column, one) for column, one in zip(columns, bound.values, strict=True))


def _range_to_chunk(
    table: TableSchema, index: int, written: KeyRange, lower: tuple[KeyValue, ...], upper: tuple[KeyValue, ...]
) -> Chunk:
    """A range as a chunk: what belongs to it begins with its lower bound."""
    column = table.key_columns[max(len(lower), len(upper), 1) - 1]
    is_integer = column.data_type in INTEGER_TYPES
    if column.data_type == "enum" and lower != upper:
        raise InvalidKeyPredicate(f"{column.name} is an ENUM, which = and IN can ask for")
    if not written.lower.included:
        if not is_integer:
            raise InvalidKeyPredicate(f"{column.name} > cannot be asked for, since {column.name} is no integer; use >=")
        lower = (*lower[:-1], int(lower[-1]) + 1)
    last = written.upper.included
    if table.integer_key_column is not None:  # such keys are compared as numbers: they have an end on both sides
        least, most = _integer_limits(column)
        below = int(upper[0]) - (not last) if upper else most
        lower, upper, last = (max(int(lower[0]), least) if lower else least,), (min(below, most),), True
    return Chunk(0, index, 0, lower, upper, last)


def _integer_limits(column: Column) -> tuple[int, int]:
    """Smallest and largest value of an integer column."""
    bits = _INTEGER_BITS[column.data_type]
    return (0, 2**bits - 1) if column.is_unsigned else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def _sort_ranges(connection: Connection[Any], table: TableSchema, chunks: Sequence[Chunk]) -> list[Chunk]:
    """Ranges in the order of the key, each once. They differ in one column only.

    :raises BadPredicate: if no key can lie in one.
    """
    ends = [end for chunk in chunks for end in (chunk.lower, chunk.upper)]
    at = max(map(len, ends)) - 1
    if at < 0:
        return list(chunks)
    column, values = table.key_columns[at], [end[at] for end in ends if len(end) > at]
    ranks = iter(_rank_values(connection, column, values))
    ranked = [tuple(next(ranks) if len(end) > at else None for end in (c.lower, c.upper)) for c in chunks]
    for chunk, (low, high) in zip(chunks, ranked, strict=True):
        if low is not None and high is not None and (low > high or (low == high and not chunk.includes_upper)):
            raise InvalidKeyPredicate(f"no value of {column.name} lies in the range")
    chunk_by_ranks = dict(zip(ranked, chunks, strict=True))
    return [
        chunk_by_ranks[rank] for rank in sorted(chunk_by_ranks, key=lambda rank: rank[0] if rank[0] is not None else -1)
    ]


def _rank_values(connection: Connection[Any], column: Column, values: Sequence[KeyValue]) -> list[int]:
    """How many of some values of a column are smaller than each of them."""
    if all(isinstance(one, int) for one in values):
        order = {one: rank for rank, one in enumerate(sorted({int(one) for one in values}))}
        return [order[int(one)] for one in values]
    value_rows = ", ".join(row_literal(f"{key_literal(column, one)}, {number}") for number, one in enumerate(values))
    sql = f"WITH v (c, no) AS (VALUES {value_rows}) SELECT a.no, SUM(b.c < a.c) FROM v a CROSS JOIN v b GROUP BY a.no"
    ranks = {int(str(number)): int(str(rank)) for number, rank in query_rows(connection, sql)}
    return [ranks[number] for number in range(len(values))]


def _canonical_value(connection: Connection[Any], column: Column, written: PredicateValue) -> KeyValue:
    """A canonical value of a key's column (see :mod:`airflow_provider_cdc.model.plan`).

    :raises BadPredicate: if the column cannot have it.
    """
    kind = column.data_type
    code = written if isinstance(written, bytes) else written.encode()
    if kind in BINARY_TYPES:
        return code.hex()
    if kind in TEXT_TYPES:
        back = f"CAST(CONVERT(CONVERT(_utf8mb4 x'{code.hex()}' USING {column.charset}) USING utf8mb4) AS BINARY)"
        if not _is_utf8(code) or (code and query_value(connection, f"SELECT {back} = x'{code.hex()}'") != "1"):
            raise InvalidKeyPredicate(f"{column.name} cannot have {written!r}: its character set is {column.charset}")
        return code.hex()
    try:
        if isinstance(written, bytes):
            raise ValueError
        return parse_key_value(column, written.strip())
    except (ValueError, InvalidOperation):
        raise InvalidKeyPredicate(
            f"{written!r} is not a value of {column.name}, which is {column.column_type}"
        ) from None


def parse_key_value(column: Column, text: str) -> KeyValue:
    """A canonical value of a key's column that is neither text nor binary, from what a person writes.

    :raises ValueError: if it is none, and :class:`decimal.InvalidOperation`.
    """
    kind = column.data_type
    if kind in INTEGER_TYPES or kind == "year":
        return int(text)
    if kind == "enum":
        return column.members.index(text) + 1
    if kind == "decimal":
        scale = column.scale or 0
        exact = Decimal(text)
        shown = f"{exact:.{scale}f}"
        if not exact.is_finite() or Decimal(shown) != exact:
            raise ValueError
        return shown
    if kind == "date":
        return date.fromisoformat(text).isoformat()
    if kind in ("datetime", "timestamp"):
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is not None:
            raise ValueError
        return moment.isoformat(sep=" ", timespec="microseconds")
    if kind == "time" and (parts := _TIME.fullmatch(text)):
        sign, hours, minutes, seconds, fraction = parts.groups()
        micros = ((int(hours) * 60 + int(minutes)) * 60 + int(seconds or 0)) * 1_000_000
        micros += int((fraction or "0").ljust(6, "0"))
        return format_time(-micros if sign else micros)
    if kind == "uuid":
        return str(uuid.UUID(text))
    if kind == "inet4":
        return str(ipaddress.IPv4Address(text))
    if kind == "inet6":
        return str(ipaddress.IPv6Address(text))
    if kind == "time":
        raise ValueError
    raise unknown_type_error(column)


def _is_utf8(code: bytes) -> bool:
    try:
        code.decode()
    except UnicodeDecodeError:
        return False
    return True
