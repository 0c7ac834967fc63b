"""CRC32 for the kernels, table-driven with sixteen bytes per step."""

from __future__ import annotations

from typing import Any

import numpy as np

from airflow_provider_cdc.native.primitives import inlined, read64

_POLYNOMIAL = 0xEDB8_8320


def crc_tables() -> Any:
    """Return sixteen tables of 256 entries; table k has the contribution of a byte k places before the end of a step.

    :returns: the tables in one uint32 array of shape (4096,).
    """
    tables: Any = np.zeros(16 * 256, np.uint32)
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = crc >> 1 ^ (_POLYNOMIAL if crc & 1 else 0)
        tables[byte] = crc
    for k in range(1, 16):
        for byte in range(256):
            before = int(tables[256 * (k - 1) + byte])
            tables[256 * k + byte] = before >> 8 ^ int(tables[before & 0xFF])
    return tables


@inlined  # type: ignore[untyped-decorator]
def _crc_of_word(tables: Any, word: Any, first: Any) -> Any:
    """Return the contribution of eight bytes, the lowest one first.

    :param first: table of the first byte.
    """
    crc = np.uint32(0)
    for i in range(8):
        byte = np.int64((word >> np.uint64(8 * i)) & np.uint64(0xFF))
        crc ^= tables[np.uint64(256 * (first - i) + byte)]
    return crc


@inlined  # type: ignore[untyped-decorator]
def crc32(tables: Any, data: Any, at: Any, end: Any) -> Any:
    """Return the CRC32 of the bytes at [at, end)."""
    crc = np.uint32(0xFFFF_FFFF)
    while end - at >= 16:
        crc = _crc_of_word(tables, read64(data, at) ^ np.uint64(crc), 15) ^ _crc_of_word(
            tables, read64(data, at + 8), 7
        )
        at += 16
    while at < end:
        crc = (crc >> np.uint32(8)) ^ tables[(np.uint64(crc) ^ np.uint64(data[at])) & np.uint64(0xFF)]
        at += 1
    return crc ^ np.uint32(0xFFFF_FFFF)
