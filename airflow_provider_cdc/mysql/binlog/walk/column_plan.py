"""How the kernels read each column of row events, and how the stored values become Arrow arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_cdc.model.schema import (
    ADDRESS_TYPES,
    BINARY_TYPES,
    GEOMETRY_TYPES,
    INTEGER_TYPES,
    MEMBER_TYPES,
    TEXT_TYPES,
    UTF8_CHARSETS,
    Column,
    unknown_type_error,
)
from airflow_provider_cdc.mysql.binlog.events.table_map import TableMap, with_exact_members
from airflow_provider_cdc.mysql.binlog.events.wire_types import BLOB, BLOB_COMPRESSED, VARCHAR, WireColumn
from airflow_provider_cdc.mysql.binlog.kernels import row_kernel as kernel
from airflow_provider_cdc.mysql.binlog.plain.mariadb_values import decompress_column, inet_text, uuid_texts
from airflow_provider_cdc.mysql.binlog.plain.values import OLD_TEMPORAL_SIZES, decimal_size
from airflow_provider_cdc.mysql.client.charsets import CharsetDecoders, NoRoundTripError
from airflow_provider_cdc.native.buffers import to_vectors

_INTEGERS = {
    "tinyint": (1, kernel.COPY_1, kernel.WIDEN_1),
    "smallint": (2, kernel.COPY_2, kernel.WIDEN_2),
    "mediumint": (3, kernel.SIGNED_3, kernel.WIDEN_3),
    "int": (4, kernel.COPY_4, kernel.WIDEN_4),
    "bigint": (8, kernel.COPY_8, kernel.WIDEN_8),
}
_FIXED_KINDS = {
    "float": (4, kernel.COPY_4),
    "double": (8, kernel.COPY_8),
    "year": (1, kernel.YEAR),
    "date": (3, kernel.DATE),
}
_TEMPORAL_KINDS = {"datetime": (5, kernel.DATETIME), "timestamp": (4, kernel.TIMESTAMP), "time": (3, kernel.TIME)}
_OLD_TEMPORAL_KINDS = {"datetime": kernel.OLD_DATETIME, "timestamp": kernel.OLD_TIMESTAMP, "time": kernel.OLD_TIME}
_ANY_LENGTH = 1 << 40
#: Arrow type of columns that are skipped.
SKIPPED_TYPE = pa.null()


class ColumnPlan(NamedTuple):
    """How a column is read: input for the row kernel, and the conversion of the stored values.

    :param kind: one of the kinds in ``row_kernel``.
    :param size: bytes of a value on the wire, or of the length prefix.
    :param raw_type: Arrow type that the kernel stores.
    :param limit: see ``LIMIT`` in ``row_kernel``.
    :param scale: see ``SCALE`` in ``row_kernel``.
    :param finish: converts an array of ``raw_type`` to the column's type; raises ``UnicodeDecodeError`` or
        ``ValueError`` for a value that cannot be converted.
    """

    kind: int
    size: int
    raw_type: pa.DataType
    limit: int = 0
    scale: int = 0
    finish: Callable[[pa.Array], pa.Array] | None = None


def plan_column(
    column: Column, wire: WireColumn, table: TableMap, decoders: CharsetDecoders, is_excluded: bool
) -> ColumnPlan:
    """Return how a column of row events is read.

    :param wire: the column's layout in the binlog.
    :param table: the table, with the members of its ENUM and SET columns.
    :param is_excluded: whether the column's values are skipped.
    :raises TerminalError: for an unsupported type.
    """
    kind, arrow, in_key = column.data_type, column.arrow_type, column.name in table.schema.key
    texts = decoders.for_keys if in_key else decoders
    size, has_length = _wire_size(column, wire)
    if is_excluded:
        return ColumnPlan(kernel.BYTES if has_length else kernel.FIXED, size, SKIPPED_TYPE)
    if kind in MEMBER_TYPES:
        column = with_exact_members(column, table, decoders)
    if kind in INTEGER_TYPES:
        _, signed, unsigned = _INTEGERS[kind]
        return ColumnPlan(unsigned if column.is_unsigned else signed, size, arrow)
    if kind == "decimal":
        how = kernel.DECIMAL if wire.precision <= 38 else kernel.LONG_DECIMAL
        return ColumnPlan(how, size, arrow, wire.precision, wire.scale)
    if kind in _FIXED_KINDS:
        return ColumnPlan(kernel.SHORT_YEAR if column.is_two_digit_year else _FIXED_KINDS[kind][1], size, arrow)
    if column.has_old_temporal_format:
        return ColumnPlan(_OLD_TEMPORAL_KINDS[kind], size, arrow, scale=column.fsp)
    if kind in _TEMPORAL_KINDS:
        return ColumnPlan(_TEMPORAL_KINDS[kind][1], size, arrow, scale=(wire.size + 1) // 2)
    if kind == "enum":
        return ColumnPlan(
            kernel.ENUM_INDEX, size, pa.int16(), len(column.members), finish=_enum_members(column.members, in_key)
        )
    if kind == "set":
        return ColumnPlan(kernel.SET_BITS, size, pa.uint64(), len(column.members), finish=_set_members(column.members))
    if kind == "bit":
        return ColumnPlan(kernel.FIXED, size, arrow)
    # All other types have a length prefix.
    longest = _ANY_LENGTH if wire.type in (BLOB, BLOB_COMPRESSED) else wire.size
    if kind in ADDRESS_TYPES:
        to_text = uuid_texts if kind == "uuid" else convert_each(inet_text)
        return ColumnPlan(kernel.PADDED, size, pa.binary(), longest, wire.size, finish=to_text)
    if column.is_compressed:
        decode = texts[str(column.charset)] if kind in TEXT_TYPES else bytes
        return ColumnPlan(
            kernel.BYTES,
            size,
            pa.binary(),
            longest,
            finish=convert_each(lambda raw: decode(decompress_column(raw)), arrow),
        )
    if kind in TEXT_TYPES:
        if column.charset in UTF8_CHARSETS:
            return ColumnPlan(
                kernel.BYTES, size, arrow, longest, finish=_check_ascii if column.charset == "ascii" else None
            )
        decode = texts[str(column.charset)]
        return ColumnPlan(kernel.BYTES, size, pa.binary(), longest, finish=convert_each(decode))
    if kind == "binary":
        return ColumnPlan(kernel.PADDED, size, arrow, longest, wire.size)
    if kind in BINARY_TYPES:
        return ColumnPlan(kernel.BYTES, size, arrow, longest)
    if kind == "json":
        from airflow_provider_cdc.mysql.binlog.kernels.json_kernel import json_texts  # compiled only if it is needed

        return ColumnPlan(kernel.BYTES, size, pa.binary(), _ANY_LENGTH, finish=json_texts)
    if kind in GEOMETRY_TYPES:
        return ColumnPlan(kernel.BYTES, size, arrow, _ANY_LENGTH)
    if kind == "vector":
        return ColumnPlan(kernel.BYTES, size, pa.binary(), _ANY_LENGTH, finish=to_vectors)
    raise unknown_type_error(column)


def _wire_size(column: Column, wire: WireColumn) -> tuple[int, bool]:
    """Return the bytes of a value on the wire, or of its length prefix, and whether it has such a prefix."""
    kind = column.data_type
    if kind in INTEGER_TYPES:
        return _INTEGERS[kind][0], False
    if kind == "decimal":
        return decimal_size(wire.precision, wire.scale), False
    if kind in _FIXED_KINDS:
        return _FIXED_KINDS[kind][0], False
    if column.has_old_temporal_format:
        return OLD_TEMPORAL_SIZES[kind][column.fsp], False
    if kind in _TEMPORAL_KINDS:
        return _TEMPORAL_KINDS[kind][0] + (wire.size + 1) // 2, False
    if kind in MEMBER_TYPES:
        return wire.size, False
    if kind == "bit":
        return ((column.precision or 1) + 7) // 8, False
    if kind in ADDRESS_TYPES or kind in TEXT_TYPES or kind in BINARY_TYPES or wire.type == VARCHAR:
        is_blob = wire.type in (BLOB, BLOB_COMPRESSED)
        return (wire.size if is_blob else 1 if wire.size < 256 else 2), True
    if kind == "json" or kind == "vector" or kind in GEOMETRY_TYPES:
        return 4, True
    raise unknown_type_error(column)


def convert_each(convert: Callable[[bytes], Any], to: pa.DataType | None = None) -> Callable[[pa.Array], pa.Array]:
    """Return a function that converts every value of a binary array, equal ones only once."""

    def finish(values: pa.Array) -> pa.Array:
        known = values.dictionary_encode()
        converted = [convert(value) for value in known.dictionary.to_pylist()]
        return pa.array(converted, to or pa.string()).take(known.indices)

    return finish


def _check_ascii(values: pa.Array) -> pa.Array:
    """Refuse text of character set ascii with other bytes, which MariaDB accepts."""
    if not pc.all(pc.string_is_ascii(values)).as_py() and len(values) > values.null_count:
        raise UnicodeDecodeError("ascii", b"", 0, 0, "not ascii")
    return values


def _enum_members(members: Sequence[str], in_key: bool) -> Callable[[pa.Array], pa.Array]:
    """Return a function that maps indexes to ENUM members; 0, an invalid value when stored, becomes ``''``."""
    texts = pa.array(["", *members], pa.string())

    def finish(values: pa.Array) -> pa.Array:
        if in_key and "" in members and pc.any(pc.equal(values, 0)).as_py():
            raise NoRoundTripError("")
        return texts.take(values)

    return finish


def _set_members(members: Sequence[str]) -> Callable[[pa.Array], pa.Array]:
    """Return a function that maps bit sets to the members of a SET."""

    def finish(values: pa.Array) -> pa.Array:
        known = values.dictionary_encode()
        texts = [",".join(m for i, m in enumerate(members) if v >> i & 1) for v in known.dictionary.to_pylist()]
        return pa.array(texts, pa.string()).take(known.indices)

    return finish
