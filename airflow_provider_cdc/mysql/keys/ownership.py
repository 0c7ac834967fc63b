"""Which chunk owns a key, and hence up to which point the snapshot already includes its changes."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pymysql.connections import Connection

from airflow_provider_cdc.model.plan import Chunk, Key
from airflow_provider_cdc.model.schema import SEQ_COLUMN, TableSchema
from airflow_provider_cdc.mysql.client.key_sql import count_passed_bounds, keys_of
from airflow_provider_cdc.mysql.client.session import query_rows

#: Keys and chunk bounds in one statement, which compares each key with each bound.
_KEYS_PER_QUERY, _BOUNDS_PER_QUERY = 2000, 32


def find_owning_chunks(
    connection: Connection[Any], table: TableSchema, chunks: Sequence[Chunk], keys: Sequence[Key]
) -> list[int]:
    """Return the index of the owning chunk of each key; -1 for the virtual chunks below and above all chunks.

    Integers are compared here, exactly. The server compares keys of every other type with the bounds.

    :param chunks: chunks of the table in key order: all of them, or some, possibly with gaps in between. With some of
        them, -1 means outside of these.
    """
    if not chunks or not keys:
        return [-1] * len(keys)
    if table.integer_key_column is not None:
        lowers = [int(c.lower[0]) for c in chunks]
        ends = [int(c.upper[0]) + c.includes_upper for c in chunks]
        chunk_indexes = [bisect_right(lowers, int(key[0])) - 1 for key in keys]
        return [i if i >= 0 and int(key[0]) < ends[i] else -1 for i, key in zip(chunk_indexes, keys, strict=True)]
    key_batches = (keys[start : start + _KEYS_PER_QUERY] for start in range(0, len(keys), _KEYS_PER_QUERY))
    return [i for some in key_batches for i in _find_owners(connection, table, chunks, some)]


def mask_owned_rows(
    connection: Connection[Any], table: TableSchema, chunks: Sequence[Chunk], rows: pa.Table
) -> pa.Array:
    """Return the mask of the rows whose keys are owned by one of some chunks.

    :param chunks: as in :func:`find_owning_chunks`.
    :param rows: rows with the key columns.
    """
    name = table.integer_key_column
    if name is None or not pa.types.is_integer(rows.schema.field(name).type) or not chunks:
        owners = find_owning_chunks(connection, table, chunks, keys_of(table, rows))
        return pa.array([i >= 0 for i in owners], pa.bool_())
    keys = rows[name].to_numpy().astype(np.int64, copy=False)
    lowers = np.array([int(chunk.lower[0]) for chunk in chunks])
    uppers = np.array([int(chunk.upper[0]) for chunk in chunks])
    at = np.searchsorted(lowers, keys, "right") - 1
    closed = np.array([chunk.includes_upper for chunk in chunks])
    return pa.array((at >= 0) & ((keys < uppers[at]) | (closed[at] & (keys == uppers[at]))))


def _find_owners(
    connection: Connection[Any], table: TableSchema, chunks: Sequence[Chunk], keys: Sequence[Key]
) -> list[int]:
    """Like :func:`_compare_with_bounds`, but for any number of chunks: one statement would compare far too much.

    Find the run of neighboring chunks for each key first, then the chunk within the runs that own a key.
    """
    if len(chunks) <= _BOUNDS_PER_QUERY:
        return _compare_with_bounds(connection, table, chunks, keys)
    size = -(-len(chunks) // _BOUNDS_PER_QUERY)
    runs = [chunks[i : i + size] for i in range(0, len(chunks), size)]
    spans = [run[0].replace(upper=run[-1].upper, includes_upper=run[-1].includes_upper) for run in runs]
    keys_by_run: dict[int, list[int]] = {}
    for i, run in enumerate(_find_owners(connection, table, spans, keys)):
        keys_by_run.setdefault(run, []).append(i)
    owner_indexes = [-1] * len(keys)
    wanted = sorted(keys_by_run.keys() - {-1})
    for start in range(0, len(wanted), max(1, _BOUNDS_PER_QUERY // size)):
        together = wanted[start : start + max(1, _BOUNDS_PER_QUERY // size)]
        numbers = [run * size + i for run in together for i in range(len(runs[run]))]
        key_numbers = [i for run in together for i in keys_by_run[run]]
        # The runs in between own none of the keys, so only the number of bounds that a key has passed matters.
        ranks = _compare_with_bounds(connection, table, [chunks[n] for n in numbers], [keys[i] for i in key_numbers])
        for i, rank in zip(key_numbers, ranks, strict=True):
            owner_indexes[i] = numbers[rank] if rank >= 0 else -1
    return owner_indexes


def _compare_with_bounds(
    connection: Connection[Any], table: TableSchema, chunks: Sequence[Chunk], keys: Sequence[Key]
) -> list[int]:
    bounds, owner = list[tuple[Key, bool]](), [-1]
    for i, chunk in enumerate(chunks):
        bounds.append((chunk.lower, False))
        owner.append(i)
        # If no chunk owns the keys after it:
        if chunk.includes_upper or i + 1 == len(chunks) or chunks[i + 1].lower != chunk.upper:
            bounds.append((chunk.upper, chunk.includes_upper))
            owner.append(-1)
    owner_indexes = [-1] * len(keys)
    for number, count in query_rows(connection, count_passed_bounds(table, keys, bounds)):
        owner_indexes[int(str(number))] = owner[int(str(count))]
    return owner_indexes


def changes_after_snapshot(
    connection: Connection[Any],
    table: TableSchema,
    chunks: Sequence[Chunk],
    high_watermarks: Sequence[int],
    p0: int,
    changes: pa.Table,
    keys: pa.Table | None = None,
) -> pa.Table:
    """Return the changes that the snapshot does not include yet.

    These are the changes after the high watermark of the chunk that owns their key.

    :param chunks: all chunks of the table in key order.
    :param high_watermarks: ``_cdc_seq`` of the high watermark of each chunk.
    :param p0: ``_cdc_seq`` of P0, which is the high watermark of the virtual chunks.
    :param changes: changes in binlog order.
    :param keys: the keys of the changes, if their columns do not have the names of the source's key columns.
    """
    newest = max([p0, *high_watermarks])
    if changes.num_rows == 0 or pc.min(changes[SEQ_COLUMN]).as_py() > newest:
        return changes
    marks = [*high_watermarks, p0]  # index -1 is for the virtual chunks
    chunk_indexes = find_owning_chunks(connection, table, chunks, keys_of(table, changes if keys is None else keys))
    watermark_by_row = pa.array([marks[i] for i in chunk_indexes], pa.int64())
    return changes.filter(pc.greater(changes[SEQ_COLUMN], watermark_by_row))
