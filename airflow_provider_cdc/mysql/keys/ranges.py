"""Key ranges that a user has written, as chunks: their values are made canonical, and the server sorts them."""

from __future__ import annotations

import ipaddress
import re
import uuid
from collections.abc import Sequence
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

#: Values in one list, which the server compares pairwise.
_MAX_VALUES = 1000
_INTEGER_BITS = {"tinyint": 8, "smallint": 16, "mediumint": 24, "int": 32, "bigint": 64}
_HEX = re.compile(r"[xX]'((?:[0-9a-fA-F]{2})*)'")
_TIME = re.compile(r"(-?)(\d{1,3}):([0-5]\d)(?::([0-5]\d)(?:\.(\d{1,6}))?)?")


def parse_key_ranges(connection: Connection[Any], table: TableSchema, index: int, text: str) -> list[Chunk]:
    """Parse a condition into key ranges, in key order and without overlaps.

    :param index: index of the table in the plan.
    :param text: the condition; see :func:`airflow_provider_cdc.ddl.key_predicate.parse_key_predicate`.
    :returns: chunks. Their bounds may be leading values of a key, or empty if the range is open at that end.
    :raises InvalidKeyPredicate: if the condition is not a range of the key.
    """
    chunks = []
    for written in parse_key_predicate(text, table.key):
        lower, upper = (_canonical_values(connection, table, end) for end in (written.lower, written.upper))
        chunks.append(_range_to_chunk(table, index, written, lower, upper))
    if len(chunks) > _MAX_VALUES:
        raise InvalidKeyPredicate(f"a list may have at most {_MAX_VALUES:,} values, but this one has {len(chunks):,}")
    return _sort_ranges(connection, table, chunks)


def keys_as_ranges(connection: Connection[Any], table: TableSchema, index: int, keys: Sequence[Key]) -> list[Chunk]:
    """Return single keys as ranges, in key order and without duplicates. Consecutive integers become one range.

    :param index: index of the table in the plan.
    :param keys: canonical keys, at most a thousand, because the server compares them pairwise.
    """
    if not keys:
        return []
    if table.integer_key_column is not None:
        chunks = list[Chunk]()
        for number in sorted({int(key[0]) for key in keys}):
            if chunks and int(chunks[-1].upper[0]) == number - 1:
                chunks[-1] = chunks[-1].replace(upper=(number,))
            else:
                chunks.append(Chunk(0, index, 0, (number,), (number,), True))
        return chunks
    ranked = query_rows(connection, count_passed_bounds(table, keys, [(key, False) for key in keys]))
    key_by_rank = {int(str(rank)): keys[int(str(number))] for number, rank in ranked}
    return [Chunk(0, index, 0, key_by_rank[rank], key_by_rank[rank], True) for rank in sorted(key_by_rank)]


def parse_key(connection: Connection[Any], table: TableSchema, values: Sequence[str]) -> Key:
    """Parse a key that a user has written. Values of binary columns are text or hexadecimal digits: ``x'00ff'``.

    :param values: the values of the key columns.
    :raises InvalidKeyPredicate: if a column cannot have its value.
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
    """Convert a range to a chunk, which always includes its lower bound."""
    column = table.key_columns[max(len(lower), len(upper), 1) - 1]
    is_integer = column.data_type in INTEGER_TYPES
    if column.data_type == "enum" and lower != upper:
        raise InvalidKeyPredicate(f"{column.name} is an ENUM, for which only = and IN are supported")
    if not written.lower.included:
        if not is_integer:
            raise InvalidKeyPredicate(f"{column.name} is not an integer, so > is not supported; use >=")
        lower = (*lower[:-1], int(lower[-1]) + 1)
    last = written.upper.included
    if table.integer_key_column is not None:  # such keys are compared as numbers, so both ends need a value
        least, most = _integer_limits(column)
        below = int(upper[0]) - (not last) if upper else most
        lower, upper, last = (max(int(lower[0]), least) if lower else least,), (min(below, most),), True
    return Chunk(0, index, 0, lower, upper, last)


def _integer_limits(column: Column) -> tuple[int, int]:
    """Return the smallest and largest value of an integer column."""
    bits = _INTEGER_BITS[column.data_type]
    return (0, 2**bits - 1) if column.is_unsigned else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def _sort_ranges(connection: Connection[Any], table: TableSchema, chunks: Sequence[Chunk]) -> list[Chunk]:
    """Sort ranges in key order, and remove duplicates. They differ in one column only.

    :raises InvalidKeyPredicate: if no key can be in one of them.
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
    """Return, for each of some values of a column, how many of the others are smaller."""
    if all(isinstance(one, int) for one in values):
        order = {one: rank for rank, one in enumerate(sorted({int(one) for one in values}))}
        return [order[int(one)] for one in values]
    value_rows = ", ".join(row_literal(f"{key_literal(column, one)}, {number}") for number, one in enumerate(values))
    sql = f"WITH v (c, no) AS (VALUES {value_rows}) SELECT a.no, SUM(b.c < a.c) FROM v a CROSS JOIN v b GROUP BY a.no"
    ranks = {int(str(number)): int(str(rank)) for number, rank in query_rows(connection, sql)}
    return [ranks[number] for number in range(len(values))]


def _canonical_value(connection: Connection[Any], column: Column, written: PredicateValue) -> KeyValue:
    """Return the canonical value of a key column (see :mod:`airflow_provider_cdc.model.plan`).

    :raises InvalidKeyPredicate: if the column cannot have the value.
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
    """Parse a user's text into the canonical value of a key column that is neither text nor binary.

    :raises ValueError: if the column cannot have the value; also :class:`decimal.InvalidOperation`.
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
