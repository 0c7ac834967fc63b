"""Which chunk owns a key, and so up to which point the snapshot already holds its changes."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pymysql.connections import Connection

from airflow_provider_cdc.core.plan import Chunk, Key
from airflow_provider_cdc.core.schema import INTEGER_TYPES, SEQ, TableSchema
from airflow_provider_cdc.mysql.keys import AFTER, BEFORE, KEY, keys_of, ranking
from airflow_provider_cdc.mysql.session import rows

#: Keys asked about in one statement.
_KEYS_A_QUERY = 2000


def owners(connection: Connection[Any], table: TableSchema, chunks: Sequence[Chunk], keys: Sequence[Key]) -> list[int]:
    """Index of the owning chunk of each key, -1 for the virtual chunks below the smallest and above the largest key.

    Integers are compared here, exactly; every other type is sorted among the bounds by the server.

    :param chunks: all chunks of the table in key order (or a run of neighbours: -1 then means outside of the run).
    """
    if not chunks or not keys:
        return [-1] * len(keys)
    columns = table.key_columns
    if len(columns) == 1 and columns[0].data_type in INTEGER_TYPES:
        lowers, upper = [int(c.lower[0]) for c in chunks], int(chunks[-1].upper[0])
        inside = upper + 1 if chunks[-1].last else upper
        return [bisect_right(lowers, int(k[0])) - 1 if int(k[0]) < inside else -1 for k in keys]
    found: list[int] = []
    for start in range(0, len(keys), _KEYS_A_QUERY):
        found += _ranked(connection, table, chunks, keys[start : start + _KEYS_A_QUERY])
    return found


def _ranked(connection: Connection[Any], table: TableSchema, chunks: Sequence[Chunk], keys: Sequence[Key]) -> list[int]:
    entries = [(c.lower, -1, BEFORE) for c in chunks]
    entries.append((chunks[-1].upper, -1, AFTER if chunks[-1].last else BEFORE))
    entries += [(key, i, KEY) for i, key in enumerate(keys)]
    found, passed = [-1] * len(keys), -1
    for (text,) in rows(connection, ranking(table, entries)):
        number = int(str(text))
        if number < 0:
            passed += 1
        else:
            found[number] = passed if passed < len(chunks) else -1
    return found


def uncovered(
    connection: Connection[Any],
    table: TableSchema,
    chunks: Sequence[Chunk],
    high_watermarks: Sequence[int],
    p0: int,
    changes: pa.Table,
) -> pa.Table:
    """The changes that the snapshot does not hold yet: those after the high watermark of the chunk that owns their key.

    :param chunks: all chunks of the table in key order.
    :param high_watermarks: ``_cdc_seq`` of the HW of each chunk.
    :param p0: ``_cdc_seq`` of P0, the high watermark of the virtual chunks.
    :param changes: changes in binlog order.
    """
    newest = max([p0, *high_watermarks])
    if changes.num_rows == 0 or pc.min(changes[SEQ]).as_py() > newest:
        return changes
    marks = [*high_watermarks, p0]  # index -1 is the virtual chunks'
    owned = owners(connection, table, chunks, keys_of(table, changes))
    held = pa.array([marks[i] for i in owned], pa.int64())
    return changes.filter(pc.greater(changes[SEQ], held))
