"""Decoders of MariaDB-specific values: UUID and INET, which are bytes in the binlog, and COMPRESSED columns."""

from __future__ import annotations

import zlib
from itertools import groupby

import numpy as np
import pyarrow as pa

_HEX_PAIRS = np.frombuffer("".join(f"{n:02x}" for n in range(256)).encode(), np.uint8).reshape(256, 2)
#: Places of the dashes and of the hexadecimal digits in the text of a UUID.
_DASH_PLACES = [8, 13, 18, 23]
_DIGIT_PLACES = [i for i in range(36) if i not in _DASH_PLACES]


def uuid_texts(values: pa.Array) -> pa.Array:
    """Convert UUIDs to text as the server prints them; vectorized, because they are often keys of large tables.

    :param values: binary array with 16 bytes per value.
    :returns: string array.
    """
    _, offsets, content = values.buffers()
    ends = np.frombuffer(offsets, np.int32)[: len(values) + 1]
    raw = np.frombuffer(content, np.uint8)[: ends[-1]].reshape(-1, 16)
    texts = np.full((len(raw), 36), ord("-"), np.uint8)
    texts[:, _DIGIT_PLACES] = _HEX_PAIRS[raw].reshape(-1, 32)
    buffers = [values.buffers()[0], pa.py_buffer((ends // 16 * 36).tobytes()), pa.py_buffer(texts.tobytes())]
    return pa.Array.from_buffers(pa.string(), len(values), buffers)


def inet_text(raw: bytes) -> str:
    """Convert an INET4 (4 bytes) or INET6 (16 bytes) value to text as the server prints it.

    In an INET6 value, the first of the longest runs of zero groups is omitted, even if it is a single group. An
    embedded IPv4 address after it is printed as such.
    """
    if len(raw) == 4:
        return ".".join(map(str, raw))
    words = [int.from_bytes(raw[i : i + 2], "big") for i in range(0, 16, 2)]
    runs = [list(run) for zero, run in groupby(range(8), lambda i: words[i] == 0) if zero]
    gap = max(runs, key=len, default=[])
    if gap[:1] == [0] and (len(gap) == 6 or (len(gap) == 5 and words[5] == 0xFFFF)):
        return ("::" if len(gap) == 6 else "::ffff:") + inet_text(raw[12:])
    texts = [f"{word:x}" for word in words]
    if not gap:
        return ":".join(texts)
    return f"{':'.join(texts[: gap[0]])}::{':'.join(texts[gap[-1] + 1 :])}"


def decompress_column(raw: bytes) -> bytes:
    """Return the uncompressed value of a COMPRESSED column.

    The first byte is 0 if the rest is the uncompressed value. Otherwise its upper four bits are 8, for zlib; its lower
    four bits contain the flag 8 for a stream without zlib header, plus the size of the length field in bytes.

    :raises ValueError: if the data does not have this format.
    """
    if not raw:
        return raw
    head, size = raw[0], raw[0] & 7
    if head == 0:
        return raw[1:]
    if head >> 4 != 8 or not 1 <= size <= 4:
        raise ValueError(f"unknown compression {head:#04x}")
    length = int.from_bytes(raw[1 : 1 + size], "big")
    unpack = zlib.decompressobj(-zlib.MAX_WBITS if head & 8 else zlib.MAX_WBITS)
    try:
        value = unpack.decompress(raw[1 + size :], length + 1)
    except zlib.error as error:
        raise ValueError(str(error)) from None
    if len(value) != length or not unpack.eof or unpack.unused_data:
        raise ValueError("damaged compression")
    return value
