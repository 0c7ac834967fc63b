"""Convert many binary JSON documents to text at once, in compiled code.

The readable version is :mod:`airflow_provider_cdc.mysql.binlog.plain.jsonb`. It also handles what is not supported
here: documents with SQL values or with doubles of more than 15 digits or of unusual magnitude, and damaged ones, for
which it raises the error.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from airflow_provider_cdc.mysql.binlog.plain import jsonb
from airflow_provider_cdc.mysql.binlog.plain.jsonb import MAX_DEPTH, json_text
from airflow_provider_cdc.native import primitives
from airflow_provider_cdc.native.buffers import copy_to_arrow, is_utf8
from airflow_provider_cdc.native.compile import compiled
from airflow_provider_cdc.native.primitives import PADDING, inlined, not_inlined, read16, read32, read64

_intrinsic: Any = intrinsic

#: Maximum bytes of text per byte of a document (a control character becomes ``\\u001f``), and bytes for an empty one.
_GROWTH, _LEAST = 6, 16
_MOST_BYTES = (2**31 - 1) // 2 // _GROWTH

# Results of writing a document: done, or left to the Python code.
_DONE, _LEFT = -1, -2

# Fields of an open container: where it begins and ends, the number of its members and the next one, whether it is an
# object, and the width of its offsets in bytes.
_BASE, _END, _COUNT, _NEXT, _OBJECT, _WIDTH = range(6)


@_intrinsic  # type: ignore[untyped-decorator]
def _bits_to_double(context: Any, bits: Any) -> Any:
    """Reinterpret 64 bits as a double."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], ir.DoubleType())

    return types.float64(types.uint64), generate


@inlined  # type: ignore[untyped-decorator]
def _read_uint(data: Any, at: Any, width: Any) -> Any:
    return np.int64(read16(data, at)) if width == 2 else np.int64(read32(data, at))


@not_inlined  # type: ignore[untyped-decorator]
def _write_digits(value: Any, out: Any, o: Any) -> Any:
    """Write an unsigned number and return where it ends."""
    size, rest = 1, value // np.uint64(10)
    while rest:
        size += 1
        rest //= np.uint64(10)
    for i in range(o + size - 1, o - 1, -1):
        out[i] = 48 + value % np.uint64(10)
        value //= np.uint64(10)
    return o + size


@not_inlined  # type: ignore[untyped-decorator]
def _write_string(data: Any, at: Any, size: Any, out: Any, o: Any) -> Any:
    """Write a string and return where it ends."""
    out[o] = 34
    o += 1
    for i in range(at, at + size):
        char = data[i]
        if char >= 32 and char != 34 and char != 92:
            out[o] = char
            o += 1
            continue
        out[o] = 92
        short: Any = 0
        if char == 34 or char == 92:
            short = np.int64(char)
        elif char == 8:
            short = 98
        elif char == 9:
            short = 116
        elif char == 10:
            short = 110
        elif char == 12:
            short = 102
        elif char == 13:
            short = 114
        if short:
            out[o + 1] = short
            o += 2
            continue
        out[o + 1], out[o + 2], out[o + 3], out[o + 4] = 117, 48, 48, 48 + (char >> 4)
        low = char & 15
        out[o + 5] = 48 + low if low < 10 else 87 + low
        o += 6
    out[o] = 34
    return o + 1


