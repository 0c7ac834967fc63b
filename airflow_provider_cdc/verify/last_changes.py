"""Find the transaction that last changed a row, as far as the server still has the binlog."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pymysql.connections import Connection

from airflow_provider_cdc.model import server_id_slots as slots
from airflow_provider_cdc.model.changes import last_changes, mask_changed_keys
from airflow_provider_cdc.model.comparison import LastChange
from airflow_provider_cdc.model.errors import CdcError
from airflow_provider_cdc.model.offset import Position, split_file
from airflow_provider_cdc.model.plan import Key
from airflow_provider_cdc.model.schema import SEQ_COLUMN, TS_COLUMN
from airflow_provider_cdc.model.start_mode import FIRST_EVENT_POSITION
from airflow_provider_cdc.mysql.client.key_sql import keys_of
from airflow_provider_cdc.mysql.positions.binlog_files import binlog_sizes
from airflow_provider_cdc.verify.source_scan import TableSource

#: Bytes of binlog that are searched, newest first: always whole files, and at least one.
MAX_SEARCHED_BYTES = 1 << 30


def find_last_changes(
    source: TableSource, connection: Connection[Any], keys: pa.Table, end: Position
) -> tuple[dict[Key, LastChange], Position | None]:
    """Search the binlog for the last changes of rows, file by file, newest first, until all are found.

    The search ends at the first DDL of the table and at the beginning of the current server's binlog.

    :param keys: the rows' keys, under the names of the key columns.
    :param end: where the search begins, going backwards.
    :returns: the last change of each row that was found, and the position from which on the binlog was searched.
    """
    change_by_key: dict[Key, LastChange] = {}
    table, first_file_number = source.table, split_file(source.timeline.start_file)[1]
    searched_from: Position | None = None
    for low, high in binlog_ranges_newest_first(binlog_sizes(connection), end):
        if not keys.num_rows or split_file(low.file)[1] < first_file_number:
            break
        try:
            changes = _last_changes_between(source, connection, keys, low, high)
        except CdcError:  # a DDL, or another server's rows: what comes before cannot be read by this definition
            break
        for key, at, when in zip(
            keys_of(table, changes), changes[SEQ_COLUMN].to_pylist(), changes[TS_COLUMN].to_pylist(), strict=True
        ):
            time = datetime.fromtimestamp(when.timestamp(), UTC).isoformat(timespec="seconds")
            change_by_key[key] = LastChange(source.timeline.position(at), time)
        keys = keys.filter(pc.invert(mask_changed_keys(keys, changes, table.key))) if changes.num_rows else keys
        searched_from = low
    return change_by_key, searched_from


def binlog_ranges_newest_first(sizes: Mapping[str, int], end: Position) -> Iterator[tuple[Position, Position]]:
    """Yield the ranges to search, one for each binlog file, newest first, up to :data:`MAX_SEARCHED_BYTES`.

    :param sizes: size in bytes of each of the server's binlog files, oldest first.
    :param end: where the search begins, going backwards.
    """
    budget, high = MAX_SEARCHED_BYTES, end
    for name in reversed([*sizes]):
        if budget <= 0:
            return
        if split_file(name)[1] <= split_file(end.file)[1]:
            low = Position(name, FIRST_EVENT_POSITION)
            yield low, high
            budget, high = budget - sizes[name], low


def _last_changes_between(
    source: TableSource, connection: Connection[Any], keys: pa.Table, low: Position, high: Position
) -> pa.Table:
    """Return the last change of each key in (low, high]."""
    table = source.table
    latest = table.row_schema.empty_table()
    with closing(source.open_window_reader(connection, slots.VERIFY)) as log:
        for window in log.read_parts(low, high):
            changes = window.changes
            if changes.num_rows:
                matching = changes.filter(mask_changed_keys(changes, keys, table.key))
                latest = last_changes(pa.concat_tables([latest, matching]), table.key)
    return latest
