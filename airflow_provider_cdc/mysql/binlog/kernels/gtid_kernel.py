"""Compiled parser of GTID events."""

from __future__ import annotations

from typing import Any

import numpy as np

from airflow_provider_cdc.mysql.binlog.events.event_types import GTID, GTID_TAGGED, MARIADB_GTID
from airflow_provider_cdc.mysql.binlog.kernels.row_kernel import DONE
from airflow_provider_cdc.mysql.binlog.kernels.walk_state import (
    ANONYMOUS_KIND,
    CHANGED_TABLES,
    COMMIT_US,
    FOR_PYTHON,
    GTID_HIGH,
    GTID_KIND,
    GTID_LOW,
    GTID_NUMBER,
    GTID_TAG_WORDS,
    HAS_BEGUN,
    IS_OPEN,
    MARIADB_GTID_KIND,
    MYSQL_GTID_KIND,
    POSITION,
    START_POSITION,
    STATEMENT_NUMBER,
    TRANSACTION_END,
    TRANSACTION_NUMBER,
)
from airflow_provider_cdc.native.primitives import inlined, not_inlined, read16, read32, read64

_STANDALONE, _PLAIN_FLAGS = 1, 0x3F
# Numbers of the fields of a tagged GTID event; fields after the last one are unknown.
_UUID, _GNO, _TAG, _COMMIT, _LENGTH, _LAST = 1, 2, 3, 6, 8, 11
_NEEDED = 1 << _UUID | 1 << _GNO | 1 << _TAG


@inlined  # type: ignore[untyped-decorator]
def _read_big64(data: Any, at: Any) -> Any:
    word = np.uint64(0)
    for i in range(8):
        word = (word << np.uint64(8)) | np.uint64(data[at + i])
    return np.int64(word)


@not_inlined  # type: ignore[untyped-decorator]
def _read_varint(data: Any, at: Any, end: Any) -> Any:
    """Return a variable-length number and where it ends, or -1 if it is cut off.

    The trailing ones of its first byte count the bytes that follow.
    """
    if at < 0 or at >= end:
        return np.uint64(0), np.int64(-1)
    size = 1
    while size < 9 and (data[at] >> (size - 1)) & 1:
        size += 1
    if end - at < size:
        return np.uint64(0), np.int64(-1)
    if size == 9:
        return read64(data, at + 1), at + 9
    word = read64(data, at)
    if size < 8:
        word &= (np.uint64(1) << np.uint64(8 * size)) - np.uint64(1)
    return word >> np.uint64(size), at + size


@inlined  # type: ignore[untyped-decorator]
def _read_uuid(data: Any, at: Any, end: Any, state: Any) -> Any:
    """Store a UUID, whose bytes are encoded as varints, and return where it ends, or -1 if it is invalid."""
    for half in range(2):
        word = np.uint64(0)
        for _ in range(8):
            byte, at = _read_varint(data, at, end)
            if byte > np.uint64(255):
                return np.int64(-1)
            word = (word << np.uint64(8)) | byte
        state[GTID_HIGH + half] = np.int64(word)
    return at


@inlined  # type: ignore[untyped-decorator]
def _read_tag(data: Any, at: Any, end: Any, state: Any) -> Any:
    """Store a tag and return where it ends, or -1 if it is invalid."""
    length, at = _read_varint(data, at, end)
    if at < 0 or length == np.uint64(0) or length > np.uint64(32) or end - at < np.int64(length):
        return np.int64(-1)
    size = np.int64(length)
    for i in range(size):
        byte = np.int64(data[at + i])
        if not ((byte >= 97 and byte <= 122) or byte == 95 or (i > 0 and byte >= 48 and byte <= 57)):
            return np.int64(-1)
        state[GTID_TAG_WORDS + (i >> 3)] |= byte << 8 * (i & 7)
    return at + size


