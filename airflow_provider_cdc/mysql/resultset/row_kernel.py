"""Decode rows of the binary result protocol into Arrow buffers, with the same machine code for every table.

The code is compiled once per machine (see :mod:`airflow_provider_cdc.native.compile`). Numbers describe the table to
it, one line of ``columns`` per column. It trusts nothing that came over the wire: every read is checked against the end
of its packet, and every write against the capacity of its buffer. Importing this module also imports numba, so import
it late.
"""
# ruff: noqa: SIM109 (the compiler generates worse code for "in")

from __future__ import annotations

from typing import Any

import numpy as np

from airflow_provider_cdc.native import primitives
from airflow_provider_cdc.native.compile import compiled
from airflow_provider_cdc.native.primitives import (
    INVALID_DATE,
    PADDING,
    clear_bit,
    copy_bytes,
    days_since_1970,
    inlined,
    load32,
    read16,
    read32,
    read64,
    store8,
    store16,
    store32,
    store64,
)

# Why a call ended: a row was read; the data ended; at a packet that is not a row; at a row of several packets; no space
# for another row, or not enough room in a column; and errors.
ROW_READ, NEED_DATA, NOT_A_ROW, MULTI_PACKET_ROW, NEED_ROWS, NEED_ROOM, OUT_OF_SEQUENCE, MALFORMED, INVALID_VALUE = (
    range(9)
)

# How a column is read: its form on the wire, and its conversion.
(
    COPY_1,  # this many bytes, unchanged
    COPY_2,
    COPY_4,
    COPY_8,
    WIDEN_1,  # unsigned, into the next wider signed type
    WIDEN_2,
    WIDEN_4,
    WIDEN_8,  # into a 128-bit decimal
    DATE,
    DATETIME,
    TIME,
    DECIMAL,
    BYTES,
) = range(13)

# The fields of a column's line. SCALE: digits after the point of a decimal; for a date, whether a zero date is NULL.
KIND, SCALE, VALUES, OFFSETS, VALIDITY, HAS_NULLS, CAPACITY = range(7)
COLUMN_FIELDS = 7

# The fields of the state that calls share: where to continue, the next row and packet number, which column failed, and
# how many bytes are needed.
DATA_AT, ROW, PACKET_NUMBER, FAILED_COLUMN, WANTED_BYTES = range(5)
STATE_SIZE = 5


@inlined  # type: ignore[untyped-decorator]
def _read_length(data: Any, at: Any, end: Any) -> Any:
    """Return (length-encoded integer, where it ends); -1 if there is none."""
    if at >= end:
        return -1, at
    first: Any = np.int64(data[at])
    if first < 251:
        return first, at + 1
    if first == 252 and at + 3 <= end:
        return np.int64(read16(data, at + 1)), at + 3
    if first == 253 and at + 4 <= end:
        return np.int64(read32(data, at)) >> 8, at + 4
    if first == 254 and at + 9 <= end:
        return np.int64(read64(data, at + 1)), at + 9  # the caller rejects a negative length like one that is too long
    return -1, at


@inlined  # type: ignore[untyped-decorator]
def _read_clock(data: Any, at: Any, size: Any) -> Any:
    """Return a time of day in microseconds; -1 if it is invalid. It has a fraction if ``size`` is 7 bytes."""
    hour, minute, second = np.int64(data[at]), np.int64(data[at + 1]), np.int64(data[at + 2])
    micros = np.int64(read32(data, at + 3)) if size == 7 else np.int64(0)
    if hour > 23 or minute > 59 or second > 59 or micros > 999_999:
        return -1
    return ((hour * 60 + minute) * 60 + second) * 1_000_000 + micros


