"""Packets of the binlog protocol, walked by machine code: plain transactions from end to end without Python.

The events inside of a compressed transaction are walked by it, too, when Python has unpacked them: those of many small
ones at once, so that it goes from one to the next without Python.

Understood here are the events of ordinary transactions: GTID, BEGIN, table maps that have been seen before, rows, XID
and COMMIT, and events without rows. Everything else, and everything that is not as it should be, is left to Python
(:mod:`airflow_provider_cdc.mysql.binlog.walk.walker`), which takes the same event once more, by the plain code.
"""
# ruff: noqa: SIM109 (the compiler makes less of "in")

from __future__ import annotations

from typing import Any

import numpy as np

from airflow_provider_cdc.mysql.binlog.events import event_types
from airflow_provider_cdc.mysql.binlog.events.event_types import (
    ANONYMOUS_GTID,
    DELETE_ROWS,
    DELETE_ROWS_V1,
    GTID,
    GTID_TAGGED,
    MARIADB_GTID,
    QUERY,
    TABLE_MAP,
    TRANSACTION_PAYLOAD,
    UPDATE_ROWS,
    UPDATE_ROWS_V1,
    WITHOUT_ROWS,
    WRITE_ROWS,
    WRITE_ROWS_V1,
    XID,
)
from airflow_provider_cdc.mysql.binlog.kernels import checksum, packed, walk_state
from airflow_provider_cdc.mysql.binlog.kernels import gtid as gtid_kernel
from airflow_provider_cdc.mysql.binlog.kernels import row as row_kernel
from airflow_provider_cdc.mysql.binlog.kernels.checksum import crc32
from airflow_provider_cdc.mysql.binlog.kernels.gtid import read_gtid
from airflow_provider_cdc.mysql.binlog.kernels.row import AT as IMAGE_AT
from airflow_provider_cdc.mysql.binlog.kernels.row import (
    COUNT,
    DELETE,
    DONE,
    INSERT,
    OPEN_ROW,
    ROW,
    SEQS,
    TAKEN,
    UPDATE,
    read_images,
)
from airflow_provider_cdc.mysql.binlog.kernels.row import OPEN as OPEN_IN
from airflow_provider_cdc.mysql.binlog.kernels.walk_state import (
    ANONYMOUS,
    AT,
    BASE,
    BEGUN,
    BODY,
    BOTH,
    BUDGET,
    BYTES,
    CHECKED,
    COMMIT,
    COUNT_ONLY,
    COUNTED,
    ENDED,
    EVENT,
    EXPECTED,
    FRAME_END,
    GNO,
    ID,
    IN_WORDS,
    INNER,
    INNER_END,
    INSIDE,
    KIND,
    LIMIT,
    MARIADB,
    MORE,
    MOST,
    NAMED,
    NUMBER,
    OPEN,
    OUTER,
    PACKED,
    PAUSE,
    POSITION,
    RUN_END,
    RUN_FIRST,
    RUN_LAST,
    RUNS,
    SAFE,
    SAID,
    SIZE,
    SLOT,
    SOURCE_FIELDS,
    SPLIT,
    STATEMENT,
    TABLE,
    TOUCHED,
    TRANSACTION,
    UNPACK,
    UNPACKED,
    UNPACKED_END,
    UNPACKED_FROM,
    USED,
    WANTED,
    WHERE,
    WHOLE,
    XA,
)
from airflow_provider_cdc.native import primitives
from airflow_provider_cdc.native.compile import compiled
from airflow_provider_cdc.native.primitives import (
    SLACK,
    called,
    inlined,
    load64,
    store64,
    take16,
    take32,
    take64,
)

#: By event type, whether it carries no rows.
_WITHOUT_ROWS: Any = np.zeros(256, np.bool_)
_WITHOUT_ROWS[list(WITHOUT_ROWS)] = True
_ARTIFICIAL, _STMT_END = 0x20, 1
_NO_TABLE = 0xFF_FFFF
_BEGIN = int.from_bytes(b"BEGIN", "little")
_COMMIT = int.from_bytes(b"COMMIT", "little")
_HEADER = 19


