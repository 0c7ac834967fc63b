"""Hashes by which rows are looked up: one 64-bit word for a single integer key, otherwise a hash of two words.

The hash is SipHash with a secret that each process generates: no one can craft keys that collide, and the chance that
two of ``n`` keys collide is about n^2 / 2^128. Only the hashes are compared: values that are equal bit by bit, as in
:func:`~airflow_provider_cdc.model.multiset.row_images`, have equal hashes.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from airflow_provider_cdc.model.errors import TerminalError

_SIGN_BIT = np.uint64(1 << 63)


@dataclass(frozen=True)
class KeyHashes:
    """The key hashes of some rows.

    :param first: array of uint64; for integer keys, its order is that of the keys.
    :param second: array of uint64; ``None`` for integer keys.
    """

    first: Any
    second: Any = None

    def __len__(self) -> int:
        return len(self.first)

    def select(self, rows: Any) -> KeyHashes:
        """Return the hashes of some rows.

        :param rows: indices or a mask.
        """
        return KeyHashes(self.first[rows], None if self.second is None else self.second[rows])


def concat_hashes(parts: Sequence[KeyHashes]) -> KeyHashes:
    """Return hashes concatenated."""
    second = None if parts[0].second is None else np.concatenate([p.second for p in parts])
    return KeyHashes(np.concatenate([p.first for p in parts]), second)


class KeyHasher:
    """Computes key hashes of rows.

    :param columns: names of the columns that identify rows.
    :param schema: schema of the rows.
    :param is_key: whether these columns are a key and thus never NULL.
    """

    def __init__(self, columns: Sequence[str], schema: pa.Schema, *, is_key: bool = True) -> None:
        self.columns = tuple(columns)
        self.is_integer_key = is_key and len(columns) == 1 and pa.types.is_integer(schema.field(columns[0]).type)
        self._unsigned = self.is_integer_key and pa.types.is_unsigned_integer(schema.field(columns[0]).type)
        self._secret = np.frombuffer(secrets.token_bytes(16), np.uint64)

    def __call__(self, rows: pa.Table) -> KeyHashes:
        """Return the hashes of rows, one per row.

        :param rows: rows with at least the identifying columns.
        """
        if self.is_integer_key:
            return KeyHashes(_order_preserving_uint64(rows[self.columns[0]]))
        return self._hash_rows(rows)

    def hash_integers(self, values: Sequence[int]) -> Any:
        """Return the first words of single integer keys."""
        return _order_preserving_uint64(
            pa.chunked_array([pa.array(values, pa.uint64() if self._unsigned else pa.int64())])
        )

    def _hash_rows(self, rows: pa.Table) -> KeyHashes:
        from airflow_provider_cdc.sinks.row_hashes import hash_rows  # compiled code that most drivers do not need

        return KeyHashes(*hash_rows(rows, self.columns, self._secret))


def _order_preserving_uint64(column: pa.ChunkedArray) -> Any:
    if column.null_count:  # NumPy would convert all of them to floats and merge some integers
        raise TerminalError("a key of the copy is NULL", "Re-snapshot the table: `airflow-cdc resnapshot`")
    values = column.to_numpy()
    if values.dtype.kind == "u":
        return values.astype(np.uint64)
    return values.astype(np.int64).view(np.uint64) ^ _SIGN_BIT