@inlined  # type: ignore[untyped-decorator]
def _store_decimal(data: Any, at: Any, end: Any, scale: Any, address: Any) -> Any:
    """Store a decimal in text form; return whether it is valid and has ``scale`` digits after the point."""
    negative = at < end and data[at] == ord("-")
    if negative:
        at += 1
    digits, point, low, power, high = 0, -1, np.uint64(0), np.uint64(1), np.uint64(0)
    # The first 19 significant digits go into one word, the others into a second one: high * power + low.
    for i in range(at, end):
        c = np.int64(data[i])
        if c == ord("."):
            if point >= 0:
                return False
            point = i
            continue
        if c < ord("0") or c > ord("9"):
            return False
        if digits == 0 and c == ord("0"):
            continue
        digits += 1
        if digits <= 19:
            low = low * np.uint64(10) + np.uint64(c - ord("0"))
        elif digits <= 38:
            if digits == 20:
                high, low = low, np.uint64(0)
            low = low * np.uint64(10) + np.uint64(c - ord("0"))
            power = power * np.uint64(10)
        else:
            return False
    behind = end - point - 1 if point >= 0 else 0
    if behind != scale or end - at - (1 if point >= 0 else 0) < 1:
        return False
    mask = np.uint64(0xFFFFFFFF)
    a, b = high >> np.uint64(32), high & mask
    c1, d = power >> np.uint64(32), power & mask
    bottom = b * d
    middle = a * d + (bottom >> np.uint64(32))
    second = b * c1 + (middle & mask)
    product_low = (second << np.uint64(32)) | (bottom & mask)
    product_high = a * c1 + (middle >> np.uint64(32)) + (second >> np.uint64(32))
    word = product_low + low
    top = product_high + (np.uint64(1) if word < low else np.uint64(0))
    if negative:
        word = ~word + np.uint64(1)
        top = ~top + (np.uint64(1) if word == np.uint64(0) else np.uint64(0))
    store64(address, word)
    store64(address + 8, top)
    return True


@inlined  # type: ignore[untyped-decorator]
def _store_temporal(data: Any, at: Any, end: Any, kind: Any, address: Any) -> Any:
    """Store a date, a date with time, or a time; return where it ends, or the negative error code."""
    if at >= end:
        return -MALFORMED
    size = np.int64(data[at])
    at += 1
    if at + size > end:
        return -MALFORMED
    if kind == TIME:
        if size == 0:
            store64(address, np.uint64(0))
            return at
        if size != 8 and size != 12:
            return -MALFORMED
        clock = _read_clock(data, at + 5, size - 5)
        days = np.int64(read32(data, at + 1))
        if clock < 0 or days > 34 or data[at] > 1:
            return -MALFORMED
        clock += days * 86_400_000_000
        store64(address, np.uint64(-clock if data[at] == 1 else clock))
        return at + size
    if size == 0:
        return -INVALID_VALUE
    if size != 4 and (kind == DATE or (size != 7 and size != 11)):
        return -MALFORMED
    day = days_since_1970(np.int64(read16(data, at)), np.int64(data[at + 2]), np.int64(data[at + 3]))
    if day == INVALID_DATE:
        return -INVALID_VALUE
    if kind == DATE:
        store32(address, np.uint32(day))
        return at + size
    clock = _read_clock(data, at + 4, size - 4) if size > 4 else np.int64(0)
    if clock < 0:
        return -MALFORMED
    store64(address, np.uint64(day * 86_400_000_000 + clock))
    return at + size


@inlined  # type: ignore[untyped-decorator]
def _store_null(kind: Any, values: Any, row: Any) -> Any:
    """Store zero in place of NULL, so that the buffers are deterministic."""
    if kind == DECIMAL or kind == WIDEN_8:
        store64(values + 16 * row, np.uint64(0))
        store64(values + 16 * row + 8, np.uint64(0))
    elif kind == COPY_8 or kind == WIDEN_4 or kind == DATETIME or kind == TIME:
        store64(values + 8 * row, np.uint64(0))
    elif kind == COPY_4 or kind == WIDEN_2 or kind == DATE:
        store32(values + 4 * row, np.uint32(0))
    elif kind == COPY_2 or kind == WIDEN_1:
        store16(values + 2 * row, np.uint16(0))
    else:
        store8(values + row, np.uint8(0))