@inlined  # type: ignore[untyped-decorator]
def _six(data: Any, at: Any) -> Any:
    return np.int64(take64(data, at) & np.uint64(0xFFFF_FFFF_FFFF))


@inlined  # type: ignore[untyped-decorator]
def _find(maps: Any, table_id: Any) -> Any:
    """The line of a table id, or -1. There is always a free line."""
    mask = maps.shape[0] - 1
    at = (table_id * 0x9E37_79B1) & mask
    for _ in range(maps.shape[0]):
        if maps[at, ID] == table_id:
            return at
        if maps[at, ID] == -1:
            break
        at = (at + 1) & mask
    return -1


@inlined  # type: ignore[untyped-decorator]
def _table_map(data: Any, at: Any, end: Any, state: Any, maps: Any) -> Any:
    if state[OPEN] == 0 or end - at < 8:
        return EVENT
    line = _find(maps, _six(data, at))
    size = end - at - 8
    if line < 0 or maps[line, SIZE] != size:
        return EVENT
    body, i = maps[line, BODY], np.int64(0)
    while size - i >= 8:
        if load64(body + i) != take64(data, at + 8 + i):
            return EVENT
        i += 8
    if i < size:
        unwanted = np.uint64(8 * (8 - (size - i)))
        if (load64(body + i) ^ take64(data, at + 8 + i)) << unwanted != np.uint64(0):
            return EVENT
    maps[line, SAID] = state[STATEMENT]
    return DONE


@inlined  # type: ignore[untyped-decorator]
def _images_at(data: Any, at: Any, end: Any, kind: Any, columns: Any) -> Any:
    """Where the images of a rows event begin; -1 if it is for Python."""
    at += 8
    if kind >= WRITE_ROWS:
        if end - at < 2:
            return -1
        extra = np.int64(take16(data, at))
        if extra < 2:
            return -1
        at += extra
    if end - at < 1:
        return -1
    count = np.int64(data[at])
    at += 1
    if count == 252 and end - at >= 2:
        count = np.int64(take16(data, at))
        at += 2
    elif count > 250:
        return -1
    if count != columns:
        return -1
    for _ in range(2 if kind == UPDATE_ROWS or kind == UPDATE_ROWS_V1 else 1):
        size = (count + 7) >> 3
        if end - at < size:
            return -1
        for i in range(size):
            full = np.int64(0xFF) if i < size - 1 or count & 7 == 0 else (np.int64(1) << (count & 7)) - 1
            if np.int64(data[at + i]) & full != full:
                return -1
        at += size
    return at


@called  # type: ignore[untyped-decorator]
def _rows(
    data: Any,
    packet: Any,
    at: Any,
    end: Any,
    kind: Any,
    state: Any,
    inner: Any,
    maps: Any,
    tables: Any,
    lines: Any,
    touched: Any,
) -> Any:
    if state[OPEN] == 0 or state[BEGUN] == XA or end - at < 8:
        return EVENT
    table_id, flags = _six(data, at), take16(data, at + 6)
    line = _find(maps, table_id)
    if line < 0 or maps[line, SAID] != state[STATEMENT]:
        if table_id != _NO_TABLE:
            return EVENT
    elif maps[line, SLOT] >= 0:
        slot = maps[line, SLOT]
        if state[INSIDE] != 0:
            at = packet + state[INSIDE]
        else:
            at = _images_at(data, at, end, kind, tables[slot, COUNT])
            if at < 0:
                return EVENT
            if tables[slot, OPEN_IN] != state[TRANSACTION]:
                tables[slot, OPEN_IN], tables[slot, OPEN_ROW] = state[TRANSACTION], tables[slot, ROW]
                tables[slot, TAKEN] = 0
                touched[state[TOUCHED]] = slot
                state[TOUCHED] += 1
        if kind == UPDATE_ROWS or kind == UPDATE_ROWS_V1:
            change = UPDATE
        else:
            change = DELETE if kind == DELETE_ROWS or kind == DELETE_ROWS_V1 else INSERT
        seq = state[BASE] + state[EXPECTED]
        why = read_images(
            data, at, end, slot, change, None, None, state[BOTH], seq, state[COMMIT], tables, lines, inner
        )
        if why != DONE:
            state[TABLE], state[INSIDE] = slot, inner[IMAGE_AT] - packet
            return why
        state[BYTES] += end - at
    state[INSIDE] = 0
    if flags & _STMT_END:
        state[STATEMENT] += 1
    return DONE


