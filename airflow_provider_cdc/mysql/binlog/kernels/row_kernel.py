"""Decode binlog row images into Arrow buffers, with one compiled kernel for all tables.

A table is described by numbers: a line of ``tables``, and a line of ``lines`` for each of its columns. Nothing that
arrives over the wire is trusted: every read is checked against the end of the event, and every write against the
capacity that the caller provides. :mod:`airflow_provider_cdc.mysql.binlog.walk.change_buffer` owns the buffers.
"""
# ruff: noqa: SIM109 (the compiler makes less of "in")

from __future__ import annotations

from typing import Any

import numpy as np

from airflow_provider_cdc.mysql.binlog.kernels import packed_values
from airflow_provider_cdc.mysql.binlog.kernels.packed_values import (
    read_date,
    read_datetime,
    read_decimal,
    read_long_decimal,
    read_old_datetime,
    read_old_time,
    read_old_timestamp,
    read_time,
    read_timestamp,
)
from airflow_provider_cdc.native import primitives
from airflow_provider_cdc.native.compile import compiled
from airflow_provider_cdc.native.primitives import (
    clear_bit,
    copy_bytes,
    inlined,
    load32,
    not_inlined,
    read16,
    read32,
    read64,
    store8,
    store16,
    store32,
    store64,
)

# Results of a call: everything was read; more rows are needed, or more room in a column; a value that its type cannot
# represent; invalid bytes.
DONE, NEED_ROWS, NEED_ROOM, INVALID_VALUE, DAMAGED = range(5)

# How a column is read. Values of all kinds before PADDED have the size on the wire that their line says.
(
    COPY_1,  # copied unchanged, with the size in bytes
    COPY_2,
    COPY_4,
    COPY_8,
    SIGNED_3,
    WIDEN_1,  # unsigned, into the next wider signed type
    WIDEN_2,
    WIDEN_3,
    WIDEN_4,
    WIDEN_8,  # into a decimal of 128 bits
    YEAR,
    SHORT_YEAR,  # two digits
    DATE,
    DATETIME,
    TIMESTAMP,
    TIME,
    OLD_DATETIME,  # this and the next two are in the format of MariaDB 5.3
    OLD_TIMESTAMP,
    OLD_TIME,
    DECIMAL,
    ENUM_INDEX,  # index of an ENUM member, into 16 bits
    SET_BITS,  # bits of SET members, into 64 bits
    LONG_DECIMAL,  # into text
    FIXED,  # bytes of a fixed size, into a binary column
    PADDED,  # length and bytes; restores trailing zeros that the server removed
    BYTES,  # length and bytes
) = range(26)
_FIRST_IN_BYTES, _FIRST_VARIABLE = LONG_DECIMAL, PADDED

# The fields of a column's line. WIRE_SIZE: bytes on the wire, or of the length prefix. LIMIT: maximum bytes, digits of
# a decimal, members of an ENUM or SET. SCALE: digits after the point, bytes of a fraction of a second (its digits in
# the old format), bytes to pad to. COLUMN_FLAGS: a sum of NULLABLE, NULL_DATES (invalid dates become NULL), ZEROFILL
# and EXCLUDED (not stored). IN_KEY: whether the column is part of the key.
KIND, WIRE_SIZE, LIMIT, SCALE, VALUES, OFFSETS, VALIDITY, HAS_NULLS, CAPACITY, COLUMN_FLAGS, IN_KEY = range(11)
COLUMN_FIELDS = 11
NULLABLE, NULL_DATES, ZEROFILL, EXCLUDED = 1, 2, 4, 8

# The fields of a table's line: the index of its first column and the number of columns; the number of columns up to the
# last one of the key; rows and the capacity for them (negative: rows are only counted); the addresses of the added
# columns; the last transaction that changed the table, its first row, and whether rows of it have been taken.
(
    FIRST_COLUMN,
    COLUMN_COUNT,
    KEY_PREFIX_COLUMNS,
    ROW_COUNT,
    ROW_CAPACITY,
    OPS,
    SEQS,
    TIMESTAMPS,
    CHANGED_BY,
    OPEN_FIRST_ROW,
    OPEN_ROWS_TAKEN,
) = range(11)
TABLE_FIELDS = 11

