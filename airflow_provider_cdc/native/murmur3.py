"""MurmurHash3 (32 bits, x86, seed 0) of columns, in machine code: the hash of Iceberg's ``bucket`` transform."""

from __future__ import annotations

from typing import Any

import numpy as np

from airflow_provider_cdc.native import primitives
from airflow_provider_cdc.native.compile import compiled
from airflow_provider_cdc.native.primitives import inlined


@inlined  # type: ignore[untyped-decorator]
def _rotate_left(word: Any, bits: Any) -> Any:
    return (word << np.uint32(bits)) | (word >> np.uint32(32 - bits))


@inlined  # type: ignore[untyped-decorator]
def _mix_word(word: Any) -> Any:
    return np.uint32(_rotate_left(np.uint32(word * np.uint32(0xCC9E2D51)), 15) * np.uint32(0x1B873593))


@compiled("void(uint8[::1], int64[::1], int64[::1], int32[::1])", __file__, primitives.__file__)
def hash_bytes(data: Any, starts: Any, stops: Any, hashes: Any) -> None:
    """Compute the hashes of byte strings.

    :param starts: start of each string in ``data``.
    :param stops: end of each string in ``data``.
    :param hashes: the result.
    """
    for row in range(starts.shape[0]):
        at, stop, state = starts[row], stops[row], np.uint32(0)
        length = np.uint32(stop - at)
        while at + 4 <= stop:
            word = (
                np.uint32(data[at])
                | (np.uint32(data[at + 1]) << np.uint32(8))
                | (np.uint32(data[at + 2]) << np.uint32(16))
                | (np.uint32(data[at + 3]) << np.uint32(24))
            )
            state = np.uint32(state ^ _mix_word(word))
            state = np.uint32(_rotate_left(state, 13) * np.uint32(5) + np.uint32(0xE6546B64))
            at += 4
        if at < stop:
            word, shift = np.uint32(0), np.uint32(0)
            while at < stop:
                word = word | (np.uint32(data[at]) << shift)
                shift = np.uint32(shift + np.uint32(8))
                at += 1
            state = np.uint32(state ^ _mix_word(word))
        state = np.uint32(state ^ length)
        state = np.uint32((state ^ (state >> np.uint32(16))) * np.uint32(0x85EBCA6B))
        state = np.uint32((state ^ (state >> np.uint32(13))) * np.uint32(0xC2B2AE35))
        hashes[row] = np.int32(state ^ (state >> np.uint32(16)))
