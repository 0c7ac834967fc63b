"""Compiled walk over the packets of the binlog protocol, which processes ordinary transactions without Python.

It also walks the events inside compressed transactions once Python has unpacked them. Python unpacks many small ones at
once, so that the walk can proceed from one to the next.

It handles the events of ordinary transactions: GTID, BEGIN, known table maps, rows, XID, COMMIT, and events without
rows. Everything else, and everything irregular, is left to :mod:`airflow_provider_cdc.mysql.binlog.walk.walker`, which
processes the same event in Python.
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
    SKIPPED_EVENTS,
    TABLE_MAP,
    TRANSACTION_PAYLOAD,
    UPDATE_ROWS,
    UPDATE_ROWS_V1,
    WRITE_ROWS,
    WRITE_ROWS_V1,
    XID,
)
from airflow_provider_cdc.mysql.binlog.kernels import checksum, gtid_kernel, packed_values, row_kernel, walk_state
from airflow_provider_cdc.mysql.binlog.kernels.checksum import crc32
from airflow_provider_cdc.mysql.binlog.kernels.gtid_kernel import open_by_gtid
from airflow_provider_cdc.mysql.binlog.kernels.row_kernel import CHANGED_BY as OPEN_IN
from airflow_provider_cdc.mysql.binlog.kernels.row_kernel import (
    COLUMN_COUNT,
    DELETE,
    DONE,
    INSERT,
    OPEN_FIRST_ROW,
    OPEN_ROWS_TAKEN,
    ROW_COUNT,
    SEQS,
    UPDATE,
    read_images,
)
from airflow_provider_cdc.mysql.binlog.kernels.row_kernel import NEXT_IMAGE as IMAGE_AT
from airflow_provider_cdc.mysql.binlog.kernels.walk_state import (
    ANONYMOUS_KIND,
    BEGUN_XA,
    BLOCK_AT,
    BYTE_BUDGET,
    CHANGED_TABLES,
    COMMIT_US,
    COUNT_ONLY,
    COUNTED_ROWS,
    DECODED_BYTES,
    ENDED_TRANSACTIONS,
    FAILED_TABLE,
    FILE_SEQ,
    FOR_PYTHON,
    FRAME_END,
    GTID_IN_PYTHON,
    GTID_KIND,
    GTID_NUMBER,
    GTID_RUNS,
    HAS_BEGUN,
    HAS_CHECKSUMS,
    IMAGE_OFFSET,
    IS_OPEN,
    LAST_END,
    MAP_BODY,
    MAP_BODY_SIZE,
    MAP_SLOT,
    MAP_STATEMENT,
    MAP_TABLE_ID,
    MARIADB,
    MAX_COUNTED_ROWS,
    NEED_DATA,
    NEED_UNPACKED,
    PACKET_NUMBER,
    PACKET_START,
    PAUSE,
    PAUSE_POSITION,
    PAYLOAD_AT,
    PAYLOAD_END,
    PAYLOAD_MODE,
    PAYLOAD_POSITION,
    POSITION,
    RUN_FIRST,
    RUN_LAST,
    RUN_SEQ,
    SOURCE_FIELDS,
    STATEMENT_NUMBER,
    TRANSACTION_END,
    TRANSACTION_NUMBER,
    UNPACKED_COUNT,
    UNPACKED_END,
    UNPACKED_START,
    UNPACKED_USED,
    WANTED_BYTES,
    WHOLE,
    WITH_BEFORE_IMAGES,
    WITH_GTIDS,
    WRONG_END,
)
from airflow_provider_cdc.native import primitives
from airflow_provider_cdc.native.compile import compiled
from airflow_provider_cdc.native.primitives import (
    PADDING,
    inlined,
    load64,
    not_inlined,
    read16,
    read32,
    read64,
    store64,
)

#: Whether an event type carries no rows, indexed by event type.
_WITHOUT_ROWS: Any = np.zeros(256, np.bool_)
_WITHOUT_ROWS[list(SKIPPED_EVENTS)] = True
_ARTIFICIAL, _STMT_END = 0x20, 1
_NO_TABLE = 0xFF_FFFF
_BEGIN = int.from_bytes(b"BEGIN", "little")
_COMMIT = int.from_bytes(b"COMMIT", "little")
_HEADER = 19


@inlined  # type: ignore[untyped-decorator]
def _read_table_id(data: Any, at: Any) -> Any:
    return np.int64(read64(data, at) & np.uint64(0xFFFF_FFFF_FFFF))


@inlined  # type: ignore[untyped-decorator]
def _find_map(maps: Any, table_id: Any) -> Any:
    """Return the line of a table id, or -1. There is always a free line."""
    mask = maps.shape[0] - 1
    at = (table_id * 0x9E37_79B1) & mask
    for _ in range(maps.shape[0]):
        if maps[at, MAP_TABLE_ID] == table_id:
            return at
        if maps[at, MAP_TABLE_ID] == -1:
            break
        at = (at + 1) & mask
    return -1


@inlined  # type: ignore[untyped-decorator]
def _match_table_map(data: Any, at: Any, end: Any, state: Any, maps: Any) -> Any:
    if state[IS_OPEN] == 0 or end - at < 8:
        return FOR_PYTHON
    line = _find_map(maps, _read_table_id(data, at))
    size = end - at - 8
    if line < 0 or maps[line, MAP_BODY_SIZE] != size:
        return FOR_PYTHON
    body, i = maps[line, MAP_BODY], np.int64(0)
    while size - i >= 8:
        if load64(body + i) != read64(data, at + 8 + i):
            return FOR_PYTHON
        i += 8
    if i < size:
        unwanted = np.uint64(8 * (8 - (size - i)))
        if (load64(body + i) ^ read64(data, at + 8 + i)) << unwanted != np.uint64(0):
            return FOR_PYTHON
    maps[line, MAP_STATEMENT] = state[STATEMENT_NUMBER]
    return DONE


@inlined  # type: ignore[untyped-decorator]
def _find_images(data: Any, at: Any, end: Any, kind: Any, columns: Any) -> Any:
    """Return where the images of a rows event begin, or -1 if the event is left to Python."""
    at += 8
    if kind >= WRITE_ROWS:
        if end - at < 2:
            return -1
        extra = np.int64(read16(data, at))
        if extra < 2:
            return -1
        at += extra
    if end - at < 1:
        return -1
    count = np.int64(data[at])
    at += 1
    if count == 252 and end - at >= 2:
        count = np.int64(read16(data, at))
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


@not_inlined  # type: ignore[untyped-decorator]
def _read_rows_event(
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
    if state[IS_OPEN] == 0 or state[HAS_BEGUN] == BEGUN_XA or end - at < 8:
        return FOR_PYTHON
    table_id, flags = _read_table_id(data, at), read16(data, at + 6)
    line = _find_map(maps, table_id)
    if line < 0 or maps[line, MAP_STATEMENT] != state[STATEMENT_NUMBER]:
        if table_id != _NO_TABLE:
            return FOR_PYTHON
    elif maps[line, MAP_SLOT] >= 0:
        slot = maps[line, MAP_SLOT]
        if state[IMAGE_OFFSET] != 0:
            at = packet + state[IMAGE_OFFSET]
        else:
            at = _find_images(data, at, end, kind, tables[slot, COLUMN_COUNT])
            if at < 0:
                return FOR_PYTHON
            if tables[slot, OPEN_IN] != state[TRANSACTION_NUMBER]:
                tables[slot, OPEN_IN], tables[slot, OPEN_FIRST_ROW] = state[TRANSACTION_NUMBER], tables[slot, ROW_COUNT]
                tables[slot, OPEN_ROWS_TAKEN] = 0
                touched[state[CHANGED_TABLES]] = slot
                state[CHANGED_TABLES] += 1
        if kind == UPDATE_ROWS or kind == UPDATE_ROWS_V1:
            change = UPDATE
        else:
            change = DELETE if kind == DELETE_ROWS or kind == DELETE_ROWS_V1 else INSERT
        seq = state[FILE_SEQ] + state[TRANSACTION_END]
        why = read_images(
            data,
            at,
            end,
            slot,
            change,
            None,
            None,
            state[WITH_BEFORE_IMAGES],
            seq,
            state[COMMIT_US],
            tables,
            lines,
            inner,
        )
        if why != DONE:
            state[FAILED_TABLE], state[IMAGE_OFFSET] = slot, inner[IMAGE_AT] - packet
            return why
        state[DECODED_BYTES] += end - at
    state[IMAGE_OFFSET] = 0
    if flags & _STMT_END:
        state[STATEMENT_NUMBER] += 1
    return DONE


@inlined  # type: ignore[untyped-decorator]
def _end_transaction(position: Any, state: Any, tables: Any, touched: Any, runs: Any) -> Any:
    if state[IS_OPEN] == 0 or state[GTID_KIND] == GTID_IN_PYTHON:
        return FOR_PYTHON
    if state[COUNT_ONLY]:
        for i in range(state[CHANGED_TABLES]):
            state[COUNTED_ROWS] += tables[touched[i], ROW_COUNT] - tables[touched[i], OPEN_FIRST_ROW]
    elif state[TRANSACTION_END] != position:
        for i in range(state[CHANGED_TABLES]):
            if tables[touched[i], OPEN_ROWS_TAKEN]:
                return WRONG_END
        for i in range(state[CHANGED_TABLES]):
            slot = touched[i]
            for row in range(tables[slot, OPEN_FIRST_ROW], tables[slot, ROW_COUNT]):
                store64(tables[slot, SEQS] + 8 * row, np.uint64(state[FILE_SEQ] + position))
    if state[GTID_KIND] != ANONYMOUS_KIND:
        n = state[GTID_RUNS] - 1
        own_seq = state[FILE_SEQ] + position if state[WITH_GTIDS] and state[CHANGED_TABLES] > 0 else 0
        follows = n >= 0 and own_seq == 0 and runs[n, RUN_SEQ] == 0 and runs[n, RUN_LAST] + 1 == state[GTID_NUMBER]
        if follows:
            for i in range(SOURCE_FIELDS):
                follows = follows and runs[n, i] == state[GTID_KIND + i]
        if not follows:
            n += 1
            for i in range(SOURCE_FIELDS):
                runs[n, i] = state[GTID_KIND + i]
            runs[n, RUN_FIRST], runs[n, RUN_SEQ] = state[GTID_NUMBER], own_seq
            state[GTID_RUNS] = n + 1
        runs[n, RUN_LAST] = state[GTID_NUMBER]
    state[IS_OPEN], state[CHANGED_TABLES], state[LAST_END] = 0, 0, position
    state[ENDED_TRANSACTIONS] += 1
    return DONE


@inlined  # type: ignore[untyped-decorator]
def _read_query(data: Any, at: Any, end: Any, position: Any, state: Any, tables: Any, touched: Any, runs: Any) -> Any:
    if state[IS_OPEN] == 0 or end - at < 13:
        return FOR_PYTHON
    at += 13 + np.int64(read16(data, at + 11)) + np.int64(data[at + 8]) + 1
    text = read64(data, at) if end >= at else np.uint64(0)
    if end - at == 5 and text & np.uint64(0xFF_FFFF_FFFF) == np.uint64(_BEGIN):
        state[HAS_BEGUN] = 1
        return DONE
    if end - at == 6 and text & np.uint64(0xFFFF_FFFF_FFFF) == np.uint64(_COMMIT) and state[CHANGED_TABLES] == 0:
        return _end_transaction(position, state, tables, touched, runs)
    return FOR_PYTHON


@inlined  # type: ignore[untyped-decorator]
def _enter_payload(packet: Any, stop: Any, state: Any, ahead: Any) -> Any:
    """Enter a compressed transaction that has been unpacked ahead."""
    n = state[UNPACKED_USED]
    if n >= state[UNPACKED_COUNT] or ahead[n, PACKET_START] != packet or ahead[n, FRAME_END] != stop:
        return NEED_UNPACKED
    state[PAYLOAD_MODE], state[PAYLOAD_POSITION], state[UNPACKED_USED] = WHOLE, state[POSITION], n + 1
    state[PAYLOAD_AT], state[PAYLOAD_END] = ahead[n, UNPACKED_START], ahead[n, UNPACKED_END]
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
    packed_values.__file__,
    primitives.__file__,
)
def walk_packets(
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
    """Walk the packets of a byte array from ``state[BLOCK_AT]`` to ``block_end``.

    :param unpacked: unpacked events of compressed transactions.
    :param ahead: lines that assign these events to packets, see ``walk_state``.
    :param state: array of ``walk_state.STATE_SIZE`` numbers, shared with Python.
    :param inner: state of ``row_kernel``.
    :param maps: hash table of table maps, see ``walk_state``.
    :param tables: lines of the tables, see ``row_kernel``.
    :param lines: lines of the columns, see ``row_kernel``.
    :param touched: receives the slots of the tables that the open transaction changes; one number per table.
    :param runs: receives GTIDs, see ``walk_state``; the walk pauses before it is full.
    :param crc: result of :func:`~airflow_provider_cdc.mysql.binlog.kernels.checksum.crc_tables`.
    :returns: why the walk stopped: a reason of ``walk_state`` or ``row_kernel``.
    """
    if state[BLOCK_AT] < 0 or block_end + PADDING > block.shape[0] or touched.shape[0] < tables.shape[0]:
        return FOR_PYTHON
    if state[PAYLOAD_MODE] and (state[PAYLOAD_AT] < 0 or state[PAYLOAD_END] + PADDING > unpacked.shape[0]):
        return FOR_PYTHON
    while True:
        is_bare = state[PAYLOAD_MODE] != 0
        if is_bare:
            data, end = unpacked, state[PAYLOAD_END]
            packet = state[PAYLOAD_AT] - 5  # where a packet with this event would begin
            if end - packet - 5 < _HEADER:
                if state[PAYLOAD_MODE] == WHOLE and end == packet + 5 and state[IS_OPEN] == 0:
                    state[PAYLOAD_MODE] = 0
                    continue
                state[WANTED_BYTES] = _HEADER
                return NEED_DATA
            size = np.int64(read32(data, packet + 14)) + 1
        else:
            data, end = block, block_end
            packet = state[BLOCK_AT]
            if end - packet < 4:
                state[WANTED_BYTES] = 4
                return NEED_DATA
            size = np.int64(read32(data, packet) & np.uint32(0xFF_FFFF))
        if end - packet - 4 < size:
            state[WANTED_BYTES] = 4 + size
            return NEED_DATA
        event, stop = packet + 5, packet + 4 + size
        position = state[POSITION]
        if is_bare:
            if size < 1 + _HEADER:
                return FOR_PYTHON
        else:
            if (
                size == 0xFF_FFFF
                or size < 1 + _HEADER + 4
                or data[packet + 3] != state[PACKET_NUMBER]
                or data[packet + 4]
            ):
                return FOR_PYTHON
            length, ends = np.int64(read32(data, event + 9)), np.int64(read32(data, event + 13))
            position += length
            if length != size - 1 or (ends == 0 and not state[MARIADB]):
                return FOR_PYTHON
            if ends != 0 and position & 0xFFFF_FFFF != ends:
                return FOR_PYTHON
        if read16(data, event + 17) & _ARTIFICIAL:
            return FOR_PYTHON
        kind = np.int64(data[event + 4])
        at = event + _HEADER
        if state[HAS_CHECKSUMS] and not is_bare:
            stop -= 4
            if state[IMAGE_OFFSET] == 0 and crc32(crc, data, event, stop) != read32(data, stop):
                return FOR_PYTHON
        is_end = False
        if (kind >= WRITE_ROWS and kind <= DELETE_ROWS) or (kind >= WRITE_ROWS_V1 and kind <= DELETE_ROWS_V1):
            why = _read_rows_event(data, packet, at, stop, kind, state, inner, maps, tables, lines, touched)
        elif kind == TABLE_MAP:
            why = _match_table_map(data, at, stop, state, maps)
        elif kind == XID:
            why, is_end = _end_transaction(position, state, tables, touched, runs), True
        elif kind == QUERY:
            why = _read_query(data, at, stop, position, state, tables, touched, runs)
            is_end = state[IS_OPEN] == 0
        elif kind == GTID or kind == ANONYMOUS_GTID or kind == GTID_TAGGED or kind == MARIADB_GTID:
            if state[GTID_RUNS] + 1 >= runs.shape[0]:
                return PAUSE
            why = open_by_gtid(data, event, at, stop, kind, state)
        elif _WITHOUT_ROWS[kind]:
            why = DONE
        elif kind == TRANSACTION_PAYLOAD and not is_bare:
            why = _enter_payload(packet, stop, state, ahead)
        else:
            why = FOR_PYTHON
        if why != DONE:
            return why
        if is_bare:
            state[PAYLOAD_AT] = packet + 4 + size
        else:
            state[BLOCK_AT], state[PACKET_NUMBER] = packet + 4 + size, (state[PACKET_NUMBER] + 1) & 255
        state[POSITION] = position
        if is_end and (position >= state[PAUSE_POSITION] or state[COUNTED_ROWS] >= state[MAX_COUNTED_ROWS]):
            return PAUSE
        if state[DECODED_BYTES] >= state[BYTE_BUDGET]:
            return PAUSE