# Operations of row events, and the values of ``_cdc_op``.
INSERT, UPDATE, DELETE = range(3)
_C, _U, _D, _BEFORE = ord("c"), ord("u"), ord("d"), ord("b")

# Output of a call: offset of the next image, line of the failed column, and bytes wanted.
NEXT_IMAGE, FAILED_COLUMN, WANTED_SIZE = range(3)
STATE_SIZE = 3

#: Maximum bytes of a decimal as text.
_LONGEST_DECIMAL = 80


@inlined  # type: ignore[untyped-decorator]
def _read_uint(data: Any, at: Any, size: Any) -> Any:
    """Return a number of 1 to 4 bytes."""
    return np.int64(np.uint64(read32(data, at)) & ((np.uint64(1) << np.uint64(8 * size)) - np.uint64(1)))


@not_inlined  # type: ignore[untyped-decorator]
def _null_bitmap_size(data: Any, present: Any, count: Any) -> Any:
    """Return the bytes of the NULL bitmap, which has one bit for each column present in the image."""
    having = np.int64(0)
    for c in range(count):
        having += (data[present + (c >> 3)] >> (c & 7)) & 1
    return (having + 7) >> 3


@inlined  # type: ignore[untyped-decorator]
def _store_null(kind: Any, lines: Any, i: Any, row: Any) -> Any:
    """Store the placeholder of a NULL, which is always zero or empty."""
    values = lines[i, VALUES]
    if kind >= _FIRST_IN_BYTES:
        offsets = lines[i, OFFSETS] + 4 * row
        store32(offsets + 4, load32(offsets))
    elif kind == DECIMAL or kind == WIDEN_8:
        store64(values + 16 * row, np.uint64(0))
        store64(values + 16 * row + 8, np.uint64(0))
    elif kind == COPY_8 or kind == WIDEN_4 or (kind >= DATETIME and kind <= OLD_TIME) or kind == SET_BITS:
        store64(values + 8 * row, np.uint64(0))
    elif kind == COPY_4 or kind == SIGNED_3 or kind == WIDEN_2 or kind == WIDEN_3 or kind == DATE:
        store32(values + 4 * row, np.uint32(0))
    elif kind == COPY_1:
        store8(values + row, np.uint8(0))
    else:
        store16(values + 2 * row, np.uint16(0))


@inlined  # type: ignore[untyped-decorator]
def _store_temporal(data: Any, at: Any, kind: Any, size: Any, fraction: Any, target: Any) -> Any:
    """Store a date or time; return DONE or what is wrong."""
    if kind == DATE:
        stored, why = read_date(data, at)
        store32(target, np.uint32(stored))
        return why
    if kind == DATETIME:
        stored, why = read_datetime(data, at, fraction)
    elif kind == TIMESTAMP:
        stored, why = read_timestamp(data, at, fraction)
    elif kind == TIME:
        stored, why = read_time(data, at, fraction)
    elif kind == OLD_DATETIME:
        stored, why = read_old_datetime(data, at, size, fraction)
    elif kind == OLD_TIMESTAMP:
        stored, why = read_old_timestamp(data, at, size, fraction)
    else:
        stored, why = read_old_time(data, at, size, fraction)
    store64(target, np.uint64(stored))
    return why


@inlined  # type: ignore[untyped-decorator]
def _store_fixed(data: Any, at: Any, kind: Any, size: Any, lines: Any, i: Any, row: Any) -> Any:
    """Store a value of one of the fixed-size kinds; return DONE or DAMAGED."""
    values = lines[i, VALUES]
    if kind == COPY_1:
        store8(values + row, data[at])
    elif kind == COPY_2:
        store16(values + 2 * row, read16(data, at))
    elif kind == SIGNED_3:
        store32(values + 4 * row, np.uint32(np.int64(np.int32(read32(data, at) << np.uint32(8))) >> 8))
    elif kind == WIDEN_1:
        store16(values + 2 * row, np.uint16(data[at]))
    elif kind == WIDEN_2:
        store32(values + 4 * row, np.uint32(read16(data, at)))
    elif kind == WIDEN_3:
        store32(values + 4 * row, np.uint32(read32(data, at) & np.uint32(0xFFFFFF)))
    elif kind == WIDEN_4:
        store64(values + 8 * row, np.uint64(read32(data, at)))
    elif kind == WIDEN_8:
        store64(values + 16 * row, read64(data, at))
        store64(values + 16 * row + 8, np.uint64(0))
    elif kind == YEAR:
        store16(values + 2 * row, np.uint16(1900 + np.int64(data[at]) if data[at] != 0 else 0))
    elif kind == SHORT_YEAR:
        store16(values + 2 * row, np.uint16(data[at] % 100))
    elif kind == DECIMAL:
        if not read_decimal(data, at, lines[i, LIMIT], lines[i, SCALE], values + 16 * row):
            return DAMAGED
    elif kind == ENUM_INDEX:
        number = _read_uint(data, at, size)
        store16(values + 2 * row, np.uint16(number))
        if number > lines[i, LIMIT]:
            return DAMAGED
    else:  # SET_BITS
        bits = np.uint64(read64(data, at))
        if size < 8:
            bits &= (np.uint64(1) << np.uint64(8 * size)) - np.uint64(1)
        store64(values + 8 * row, bits)
        if lines[i, LIMIT] < 64 and bits >> np.uint64(lines[i, LIMIT]) != np.uint64(0):
            return DAMAGED
    return DONE


