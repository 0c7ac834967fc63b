"""Buffers of Arrow columns, filled by machine code."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from pymysql.constants import FIELD_TYPE

from airflow_provider_cdc.model.unsupported_values import UnsupportedValue
from airflow_provider_cdc.mysql.resultset import row_kernel
from airflow_provider_cdc.native import buffers
from airflow_provider_cdc.native.buffers import copy_to_arrow, enlarge, is_utf8, to_vectors
from airflow_provider_cdc.native.primitives import PADDING

_UNSIGNED = 32  # flag of a column definition
_BINARY = 63  # character set of columns that are not text
_VECTOR = 242
_VECTORS = pa.list_(pa.float32())

#: (type on the wire, unsigned) -> the Arrow type that represents each of its values, and how to read it.
_INTEGER_TYPES: dict[tuple[int, bool], tuple[pa.DataType, int]] = {
    (FIELD_TYPE.TINY, False): (pa.int8(), row_kernel.COPY_1),
    (FIELD_TYPE.TINY, True): (pa.int16(), row_kernel.WIDEN_1),
    (FIELD_TYPE.SHORT, False): (pa.int16(), row_kernel.COPY_2),
    (FIELD_TYPE.SHORT, True): (pa.int32(), row_kernel.WIDEN_2),
    (FIELD_TYPE.YEAR, True): (pa.int16(), row_kernel.COPY_2),
    (FIELD_TYPE.INT24, False): (pa.int32(), row_kernel.COPY_4),
    (FIELD_TYPE.INT24, True): (pa.int32(), row_kernel.COPY_4),
    (FIELD_TYPE.LONG, False): (pa.int32(), row_kernel.COPY_4),
    (FIELD_TYPE.LONG, True): (pa.int64(), row_kernel.WIDEN_4),
    (FIELD_TYPE.LONGLONG, False): (pa.int64(), row_kernel.COPY_8),
    (FIELD_TYPE.LONGLONG, True): (pa.decimal128(20, 0), row_kernel.WIDEN_8),
}
_OTHER_TYPES: dict[int, tuple[pa.DataType, int]] = {
    FIELD_TYPE.FLOAT: (pa.float32(), row_kernel.COPY_4),
    FIELD_TYPE.DOUBLE: (pa.float64(), row_kernel.COPY_8),
    FIELD_TYPE.DATE: (pa.date32(), row_kernel.DATE),
    FIELD_TYPE.DATETIME: (pa.timestamp("us"), row_kernel.DATETIME),
    FIELD_TYPE.TIMESTAMP: (pa.timestamp("us", tz="UTC"), row_kernel.DATETIME),
    FIELD_TYPE.TIME: (pa.int64(), row_kernel.TIME),
    FIELD_TYPE.JSON: (pa.string(), row_kernel.BYTES),
    FIELD_TYPE.BIT: (pa.binary(), row_kernel.BYTES),
    FIELD_TYPE.GEOMETRY: (pa.binary(), row_kernel.BYTES),
    _VECTOR: (_VECTORS, row_kernel.BYTES),
}
_STRINGS = {
    FIELD_TYPE.VARCHAR,
    FIELD_TYPE.VAR_STRING,
    FIELD_TYPE.STRING,
    FIELD_TYPE.TINY_BLOB,
    FIELD_TYPE.MEDIUM_BLOB,
    FIELD_TYPE.LONG_BLOB,
    FIELD_TYPE.BLOB,
}
_WIDTHS = {
    row_kernel.COPY_1: 1,
    row_kernel.COPY_2: 2,
    row_kernel.COPY_4: 4,
    row_kernel.COPY_8: 8,
    row_kernel.WIDEN_1: 2,
    row_kernel.WIDEN_2: 4,
    row_kernel.WIDEN_4: 8,
    row_kernel.WIDEN_8: 16,
    row_kernel.DATE: 4,
    row_kernel.DATETIME: 8,
    row_kernel.TIME: 8,
    row_kernel.DECIMAL: 16,
}

_FIRST_ROWS, _FIRST_BYTES = 1024, 1024


def kind_and_scale(type_code: int, flags: int, charset: int, scale: int, wanted: pa.DataType) -> tuple[int, int] | None:
    """Return (kind, scale) for the kernel; ``None`` if the server's column does not match the wanted type.

    :param type_code: type in the server's definition of the column, like ``flags``, ``charset`` and ``scale``.
    :param wanted: Arrow type of the column.
    """
    if type_code == FIELD_TYPE.NEWDECIMAL:
        if pa.types.is_decimal128(wanted):
            return (row_kernel.DECIMAL, scale) if wanted.scale == scale else None
        return (row_kernel.BYTES, 0) if wanted == pa.string() else None
    if type_code in _STRINGS:
        # MariaDB sends vectors as bytes.
        right = wanted in (pa.binary(), _VECTORS) if charset == _BINARY else wanted == pa.string()
        return (row_kernel.BYTES, 0) if right else None
    type_and_kind = _INTEGER_TYPES.get((type_code, bool(flags & _UNSIGNED))) or _OTHER_TYPES.get(type_code)
    return (type_and_kind[1], 0) if type_and_kind is not None and type_and_kind[0] == wanted else None


class ColumnBuffers:
    """Buffers for rows, which grow with the rows and are reused after these have been copied out.

    :param schema: the columns.
    :param kinds: :func:`kind_and_scale` of each.
    """

    def __init__(self, schema: pa.Schema, kinds: tuple[tuple[int, int], ...]) -> None:
        self.schema, self.kinds, self.row_capacity = schema, kinds, 0
        #: The kernel's description of the columns: addresses and capacity of the arrays below.
        self.column_lines = np.zeros((len(kinds), row_kernel.COLUMN_FIELDS), np.int64)
        self._values = [np.zeros(0, np.uint8)] * len(kinds)
        self._offsets = [np.zeros(1, np.int32)] * len(kinds)
        self._validity = [np.zeros(0, np.uint8)] * len(kinds)
        self.column_lines[:, row_kernel.KIND] = [kind for kind, _ in kinds]
        self.column_lines[:, row_kernel.SCALE] = [scale for _, scale in kinds]
        for i, (kind, _) in enumerate(kinds):
            if kind == row_kernel.BYTES:
                self.grow_column(i, _FIRST_BYTES)
        self.grow_rows(_FIRST_ROWS)

    @property
    def allocated_bytes(self) -> int:
        """Size of all buffers in bytes."""
        return sum(a.nbytes for arrays in (self._values, self._offsets, self._validity) for a in arrays)

    def grow_rows(self, rows: int | None = None) -> None:
        """Make room for this many rows, or by default for twice as many as before."""
        self.row_capacity = rows or 2 * self.row_capacity
        for i, (kind, _) in enumerate(self.kinds):
            self._validity[i] = enlarge(self._validity[i], self.row_capacity // 8 + 1, 0xFF)
            if kind == row_kernel.BYTES:
                self._offsets[i] = enlarge(self._offsets[i], self.row_capacity + 1)
            else:
                self._values[i] = enlarge(self._values[i], self.row_capacity * _WIDTHS[kind])
            self._update_addresses(i)

    def grow_column(self, column: int, size: int) -> None:
        """Make room in a string column for at least ``size`` bytes, and if possible for twice as many as before."""
        size = max(size, min(2 * int(self.column_lines[column, row_kernel.CAPACITY]), buffers.MAX_STRING_BYTES))
        self._values[column] = enlarge(self._values[column], size + PADDING)
        self.column_lines[column, row_kernel.CAPACITY] = size
        self._update_addresses(column)

    def copy_batch(self, rows: int) -> pa.RecordBatch:
        """Copy the first rows out of the buffers.

        :raises UnsupportedValue: for text that is not UTF-8, or a damaged vector or decimal.
        """
        arrays = [self._to_arrow(i, field.type, rows) for i, field in enumerate(self.schema)]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _to_arrow(self, i: int, wanted: pa.DataType, rows: int) -> pa.Array:
        kind, validity, used = self.kinds[i][0], None, (rows + 7) // 8
        if self.column_lines[i, row_kernel.HAS_NULLS]:
            validity = copy_to_arrow(self._validity[i][:used])
            # Also reset the bit of the next row, which the kernel may already have begun to write.
            self._validity[i][: rows // 8 + 1] = 0xFF
            self.column_lines[i, row_kernel.HAS_NULLS] = 0
        if kind != row_kernel.BYTES:
            values = copy_to_arrow(self._values[i][: rows * _WIDTHS[kind]])
            array = pa.Array.from_buffers(wanted, rows, [validity, values])
        else:
            offsets = self._offsets[i][: rows + 1]
            values = copy_to_arrow(self._values[i][: offsets[-1]])
            if wanted == pa.string() and not is_utf8(values, offsets):
                raise UnsupportedValue(i, "text", "there is text that is not UTF-8")
            stored_type = pa.binary() if wanted == _VECTORS else wanted
            array = pa.Array.from_buffers(stored_type, rows, [validity, copy_to_arrow(offsets), values])
            if wanted == _VECTORS:
                try:
                    return to_vectors(array)
                except ValueError as error:
                    raise UnsupportedValue(i, "damaged", str(error)) from None
        if kind == row_kernel.DECIMAL:
            try:
                array.validate(full=True)  # no more digits than declared
            except pa.ArrowInvalid as error:
                raise UnsupportedValue(i, "damaged", str(error)) from None
        return array

    def _update_addresses(self, i: int) -> None:
        self.column_lines[i, row_kernel.VALUES] = self._values[i].ctypes.data
        self.column_lines[i, row_kernel.OFFSETS] = self._offsets[i].ctypes.data
        self.column_lines[i, row_kernel.VALIDITY] = self._validity[i].ctypes.data