@inlined  # type: ignore[untyped-decorator]
def _end(position: Any, state: Any, tables: Any, touched: Any, runs: Any) -> Any:
    if state[OPEN] == 0 or state[KIND] == IN_WORDS:
        return EVENT
    if state[COUNT_ONLY]:
        for i in range(state[TOUCHED]):
            state[COUNTED] += tables[touched[i], ROW] - tables[touched[i], OPEN_ROW]
    elif state[EXPECTED] != position:
        for i in range(state[TOUCHED]):
            if tables[touched[i], TAKEN]:
                return SPLIT
        for i in range(state[TOUCHED]):
            slot = touched[i]
            for row in range(tables[slot, OPEN_ROW], tables[slot, ROW]):
                store64(tables[slot, SEQS] + 8 * row, np.uint64(state[BASE] + position))
    if state[KIND] != ANONYMOUS:
        n = state[RUNS] - 1
        own_seq = state[BASE] + position if state[NAMED] and state[TOUCHED] > 0 else 0
        follows = n >= 0 and own_seq == 0 and runs[n, RUN_END] == 0 and runs[n, RUN_LAST] + 1 == state[GNO]
        if follows:
            for i in range(SOURCE_FIELDS):
                follows = follows and runs[n, i] == state[KIND + i]
        if not follows:
            n += 1
            for i in range(SOURCE_FIELDS):
                runs[n, i] = state[KIND + i]
            runs[n, RUN_FIRST], runs[n, RUN_END] = state[GNO], own_seq
            state[RUNS] = n + 1
        runs[n, RUN_LAST] = state[GNO]
    state[OPEN], state[TOUCHED], state[SAFE] = 0, 0, position
    state[ENDED] += 1
    return DONE


@inlined  # type: ignore[untyped-decorator]
def _query(data: Any, at: Any, end: Any, position: Any, state: Any, tables: Any, touched: Any, runs: Any) -> Any:
    if state[OPEN] == 0 or end - at < 13:
        return EVENT
    at += 13 + np.int64(take16(data, at + 11)) + np.int64(data[at + 8]) + 1
    text = take64(data, at) if end >= at else np.uint64(0)
    if end - at == 5 and text & np.uint64(0xFF_FFFF_FFFF) == np.uint64(_BEGIN):
        state[BEGUN] = 1
        return DONE
    if end - at == 6 and text & np.uint64(0xFFFF_FFFF_FFFF) == np.uint64(_COMMIT) and state[TOUCHED] == 0:
        return _end(position, state, tables, touched, runs)
    return EVENT


@inlined  # type: ignore[untyped-decorator]
def _enter(packet: Any, stop: Any, state: Any, ahead: Any) -> Any:
    """Go into a compressed transaction that has been unpacked."""
    n = state[USED]
    if n >= state[UNPACKED] or ahead[n, WHERE] != packet or ahead[n, FRAME_END] != stop:
        return UNPACK
    state[PACKED], state[OUTER], state[USED] = WHOLE, state[POSITION], n + 1
    state[INNER], state[INNER_END] = ahead[n, UNPACKED_FROM], ahead[n, UNPACKED_END]
    return DONE