@not_inlined  # type: ignore[untyped-decorator]
def _read_image(
    data: Any, at: Any, end: Any, lines: Any, first: Any, count: Any, present: Any, row: Any, state: Any
) -> Any:
    """Read one image into a row; after NEED_ROOM, the same row may be read again.

    :param present: offset of the bitmap of the columns present, others become NULL; ``None`` if all are present.
    :returns: where the image ends, or the negated reason for a failure.
    """
    nulls, absent = at, np.int64(0)
    at += (count + 7) >> 3 if present is None else _null_bitmap_size(data, present, count)
    if at > end:
        return -DAMAGED
    for c in range(count):
        i = first + c
        kind, size = lines[i, KIND], lines[i, WIRE_SIZE]
        state[FAILED_COLUMN] = first + c
        bit, is_there = c - absent, True
        if present is not None:
            is_there = (data[present + (c >> 3)] >> (c & 7)) & 1 != 0
            absent += not is_there
        if not is_there or (data[nulls + (bit >> 3)] >> (bit & 7)) & 1:
            if is_there and not lines[i, COLUMN_FLAGS] & NULLABLE:
                return -DAMAGED
            if not lines[i, COLUMN_FLAGS] & EXCLUDED:
                lines[i, HAS_NULLS] = 1
                clear_bit(lines[i, VALIDITY], row)
                _store_null(kind, lines, i, row)
            continue
        if at + size > end:
            return -DAMAGED
        if lines[i, COLUMN_FLAGS] & EXCLUDED:
            if kind >= _FIRST_VARIABLE:
                length = _read_uint(data, at, size)
                if length > end - at - size:
                    return -DAMAGED
                at += length
            at += size
        elif kind == COPY_4:
            store32(lines[i, VALUES] + 4 * row, read32(data, at))
            at += size
        elif kind == COPY_8:
            store64(lines[i, VALUES] + 8 * row, read64(data, at))
            at += size
        elif kind >= _FIRST_IN_BYTES:
            if kind >= _FIRST_VARIABLE:
                length = _read_uint(data, at, size)
                at += size
                if length > end - at or length > lines[i, LIMIT]:
                    return -DAMAGED
            else:
                length = size
            stored_size = lines[i, SCALE] if kind == PADDED else (_LONGEST_DECIMAL if kind == LONG_DECIMAL else length)
            offsets = lines[i, OFFSETS] + 4 * row
            used = np.int64(load32(offsets))
            if used + stored_size > lines[i, CAPACITY]:
                state[WANTED_SIZE] = used + stored_size
                return -NEED_ROOM
            target = lines[i, VALUES] + used
            if kind == LONG_DECIMAL:
                stored_size = read_long_decimal(
                    data, at, lines[i, LIMIT], lines[i, SCALE], lines[i, COLUMN_FLAGS] & ZEROFILL, target
                )
                if stored_size < 0:
                    return -DAMAGED
            elif length <= 16:
                store64(target, read64(data, at))
                store64(target + 8, read64(data, at + 8))
            else:
                copy_bytes(target, data, at, length)
            if kind == PADDED:
                for n in range(length, stored_size):
                    store8(target + n, np.uint8(0))
            store32(offsets + 4, np.uint32(used + stored_size))
            at += length
        elif kind >= DATE and kind <= OLD_TIME:
            target = lines[i, VALUES] + (4 if kind == DATE else 8) * row
            why = _store_temporal(data, at, kind, size, lines[i, SCALE], target)
            if why == INVALID_VALUE and lines[i, COLUMN_FLAGS] & NULL_DATES:
                lines[i, HAS_NULLS] = 1
                clear_bit(lines[i, VALIDITY], row)
                _store_null(kind, lines, i, row)
            elif why != DONE:
                state[WANTED_SIZE] = at
                return -why
            at += size
        else:
            if _store_fixed(data, at, kind, size, lines, i, row) != DONE:
                return -DAMAGED
            at += size
    return at


