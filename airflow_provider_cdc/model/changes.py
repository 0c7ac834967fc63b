"""Changes of rows as Arrow tables, and how they are merged.

A change table has the source columns, followed by ``_cdc_seq``, ``_cdc_op`` (``c``, ``u`` or ``d``) and ``_cdc_ts``.
Its rows are in binlog order. ``c`` and ``u`` carry the after image, ``d`` carries the before image. An update that
changes the key is a ``d`` of the old key followed by a ``u`` of the new one.

Keys are compared as exact values here. To a case-insensitive server, 'a' and 'A' are two states of one row; here they
are two keys. Because the ``d`` and the ``u`` always travel together, the old row is still removed.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_cdc.model.schema import OP_COLUMN, SEQ_COLUMN

_ROW = "__row"


def last_changes(changes: pa.Table, key: Sequence[str]) -> pa.Table:
    """Reduce changes to the last one of each key, in row order.

    :param changes: changes in binlog order.
    :param key: names of the key columns.
    """
    if changes.num_rows < 2:
        return changes
    # Numbered key columns cannot clash with the names that group_by generates.
    keys = _key_table(changes, key).append_column(_ROW, pa.array(np.arange(changes.num_rows)))
    last = keys.group_by([str(i) for i in range(len(key))], use_threads=False).aggregate([(_ROW, "max")])
    rows = last[f"{_ROW}_max"]
    return changes.take(rows.take(pc.sort_indices(rows)))


def mask_changed_keys(rows: pa.Table, changes: pa.Table, key: Sequence[str]) -> pa.Array:
    """Return a mask of the rows whose key occurs in the changes.

    :param rows: any rows that have the key columns.
    :param changes: at most one change per key.
    :returns: boolean array, one value per row.
    """
    if len(key) == 1:
        return pc.is_in(rows[key[0]], value_set=changes[key[0]].combine_chunks())
    keys = _key_table(rows, key).append_column(_ROW, pa.array(np.arange(rows.num_rows)))
    matching_rows = keys.join(_key_table(changes, key), [str(i) for i in range(len(key))], join_type="left semi")[_ROW]
    return pc.is_in(pa.array(np.arange(rows.num_rows)), value_set=matching_rows.combine_chunks())


def apply_changes(rows: pa.Table, changes: pa.Table, key: Sequence[str], *, keeps_deleted: bool = False) -> pa.Table:
    """Bring rows up to date: delete by key, and insert or replace by key.

    :param rows: rows whose columns all occur in ``changes``.
    :param changes: changes in binlog order, all of them newer than the rows.
    :param keeps_deleted: whether deleted rows stay.
    """
    changes = select_upserts(changes) if keeps_deleted else changes
    if changes.num_rows == 0:
        return rows
    last = last_changes(changes, key)
    unchanged = rows.filter(pc.invert(mask_changed_keys(rows, last, key))) if rows.num_rows else rows
    return pa.concat_tables([unchanged, select_upserts(last).select(rows.column_names)])


def select_upserts(changes: pa.Table) -> pa.Table:
    """Return the changes that insert or replace a row."""
    return changes.filter(pc.not_equal(changes[OP_COLUMN], "d"))


def conform_to_schema(changes: pa.RecordBatch, schema: pa.Schema) -> pa.Table:
    """Return changes in a later schema of the table: missing columns are NULL, removed columns are omitted.

    :param schema: current schema of the table.
    """
    if changes.schema == schema:
        return pa.Table.from_batches([changes])
    has = changes.schema.names
    columns = [changes[f.name].cast(f.type) if f.name in has else pa.nulls(changes.num_rows, f.type) for f in schema]
    return pa.Table.from_arrays(columns, schema=schema)


def changes_after(changes: pa.Table, seq: int) -> pa.Table:
    """Return the changes of transactions that end after ``seq``."""
    return changes.filter(pc.greater(changes[SEQ_COLUMN], pa.scalar(seq, pa.int64())))


def merge_in_binlog_order(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """Merge batches of changes, each of which is in binlog order.

    :param batches: at least one batch.
    :raises ValueError: if a transaction has changes in more than one batch; the message names the range of
        ``_cdc_seq``.
    """
    if len(batches) == 1:
        return batches[0]
    seqs_by_batch = [pc.unique(batch[SEQ_COLUMN]) for batch in batches]
    all_seqs = pa.concat_arrays(seqs_by_batch)
    if pc.count_distinct(all_seqs).as_py() < len(all_seqs):
        seq_range = pc.min_max(all_seqs).as_py()
        raise ValueError(f"{SEQ_COLUMN} {seq_range['min']} to {seq_range['max']}")
    changes = pa.Table.from_batches(batches)
    return changes.take(pc.sort_indices(changes[SEQ_COLUMN])).combine_chunks().to_batches()[0]


def _key_table(rows: pa.Table, key: Sequence[str]) -> pa.Table:
    return pa.table([rows[name] for name in key], names=[str(i) for i in range(len(key))])
