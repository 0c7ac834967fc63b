"""128-bit hashes of row values: SipHash with a secret.

Without the secret, no one can write rows that collide; the chance that two of ``n`` rows collide is about n^2 / 2^128.
Values that are equal bit by bit, as in :func:`~airflow_provider_cdc.model.multiset.row_images`, have equal hashes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_cdc.model.multiset import row_images
from airflow_provider_cdc.native import siphash

_NO_BYTES: Any = np.empty(0, np.uint8)
#: Rows hashed at a time: each has a state of 32 bytes.
_ROWS_PER_PORTION = 1 << 18


def hash_rows(rows: pa.Table, columns: Sequence[str], secret: Any) -> tuple[Any, Any]:
    """Return hashes of rows, computed from some of their columns.

    :param secret: two words (uint64).
    :returns: two arrays of uint64, with one value per row.
    """
    parts = [
        _hash_portion(rows.slice(start, _ROWS_PER_PORTION), columns, secret)
        for start in range(0, rows.num_rows, _ROWS_PER_PORTION)
    ]
    if not parts:
        return np.empty(0, np.uint64), np.empty(0, np.uint64)
    first, second = zip(*parts, strict=True)
    return (first[0], second[0]) if len(parts) == 1 else (np.concatenate(first), np.concatenate(second))


def _hash_portion(rows: pa.Table, columns: Sequence[str], secret: Any) -> tuple[Any, Any]:
    state = siphash.init_states(rows.num_rows, secret)
    for column in row_images(rows, columns).columns:
        array: pa.Array = column.combine_chunks()
        # Copies: the machine code accepts no read-only arrays, and those of Arrow are read-only.
        valid = pc.is_valid(array).cast(pa.uint8()).to_numpy().copy()
        if pa.types.is_large_binary(array.type) or pa.types.is_large_string(array.type):
            offsets = np.frombuffer(array.buffers()[1], np.int64)[array.offset : array.offset + len(array) + 1]
            content = array.buffers()[2]
            data = np.frombuffer(content, np.uint8)[offsets[0] : offsets[-1]] if content else _NO_BYTES
            siphash.add_bytes(state, data.copy(), offsets - offsets[0], valid)
        else:
            for values in _fixed_width_words(array):
                siphash.add_words(state, values, valid)
    first, second = siphash.finish_states(state)
    return first, second


def _fixed_width_words(array: pa.Array) -> list[Any]:
    """Return values of fixed width as words: one array, or several for values wider than 8 bytes."""
    kind = array.type
    if pa.types.is_boolean(kind):
        return [pc.fill_null(array, False).cast(pa.uint8()).to_numpy().astype(np.uint64)]
    width = kind.bit_width // 8
    if array.buffers()[1] is None:  # all NULL
        return [np.zeros(len(array), np.uint64)]
    data = np.frombuffer(array.buffers()[1], np.uint8)[array.offset * width : (array.offset + len(array)) * width]
    if width <= 8:
        return [data.view(f"u{width}").astype(np.uint64)]
    words = data.view(np.uint64).reshape(len(array), width // 8)
    return [np.ascontiguousarray(words[:, i]) for i in range(width // 8)]