@not_inlined  # type: ignore[untyped-decorator]
def _skip_image(data: Any, at: Any, end: Any, lines: Any, first: Any, count: Any, present: Any) -> Any:
    """Return where an image ends, or a negative number if it is damaged."""
    nulls, absent = at, np.int64(0)
    at += (count + 7) >> 3 if present is None else _null_bitmap_size(data, present, count)
    if at > end:
        return -1
    for c in range(count):
        bit = c - absent
        if present is not None and not (data[present + (c >> 3)] >> (c & 7)) & 1:
            absent += 1
            continue
        if (data[nulls + (bit >> 3)] >> (bit & 7)) & 1:
            continue
        size = lines[first + c, WIRE_SIZE]
        if at + size > end:
            return -1
        if lines[first + c, KIND] >= _FIRST_VARIABLE:
            length = _read_uint(data, at, size)
            if length > end - at - size:
                return -1
            at += length
        at += size
    return at


@not_inlined  # type: ignore[untyped-decorator]
def _same_key(
    data: Any,
    start: Any,
    middle: Any,
    end: Any,
    lines: Any,
    first: Any,
    count: Any,
    keys: Any,
    before: Any,
    after: Any,
) -> Any:
    """Return whether the images at [start, middle) and [middle, end) have identical bytes in all key columns.

    The first image has been checked, the second one has not.
    """
    a, b, absent_a, absent_b = start, middle, np.int64(0), np.int64(0)
    a += (count + 7) >> 3 if before is None else _null_bitmap_size(data, before, count)
    b += (count + 7) >> 3 if after is None else _null_bitmap_size(data, after, count)
    if b > end:
        return False
    for c in range(keys):
        size, variable = lines[first + c, WIRE_SIZE], lines[first + c, KIND] >= _FIRST_VARIABLE
        null_a = (data[start + ((c - absent_a) >> 3)] >> ((c - absent_a) & 7)) & 1
        null_b = (data[middle + ((c - absent_b) >> 3)] >> ((c - absent_b) & 7)) & 1
        if before is not None and not (data[before + (c >> 3)] >> (c & 7)) & 1:
            null_a = np.uint8(1)  # an absent column has no bytes
            absent_a += 1
        if after is not None and not (data[after + (c >> 3)] >> (c & 7)) & 1:
            null_b = np.uint8(1)
            absent_b += 1
        if b + size > end:
            return False
        size_a = 0 if null_a else size + (_read_uint(data, a, size) if variable else 0)
        size_b = 0 if null_b else size + (_read_uint(data, b, size) if variable else 0)
        if size_b > end - b:
            return False
        if lines[first + c, IN_KEY]:
            if null_a != null_b or size_a != size_b:
                return False
            for i in range(size_a):
                if data[a + i] != data[b + i]:
                    return False
        a += size_a
        b += size_b
    return keys > 0  # without a key, every update deletes one row and inserts another


@not_inlined  # type: ignore[untyped-decorator]
def _count_rows(
    data: Any, at: Any, end: Any, change: Any, table: Any, lines: Any, before: Any, after: Any, state: Any
) -> Any:
    """Count the rows of an event without decoding them; return DONE or DAMAGED."""
    first, count, rows = table[FIRST_COLUMN], table[COLUMN_COUNT], 0
    while at < end:
        if change == UPDATE:
            at = _skip_image(data, at, end, lines, first, count, before)
        if at >= 0:
            at = _skip_image(data, at, end, lines, first, count, after) if at < end else -1
        if at < 0:
            state[FAILED_COLUMN] = -1
            return DAMAGED
        rows += 1
    table[ROW_COUNT] += rows
    return DONE


