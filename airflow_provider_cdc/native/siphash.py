"""SipHash-1-3 with 128 bits for columns, in machine code: columns are added one by one to the state of each row.

For each value, a word is added that encodes whether it is NULL and its length, followed by the value itself. So
different rows add different sequences of words.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from airflow_provider_cdc.native import primitives
from airflow_provider_cdc.native.compile import compiled
from airflow_provider_cdc.native.primitives import inlined, read64

_NULL = np.uint64(0)
_INITIAL = np.array([0x736F6D6570736575, 0x646F72616E646F6D, 0x6C7967656E657261, 0x7465646279746573], np.uint64)


def init_states(rows: int, secret: Any) -> Any:
    """Return initial states.

    :param rows: number of rows.
    :param secret: two words.
    :returns: array of shape (rows, 4).
    """
    state = np.empty((rows, 4), np.uint64)
    state[:] = _INITIAL ^ np.array([secret[0], secret[1], secret[0], secret[1]], np.uint64)
    state[:, 1] ^= np.uint64(0xEE)  # a hash of 128 bits
    return state


def finish_states(state: Any) -> tuple[Any, Any]:
    """Return the two words of each row's hash, as two arrays of uint64."""
    first, second = np.empty(len(state), np.uint64), np.empty(len(state), np.uint64)
    _finish_rows(state, first, second)
    return first, second


@inlined  # type: ignore[untyped-decorator]
def _rotate_left(word: Any, bits: Any) -> Any:
    return (word << np.uint64(bits)) | (word >> np.uint64(64 - bits))


@inlined  # type: ignore[untyped-decorator]
def _sip_round(a: Any, b: Any, c: Any, d: Any) -> Any:
    a, c = a + b, c + d
    b, d = _rotate_left(b, 13) ^ a, _rotate_left(d, 16) ^ c
    a, c = _rotate_left(a, 32) + d, c + b
    b, d = _rotate_left(b, 17) ^ c, _rotate_left(d, 21) ^ a
    return a, b, _rotate_left(c, 32), d


@compiled("void(uint64[:, ::1], uint64[::1], uint8[::1])", __file__, primitives.__file__)
def add_words(state: Any, values: Any, valid: Any) -> None:
    """Add a column of words.

    :param valid: 0 for NULL, else 1.
    """
    for row in range(values.shape[0]):
        a, b, c, d = state[row, 0], state[row, 1], state[row, 2], state[row, 3]
        tag = np.uint64(valid[row])
        d = d ^ tag
        a, b, c, d = _sip_round(a, b, c, d)
        a = a ^ tag
        word = values[row] if valid[row] else _NULL
        d = d ^ word
        a, b, c, d = _sip_round(a, b, c, d)
        a = a ^ word
        state[row, 0], state[row, 1], state[row, 2], state[row, 3] = a, b, c, d


@compiled("void(uint64[:, ::1], uint8[::1], int64[::1], uint8[::1])", __file__, primitives.__file__)
def add_bytes(state: Any, data: Any, offsets: Any, valid: Any) -> None:
    """Add a column of bytes.

    :param offsets: start of each value in ``data``, followed by the end of the last one.
    :param valid: 0 for NULL, else 1.
    """
    for row in range(valid.shape[0]):
        a, b, c, d = state[row, 0], state[row, 1], state[row, 2], state[row, 3]
        at, stop = offsets[row], offsets[row + 1]
        word = np.uint64(0)
        if valid[row]:
            word = np.uint64(1 + stop - at)
        d = d ^ word
        a, b, c, d = _sip_round(a, b, c, d)
        a = a ^ word
        if valid[row]:
            while at + 8 <= stop:
                word = read64(data, at)
                d = d ^ word
                a, b, c, d = _sip_round(a, b, c, d)
                a = a ^ word
                at += 8
            if at < stop:
                word, shift = np.uint64(0), np.uint64(0)
                while at < stop:
                    word = word | (np.uint64(data[at]) << shift)
                    shift = shift + np.uint64(8)
                    at += 1
                d = d ^ word
                a, b, c, d = _sip_round(a, b, c, d)
                a = a ^ word
        state[row, 0], state[row, 1], state[row, 2], state[row, 3] = a, b, c, d


@compiled("void(uint64[:, ::1], uint64[::1], uint64[::1])", __file__, primitives.__file__)
def _finish_rows(state: Any, first: Any, second: Any) -> None:
    for row in range(state.shape[0]):
        a, b, c, d = state[row, 0], state[row, 1], state[row, 2], state[row, 3]
        c = c ^ np.uint64(0xEE)
        for _ in range(3):
            a, b, c, d = _sip_round(a, b, c, d)
        first[row] = a ^ b ^ c ^ d
        b = b ^ np.uint64(0xDD)
        for _ in range(3):
            a, b, c, d = _sip_round(a, b, c, d)
        second[row] = a ^ b ^ c ^ d
