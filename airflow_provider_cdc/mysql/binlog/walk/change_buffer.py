"""Changes to one table, collected by the kernels as Arrow columns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_cdc.model.unsupported_values import UnsupportedValue
from airflow_provider_cdc.mysql.binlog.events.table_map import TableMap
from airflow_provider_cdc.mysql.binlog.kernels import row_kernel as kernel
from airflow_provider_cdc.mysql.binlog.plain.values import unpack_datetime, unpack_old_datetime
from airflow_provider_cdc.mysql.binlog.walk.column_plan import SKIPPED_TYPE, ColumnPlan, convert_each, plan_column
from airflow_provider_cdc.mysql.client.charsets import CharsetDecoders, NoRoundTripError
from airflow_provider_cdc.native import buffers
from airflow_provider_cdc.native.buffers import copy_to_arrow, enlarge, is_utf8
from airflow_provider_cdc.native.primitives import PADDING

_WIDTHS = {
    **dict.fromkeys((kernel.COPY_1,), 1),
    **dict.fromkeys((kernel.COPY_2, kernel.WIDEN_1, kernel.YEAR, kernel.SHORT_YEAR, kernel.ENUM_INDEX), 2),
    **dict.fromkeys((kernel.COPY_4, kernel.SIGNED_3, kernel.WIDEN_2, kernel.WIDEN_3, kernel.DATE), 4),
    **dict.fromkeys(
        (kernel.COPY_8, kernel.WIDEN_4, kernel.DATETIME, kernel.TIMESTAMP, kernel.TIME, kernel.SET_BITS), 8
    ),
    **dict.fromkeys((kernel.OLD_DATETIME, kernel.OLD_TIMESTAMP, kernel.OLD_TIME), 8),
    **dict.fromkeys((kernel.WIDEN_8, kernel.DECIMAL), 16),
}
_NOT_TEXT = "bytes that are not valid text"
_FIRST_ROWS, _FIRST_BYTES = 64, 256
#: Space that is kept for later changes; a large transaction must not hold memory forever.
_MAX_KEPT_BYTES = 128 << 20

#: A column name, and a function that returns a boolean mask of the column's values.
KeyFilter = tuple[str, Callable[[pa.Array], pa.Array]]


class ChangeBuffer:
    """Growing buffer for the changes to a table; it is reused after the changes have been taken.

    :param table: the table and its layout.
    :param decoders: decoders of its text.
    :param count_only: whether rows are counted instead of decoded.
    """

    def __init__(self, table: TableMap, decoders: CharsetDecoders, *, count_only: bool = False) -> None:
        self.table_map, columns = table, table.schema.columns
        read_names = set() if count_only else {*table.schema.column_schema.names}
        self._plans = [
            plan_column(c, wire, table, decoders, c.name not in read_names)
            for c, wire in zip(columns, table.columns, strict=True)
        ]
        count = len(columns)
        #: Input of the kernel: a line for this table, and a line for each of its columns.
        self.table_line: Any = np.zeros(kernel.TABLE_FIELDS, np.int64)
        self.column_lines: Any = np.zeros((count, kernel.COLUMN_FIELDS), np.int64)
        nulls = table.schema.null_date_columns
        for line, plan, column in zip(self.column_lines, self._plans, columns, strict=True):
            line[kernel.KIND], line[kernel.WIRE_SIZE] = plan.kind, plan.size
            line[kernel.LIMIT], line[kernel.SCALE] = plan.limit, plan.scale
            line[kernel.COLUMN_FLAGS] = (
                kernel.NULLABLE * column.nullable
                + kernel.NULL_DATES * (column.name in nulls)
                + kernel.ZEROFILL * ("zerofill" in column.column_type)
                + kernel.EXCLUDED * (plan.raw_type == SKIPPED_TYPE)
            )
            line[kernel.IN_KEY] = column.name in table.schema.key
        self.table_line[kernel.COLUMN_COUNT] = count
        self.table_line[kernel.KEY_PREFIX_COLUMNS] = 1 + max(
            (i for i, c in enumerate(columns) if c.name in table.schema.key), default=-1
        )
        self.table_line[kernel.CHANGED_BY] = -1
        self._allocate()
        if count_only:
            self.table_line[kernel.ROW_CAPACITY] = -1

    def _allocate(self) -> None:
        """Allocate the initial space."""
        count = len(self._plans)
        self._values = [np.zeros(0, np.uint8)] * count
        self._offsets = [np.zeros(1, np.int32)] * count
        self._validity = [np.zeros(0, np.uint8)] * count
        self._ops, self._seqs, self._timestamps = np.zeros(0, np.uint8), np.zeros(0, np.int64), np.zeros(0, np.int64)
        self.column_lines[:, kernel.CAPACITY] = 0
        for i, plan in enumerate(self._plans):
            if plan.kind not in _WIDTHS and plan.raw_type != SKIPPED_TYPE:
                self.grow_column(i, _FIRST_BYTES)
        self.grow_rows(_FIRST_ROWS)

    def has_layout_of(self, table: TableMap) -> bool:
        """Return whether rows announced by another table map are decoded in the same way."""
        own = self.table_map
        return (table.schema, table.columns, table.member_bytes) == (own.schema, own.columns, own.member_bytes)

    def describe_invalid_date(self, column: int, data: Any, at: int) -> str:
        """Describe the invalid date at an offset in the data."""
        plan = self._plans[column]
        raw = data[at : at + plan.size].tobytes()
        if plan.kind in (kernel.TIMESTAMP, kernel.OLD_TIMESTAMP):
            return "zero timestamp 0000-00-00 00:00:00"
        if plan.kind == kernel.DATE:
            packed = int.from_bytes(raw, "little")
            year, month, day = packed >> 9, packed >> 5 & 15, packed & 31
        elif plan.kind == kernel.OLD_DATETIME:
            year, month, day, *_ = unpack_old_datetime(raw, plan.scale)
        else:
            year, month, day, *_ = unpack_datetime(int.from_bytes(raw[:5], "big") - (1 << 39))
        return f"zero, partial or impossible date {year:04d}-{month:02d}-{day:02d}"

    def move_lines(self, line: Any, lines: Any, first: int) -> None:
        """Move this table's kernel input to other arrays.

        :param line: the table's new line.
        :param lines: new lines of its columns.
        :param first: index of the first of ``lines`` in the array of all columns.
        """
        line[:], lines[:] = self.table_line, self.column_lines
        self.table_line, self.column_lines = line, lines
        line[kernel.FIRST_COLUMN] = first

    @property
    def row_count(self) -> int:
        """Number of rows read."""
        return int(self.table_line[kernel.ROW_COUNT])

    @property
    def allocated_bytes(self) -> int:
        """Bytes allocated for all columns."""
        arrays: list[Any] = [*self._values, *self._offsets, *self._validity, self._ops, self._seqs, self._timestamps]
        return sum(a.nbytes for a in arrays)

    def grow_rows(self, rows: int | None = None) -> None:
        """Make space for a number of rows; by default, double the capacity."""
        rows = rows or 2 * int(self.table_line[kernel.ROW_CAPACITY])
        for i, plan in enumerate(self._plans):
            if plan.raw_type == SKIPPED_TYPE:
                continue
            self._validity[i] = enlarge(self._validity[i], rows // 8 + 1, 0xFF)
            if plan.kind in _WIDTHS:
                self._values[i] = enlarge(self._values[i], rows * _WIDTHS[plan.kind])
            else:
                self._offsets[i] = enlarge(self._offsets[i], rows + 1)
            self._update_addresses(i)
        self._ops, self._seqs, self._timestamps = (enlarge(a, rows) for a in (self._ops, self._seqs, self._timestamps))
        for field, array in ((kernel.OPS, self._ops), (kernel.SEQS, self._seqs), (kernel.TIMESTAMPS, self._timestamps)):
            self.table_line[field] = array.ctypes.data
        self.table_line[kernel.ROW_CAPACITY] = rows

    def grow_column(self, column: int, size: int) -> None:
        """Make space for ``size`` bytes in a column, at least doubling its capacity where possible."""
        size = max(size, min(2 * int(self.column_lines[column, kernel.CAPACITY]), buffers.MAX_STRING_BYTES))
        self._values[column] = enlarge(self._values[column], size + PADDING)
        self.column_lines[column, kernel.CAPACITY] = size
        self._update_addresses(column)

    def renumber(self, first: int, seq: int) -> None:
        """Set the ``_cdc_seq`` of all rows from index ``first`` on."""
        self._seqs[first : self.row_count] = seq

    def truncate(self, rows: int) -> None:
        """Discard all but the first ``rows`` rows."""
        for validity in (v for v in self._validity if len(v)):
            validity[rows // 8] |= 0xFF << rows % 8 & 0xFF
            validity[rows // 8 + 1 : self.row_count // 8 + 1] = 0xFF
        self.table_line[kernel.ROW_COUNT] = rows

    def take_batch(self) -> pa.RecordBatch:
        """Return a copy of the rows with the table's ``row_schema``, and empty the buffer.

        :raises UnsupportedValue: for bytes that are not valid text, and for damaged documents.
        """
        rows, schema = self.row_count, self.table_map.schema.row_schema
        arrays = [self._to_arrow(i, plan, rows) for i, plan in enumerate(self._plans) if plan.raw_type != SKIPPED_TYPE]
        added: tuple[Any, ...] = (self._seqs, self._ops, self._timestamps)
        for array, field in zip(added, list(schema)[-3:], strict=True):
            content = copy_to_arrow(array[:rows])
            buffers = [None, content]
            if field.type == pa.string():
                buffers = [None, copy_to_arrow(np.arange(rows + 1, dtype=np.int32)), content]
            arrays.append(pa.Array.from_buffers(field.type, rows, buffers))
        self.clear()
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def has_match(self, column: str, wanted: Callable[[pa.Array], pa.Array]) -> bool:
        """Return whether a mask of a column's values selects any row."""
        i = next(i for i, c in enumerate(self.table_map.schema.columns) if c.name == column)
        return bool(pc.any(wanted(self._to_arrow(i, self._plans[i], self.row_count))).as_py())

    def clear(self) -> None:
        """Empty the buffer, and free its memory if it has grown large."""
        self.truncate(0)
        self.table_line[kernel.OPEN_FIRST_ROW] = 0
        self.table_line[kernel.OPEN_ROWS_TAKEN] = 1
        if self.allocated_bytes > _MAX_KEPT_BYTES:
            self._allocate()

    def _to_arrow(self, i: int, plan: ColumnPlan, rows: int) -> pa.Array:
        validity = None
        if self.column_lines[i, kernel.HAS_NULLS]:
            validity = copy_to_arrow(self._validity[i][: (rows + 7) // 8])
            self.column_lines[i, kernel.HAS_NULLS] = 0
        if plan.kind in _WIDTHS:
            values = copy_to_arrow(self._values[i][: rows * _WIDTHS[plan.kind]])
            array = pa.Array.from_buffers(plan.raw_type, rows, [validity, values])
        else:
            offsets = self._offsets[i][: rows + 1]
            content = copy_to_arrow(self._values[i][: offsets[-1]])
            array = pa.Array.from_buffers(plan.raw_type, rows, [validity, copy_to_arrow(offsets), content])
            if plan.raw_type == pa.string() and not is_utf8(content, offsets):
                bad = _first_bad_row(array.cast(pa.binary()), convert_each(bytes.decode))
                raise UnsupportedValue(i, "text", _NOT_TEXT, int(self._seqs[bad]))
        if plan.finish is None:
            return array
        try:
            return plan.finish(array)
        except (UnicodeDecodeError, ValueError) as error:
            seq = int(self._seqs[_first_bad_row(array, plan.finish)])
            if isinstance(error, NoRoundTripError):
                raise UnsupportedValue(i, "key", str(error), seq) from None
            if isinstance(error, UnicodeDecodeError):
                raise UnsupportedValue(i, "text", _NOT_TEXT, seq) from None
            raise UnsupportedValue(i, "damaged", "damaged value", seq) from None

    def _update_addresses(self, i: int) -> None:
        self.column_lines[i, kernel.VALUES] = self._values[i].ctypes.data
        self.column_lines[i, kernel.OFFSETS] = self._offsets[i].ctypes.data
        self.column_lines[i, kernel.VALIDITY] = self._validity[i].ctypes.data


def _first_bad_row(values: pa.Array, finish: Callable[[pa.Array], pa.Array]) -> int:
    """Return the index of the first row that cannot be converted."""
    for row in range(len(values)):
        try:
            finish(pa.concat_arrays([values.slice(row, 1)]))
        except (UnicodeDecodeError, ValueError):
            return row
    return 0