@not_inlined  # type: ignore[untyped-decorator]
def read_images(
    data: Any,
    at: Any,
    end: Any,
    table_number: Any,
    operation: Any,
    before: Any,
    after: Any,
    with_before_images: Any,
    seq: Any,
    commit_us: Any,
    tables: Any,
    lines: Any,
    state: Any,
) -> Any:
    """Read the images of an event; see :func:`read_rows`.

    :param before: offset of the bitmap of columns in the before images of updates; ``None`` if all are present.
    :param after: the same for the after images of updates, and for all images of inserts and deletes.
    """
    table = tables[table_number]
    if table[ROW_CAPACITY] < 0:
        return _count_rows(data, at, end, operation, table, lines, before, after, state)
    first, count, row = table[FIRST_COLUMN], table[COLUMN_COUNT], table[ROW_COUNT]
    why = DONE
    while at < end:
        if row + 2 > table[ROW_CAPACITY]:
            why = NEED_ROWS
            break
        start, op, last = at, _C, row
        if operation == UPDATE:
            op, start = _U, _skip_image(data, at, end, lines, first, count, before)
            if start < 0 or start >= end:
                why = DAMAGED
                state[FAILED_COLUMN] = -1
                break
            if with_before_images or not _same_key(
                data, at, start, end, lines, first, count, table[KEY_PREFIX_COLUMNS], before, after
            ):
                image_end = _read_image(data, at, start, lines, first, count, before, row, state)
                if image_end < 0:
                    why = -image_end
                    break
                store8(table[OPS] + row, np.uint8(_BEFORE if with_before_images else _D))
                last = row + 1
        elif operation == DELETE:
            op = _D
        image_end = _read_image(data, start, end, lines, first, count, after, last, state)
        if image_end < 0:
            why = -image_end
            break
        store8(table[OPS] + last, np.uint8(op))
        for i in range(row, last + 1):
            store64(table[SEQS] + 8 * i, np.uint64(seq))
            store64(table[TIMESTAMPS] + 8 * i, np.uint64(commit_us))
        row, at = last + 1, image_end
    table[ROW_COUNT], state[NEXT_IMAGE] = row, at
    return why


@compiled(
    "int64(uint8[::1], int64, int64, int64, int64, int64, int64, int64, int64, int64[:, ::1], int64[:, ::1], "
    "int64[::1])",
    __file__,
    packed_values.__file__,
    primitives.__file__,
)
def read_rows(
    data: Any,
    at: Any,
    end: Any,
    table_number: Any,
    operation: Any,
    present: Any,
    with_before_images: Any,
    seq: Any,
    commit_us: Any,
    tables: Any,
    lines: Any,
    state: Any,
) -> Any:
    """Read the row images at [at, end) of a byte array into the columns of a table.

    An insert yields a row ``c`` with the new image, a delete a row ``d`` with the old image. An update yields a row
    ``u`` with the new image, preceded by a row ``d`` with the old image if the key changed. If rows are only counted,
    an update counts as one.

    :param table_number: the table's line in ``tables``.
    :param operation: INSERT, UPDATE or DELETE.
    :param present: offset, before the images, of the bitmap of their columns; for an update, of one for the before
        images followed by one for the after images. Negative if all columns are present.
    :param with_before_images: whether every update also yields its old image, as ``b``.
    :param seq: ``_cdc_seq`` of the rows.
    :param commit_us: ``_cdc_ts`` of the rows.
    :param state: receives where the call ended, for the next call; array of STATE_SIZE numbers.
    :returns: DONE, or why the call ended early.
    """
    if (
        at < 0
        or at > end
        or end + primitives.PADDING > data.shape[0]
        or table_number < 0
        or table_number >= tables.shape[0]
    ):
        return DAMAGED
    if present < 0:
        return read_images(
            data, at, end, table_number, operation, None, None, with_before_images, seq, commit_us, tables, lines, state
        )
    size = (tables[table_number, COLUMN_COUNT] + 7) >> 3
    after = present + size if operation == UPDATE else present
    if after + size > at:
        return DAMAGED
    return read_images(
        data, at, end, table_number, operation, present, after, with_before_images, seq, commit_us, tables, lines, state
    )
