"""Changes of one table as Arrow columns while machine code fills them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_cdc.core.schema import (
    ADDRESS_TYPES,
    BINARY_TYPES,
    INTEGER_TYPES,
    MEMBER_TYPES,
    TEXT_TYPES,
    UTF8_CHARSETS,
    Column,
)
from airflow_provider_cdc.core.unfit import UnfitValue
from airflow_provider_cdc.mysql.binlog.events.table_map import (
    BLOB,
    BLOB_COMPRESSED,
    VARCHAR,
    TableMap,
    WireColumn,
    with_members,
)
from airflow_provider_cdc.mysql.binlog.kernels import row as kernel
from airflow_provider_cdc.mysql.binlog.plain.mariadb_values import inet_text, uncompressed, uuid_texts
from airflow_provider_cdc.mysql.binlog.plain.values import OLD_SIZES, decimal_size, unpack_moment, unpack_old_moment
from airflow_provider_cdc.mysql.machine import buffers
from airflow_provider_cdc.mysql.machine.buffers import copied, enlarged, is_utf8
from airflow_provider_cdc.mysql.machine.primitives import SLACK
from airflow_provider_cdc.mysql.server.charsets import Decoders, OneWayError

_INTEGERS = {
    "tinyint": (1, kernel.COPY_1, kernel.WIDEN_1),
    "smallint": (2, kernel.COPY_2, kernel.WIDEN_2),
    "mediumint": (3, kernel.SIGNED_3, kernel.WIDEN_3),
    "int": (4, kernel.COPY_4, kernel.WIDEN_4),
    "bigint": (8, kernel.COPY_8, kernel.WIDEN_8),
}
_SIMPLE = {
    "float": (4, kernel.COPY_4),
    "double": (8, kernel.COPY_8),
    "year": (1, kernel.YEAR),
    "date": (3, kernel.DATE),
}
_FRACTIONAL = {"datetime": (5, kernel.DATETIME), "timestamp": (4, kernel.TIMESTAMP), "time": (3, kernel.TIME)}
_OLD = {"datetime": kernel.OLD_DATETIME, "timestamp": kernel.OLD_TIMESTAMP, "time": kernel.OLD_TIME}
_WIDTHS = {
    **dict.fromkeys((kernel.COPY_1,), 1),
    **dict.fromkeys((kernel.COPY_2, kernel.WIDEN_1, kernel.YEAR, kernel.SHORT_YEAR, kernel.INDEX), 2),
    **dict.fromkeys((kernel.COPY_4, kernel.SIGNED_3, kernel.WIDEN_2, kernel.WIDEN_3, kernel.DATE), 4),
    **dict.fromkeys((kernel.COPY_8, kernel.WIDEN_4, kernel.DATETIME, kernel.TIMESTAMP, kernel.TIME, kernel.BITS), 8),
    **dict.fromkeys(_OLD.values(), 8),
    **dict.fromkeys((kernel.WIDEN_8, kernel.DECIMAL), 16),
}
_NOT_TEXT = "bytes that are not valid text"
_ANY_LENGTH = 1 << 40
_NOTHING = pa.null()
_FIRST_ROWS, _FIRST_BYTES = 64, 256
#: Space that is kept for the next changes; a large transaction must not hold memory for ever.
_KEPT_BYTES = 128 << 20

#: Name of a column, and a mask of its values.
Only = tuple[str, Callable[[pa.Array], pa.Array]]


class _Plan(NamedTuple):
    """How a column is read: numbers for the machine code, and what is made of the values at the end.

    :param raw: Arrow type of what the machine code stores.
    :param finish: turns an array of that type into the column's; ``UnicodeDecodeError`` and ``ValueError`` say that a
        value cannot be understood.
    """

    kind: int
    size: int
    raw: pa.DataType
    limit: int = 0
    scale: int = 0
    finish: Callable[[pa.Array], pa.Array] | None = None


def _plan(column: Column, wire: WireColumn, table: TableMap, decoders: Decoders, left_out: bool) -> _Plan:
    kind, arrow, in_key = column.data_type, column.arrow_type, column.name in table.schema.key
    texts = decoders.of_keys if in_key else decoders
    size, has_length = _size(column, wire)
    if left_out:
        return _Plan(kernel.BYTES if has_length else kernel.FIXED, size, _NOTHING)
    if kind in MEMBER_TYPES:
        column = with_members(column, table, decoders)
    if kind in INTEGER_TYPES:
        _, signed, unsigned = _INTEGERS[kind]
        return _Plan(unsigned if column.unsigned else signed, size, arrow)
    if kind == "decimal":
        how = kernel.DECIMAL if wire.precision <= 38 else kernel.LONG_DECIMAL
        return _Plan(how, size, arrow, wire.precision, wire.scale)
    if kind in _SIMPLE:
        return _Plan(kernel.SHORT_YEAR if column.two_digits else _SIMPLE[kind][1], size, arrow)
    if column.old_format:
        return _Plan(_OLD[kind], size, arrow, scale=column.fsp)
    if kind in _FRACTIONAL:
        return _Plan(_FRACTIONAL[kind][1], size, arrow, scale=(wire.size + 1) // 2)
    if kind == "enum":
        return _Plan(kernel.INDEX, size, pa.int16(), len(column.members), finish=_member(column.members, in_key))
    if kind == "set":
        return _Plan(kernel.BITS, size, pa.uint64(), len(column.members), finish=_members(column.members))
    if kind == "bit":
        return _Plan(kernel.FIXED, size, arrow)
    # What is left has a length in front.
    longest = _ANY_LENGTH if wire.type in (BLOB, BLOB_COMPRESSED) else wire.size
    if kind in ADDRESS_TYPES:
        to_text = uuid_texts if kind == "uuid" else _each(inet_text)
        return _Plan(kernel.PADDED, size, pa.binary(), longest, wire.size, finish=to_text)
    if column.compressed:
        decode = texts[str(column.charset)] if kind in TEXT_TYPES else bytes
        return _Plan(
            kernel.BYTES, size, pa.binary(), longest, finish=_each(lambda raw: decode(uncompressed(raw)), arrow)
        )
    if kind in TEXT_TYPES:
        if column.charset in UTF8_CHARSETS:
            return _Plan(kernel.BYTES, size, arrow, longest, finish=_ascii if column.charset == "ascii" else None)
        decode = texts[str(column.charset)]
        return _Plan(kernel.BYTES, size, pa.binary(), longest, finish=_each(decode))
    if kind == "binary":
        return _Plan(kernel.PADDED, size, arrow, longest, wire.size)
    if kind in BINARY_TYPES:
        return _Plan(kernel.BYTES, size, arrow, longest)
    if kind == "json":
        from airflow_provider_cdc.mysql.binlog.kernels.json import json_texts  # compiled where there is any

        return _Plan(kernel.BYTES, size, pa.binary(), _ANY_LENGTH, finish=json_texts)
    return _Plan(kernel.BYTES, size, pa.binary(), _ANY_LENGTH, finish=_vectors if pa.types.is_list(arrow) else None)


def _size(column: Column, wire: WireColumn) -> tuple[int, bool]:
    """Bytes of a value on the wire; or of the length in front of it, and that it has one."""
    kind = column.data_type
    if kind in INTEGER_TYPES:
        return _INTEGERS[kind][0], False
    if kind == "decimal":
        return decimal_size(wire.precision, wire.scale), False
    if kind in _SIMPLE:
        return _SIMPLE[kind][0], False
    if column.old_format:
        return OLD_SIZES[kind][column.fsp], False
    if kind in _FRACTIONAL:
        return _FRACTIONAL[kind][0] + (wire.size + 1) // 2, False
    if kind in MEMBER_TYPES:
        return wire.size, False
    if kind == "bit":
        return ((column.precision or 1) + 7) // 8, False
    if kind in ADDRESS_TYPES or kind in TEXT_TYPES or kind in BINARY_TYPES or wire.type == VARCHAR:
        is_blob = wire.type in (BLOB, BLOB_COMPRESSED)
        return (wire.size if is_blob else 1 if wire.size < 256 else 2), True
    return 4, True  # JSON, spatial types, vectors


def _each(convert: Callable[[bytes], Any], to: pa.DataType | None = None) -> Callable[[pa.Array], pa.Array]:
    """Convert every value, those that are equal once."""

    def finish(values: pa.Array) -> pa.Array:
        known = values.dictionary_encode()
        found = [convert(value) for value in known.dictionary.to_pylist()]
        return pa.array(found, to or pa.string()).take(known.indices)

    return finish


def _ascii(values: pa.Array) -> pa.Array:
    """Text of the charset ascii, into which MariaDB takes bytes that are none."""
    if not pc.all(pc.string_is_ascii(values)).as_py() and len(values) > values.null_count:
        raise UnicodeDecodeError("ascii", b"", 0, 0, "not ascii")
    return values


def _member(members: Sequence[str], in_key: bool) -> Callable[[pa.Array], pa.Array]:
    """The member of an ENUM by its index; 0 is a value that was not valid when it was stored, and shown as ''."""
    texts = pa.array(["", *members], pa.string())

    def finish(values: pa.Array) -> pa.Array:
        if in_key and "" in members and pc.any(pc.equal(values, 0)).as_py():
            raise OneWayError("")
        return texts.take(values)

    return finish


def _members(members: Sequence[str]) -> Callable[[pa.Array], pa.Array]:
    """The members of a SET by the bits of a number."""

    def finish(values: pa.Array) -> pa.Array:
        known = values.dictionary_encode()
        texts = [",".join(m for i, m in enumerate(members) if v >> i & 1) for v in known.dictionary.to_pylist()]
        return pa.array(texts, pa.string()).take(known.indices)

    return finish


def _vectors(values: pa.Array) -> pa.Array:
    offsets = np.frombuffer(values.buffers()[1], np.int32)[: len(values) + 1]
    if (offsets % 4).any():
        raise ValueError("a vector with a part of a number")
    floats = pa.Array.from_buffers(pa.float32(), int(offsets[-1]) // 4, [None, values.buffers()[2]])
    numbers = copied(offsets // 4)
    return pa.Array.from_buffers(pa.list_(pa.float32()), len(values), [values.buffers()[0], numbers], children=[floats])


class Space:
    """Space for changes of a table that grows as they come; it is used again after they have been taken.

    :param table: the table and its layout.
    :param texts: how its text is decoded.
    :param count_only: whether rows are only counted.
    """

    def __init__(self, table: TableMap, texts: Decoders, *, count_only: bool = False) -> None:
        self.table, columns = table, table.schema.columns
        self._plans = [
            _plan(c, wire, table, texts, count_only or c.name in table.schema.left_out)
            for c, wire in zip(columns, table.columns, strict=True)
        ]
        count = len(columns)
        #: What the machine code is told: this table's line, and the lines of its columns.
        self.line: Any = np.zeros(kernel.TABLE_FIELDS, np.int64)
        self.lines: Any = np.zeros((count, kernel.FIELDS), np.int64)
        nulls = table.schema.may_be_null
        for line, plan, column in zip(self.lines, self._plans, columns, strict=True):
            line[kernel.KIND], line[kernel.SIZE] = plan.kind, plan.size
            line[kernel.LIMIT], line[kernel.SCALE] = plan.limit, plan.scale
            line[kernel.RULES] = (
                kernel.NULLABLE * column.nullable
                + kernel.NULL_DATES * (column.name in nulls)
                + kernel.ZEROFILL * ("zerofill" in column.column_type)
                + kernel.LEFT_OUT * (plan.raw == _NOTHING)
            )
            line[kernel.KEY] = column.name in table.schema.key
        self.line[kernel.COUNT] = count
        self.line[kernel.KEYS] = 1 + max((i for i, c in enumerate(columns) if c.name in table.schema.key), default=-1)
        self.line[kernel.OPEN] = -1
        self._begin()
        if count_only:
            self.line[kernel.SPACE] = -1

    def _begin(self) -> None:
        """Make little space, for no rows."""
        count = len(self._plans)
        self._values = [np.zeros(0, np.uint8)] * count
        self._offsets = [np.zeros(1, np.int32)] * count
        self._validity = [np.zeros(0, np.uint8)] * count
        self._ops, self._seqs, self._stamps = np.zeros(0, np.uint8), np.zeros(0, np.int64), np.zeros(0, np.int64)
        self.lines[:, kernel.CAPACITY] = 0
        for i, plan in enumerate(self._plans):
            if plan.kind not in _WIDTHS and plan.raw != _NOTHING:
                self.make_room(i, _FIRST_BYTES)
        self.more_rows(_FIRST_ROWS)

    def fits(self, table: TableMap) -> bool:
        """Whether rows of another table map of the same table read alike."""
        mine = self.table
        return (table.schema, table.columns, table.members) == (mine.schema, mine.columns, mine.members)

    def why(self, column: int, data: Any, at: int) -> str:
        """What is wrong with the date that stands at a place of the data."""
        plan = self._plans[column]
        raw = data[at : at + plan.size].tobytes()
        if plan.kind in (kernel.TIMESTAMP, kernel.OLD_TIMESTAMP):
            return "zero timestamp 0000-00-00 00:00:00"
        if plan.kind == kernel.DATE:
            packed = int.from_bytes(raw, "little")
            year, month, day = packed >> 9, packed >> 5 & 15, packed & 31
        elif plan.kind == kernel.OLD_DATETIME:
            year, month, day, *_ = unpack_old_moment(raw, plan.scale)
        else:
            year, month, day, *_ = unpack_moment(int.from_bytes(raw[:5], "big") - (1 << 39))
        return f"zero, partial or impossible date {year:04d}-{month:02d}-{day:02d}"

    def move(self, line: Any, lines: Any, first: int) -> None:
        """Move the numbers for the machine code to other arrays.

        :param first: number of the first one of ``lines`` there.
        """
        line[:], lines[:] = self.line, self.lines
        self.line, self.lines = line, lines
        line[kernel.FIRST] = first

    @property
    def rows(self) -> int:
        """Rows that have been read."""
        return int(self.line[kernel.ROW])

    @property
    def size(self) -> int:
        """Bytes of all the space."""
        arrays: list[Any] = [*self._values, *self._offsets, *self._validity, self._ops, self._seqs, self._stamps]
        return sum(a.nbytes for a in arrays)

    def more_rows(self, rows: int | None = None) -> None:
        """Make space for so many rows, or for twice as many as there is space for."""
        rows = rows or 2 * int(self.line[kernel.SPACE])
        for i, plan in enumerate(self._plans):
            if plan.raw == _NOTHING:
                continue
            self._validity[i] = enlarged(self._validity[i], rows // 8 + 1, 0xFF)
            if plan.kind in _WIDTHS:
                self._values[i] = enlarged(self._values[i], rows * _WIDTHS[plan.kind])
            else:
                self._offsets[i] = enlarged(self._offsets[i], rows + 1)
            self._tell(i)
        self._ops, self._seqs, self._stamps = (enlarged(a, rows) for a in (self._ops, self._seqs, self._stamps))
        for field, array in ((kernel.OPS, self._ops), (kernel.SEQS, self._seqs), (kernel.STAMPS, self._stamps)):
            self.line[field] = array.ctypes.data
        self.line[kernel.SPACE] = rows

    def make_room(self, column: int, size: int) -> None:
        """Make space for so many bytes in a column, or for twice as many as there is space for."""
        size = max(size, min(2 * int(self.lines[column, kernel.CAPACITY]), buffers.LARGEST))
        self._values[column] = enlarged(self._values[column], size + SLACK)
        self.lines[column, kernel.CAPACITY] = size
        self._tell(column)

    def stamp(self, first: int, seq: int) -> None:
        """Give all rows from ``first`` on another ``_cdc_seq``."""
        self._seqs[first : self.rows] = seq

    def cut(self, rows: int) -> None:
        """Forget all rows but the first ones."""
        for validity in (v for v in self._validity if len(v)):
            validity[rows // 8] |= 0xFF << rows % 8 & 0xFF
            validity[rows // 8 + 1 : self.rows // 8 + 1] = 0xFF
        self.line[kernel.ROW] = rows

    def take(self) -> pa.RecordBatch:
        """The rows, copied out of the space, with the sink's schema; the space is empty afterwards.

        :raises UnfitValue: for bytes that are not text, and damaged documents.
        """
        rows, schema = self.rows, self.table.schema.sink_schema
        arrays = [self._array(i, plan, rows) for i, plan in enumerate(self._plans) if plan.raw != _NOTHING]
        added: tuple[Any, ...] = (self._seqs, self._ops, self._stamps)
        for array, field in zip(added, list(schema)[-3:], strict=True):
            content = copied(array[:rows])
            buffers = [None, content]
            if field.type == pa.string():
                buffers = [None, copied(np.arange(rows + 1, dtype=np.int32)), content]
            arrays.append(pa.Array.from_buffers(field.type, rows, buffers))
        self.forget()
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def has(self, column: str, wanted: Callable[[pa.Array], pa.Array]) -> bool:
        """Whether a mask of a column's values lets any row through."""
        i = next(i for i, c in enumerate(self.table.schema.columns) if c.name == column)
        return bool(pc.any(wanted(self._array(i, self._plans[i], self.rows))).as_py())

    def forget(self) -> None:
        """Empty the space."""
        self.cut(0)
        self.line[kernel.OPEN_ROW] = 0
        self.line[kernel.TAKEN] = 1
        if self.size > _KEPT_BYTES:
            self._begin()

    def _array(self, i: int, plan: _Plan, rows: int) -> pa.Array:
        validity = None
        if self.lines[i, kernel.NULLS]:
            validity = copied(self._validity[i][: (rows + 7) // 8])
            self.lines[i, kernel.NULLS] = 0
        if plan.kind in _WIDTHS:
            values = copied(self._values[i][: rows * _WIDTHS[plan.kind]])
            array = pa.Array.from_buffers(plan.raw, rows, [validity, values])
        else:
            offsets = self._offsets[i][: rows + 1]
            content = copied(self._values[i][: offsets[-1]])
            array = pa.Array.from_buffers(plan.raw, rows, [validity, copied(offsets), content])
            if plan.raw == pa.string() and not is_utf8(content, offsets):
                bad = _bad(array.cast(pa.binary()), _each(bytes.decode))
                raise UnfitValue(i, "text", _NOT_TEXT, int(self._seqs[bad]))
        if plan.finish is None:
            return array
        try:
            return plan.finish(array)
        except (UnicodeDecodeError, ValueError) as error:
            seq = int(self._seqs[_bad(array, plan.finish)])
            if isinstance(error, OneWayError):
                raise UnfitValue(i, "key", str(error), seq) from None
            if isinstance(error, UnicodeDecodeError):
                raise UnfitValue(i, "text", _NOT_TEXT, seq) from None
            raise UnfitValue(i, "damaged", "damaged value", seq) from None

    def _tell(self, i: int) -> None:
        self.lines[i, kernel.VALUES] = self._values[i].ctypes.data
        self.lines[i, kernel.OFFSETS] = self._offsets[i].ctypes.data
        self.lines[i, kernel.VALIDITY] = self._validity[i].ctypes.data


def _bad(values: pa.Array, finish: Callable[[pa.Array], pa.Array]) -> int:
    """Number of the first row that cannot be understood."""
    for row in range(len(values)):
        try:
            finish(pa.concat_arrays([values.slice(row, 1)]))
        except (UnicodeDecodeError, ValueError):
            return row
    return 0
