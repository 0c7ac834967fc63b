"""Rows that are deleted in the source but kept in the table, marked as deleted (``sink.deletes: soft``)."""

from __future__ import annotations

from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_cdc.model.schema import DELETED_COLUMN, OP_COLUMN, SEQ_COLUMN, TS_COLUMN

Rows = TypeVar("Rows", pa.Table, pa.RecordBatch)


def with_deleted_column(schema: pa.Schema) -> pa.Schema:
    """Return the columns of a table that keeps deleted rows: with one more that marks them.

    :param schema: the sink's schema.
    """
    return schema.append(pa.field(DELETED_COLUMN, pa.bool_()))


def add_deleted_column(rows: Rows, schema: pa.Schema) -> Rows:
    """Return rows or changes with the column that marks deleted rows, if the table has it.

    :param schema: schema of the table.
    """
    if DELETED_COLUMN not in schema.names or DELETED_COLUMN in rows.schema.names:
        return rows
    return rows.append_column(schema.field(DELETED_COLUMN), pc.equal(rows[OP_COLUMN], "d"))


def mark_deleted(rows: pa.Table, deleted_at: int, seq: int | None = None) -> pa.Table:
    """Return rows marked as deleted by something other than a change of their own.

    :param deleted_at: time of the deletion, in microseconds since 1970.
    :param seq: ``_cdc_seq`` of the deletion; if ``None``, rows keep that of their last change.
    """
    values = {
        OP_COLUMN: pa.scalar("d"),
        TS_COLUMN: pa.scalar(deleted_at, pa.timestamp("us", tz="UTC")),
        DELETED_COLUMN: pa.scalar(True),
    }
    if seq is not None:
        values[SEQ_COLUMN] = pa.scalar(seq, pa.int64())
    for name, value in values.items():
        index = rows.schema.get_field_index(name)
        rows = rows.set_column(index, rows.schema.field(index), pa.repeat(value, rows.num_rows))
    return rows


def drop_deleted_rows(rows: pa.Table) -> pa.Table:
    """Return the rows that are not deleted in the source, in the sink's schema."""
    if DELETED_COLUMN not in rows.schema.names:
        return rows
    return rows.filter(pc.invert(pc.fill_null(rows[DELETED_COLUMN], False))).drop_columns([DELETED_COLUMN])


def deleted_mask(rows: pa.Table) -> Any:
    """Return an array of booleans: which rows are marked as deleted. Those that others have inserted may have NULL."""
    return pc.fill_null(rows[DELETED_COLUMN], False).to_numpy()
