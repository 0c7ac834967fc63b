"""Read one chunk exactly as of its high watermark (the argument is in docs/correctness.md)."""

from __future__ import annotations

import time
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pymysql.connections import Connection

from airflow_provider_cdc.model.changes import apply_changes, last_changes, mask_changed_keys
from airflow_provider_cdc.model.errors import (
    OtherColumnsError,
    TableAlteredError,
    TableChangedError,
    TerminalError,
    UnknownPrepareError,
)
from airflow_provider_cdc.model.offset import Position
from airflow_provider_cdc.model.plan import Chunk
from airflow_provider_cdc.model.schema import OP_COLUMN, SEQ_COLUMN, TS_COLUMN, Column, TableSchema
from airflow_provider_cdc.model.unsupported_values import UnsupportedValue, select_value_error
from airflow_provider_cdc.mysql.chunks.window_reader import ChangeWindow, WindowReader
from airflow_provider_cdc.mysql.client.catalog import check_same_definition, table_altered_error
from airflow_provider_cdc.mysql.client.charsets import NoRoundTripError
from airflow_provider_cdc.mysql.client.condition_sql import implied_condition
from airflow_provider_cdc.mysql.client.identity import binlog_end
from airflow_provider_cdc.mysql.client.key_sql import (
    chunk_condition,
    copied_expression,
    key_list,
    keys_of,
    no_round_trip_error,
    quote_name,
    round_trip_condition,
    table_name,
)
from airflow_provider_cdc.mysql.client.session import query_value
from airflow_provider_cdc.mysql.keys.ownership import find_owning_chunks
from airflow_provider_cdc.mysql.positions.watermarks import Watermarks
from airflow_provider_cdc.mysql.resultset import reader as resultset
from airflow_provider_cdc.system.failpoints import failpoint

#: Reads of one chunk before giving up on a window that cannot be replayed.
_ATTEMPTS = 5


@dataclass(frozen=True)
class ChunkRead:
    """A chunk as of its high watermark.

    :param rows: rows in the table's ``row_schema``, some of which may not satisfy the table's condition; ``_cdc_seq``
        is HW, ``_cdc_op`` is ``r``, ``_cdc_ts`` the time of HW.
    :param low: low watermark.
    :param high: high watermark.
    :param corrected: number of keys that were inserted, replaced or deleted by the changes in the window.
    :param seconds: duration of the read.
    """

    rows: pa.Table
    low: Position
    high: Position
    corrected: int
    seconds: float


def read_chunk(reader: WindowReader, table: TableSchema, chunk: Chunk, watermarks: Watermarks) -> ChunkRead:
    """Read a chunk: low watermark, SELECT, high watermark, then the binlog between the two watermarks.

    :param reader: reads the binlog of the same server for ``table``.
    :param watermarks: takes the watermarks. The SELECT goes over its connection, and opens its own read view after LW.
    :raises TerminalError: if no attempt could be replayed, or a value cannot be copied exactly.
    :raises TableAlteredError: if the table was altered.
    """
    started, connection = time.monotonic(), watermarks.connection
    for attempt in range(_ATTEMPTS):
        failpoint("chunk.before_lw")
        low = watermarks.low(force_new=attempt > 0)
        failpoint("chunk.after_lw")
        try:
            columns = select_rows(connection, table, chunk_condition(table, chunk))
        except TableChangedError:
            _read_window(connection, reader, low, binlog_end(connection), chunk)  # raises if it was not a TRUNCATE
            continue
        except OtherColumnsError as error:
            raise table_altered_error(table, f"seen at {low}: {error.message}", low) from None
        except TerminalError:
            if connection.open:  # it is closed if a value was rejected
                check_same_definition(connection, table, low)
            raise
        failpoint("chunk.after_select")
        high, clock = watermarks.high()
        failpoint("chunk.after_hw")
        window = _read_window(connection, reader, low, high, chunk)
        if window is None:
            continue
        changes = window.changes
        seq = reader.timeline.seq(high)
        meta_arrays = meta_columns(seq, clock, len(columns[0])).values()
        rows = pa.Table.from_arrays([*columns, *meta_arrays], schema=table.row_schema)
        if window.truncate_seq:
            rows = rows.slice(0, 0)
        corrected = 0
        if changes.num_rows:
            changes = _changes_of_chunk(connection, table, chunk, rows, changes)
            corrected = changes.num_rows
        if corrected:
            rows = _set_meta_columns(apply_changes(rows, changes, table.key), seq, clock)
        return ChunkRead(rows, low, high, corrected, time.monotonic() - started)
    raise TerminalError(
        f"in each of {_ATTEMPTS} reads of chunk {chunk.number} of {table.label} the table was truncated, or an XA "
        "transaction was committed whose rows are no longer in the binlog",
        "Run again when this has stopped",
    )


