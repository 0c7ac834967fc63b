"""Read a table without a usable key: all of it, in a read view that was opened while nothing wrote to the table.

Rows without a key cannot be corrected from the binlog. Therefore views are opened until no change occurs meanwhile (the
argument is in docs/correctness.md). Only then are the rows read, part by part.
"""

from __future__ import annotations

import random
import time
from collections.abc import Generator
from contextlib import closing
from typing import Any

import pyarrow as pa
from pymysql.connections import Connection

from airflow_provider_cdc.model.errors import (
    OtherColumnsError,
    TableAlteredError,
    TableChangedError,
    TerminalError,
    TransientError,
    UnknownPrepareError,
)
from airflow_provider_cdc.model.offset import Position
from airflow_provider_cdc.model.plan import Chunk
from airflow_provider_cdc.model.schema import TableSchema
from airflow_provider_cdc.model.unsupported_values import UnsupportedValue, select_value_error
from airflow_provider_cdc.mysql.chunks.chunk import ChunkRead, meta_columns, read_chunk
from airflow_provider_cdc.mysql.chunks.window_reader import WindowReader
from airflow_provider_cdc.mysql.client.catalog import check_same_definition, table_altered_error
from airflow_provider_cdc.mysql.client.condition_sql import implied_condition
from airflow_provider_cdc.mysql.client.identity import binlog_end
from airflow_provider_cdc.mysql.client.key_sql import quote_name, table_name
from airflow_provider_cdc.mysql.client.session import query_rows
from airflow_provider_cdc.mysql.positions.watermarks import Watermarks
from airflow_provider_cdc.mysql.resultset import reader as resultset
from airflow_provider_cdc.system.failpoints import failpoint

#: Maximum number of views to open, and the longest wait between two (seconds). In total this takes about a minute.
_MAX_VIEWS, _LONGEST_WAIT = 50, 2.0
_PAUSE_WRITERS = "Run again while its writers pause briefly, or add a primary key (or a NOT NULL unique key)"
#: Bytes of rows in one part.
_PART_BYTES = 16 << 20


def read_parts(
    reader: WindowReader, table: TableSchema, chunk: Chunk, watermarks: Watermarks
) -> Generator[ChunkRead, None, None]:
    """Read a chunk, or a table without a key in several parts.

    For parameters and errors see :func:`~airflow_provider_cdc.mysql.chunks.chunk.read_chunk` and :func:`read_keyless`.
    """
    if table.key:
        yield read_chunk(reader, table, chunk, watermarks)
    else:
        yield from read_keyless(reader, table, watermarks)


def read_keyless(reader: WindowReader, table: TableSchema, watermarks: Watermarks) -> Generator[ChunkRead, None, None]:
    """Read all rows of a table exactly as of one high watermark, in one or more parts.

    :param reader: reads the binlog of the same server for ``table``.
    :param watermarks: takes the watermarks. Its connection is busy until the last part has been read.
    :raises TransientError: if the table was written to during every attempt; the message contains the figures.
    :raises TableAlteredError: if the definition is not the planned one.
    """
    started, change_count, window_seconds, connection = time.monotonic(), 0, 0.0, watermarks.connection
    for attempt in range(_MAX_VIEWS):
        failpoint("chunk.before_lw")
        low, opened = watermarks.low(force_new=attempt > 0), time.monotonic()
        failpoint("chunk.after_lw")
        try:
            watermarks.hold_view()
            # This opens the table in the view's transaction, so that later reads see the same table: a DDL either waits
            # or is complete.
            query_rows(connection, f"SELECT 1 FROM {table_name(table)} LIMIT 0")
            high, clock = watermarks.high_in_view()
            window_seconds += time.monotonic() - opened
            failpoint("chunk.after_hw")
            changes = _count_changes(reader, low, high)
            if not changes:
                yield from _read_view(connection, table, low, high, clock, reader.timeline.seq(high), started)
                return
        except TableChangedError:
            changes = max(1, _count_changes(reader, low, binlog_end(connection)))  # raises if it was not a TRUNCATE
        except TableAlteredError:
            raise
        except TerminalError:
            if connection.open:  # it is closed if a value was rejected
                check_same_definition(connection, table, low)
            raise
        finally:
            if connection.open:
                watermarks.release_view()
        change_count += changes
        time.sleep(min(_LONGEST_WAIT, 0.02 * 1.25**attempt) * random.uniform(0.5, 1.5))
    raise TransientError(
        f"table {table.label}, which has no usable key, was written to during each of {_MAX_VIEWS} attempts to begin "
        f"reading it (on average {1000 * window_seconds / _MAX_VIEWS:.1f} ms and {change_count / _MAX_VIEWS:.1f} "
        f"changes each; {time.monotonic() - started:.0f} s in total)",
        watermarks.imprecision or _PAUSE_WRITERS,
    )


def _count_changes(reader: WindowReader, low: Position, high: Position) -> int:
    """Count the changes of the table in (low, high], and anything else that makes its rows there uncertain."""
    try:
        window = reader.read_window(low, high)
    except UnknownPrepareError:  # the changes of an XA transaction are no longer in the binlog
        return 1
    return int(window.changes.num_rows) + (window.truncate_seq > 0)


def _read_view(
    connection: Connection[Any], table: TableSchema, low: Position, high: Position, clock: int, seq: int, started: float
) -> Generator[ChunkRead, None, None]:
    sql = f"SELECT {', '.join(quote_name(column.name) for column in table.read_columns)} FROM {table_name(table)}"
    if implied := implied_condition(table):
        sql += f" WHERE {implied}"
    batches = resultset.query_arrow_batches(connection, sql, table.column_schema, table.null_date_columns, _PART_BYTES)
    has_yielded = False
    try:
        with closing(batches):
            for piece in batches:
                arrays = [*piece.columns, *meta_columns(seq, clock, piece.num_rows).values()]
                part_rows = pa.Table.from_arrays(arrays, schema=table.row_schema)
                del piece, arrays
                has_yielded = True
                yield ChunkRead(part_rows, low, high, 0, time.monotonic() - started)
                del part_rows
    except TableChangedError as error:
        if has_yielded:  # these parts cannot be taken back
            raise TransientError(error.message, error.remedy) from None
        raise
    except OtherColumnsError as error:
        raise table_altered_error(table, f"seen at {low}: {error.message}", low) from None
    except UnsupportedValue as error:
        raise select_value_error(table, table.read_columns[error.column], error) from None
    failpoint("chunk.after_select")
