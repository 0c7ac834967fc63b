"""Read one chunk exactly as of its high watermark (the argument is in docs/correctness.md)."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pymysql.connections import Connection

from airflow_provider_cdc.core.changes import apply_changes, last_changes, matched_rows
from airflow_provider_cdc.core.offset import Lineage, Position
from airflow_provider_cdc.core.plan import Chunk
from airflow_provider_cdc.core.schema import OP, SEQ, TS, Column, TableSchema
from airflow_provider_cdc.exceptions import TerminalError
from airflow_provider_cdc.failpoints import hit
from airflow_provider_cdc.mysql.backlog import Backlog
from airflow_provider_cdc.mysql.decode import ChangeBuffer
from airflow_provider_cdc.mysql.keys import in_chunk, key_list, keys_of, quote, table_name
from airflow_provider_cdc.mysql.ownership import owners
from airflow_provider_cdc.mysql.resultset import fetch
from airflow_provider_cdc.mysql.watermark import high_watermark, low_watermark

#: Reads of one chunk before giving up on a window that cannot be replayed.
_ATTEMPTS = 5


@dataclass(frozen=True)
class ChunkRead:
    """A chunk as of its high watermark.

    :param rows: rows in the sink's schema; ``_cdc_seq`` is HW, ``_cdc_op`` is ``r``, ``_cdc_ts`` the time of HW.
    :param low: low watermark.
    :param high: high watermark.
    :param corrected: keys that the backfill inserted, replaced or deleted.
    :param seconds: time it took.
    """

    rows: pa.Table
    low: Position
    high: Position
    corrected: int
    seconds: float


def read_chunk(
    connection: Connection[Any],
    backlog: Backlog,
    table: TableSchema,
    chunk: Chunk,
    lineage: Lineage,
) -> ChunkRead:
    """Low watermark, SELECT, high watermark, then the binlog between the two.

    :param connection: autocommit connection; the SELECT opens its own read view, after LW.
    :param backlog: reads the binlog of the same server, with ``table`` captured.
    """
    started = time.monotonic()
    for _ in range(_ATTEMPTS):
        hit("chunk.before_lw")
        low = low_watermark(connection, lineage.server)
        hit("chunk.after_lw")
        columns = select(connection, table, in_chunk(table, chunk))
        hit("chunk.after_select")
        high, clock = high_watermark(connection, lineage.server)
        hit("chunk.after_hw")
        changes, replayable = _window(backlog, table, lineage, low.at, high)
        if not replayable:
            continue
        seq = lineage.seq(high)
        count = len(columns[0]) if columns else 0
        meta = [
            pa.repeat(pa.scalar(seq, pa.int64()), count),
            pa.repeat(pa.scalar("r"), count),
            pa.repeat(pa.scalar(clock, pa.timestamp("us", tz="UTC")), count),
        ]
        rows = pa.Table.from_arrays([*columns, *meta], schema=table.sink_schema)
        corrected = 0
        if changes.num_rows:
            changes = _of_chunk(connection, table, chunk, rows, last_changes(changes, table.key))
            corrected = changes.num_rows
            rows = _stamp(apply_changes(rows, changes, table.key), seq, clock)
        return ChunkRead(rows, low.at, high, corrected, time.monotonic() - started)
    raise TerminalError(
        f"chunk {chunk.no} of {table.label} met the end of an XA transaction in each of {_ATTEMPTS} reads",
        "Run again while fewer XA transactions end on the server",
    )


def select(connection: Connection[Any], table: TableSchema, condition: str) -> list[pa.Array]:
    """Rows of a table in key order, one Arrow array a source column.

    :param condition: SQL condition on the key columns.
    :raises TerminalError: for a value that cannot be carried exactly, such as a zero date.
    """
    wanted = ", ".join(_projection(c) for c in table.columns)
    values = fetch(connection, f"SELECT {wanted} FROM {table_name(table)} WHERE {condition} ORDER BY {key_list(table)}")
    return [_to_arrow(table, column, v) for column, v in zip(table.columns, values, strict=True)]


def _projection(column: Column) -> str:
    name = quote(column.name)
    if column.data_type == "float":
        return f"({name} * 1e0)"  # a plain FLOAT is sent with six digits only; + 0e0 would lose the sign of -0.0
    if column.data_type == "time":
        # Microseconds as an integer: exact for negative values with fractions and beyond 24 hours.
        return f"(TIME_TO_SEC({name}) * 1000000 + IF({name} < 0, -1, 1) * MICROSECOND({name}))"
    return name


def _to_arrow(table: TableSchema, column: Column, values: list[bytes | None]) -> pa.Array:
    binary, kind, wanted = pa.array(values, pa.binary()), column.data_type, column.arrow_type
    if wanted == pa.binary():
        return binary
    try:
        text = binary.cast(pa.string())
        if kind in {"date", "datetime", "timestamp"} and pc.any(pc.starts_with(text, "0000")).as_py():
            raise pa.ArrowInvalid("there is no year 0")
        if kind == "float":
            return text.cast(pa.float64()).cast(pa.float32(), safe=False)
        if kind == "timestamp":
            return pc.assume_timezone(text.cast(pa.timestamp("us")), "UTC")
        return text if wanted == pa.string() else text.cast(wanted)
    except pa.ArrowInvalid as error:
        raise TerminalError(
            f"table {table.label}, column {column.name} ({column.column_type}): a value cannot be carried: {error}",
            "Zero and partial dates have no counterpart in the sink: correct the rows, or exclude the table",
        ) from None


def _window(
    backlog: Backlog,
    table: TableSchema,
    lineage: Lineage,
    low: Position,
    high: Position,
) -> tuple[pa.Table, bool]:
    """Changes of the table in (low, high], and whether they can be replayed.

    They cannot if an XA transaction ends there whose rows were written before ``low``: read the chunk again, then.
    """
    buffer, prepared, replayable = ChangeBuffer(table), set[str](), True
    for transaction in backlog.between(low, high):
        if transaction.xa_prepared is not None:
            prepared.add(transaction.xa_prepared)
        if transaction.xa_finished is not None and transaction.xa_finished not in prepared:
            replayable = False
        seq = lineage.seq(Position(transaction.file, transaction.position))
        for event in transaction.rows:
            if event.schema.id == table.id:
                buffer.add(event, seq, transaction.commit_us)
    return buffer.take(), replayable


def _of_chunk(
    connection: Connection[Any], table: TableSchema, chunk: Chunk, rows: pa.Table, changes: pa.Table
) -> pa.Table:
    """The changes that concern the chunk: deletes (harmless elsewhere), keys it holds, keys that belong into it."""
    concerns = pc.or_(pc.equal(changes[OP], "d"), matched_rows(changes, rows, table.key))
    open_keys = changes.filter(pc.invert(concerns))
    if open_keys.num_rows == 0:
        return changes.filter(concerns)
    inside = iter(i == 0 for i in owners(connection, table, [chunk], keys_of(table, open_keys)))
    return changes.filter(pa.array([c or next(inside) for c in concerns.to_pylist()], pa.bool_()))


def _stamp(rows: pa.Table, seq: int, clock: int) -> pa.Table:
    schema, count = rows.schema, rows.num_rows
    for name, scalar in (
        (SEQ, pa.scalar(seq, pa.int64())),
        (OP, pa.scalar("r")),
        (TS, pa.scalar(clock, pa.timestamp("us", tz="UTC"))),
    ):
        rows = rows.set_column(schema.get_field_index(name), schema.field(name), pa.repeat(scalar, count))
    return rows