@not_inlined  # type: ignore[untyped-decorator]
def _write_double(value: Any, out: Any, o: Any) -> Any:
    """Write a double of at most 15 digits and return where it ends, or ``_LEFT``.

    The quotient of an integer below 2**53 and a power of ten up to 10**22 is rounded once, as is parsing the same
    digits, so equality proves that the digits are right. No other 15 digits parse to the same double, so they are the
    shortest.
    """
    size = abs(value)
    if not (size == 0.0 or (size >= 1e-5 and size < 1e15)):
        return _LEFT
    if np.copysign(1.0, value) < 0:
        out[o] = 45
        o += 1
    power, places = 1.0, 0
    while size * power < 1e15:
        whole = np.rint(size * power)
        if whole / power == size:
            number, unit = np.uint64(whole), np.uint64(power)
            o = _write_digits(number // unit, out, o)
            out[o] = 46
            rest = number % unit
            for i in range(o + places, o, -1):
                out[i] = 48 + rest % np.uint64(10)
                rest //= np.uint64(10)
            if places == 0:
                out[o + 1] = 48
                places = 1
            return o + 1 + places
        power *= 10.0
        places += 1
    return _LEFT


@not_inlined  # type: ignore[untyped-decorator]
def _write_scalar(kind: Any, data: Any, at: Any, end: Any, out: Any, o: Any, most: Any) -> Any:
    """Write a value that is not a container and return where it ends, or ``_LEFT``."""
    left = end - at
    if most - o < 32:
        return _LEFT
    if kind == 4:
        word = data[at] if left >= 1 else np.uint8(3)
        if word > 2:
            return _LEFT
        text = 0x6C6C756E if word == 0 else (0x65757274 if word == 1 else 0x736C6166)
        for i in range(4):
            out[o + i] = text >> (8 * i) & 0xFF
        if word == 2:
            out[o + 4] = 101
        return o + (5 if word == 2 else 4)
    if kind >= 5 and kind <= 10:
        size = 2 << ((kind - 5) >> 1)
        if left < size:
            return _LEFT
        number = read64(data, at) & (~np.uint64(0) >> np.uint64(64 - 8 * size))
        sign = np.uint64(1) << np.uint64(8 * size - 1)
        if kind & 1 != 0 and number & sign != np.uint64(0):
            out[o] = 45
            # The absolute value, which is right for the smallest number, too.
            number = (~number + np.uint64(1)) & (~np.uint64(0) >> np.uint64(64 - 8 * size))
            o += 1
        return _write_digits(number, out, o)
    if kind == 11:
        return _write_double(_bits_to_double(read64(data, at)), out, o) if left >= 8 else _LEFT
    if kind == 12:
        size = np.int64(0)
        for i in range(5):
            if at >= end:
                return _LEFT
            byte = np.int64(data[at])
            size |= (byte & 0x7F) << (7 * i)
            at += 1
            if byte < 0x80:
                break
        if byte >= 0x80 or end - at < size or most - o < _GROWTH * size + 2:
            return _LEFT
        return _write_string(data, at, size, out, o)
    return _LEFT


@not_inlined  # type: ignore[untyped-decorator]
def _write_document(data: Any, at: Any, end: Any, out: Any, o: Any, most: Any, stack: Any) -> Any:
    """Write a document and return where it ends, or ``_LEFT``."""
    kind, depth = np.int64(data[at]), 0
    at += 1
    while True:
        if kind > 3:
            o = _write_scalar(kind, data, at, end, out, o, most)
            if o < 0:
                return _LEFT
        else:
            is_object, width = 1 if kind < 2 else 0, 4 if kind & 1 else 2
            if depth == MAX_DEPTH or end - at < 2 * width:
                return _LEFT
            count, size = _read_uint(data, at, width), _read_uint(data, at + width, width)
            entries = (width + 2) * is_object + 1 + width
            if size > end - at or 2 * width + count * entries > size or most - o < 2:
                return _LEFT
            stack[depth, _BASE], stack[depth, _END], stack[depth, _COUNT] = at, at + size, count
            stack[depth, _NEXT], stack[depth, _OBJECT], stack[depth, _WIDTH] = 0, is_object, width
            out[o] = 123 if is_object else 91
            o += 1
            depth += 1
        while depth > 0 and stack[depth - 1, _NEXT] == stack[depth - 1, _COUNT]:
            depth -= 1
            if most - o < 1:
                return _LEFT
            out[o] = 125 if stack[depth, _OBJECT] else 93
            o += 1
        if depth == 0:
            return o
        top = depth - 1
        base, limit, width, i = stack[top, _BASE], stack[top, _END], stack[top, _WIDTH], stack[top, _NEXT]
        stack[top, _NEXT] = i + 1
        if most - o < 8:
            return _LEFT
        if i:
            out[o], out[o + 1] = 44, 32
            o += 2
        entry = base + 2 * width
        if stack[top, _OBJECT]:
            name = entry + i * (width + 2)
            key, size = base + _read_uint(data, name, width), np.int64(read16(data, name + width))
            if key + size > limit or most - o < _GROWTH * size + 4:
                return _LEFT
            o = _write_string(data, key, size, out, o)
            out[o], out[o + 1] = 58, 32
            o += 2
            entry += stack[top, _COUNT] * (width + 2)
        entry += i * (1 + width)
        kind = np.int64(data[entry])
        # Small values are inlined in the entry, others are at an offset.
        if kind == 4 or kind == 5 or kind == 6 or (width == 4 and (kind == 7 or kind == 8)):
            at, end = entry + 1, entry + 1 + width
        else:
            at, end = base + _read_uint(data, entry + 1, width), limit
            if at >= end:
                return _LEFT


@compiled(
    "void(uint8[::1], int32[::1], boolean[::1], uint8[::1], int32[::1], boolean[::1], int64[:, ::1])",
    __file__,
    jsonb.__file__,  # for MAX_DEPTH, the number of lines of the caller's stack
    primitives.__file__,
)
def _write_documents(data: Any, begins: Any, valid: Any, out: Any, ends: Any, left: Any, stack: Any) -> None:
    """Write documents one after the other.

    :param begins: offset of each document in ``data``, and the end of the last one.
    :param valid: whether each is a document and not NULL.
    :param ends: receives the offset of each text in ``out``, and the end of the last one.
    :param left: receives whether each is left to the Python code; its text is then empty.
    """
    o = np.int64(0)
    for row in range(valid.shape[0]):
        ends[row] = o
        at, end = np.int64(begins[row]), np.int64(begins[row + 1])
        left[row] = False
        if not valid[row]:
            continue
        if at == end:  # an empty document is the JSON null
            out[o], out[o + 1], out[o + 2], out[o + 3] = 110, 117, 108, 108
            o += 4
            continue
        text_end = _write_document(data, at, end, out, o, o + _GROWTH * (end - at) + _LEAST + 32, stack)
        left[row] = text_end < 0
        o = o if text_end < 0 else text_end
    ends[valid.shape[0]] = o


def json_texts(values: pa.Array) -> pa.Array:
    """Convert binary JSON documents to text, as :func:`~airflow_provider_cdc.mysql.binlog.plain.jsonb.json_text` does.

    :param values: binary array of documents; NULL stays NULL.
    :returns: string array.
    :raises ValueError: if a document is damaged.
    """
    validity, offsets, content = values.buffers()
    begins: Any = np.zeros(len(values) + 1, np.int32)
    begins[:] = np.frombuffer(offsets, np.int32, len(begins)) if len(values) else 0
    size = int(begins[-1])
    if size > _MOST_BYTES or values.offset:
        return pa.array([None if v is None else json_text(v) for v in values.to_pylist()], pa.string())
    data: Any = np.empty(size + PADDING, np.uint8)
    data[:size] = np.frombuffer(content, np.uint8, size) if size else 0
    valid = np.ones(len(values), bool) if validity is None else values.is_valid().to_numpy(zero_copy_only=False)
    # Generous, because pages that are never written cost nothing.
    out: Any = np.empty(_GROWTH * size + (_LEAST + 32) * len(values) + 64, np.uint8)
    ends, left = np.empty(len(values) + 1, np.int32), np.empty(len(values), bool)
    _write_documents(data, begins, valid, out, ends, left, np.empty((MAX_DEPTH, 6), np.int64))
    texts = copy_to_arrow(out[: ends[-1]])
    if not is_utf8(texts, ends):
        left |= valid  # the Python code raises the error for the invalid one
    printed = pa.Array.from_buffers(pa.string(), len(values), [validity, pa.py_buffer(ends), texts])
    if not left.any():
        return printed
    rest = [json_text(values[int(row)].as_py()) for row in np.flatnonzero(left)]
    return pc.replace_with_mask(printed, pa.array(left), pa.array(rest, pa.string()))
