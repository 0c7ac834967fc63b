"""A table with a column of every type that the project writes, and extreme values of each."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Context, Decimal
from typing import Any

import pyarrow as pa

from airflow_provider_cdc.model.schema import (
    INTEGER_TYPES,
    OP_COLUMN,
    SEQ_COLUMN,
    SUPPORTED_TYPES,
    TS_COLUMN,
    Column,
    TableSchema,
)

_TEXTS = ["", "plain", "'\"\\ \t\n", "ä€😀 日本", "nul \0 inside", "x" * 3000]
_BYTES = [b"", bytes(range(256)), b"\0", b"\xff" * 3000]
#: Names that mean something else, or nothing allowed, elsewhere.
_NAMES = ("a b", "c.d", 'q"q', "back`tick", "Größe", "x,y;{}()=", "UPPER", "_cdc", "a/b", "select", "tab\tname")
_HOURS = 838 * 3600 * 10**6 + 59 * 60 * 10**6 + 59 * 10**6


def _columns() -> list[Column]:
    found = [Column("id", "bigint", "bigint", nullable=False)]
    for kind in sorted(SUPPORTED_TYPES):
        found.append(Column(f"c_{kind}", kind, kind, nullable=True, precision=38, scale=10))
        if kind in INTEGER_TYPES:
            found.append(Column(f"u_{kind}", kind, f"{kind} unsigned", nullable=True))
    found.append(Column("d_short", "decimal", "decimal(5,2)", nullable=True, precision=5, scale=2))
    found.append(Column("d_long", "decimal", "decimal(65,30)", nullable=True, precision=65, scale=30))
    found += [Column(name, "varchar", "varchar(9)", nullable=True) for name in _NAMES]
    return found


TABLE = TableSchema("shop", "all_types", tuple(_columns()), ("id",))


def _values(kind: pa.DataType) -> list[Any]:
    """Extreme values of a type."""
    if pa.types.is_integer(kind):
        high = 2 ** (kind.bit_width - 1) - 1
        return [0, high, -high - 1, _HOURS, -_HOURS] if kind == pa.int64() else [0, high, -high - 1]
    if pa.types.is_decimal(kind):
        low = Decimal(-(10**kind.precision) + 1).scaleb(-kind.scale, Context(prec=60))
        return [Decimal(0).scaleb(-kind.scale), low, low.copy_negate() if kind.scale else Decimal(2**64 - 1)]
    if pa.types.is_floating(kind):
        high, small = (3.4028234663852886e38, 1.401298464324817e-45) if kind == pa.float32() else (1.7e308, 5e-324)
        return [0.0, -0.0, high, -high, small, 0.1]
    if pa.types.is_list(kind):
        return [[0.0, -0.0, 3.4028234663852886e38], [0.5], [1.0] * 512]
    if pa.types.is_date(kind):
        return [date(1, 1, 1), date(1000, 1, 1), date(1582, 10, 10), date(1970, 1, 1), date(9999, 12, 31)]
    if pa.types.is_timestamp(kind) and kind.tz:
        return [datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC), datetime(2106, 2, 7, 6, 28, 15, 999999, tzinfo=UTC)]
    if pa.types.is_timestamp(kind):
        return [datetime(1, 1, 1), datetime(1582, 10, 10, 1, 2, 3), datetime(9999, 12, 31, 23, 59, 59, 999999)]
    return [*_TEXTS] if kind == pa.string() else [*_BYTES]


def rows(keys: range | list[int], seq: int, op: str) -> pa.Table:
    """Rows with such keys; which values they have depends on key and seq."""
    listed = []
    for key in keys:
        row: dict[str, Any] = {
            "id": key,
            SEQ_COLUMN: seq,
            OP_COLUMN: op,
            TS_COLUMN: datetime(2026, 1, 1, 0, 0, 0, seq, tzinfo=UTC),
        }
        for n, column in enumerate(TABLE.columns[1:]):
            values = [None, *_values(column.arrow_type)]
            row[column.name] = values[(key + seq + n) % len(values)]
        listed.append(row)
    return pa.Table.from_pylist(listed, schema=TABLE.sink_schema)