@not_inlined  # type: ignore[untyped-decorator]
def _read_tagged(data: Any, at: Any, end: Any, state: Any) -> Any:
    """Read the fields of a tagged GTID event, as ``events.gtid_event`` does; return DONE or FOR_PYTHON."""
    start = at
    version, at = _read_varint(data, at, end)
    size, at = _read_varint(data, at, end)
    wanted, at = _read_varint(data, at, end)
    if at < 0 or version != np.uint64(1) or size != np.uint64(end - start) or wanted > np.uint64(_LAST + 1):
        return FOR_PYTHON
    seen, last, length = np.int64(0), np.int64(-1), np.uint64(0)
    state[GTID_KIND], state[COMMIT_US] = MYSQL_GTID_KIND, 0
    while at < end:
        number, at = _read_varint(data, at, end)
        if at < 0:
            return FOR_PYTHON
        if number > np.uint64(_LAST):
            break
        field = np.int64(number)
        if field <= last:
            return FOR_PYTHON
        seen, last = seen | (1 << field), field
        if field == _UUID:
            at = _read_uuid(data, at, end, state)
        elif field == _TAG:
            at = _read_tag(data, at, end, state)
        else:
            value, at = _read_varint(data, at, end)
            if field == _GNO:  # the lowest bit is the sign
                if value & np.uint64(1) or value == np.uint64(0):
                    return FOR_PYTHON
                state[GTID_NUMBER] = np.int64(value >> np.uint64(1))
            elif field == _COMMIT:
                if value >= np.uint64(1 << 55):
                    return FOR_PYTHON
                state[COMMIT_US] = np.int64(value)
            elif field == _LENGTH:
                length = value
        if at < 0:
            return FOR_PYTHON
    if seen & _NEEDED != _NEEDED:
        return FOR_PYTHON
    if length > np.uint64(0) and length < np.uint64(1 << 40):
        state[TRANSACTION_END] = state[POSITION] + np.int64(length)
    return DONE


@inlined  # type: ignore[untyped-decorator]
def open_by_gtid(data: Any, event: Any, at: Any, end: Any, kind: Any, state: Any) -> Any:
    """Open a transaction at its GTID event, whose body is at [at, end); return DONE or FOR_PYTHON."""
    if state[IS_OPEN] != 0:
        return FOR_PYTHON
    seconds = np.int64(read32(data, event)) * 1_000_000
    state[TRANSACTION_END], state[HAS_BEGUN] = 0, 0
    for i in range(4):
        state[GTID_TAG_WORDS + i] = 0
    if kind == GTID_TAGGED:
        if _read_tagged(data, at, end, state) != DONE:
            return FOR_PYTHON
        if state[COMMIT_US] == 0:
            state[COMMIT_US] = seconds
    elif kind == MARIADB_GTID:
        # XA transactions and standalone statements are left to Python.
        if end - at < 13 or data[at + 12] & _STANDALONE or data[at + 12] & ~_PLAIN_FLAGS:
            return FOR_PYTHON
        state[GTID_KIND], state[GTID_HIGH], state[GTID_LOW] = (
            MARIADB_GTID_KIND,
            read32(data, at + 8),
            read32(data, event + 5),
        )
        state[GTID_NUMBER] = np.int64(read64(data, at))
        if state[GTID_NUMBER] < 0:
            return FOR_PYTHON
        state[COMMIT_US], state[HAS_BEGUN] = seconds, 1
    else:
        if end - at < 49:
            return FOR_PYTHON
        state[GTID_KIND] = MYSQL_GTID_KIND if kind == GTID else ANONYMOUS_KIND
        state[GTID_HIGH], state[GTID_LOW] = _read_big64(data, at + 1), _read_big64(data, at + 9)
        state[GTID_NUMBER] = np.int64(read64(data, at + 17))
        if state[GTID_NUMBER] < 0:
            return FOR_PYTHON
        # The commit time has seven bytes. If its top bit is set, the original commit time follows. Then comes the
        # length of the transaction.
        clock = np.int64(read64(data, at + 42) & np.uint64(0xFF_FFFF_FFFF_FFFF))
        state[COMMIT_US] = clock & ((1 << 55) - 1)
        if state[COMMIT_US] == 0:
            state[COMMIT_US] = seconds
        at += 49 + (7 if clock >> 55 else 0)
        length = np.int64(0)
        if end - at >= 1 and data[at] < 251:
            length = np.int64(data[at])
        elif end - at >= 3 and data[at] == 252:
            length = np.int64(read16(data, at + 1))
        elif end - at >= 4 and data[at] == 253:
            length = np.int64(read32(data, at) >> np.uint32(8))
        elif end - at >= 9 and data[at] == 254:
            length = np.int64(read64(data, at + 1))
        if length > 0 and length < 1 << 40:
            state[TRANSACTION_END] = state[POSITION] + length
    state[IS_OPEN], state[START_POSITION] = 1, state[POSITION]
    state[STATEMENT_NUMBER] += 1
    state[TRANSACTION_NUMBER] += 1
    state[CHANGED_TABLES] = 0
    return DONE
