"""The definition by which a source table writes to a table that it shares with others.

Such a table has the columns of all of its sources, so its own columns do not tell whether a writer is up to date: a
marker of the source does.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import pyarrow as pa

#: Marker of a source: :func:`digest_columns` of its newest definition.
COLUMNS_MARKER = "cdc/columns"


def digest_columns(schema: pa.Schema, key: Iterable[str]) -> int:
    """Return a number that tells definitions apart.

    :param schema: schema of the rows that are written.
    :param key: columns of the key.
    :returns: a positive number of at most 62 bits, so that every format can store it.
    """
    text = repr(([(field.name, str(field.type)) for field in schema], list(key)))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 2
