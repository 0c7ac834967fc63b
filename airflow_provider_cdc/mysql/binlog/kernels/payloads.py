"""Compiled search for the next compressed transactions of a block, so that they can be unpacked together.

Their sizes are only claims, and nothing here raises an error: a transaction that is unusual or too large to unpack at
once ends the list, and is unpacked incrementally later.
"""
# ruff: noqa: SIM109 (the compiler makes less of "in")

from __future__ import annotations

from typing import Any

import numpy as np

from airflow_provider_cdc.mysql.binlog.events import event_types
from airflow_provider_cdc.mysql.binlog.events.event_types import TRANSACTION_PAYLOAD
from airflow_provider_cdc.mysql.binlog.kernels import walk_state
from airflow_provider_cdc.mysql.binlog.kernels.walk_state import (
    BLOCK_AT,
    FRAME_END,
    FRAME_START,
    HAS_CHECKSUMS,
    PACKET_START,
    UNPACKED_END,
    UNPACKED_START,
)
from airflow_provider_cdc.native import primitives
from airflow_provider_cdc.native.compile import compiled
from airflow_provider_cdc.native.primitives import PADDING, inlined, not_inlined, read16, read32, read64

_HEADER = 19
_END, _COMPRESSION, _UNCOMPRESSED_SIZE = 0, 2, 3
_ZSTD = 0
_MAGIC = 0xFD2F_B528
_UNKNOWN = -1


@not_inlined  # type: ignore[untyped-decorator]
def _read_length_encoded(data: Any, at: Any, end: Any) -> Any:
    """Return a length-encoded integer and the offset after it, or -1 if it is cut off, invalid or too large."""
    if at < 0 or at >= end:
        return np.int64(0), np.int64(-1)
    first = np.int64(data[at])
    if first < 251:
        return first, at + 1
    if first == 252 and end - at >= 3:
        return np.int64(read16(data, at + 1)), at + 3
    if first == 253 and end - at >= 4:
        return np.int64(read32(data, at) >> np.uint32(8)), at + 4
    if first == 254 and end - at >= 9 and np.int64(read64(data, at + 1)) >= 0:
        return np.int64(read64(data, at + 1)), at + 9
    return np.int64(0), np.int64(-1)


@inlined  # type: ignore[untyped-decorator]
def _find_frame(data: Any, at: Any, end: Any) -> Any:
    """Return where a payload's frame begins and its unpacked size, or 0 if it cannot be unpacked ahead."""
    compression, size = np.int64(-1), np.int64(0)
    while True:
        kind, at = _read_length_encoded(data, at, end)
        if at < 0 or kind == _END:
            break
        length, at = _read_length_encoded(data, at, end)
        if at >= 0 and kind == _COMPRESSION:
            compression = _read_length_encoded(data, at, end)[0]
        elif at >= 0 and kind == _UNCOMPRESSED_SIZE:
            size = _read_length_encoded(data, at, end)[0]
        if at < 0 or end - at < length:
            at = np.int64(-1)
            break
        at += length
    if at < 0 or compression != _ZSTD:
        return np.int64(0), np.int64(0)
    claimed_size = _content_size(data, at, end)
    return at, size if claimed_size == size or claimed_size == _UNKNOWN else np.int64(0)


@inlined  # type: ignore[untyped-decorator]
def _content_size(data: Any, at: Any, end: Any) -> Any:
    """Return the unpacked size that a zstd frame claims, which would be allocated.

    :returns: the size in bytes, ``_UNKNOWN``, or 0 if the frame is invalid.
    """
    if end - at < 5 or read32(data, at) != np.uint32(_MAGIC):
        return np.int64(0)
    described = np.int64(data[at + 4])
    is_single, flag = described >> 5 & 1, described >> 6
    if flag == 0 and not is_single:
        return np.int64(_UNKNOWN)
    id_size = (np.int64(1) << (described & 3)) >> 1  # 0, 1, 2 or 4 bytes of a dictionary id
    at += 5 + (1 - is_single) + id_size
    if end - at < np.int64(1) << flag:
        return np.int64(0)
    if flag == 0:
        return np.int64(data[at])
    if flag == 1:
        return np.int64(read16(data, at)) + 256
    if flag == 2:
        return np.int64(read32(data, at))
    return np.int64(read64(data, at) & np.uint64(0x7FFF_FFFF_FFFF_FFFF))


@compiled(
    "int64(uint8[::1], int64, int64[::1], int64, int64[:, ::1])",
    __file__,
    walk_state.__file__,
    event_types.__file__,
    primitives.__file__,
)
def find_payloads(data: Any, end: Any, state: Any, max_unpacked: Any, lines: Any) -> Any:
    """List the payloads among the complete packets of a byte array from ``state[BLOCK_AT]`` to ``end``.

    The packets are not verified here; the walk does that.

    :param max_unpacked: maximum total of unpacked bytes.
    :param lines: receives a line per payload, array of shape (n, AHEAD_FIELDS).
    :returns: number of lines written; 0 if the first packet is not a payload that can be unpacked ahead.
    """
    packet, total, count = state[BLOCK_AT], np.int64(0), np.int64(0)
    if packet < 0 or end + PADDING > data.shape[0]:
        return count
    while count < lines.shape[0] and end - packet >= 4:
        size = np.int64(read32(data, packet) & np.uint32(0xFF_FFFF))
        if size == 0xFF_FFFF or end - packet - 4 < size:
            break
        stop = packet + 4 + size - (4 if state[HAS_CHECKSUMS] else 0)
        at = packet + 5 + _HEADER
        if stop - at > 0 and data[packet + 9] == TRANSACTION_PAYLOAD:
            frame, unpacked = _find_frame(data, at, stop)
            if unpacked == 0 or unpacked > max_unpacked - total:
                break
            lines[count, PACKET_START], lines[count, FRAME_START], lines[count, FRAME_END] = packet, frame, stop
            lines[count, UNPACKED_START], lines[count, UNPACKED_END] = total, total + unpacked
            count += 1
            total += unpacked
        elif count == 0:
            break
        packet += 4 + size
    return count
