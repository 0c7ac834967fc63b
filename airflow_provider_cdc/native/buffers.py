"""Arrays that machine code fills, and their conversion to Arrow."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

#: Bytes in one column of strings after which a batch is cut, because offsets have 31 bits.
MAX_STRING_BYTES = 1 << 30


def copy_to_arrow(array: Any) -> pa.Buffer:
    """Copy the bytes of an array to a buffer from Arrow's memory pool, which reuses freed memory."""
    buffer = pa.allocate_buffer(array.nbytes)
    if array.nbytes:
        np.frombuffer(buffer, np.uint8)[:] = array.view(np.uint8)
    return buffer


def is_utf8(content: pa.Buffer, offsets: Any) -> bool:
    """Return whether all strings of a column are UTF-8: the whole is, and no string begins inside a character."""
    data: Any = np.frombuffer(content, np.uint8) if content.size else np.zeros(1, np.uint8)
    if data.max() < 0x80:
        return True
    whole = pa.py_buffer(np.array([0, content.size], np.int64))
    try:
        pa.Array.from_buffers(pa.large_string(), 1, [None, whole, content]).validate(full=True)
    except pa.ArrowInvalid:
        return False
    starts = offsets[offsets < content.size]
    return not ((data[starts] & 0xC0) == 0x80).any()


def to_vectors(values: pa.Array) -> pa.Array:
    """Convert a binary array of packed 32-bit numbers to a list array.

    :raises ValueError: if a value has a part of a number.
    """
    validity, offset_bytes, content = values.buffers()
    offsets = np.frombuffer(offset_bytes, np.int32)[: len(values) + 1]
    if (offsets % 4).any():
        raise ValueError("a vector contains an incomplete number")
    floats = pa.Array.from_buffers(pa.float32(), int(offsets[-1]) // 4, [None, content])
    numbers = copy_to_arrow(offsets // 4)
    return pa.Array.from_buffers(pa.list_(pa.float32()), len(values), [validity, numbers], children=[floats])


def enlarge(array: Any, size: int, fill: int = 0) -> Any:
    """Return a larger copy of an array, with the additional elements set to ``fill``."""
    larger = np.empty(size, array.dtype)
    larger[: len(array)] = array
    larger[len(array) :] = fill
    return larger
