"""SQL text for names, key values and key ranges. All order and equality decisions about keys are taken by the server.

Python never compares two strings of a key: collations (case, accents, padding) are the server's business, so bounds
travel as literals in the column's own character set and collation.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from airflow_provider_cdc.core.plan import Chunk, Key, KeyValue
from airflow_provider_cdc.core.schema import BINARY_TYPES, INTEGER_TYPES, TEXT_TYPES, Column, TableSchema


def quote(name: str) -> str:
    """Name as an SQL identifier, whatever characters it has."""
    return "`" + name.replace("`", "``") + "`"


def text_literal(text: str) -> str:
    """Text as an SQL literal that no character can break out of."""
    return f"_utf8mb4 x'{text.encode().hex()}'" if text else "''"


def table_name(table: TableSchema) -> str:
    """Qualified name of a table as SQL."""
    return f"{quote(table.database)}.{quote(table.name)}"


def key_list(table: TableSchema, suffix: str = "") -> str:
    """Key columns as an SQL list, each with a suffix such as `` DESC``."""
    return ", ".join(quote(name) + suffix for name in table.key)


def canonical(column: Column) -> str:
    """SQL expression that gives a key column's canonical text (see :mod:`airflow_provider_cdc.core.plan`)."""
    if column.data_type in TEXT_TYPES | BINARY_TYPES:
        return f"LOWER(HEX({quote(column.name)}))"
    return f"CAST({quote(column.name)} AS CHAR)"


def parse(column: Column, text: str) -> KeyValue:
    """Canonical key value from what :func:`canonical` selects."""
    return int(text) if column.data_type in INTEGER_TYPES | {"year"} else text


def literal(column: Column, value: KeyValue) -> str:
    """Key value as an SQL literal that compares exactly as the column does."""
    kind = column.data_type
    if kind in INTEGER_TYPES or kind == "year":
        return str(int(value))
    if kind in TEXT_TYPES:
        introducer = f"_{column.charset} x'{value}'" if value else f"_{column.charset} ''"
        return f"{introducer} COLLATE {column.collation}"
    if kind in BINARY_TYPES:
        return f"x'{value}'" if value else "_binary ''"
    if kind == "decimal":
        return f"CAST('{value}' AS DECIMAL({column.precision},{column.scale}))"
    return f"{ {'date': 'DATE', 'time': 'TIME'}.get(kind, 'TIMESTAMP') }'{value}'"


def from_arrow(column: Column, value: Any) -> KeyValue:
    """Canonical key value from an Arrow scalar's value."""
    kind = column.data_type
    if kind in INTEGER_TYPES or kind == "year":
        return int(value)
    if kind in TEXT_TYPES:
        return str(value.encode().hex())
    if kind in BINARY_TYPES:
        return str(value.hex())
    if kind == "time":
        sign, micros = ("-" if value < 0 else ""), abs(int(value))
        seconds, fraction = divmod(micros, 1_000_000)
        return f"{sign}{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}.{fraction:06d}"
    if kind in {"datetime", "timestamp"}:
        return str(value.replace(tzinfo=None).isoformat(sep=" ", timespec="microseconds"))
    return str(value)


def keys_of(table: TableSchema, data: pa.Table) -> list[Key]:
    """Canonical keys of the rows of an Arrow table."""
    columns = [[from_arrow(column, value) for value in data[column.name].to_pylist()] for column in table.key_columns]
    return list(zip(*columns, strict=True))


def _compare(table: TableSchema, key: Key, strict: str, final: str) -> str:
    """Row comparison in the expanded form: the range optimizer does not use (a, b) > (x, y)."""
    columns = table.key_columns
    literals = [literal(column, value) for column, value in zip(columns, key, strict=True)]
    alternatives = []
    for i, column in enumerate(columns):
        same = [f"{quote(columns[j].name)} = {literals[j]}" for j in range(i)]
        operator = final if i == len(columns) - 1 else strict
        alternatives.append(" AND ".join([*same, f"{quote(column.name)} {operator} {literals[i]}"]))
    return alternatives[0] if len(alternatives) == 1 else "(" + " OR ".join(f"({a})" for a in alternatives) + ")"


def at_least(table: TableSchema, key: Key) -> str:
    """Condition ``key >= value``."""
    return _compare(table, key, ">", ">=")


def in_chunk(table: TableSchema, chunk: Chunk) -> str:
    """Condition that a row belongs to a chunk."""
    end = _compare(table, chunk.upper, "<", "<=" if chunk.last else "<")
    return f"{at_least(table, chunk.lower)} AND {end}"


#: How bounds sort among equal keys: a lower bound before them, an upper bound that is included after them.
BEFORE, KEY, AFTER = 0, 1, 2


def ranking(table: TableSchema, entries: Iterable[tuple[Key, int, int]]) -> str:
    """Statement that sorts keys and bounds together, in the server's order.

    :param entries: (key, number, one of :data:`BEFORE`, :data:`KEY`, :data:`AFTER`).
    :returns: SQL that selects the numbers.
    """
    columns = table.key_columns
    listed = []
    for key, number, tie in entries:
        values = ", ".join(literal(column, value) for column, value in zip(columns, key, strict=True))
        listed.append(f"ROW({values}, {number}, {tie})")
    order = ", ".join(f"column_{i}" for i in range(len(columns)))
    n = len(columns)
    return f"SELECT column_{n} FROM (VALUES {', '.join(listed)}) AS k ORDER BY {order}, column_{n + 1}"
