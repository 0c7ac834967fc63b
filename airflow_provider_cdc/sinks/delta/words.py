"""What rows are looked up by: one word of 64 bits for a key that is a single integer, else two, which are a hash.

The hash is SipHash with a secret that each process draws for itself: nobody can write keys that meet in it, and that
two of ``n`` keys meet by chance is one in 2^128 / n^2. The values themselves decide nothing: equal ones have equal
words, bit by bit as in :func:`~airflow_provider_cdc.core.multiset.images`.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_cdc.core.multiset import images
from airflow_provider_cdc.exceptions import TerminalError

_SIGN = np.uint64(1 << 63)
_NOTHING: Any = np.empty(0, np.uint8)
#: Rows that are hashed at a time: their states take 32 bytes each.
_ROWS = 1 << 18


@dataclass(frozen=True)
class Words:
    """The words of some rows.

    :param first: array of uint64, in the order of the keys if they are integers.
    :param second: likewise; ``None`` for integers.
    """

    first: Any
    second: Any = None

    def __len__(self) -> int:
        return len(self.first)

    def take(self, rows: Any) -> Words:
        """Those of some rows.

        :param rows: indices or a mask.
        """
        return Words(self.first[rows], None if self.second is None else self.second[rows])


def joined(parts: Sequence[Words]) -> Words:
    """Words one behind the other."""
    second = None if parts[0].second is None else np.concatenate([p.second for p in parts])
    return Words(np.concatenate([p.first for p in parts]), second)


class Worder:
    """Makes the words of rows.

    :param columns: names of the columns that tell rows apart.
    :param schema: schema of the rows.
    :param key: whether they are a key, and so never NULL.
    """

    def __init__(self, columns: Sequence[str], schema: pa.Schema, *, key: bool = True) -> None:
        self.columns = tuple(columns)
        self.plain = key and len(columns) == 1 and pa.types.is_integer(schema.field(columns[0]).type)
        self._unsigned = self.plain and pa.types.is_unsigned_integer(schema.field(columns[0]).type)
        self._secret = np.frombuffer(secrets.token_bytes(16), np.uint64)

    def __call__(self, rows: pa.Table) -> Words:
        """Words of rows, one each.

        :param rows: with at least the columns.
        """
        if self.plain:
            return Words(_integers(rows[self.columns[0]]))
        parts = [self._hashed(rows.slice(at, _ROWS)) for at in range(0, rows.num_rows, _ROWS)]
        return joined(parts) if parts else Words(np.empty(0, np.uint64), np.empty(0, np.uint64))

    def of_integers(self, values: Sequence[int]) -> Any:
        """First words of keys that are single integers."""
        return _integers(pa.chunked_array([pa.array(values, pa.uint64() if self._unsigned else pa.int64())]))

    def _hashed(self, rows: pa.Table) -> Words:
        from airflow_provider_cdc.sinks.delta import siphash  # compiled: not for drivers that need none of it

        state = siphash.begin(rows.num_rows, self._secret)
        for column in images(rows, self.columns).columns:
            array: pa.Array = column.combine_chunks()
            # Copies: machine code takes no arrays that must not be written to, as those of Arrow are.
            valid = pc.is_valid(array).cast(pa.uint8()).to_numpy().copy()
            if pa.types.is_large_binary(array.type) or pa.types.is_large_string(array.type):
                offsets = np.frombuffer(array.buffers()[1], np.int64)[array.offset : array.offset + len(array) + 1]
                content = array.buffers()[2]
                data = np.frombuffer(content, np.uint8)[offsets[0] : offsets[-1]] if content else _NOTHING
                siphash.add_texts(state, data.copy(), offsets - offsets[0], valid)
            else:
                for values in _fixed(array):
                    siphash.add_words(state, values, valid)
        return Words(*siphash.end(state))


def _integers(column: pa.ChunkedArray) -> Any:
    if column.null_count:  # NumPy would make floats of all of them, and several integers the same
        raise TerminalError("a key of the copy is NULL", "Copy the table again: `airflow-cdc resnapshot`")
    values = column.to_numpy()
    if values.dtype.kind == "u":
        return values.astype(np.uint64)
    return values.astype(np.int64).view(np.uint64) ^ _SIGN


def _fixed(array: pa.Array) -> list[Any]:
    """Values of fixed width as words, one array or (longer ones) several."""
    kind = array.type
    if pa.types.is_boolean(kind):
        return [pc.fill_null(array, False).cast(pa.uint8()).to_numpy().astype(np.uint64)]
    width = kind.bit_width // 8
    if array.buffers()[1] is None:  # nothing but NULLs
        return [np.zeros(len(array), np.uint64)]
    data = np.frombuffer(array.buffers()[1], np.uint8)[array.offset * width : (array.offset + len(array)) * width]
    if width <= 8:
        return [data.view(f"u{width}").astype(np.uint64)]
    words = data.view(np.uint64).reshape(len(array), width // 8)
    return [np.ascontiguousarray(words[:, i]) for i in range(width // 8)]