@compiled(
    "int64(uint8[::1], int64, uint8[::1], int64[:, ::1], int64[::1], int64[::1], int64[:, ::1], int64[:, ::1], "
    "int64[:, ::1], int64[::1], int64[:, ::1], uint32[::1])",
    __file__,
    walk_state.__file__,
    event_types.__file__,
    gtid_kernel.__file__,
    row_kernel.__file__,
    checksum.__file__,
    packed.__file__,
    primitives.__file__,
)
def walk(
    block: Any,
    block_end: Any,
    unpacked: Any,
    ahead: Any,
    state: Any,
    inner: Any,
    maps: Any,
    tables: Any,
    lines: Any,
    touched: Any,
    runs: Any,
    crc: Any,
) -> Any:
    """Walk the packets that stand in a byte array before ``block_end``, from ``state[AT]`` on.

    :param unpacked: events inside of compressed transactions.
    :param ahead: which of them are those of which packet.
    :param inner: the state of row_kernel.
    :param touched: space for one number a table.
    :param runs: space for GTIDs; it pauses before that is full.
    :param crc: :func:`~airflow_provider_cdc.mysql.binlog.kernels.checksum.crc_tables`.
    :returns: why it ended.
    """
    if state[AT] < 0 or block_end + SLACK > block.shape[0] or touched.shape[0] < tables.shape[0]:
        return EVENT
    if state[PACKED] and (state[INNER] < 0 or state[INNER_END] + SLACK > unpacked.shape[0]):
        return EVENT
    while True:
        is_bare = state[PACKED] != 0
        if is_bare:
            data, end = unpacked, state[INNER_END]
            packet = state[INNER] - 5  # as if there were one
            if end - packet - 5 < _HEADER:
                if state[PACKED] == WHOLE and end == packet + 5 and state[OPEN] == 0:
                    state[PACKED] = 0
                    continue
                state[WANTED] = _HEADER
                return MORE
            size = np.int64(take32(data, packet + 14)) + 1
        else:
            data, end = block, block_end
            packet = state[AT]
            if end - packet < 4:
                state[WANTED] = 4
                return MORE
            size = np.int64(take32(data, packet) & np.uint32(0xFF_FFFF))
        if end - packet - 4 < size:
            state[WANTED] = 4 + size
            return MORE
        event, stop = packet + 5, packet + 4 + size
        position = state[POSITION]
        if is_bare:
            if size < 1 + _HEADER:
                return EVENT
        else:
            if size == 0xFF_FFFF or size < 1 + _HEADER + 4 or data[packet + 3] != state[NUMBER] or data[packet + 4]:
                return EVENT
            length, ends = np.int64(take32(data, event + 9)), np.int64(take32(data, event + 13))
            position += length
            if length != size - 1 or (ends == 0 and not state[MARIADB]):
                return EVENT
            if ends != 0 and position & 0xFFFF_FFFF != ends:
                return EVENT
        if take16(data, event + 17) & _ARTIFICIAL:
            return EVENT
        kind = np.int64(data[event + 4])
        at = event + _HEADER
        if state[CHECKED] and not is_bare:
            stop -= 4
            if state[INSIDE] == 0 and crc32(crc, data, event, stop) != take32(data, stop):
                return EVENT
        is_end = False
        if (kind >= WRITE_ROWS and kind <= DELETE_ROWS) or (kind >= WRITE_ROWS_V1 and kind <= DELETE_ROWS_V1):
            why = _rows(data, packet, at, stop, kind, state, inner, maps, tables, lines, touched)
        elif kind == TABLE_MAP:
            why = _table_map(data, at, stop, state, maps)
        elif kind == XID:
            why, is_end = _end(position, state, tables, touched, runs), True
        elif kind == QUERY:
            why = _query(data, at, stop, position, state, tables, touched, runs)
            is_end = state[OPEN] == 0
        elif kind == GTID or kind == ANONYMOUS_GTID or kind == GTID_TAGGED or kind == MARIADB_GTID:
            if state[RUNS] + 1 >= runs.shape[0]:
                return PAUSE
            why = read_gtid(data, event, at, stop, kind, state)
        elif _WITHOUT_ROWS[kind]:
            why = DONE
        elif kind == TRANSACTION_PAYLOAD and not is_bare:
            why = _enter(packet, stop, state, ahead)
        else:
            why = EVENT
        if why != DONE:
            return why
        if is_bare:
            state[INNER] = packet + 4 + size
        else:
            state[AT], state[NUMBER] = packet + 4 + size, (state[NUMBER] + 1) & 255
        state[POSITION] = position
        if is_end and (position >= state[LIMIT] or state[COUNTED] >= state[MOST]):
            return PAUSE
        if state[BYTES] >= state[BUDGET]:
            return PAUSE