def select_rows(connection: Connection[Any], table: TableSchema, condition: str) -> list[pa.ChunkedArray]:
    """Select rows of a table in key order, one Arrow array for each column that is read.

    Rows are left out if the server can tell that they do not satisfy the table's condition.

    :param condition: SQL condition on the key columns.
    :raises TerminalError: for a value that cannot be copied exactly, such as a zero date.
    """
    wanted = ", ".join(copied_expression(table, column) for column in table.read_columns)
    implied = implied_condition(table)
    sql = f"SELECT {wanted} FROM {table_name(table)} WHERE {condition}{implied and f' AND {implied}'} "
    sql += f"ORDER BY {key_list(table)}"
    try:
        arrays = list(resultset.query_arrow(connection, sql, table.column_schema, table.null_date_columns).columns)
        for column in table.key_columns:
            if arrays[i := table.read_columns.index(column)].null_count:
                error = _no_round_trip_error(connection, table, column, condition)
                raise UnsupportedValue(i, "key", str(error))
        return arrays
    except UnsupportedValue as error:
        raise select_value_error(table, table.read_columns[error.column], error) from None


def _no_round_trip_error(
    connection: Connection[Any], table: TableSchema, column: Column, condition: str
) -> NoRoundTripError:
    """Return the error for a key value that does not survive the conversion to Unicode and back, with an example."""
    sql = (
        f"SELECT HEX({quote_name(column.name)}) FROM {table_name(table)} WHERE {condition} AND NOT "
        f"({round_trip_condition(column)})"
    )
    return no_round_trip_error(column, query_value(connection, f"{sql} LIMIT 1") or "")


def _read_window(
    connection: Connection[Any], reader: WindowReader, low: Position, high: Position, chunk: Chunk
) -> ChangeWindow | None:
    """Read what happened to the table in (low, high], as far as it may affect the rows of the chunk.

    :returns: ``None`` if the window cannot be replayed, so that the chunk has to be read again: it contains the end of
        an XA transaction whose rows are not in the binlog. A TRUNCATE removes every earlier row, whatever the SELECT
        saw, so only the changes after it count.
    :raises TableAlteredError: if another DDL changes the table in the window.
    """
    try:
        key = reader.table.integer_key_column
        only = (key, lambda keys: _mask_in_chunk(keys, chunk)) if key is not None else None
        return reader.read_window(low, high, key_filter=only)
    except UnknownPrepareError:
        return None
    except TableAlteredError:
        raise
    except TerminalError:  # rows in another layout, because of a DDL before the low watermark
        check_same_definition(connection, reader.table, high)
        raise


def _changes_of_chunk(
    connection: Connection[Any], table: TableSchema, chunk: Chunk, rows: pa.Table, changes: pa.Table
) -> pa.Table:
    """Return the last change of each key that affects the chunk.

    For an integer key, these are the keys in its range. Otherwise, these are all deletes (harmless for keys outside
    of the chunk), the keys that the chunk contains, and the keys that belong to it.
    """
    if table.integer_key_column is not None:
        return last_changes(changes.filter(_mask_in_chunk(changes[table.integer_key_column], chunk)), table.key)
    changes = last_changes(changes, table.key)
    is_concerned = pc.or_(pc.equal(changes[OP_COLUMN], "d"), mask_changed_keys(changes, rows, table.key))
    open_keys = changes.filter(pc.invert(is_concerned))
    if open_keys.num_rows == 0:
        return changes.filter(is_concerned)
    inside = iter(i == 0 for i in find_owning_chunks(connection, table, [chunk], keys_of(table, open_keys)))
    return changes.filter(pa.array([c or next(inside) for c in is_concerned.to_pylist()], pa.bool_()))


def _mask_in_chunk(keys: Any, chunk: Chunk) -> Any:
    """Return the mask of the integer keys (an array, chunked or not) that belong to a chunk."""
    to = Decimal if pa.types.is_decimal(keys.type) else int
    kind = keys.type if to is Decimal else pa.int64()
    low, high = (pa.scalar(to(bound[0]), kind) for bound in (chunk.lower, chunk.upper))
    below = pc.less_equal if chunk.includes_upper else pc.less
    return pc.and_(pc.greater_equal(keys, low), below(keys, high))


def _set_meta_columns(rows: pa.Table, seq: int, clock: int) -> pa.Table:
    schema = rows.schema
    for name, added in meta_columns(seq, clock, rows.num_rows).items():
        rows = rows.set_column(schema.get_field_index(name), schema.field(name), added)
    return rows


def meta_columns(seq: int, clock: int, count: int) -> dict[str, pa.Array]:
    """Return the columns that the project adds, in order. Their values are the same in all rows of a chunk."""
    values = {
        SEQ_COLUMN: pa.scalar(seq, pa.int64()),
        OP_COLUMN: pa.scalar("r"),
        TS_COLUMN: pa.scalar(clock, pa.timestamp("us", tz="UTC")),
    }
    return {name: pa.repeat(value, count) for name, value in values.items()}