@inlined  # type: ignore[untyped-decorator]
def _read_row(data: Any, at: Any, end: Any, columns: Any, row: Any, state: Any) -> Any:
    """Read one row. After NEED_ROOM, the same row may be read again."""
    count = columns.shape[0]
    nulls = at + 1
    at = nulls + ((count + 9) >> 3)
    if at > end or data[nulls - 1] != 0:
        return MALFORMED
    for i in range(count):
        kind, values = columns[i, KIND], columns[i, VALUES]
        if (data[nulls + ((i + 2) >> 3)] >> ((i + 2) & 7)) & 1:
            columns[i, HAS_NULLS] = 1
            clear_bit(columns[i, VALIDITY], row)
            if kind == BYTES:
                offsets = columns[i, OFFSETS] + 4 * row
                store32(offsets + 4, load32(offsets))
            else:
                _store_null(kind, values, row)
            continue
        if kind == BYTES:
            size, at = _read_length(data, at, end)
            if size < 0 or size > end - at:
                state[FAILED_COLUMN] = i
                return MALFORMED
            offsets = columns[i, OFFSETS] + 4 * row
            used = np.int64(load32(offsets))
            if used + size > columns[i, CAPACITY]:
                state[FAILED_COLUMN], state[WANTED_BYTES] = i, used + size
                return NEED_ROOM
            target = values + used
            if size <= 16:
                store64(target, read64(data, at))
                store64(target + 8, read64(data, at + 8))
            else:
                copy_bytes(target, data, at, size)
            store32(offsets + 4, np.uint32(used + size))
            at += size
        elif kind == COPY_4:
            if at + 4 > end:
                return MALFORMED
            store32(values + 4 * row, read32(data, at))
            at += 4
        elif kind == COPY_8:
            if at + 8 > end:
                return MALFORMED
            store64(values + 8 * row, read64(data, at))
            at += 8
        elif kind == DATE or kind == DATETIME or kind == TIME:
            state[FAILED_COLUMN] = i
            start = at
            at = _store_temporal(data, at, end, kind, values + (4 if kind == DATE else 8) * row)
            if at == -INVALID_VALUE and columns[i, SCALE]:
                columns[i, HAS_NULLS] = 1
                clear_bit(columns[i, VALIDITY], row)
                _store_null(kind, values, row)
                at = start + 1 + np.int64(data[start])
            elif at < 0:
                state[WANTED_BYTES] = start
                return -at
        elif kind == DECIMAL:
            size, at = _read_length(data, at, end)
            state[FAILED_COLUMN] = i
            if size < 0 or size > end - at:
                return MALFORMED
            if not _store_decimal(data, at, at + size, columns[i, SCALE], values + 16 * row):
                return MALFORMED
            at += size
        elif kind == COPY_1:
            if at + 1 > end:
                return MALFORMED
            store8(values + row, data[at])
            at += 1
        elif kind == WIDEN_1:
            if at + 1 > end:
                return MALFORMED
            store16(values + 2 * row, np.uint16(data[at]))
            at += 1
        elif kind == COPY_2:
            if at + 2 > end:
                return MALFORMED
            store16(values + 2 * row, read16(data, at))
            at += 2
        elif kind == WIDEN_2:
            if at + 2 > end:
                return MALFORMED
            store32(values + 4 * row, np.uint32(read16(data, at)))
            at += 2
        elif kind == WIDEN_4:
            if at + 4 > end:
                return MALFORMED
            store64(values + 8 * row, np.uint64(read32(data, at)))
            at += 4
        else:  # WIDEN_8
            if at + 8 > end:
                return MALFORMED
            store64(values + 16 * row, read64(data, at))
            store64(values + 16 * row + 8, np.uint64(0))
            at += 8
    return ROW_READ if at == end else MALFORMED


@compiled("int64(uint8[::1], int64, int64, int64[:, ::1], int64, int64[::1])", __file__, primitives.__file__)
def read_row(data: Any, at: Any, end: Any, columns: Any, row: Any, state: Any) -> Any:
    """Read one row at [at, end), without packet headers."""
    if at < 0 or at >= end or end + PADDING > data.shape[0]:
        return MALFORMED
    return _read_row(data, at, end, columns, row, state)


@compiled("int64(uint8[::1], int64, int64[:, ::1], int64, int64[::1])", __file__, primitives.__file__)
def read_rows(data: Any, end: Any, columns: Any, rows: Any, state: Any) -> Any:
    """Read the row packets in a byte array from ``state[DATA_AT]`` up to ``end``.

    :param rows: number of rows that the columns have space for.
    :param state: updated for the next call.
    :returns: why the call ended; never ROW_READ.
    """
    at, row, number = state[DATA_AT], state[ROW], state[PACKET_NUMBER]
    if at < 0 or end + PADDING > data.shape[0]:
        return MALFORMED
    why = NEED_DATA
    state[WANTED_BYTES] = 5
    while end - at >= 5:
        size = np.int64(read32(data, at) & 0xFFFFFF)
        if data[at + 3] != number:
            why = OUT_OF_SEQUENCE
            break
        if size == 0xFFFFFF:
            why = MULTI_PACKET_ROW
            break
        if end - at - 4 < size:
            state[WANTED_BYTES] = size + 4
            break
        if size == 0 or data[at + 4] != 0:
            why = MALFORMED if size == 0 else NOT_A_ROW
            break
        if row == rows:
            why = NEED_ROWS
            break
        why = _read_row(data, at + 4, at + 4 + size, columns, row, state)
        if why != ROW_READ:
            break
        why = NEED_DATA
        at += 4 + size
        row += 1
        number = (number + 1) & 255
    state[DATA_AT], state[ROW], state[PACKET_NUMBER] = at, row, number
    return why
