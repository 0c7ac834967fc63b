"""One row of a table: which rows the server considers equal by key, and the row in source and copy."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa
from pymysql.connections import Connection

from airflow_provider_cdc.config.load_limits import LoadLimits
from airflow_provider_cdc.explain.explanation import RowSide
from airflow_provider_cdc.explain.row_changes import position_timeline
from airflow_provider_cdc.model import server_id_slots as slots
from airflow_provider_cdc.model.changes import mask_changed_keys
from airflow_provider_cdc.model.definition_history import DefinitionHistory
from airflow_provider_cdc.model.errors import CdcError, NotReadyError
from airflow_provider_cdc.model.plan import Chunk, Key
from airflow_provider_cdc.model.schema import INTEGER_TYPES, TEXT_TYPES, TableSchema
from airflow_provider_cdc.mysql.chunks.chunk import read_chunk
from airflow_provider_cdc.mysql.client.catalog import find_tables, read_schema
from airflow_provider_cdc.mysql.client.identity import binlog_end, server_identity
from airflow_provider_cdc.mysql.keys.ownership import mask_owned_rows
from airflow_provider_cdc.mysql.positions.watermarks import make_watermarks
from airflow_provider_cdc.runtime.run_context import RunContext
from airflow_provider_cdc.sinks.scan_tasks import ScanTask
from airflow_provider_cdc.verify.source_scan import TableSource

#: Returns a mask of the rows that are the one that is looked for.
RowMask = Callable[[pa.Table], pa.Array]


@dataclass
class RowLookup:
    """Looks up a row by its key, in the source and in the copy.

    :param connection: connection to the source.
    :param table: the definition of the copy.
    :param key: the key, by this definition.
    """

    context: RunContext
    connection: Connection[Any]
    table: TableSchema
    key: Key

    @cached_property
    def server(self) -> str:
        """Identity of the source."""
        return server_identity(self.connection)

    @property
    def key_chunk(self) -> Chunk:
        """The key as a range."""
        return Chunk(0, 0, 0, self.key, self.key, True)

    def is_this_row(self, rows: pa.Table) -> pa.Array:
        """Return a mask of the rows whose key equals this one by the server's rules."""
        if self.table.integer_key_column is not None:
            return mask_owned_rows(self.connection, self.table, [self.key_chunk], rows)
        keys = rows.select(list(self.table.key))
        distinct_keys = keys.group_by(list(self.table.key), use_threads=False).aggregate([])
        return mask_changed_keys(
            keys,
            distinct_keys.filter(mask_owned_rows(self.connection, self.table, [self.key_chunk], distinct_keys)),
            self.table.key,
        )

    def find_in_source(self) -> tuple[RowSide, pa.Table | None, TableSchema | None]:
        """Return the row in the source as of a high watermark, its rows, and the table's current definition."""
        listed = find_tables(self.connection, lambda *name: name == self.table.id)
        if not listed:
            return RowSide(unknown_reason="the source no longer has this table"), None, None
        try:
            current = read_schema(self.connection, *listed[0], lambda current: current.with_rules_of(self.table))
        except NotReadyError as error:
            return RowSide(unknown_reason=error.message), None, None
        current = current.with_zero_dates(self.context.pipeline.source.zero_dates)
        if current.fingerprint() == self.table.fingerprint():
            current = self.table
        elif current.key_columns != self.table.key_columns:
            reason = f"the table has a different key now ({', '.join(current.key) or 'none'})"
            return RowSide(unknown_reason=reason), None, current
        timeline = position_timeline(binlog_end(self.connection)).replace(server=self.server)
        reader = TableSource(self.context, current, DefinitionHistory.from_single(current), timeline, LoadLimits())
        with closing(reader.open_window_reader(self.connection, slots.EXPLAIN)) as log:
            take_watermark = make_watermarks(self.connection, self.server)
            try:
                chunk_read = read_chunk(log, current, self.key_chunk, take_watermark)
            except CdcError as error:  # no watermark, or an unsupported value: the rest can still be explained
                return RowSide(unknown_reason=f"{error.message}. {error.remedy}"), None, current
        try:
            rows = self.context.row_transform(current).rows(chunk_read.rows)
        except CdcError as error:  # the condition or a policy does not fit the new definition
            return RowSide(unknown_reason=f"{error.message}. {error.remedy}"), None, current
        is_left_out = chunk_read.rows.num_rows > rows.num_rows
        side = RowSide(chunk_read.high, rows_without_meta_columns(rows, current), is_left_out=is_left_out)
        return side, rows, current

    def find_in_copy(self, portions: Sequence[ScanTask], source_row: pa.Table | None) -> pa.Table:
        """Return the row in the copy: no row, one, or, if the copy is wrong, several.

        :param portions: portions of the copy.
        :param source_row: the row in the source, whose key may be spelled differently and still be equal to the server.
        """
        copy_rows = self.table.sink_schema.empty_table()
        for is_match in self._match_strategies(source_row):
            for portion in portions:
                if keys := self._find_matching_keys(portion, is_match):
                    for rows in portion.read_rows(copy_rows.column_names):
                        matching = rows.filter(mask_changed_keys(rows, pa.concat_tables(keys), self.table.copy.key))
                        copy_rows = pa.concat_tables([copy_rows, matching])
            if copy_rows.num_rows:
                break
        return copy_rows

    def _find_matching_keys(self, portion: ScanTask, is_match: RowMask) -> list[pa.Table]:
        """Return the keys in a portion that match."""
        matching_keys = []
        for rows in portion.read_rows(list(self.table.copy.key)):
            matching = rows.filter(is_match(rows)) if rows.num_rows else rows
            if matching.num_rows:
                matching_keys.append(matching)
        return matching_keys

    def _match_strategies(self, source_row: pa.Table | None) -> Iterator[RowMask]:
        """Yield how to search the copy: first for the source's spelling of the key (or the requested one), then for
        all keys that the server considers equal, which is slower.
        """
        table, copy_key = self.table, self.table.copy.key
        if table.integer_key_column is None or table.has_hashed_key:
            keys = self._requested_key() if source_row is None or not source_row.num_rows else source_row
            if keys is not None:
                keys = keys.select(list(copy_key))
                yield lambda rows: mask_changed_keys(rows, keys, copy_key)
        if not table.has_hashed_key:
            yield lambda rows: self.is_this_row(table.source_keys(rows))

    def _requested_key(self) -> pa.Table | None:
        """Return the key that the user gave, as the copy has it; ``None`` for types that only the server converts."""
        columns = {}
        for column, value in zip(self.table.key_columns, self.key, strict=True):
            if column.data_type in TEXT_TYPES:
                value = bytes.fromhex(str(value)).decode()
            elif column.data_type not in INTEGER_TYPES:
                return None
            columns[column.name] = pa.array([value], column.arrow_type)
        return self.context.row_transform(self.table).copy_keys(pa.table(columns))


def rows_without_meta_columns(rows: pa.Table, table: TableSchema) -> tuple[Mapping[str, Any], ...]:
    """Return the rows without the ``_cdc_`` columns."""
    names = [column.name for column in table.sink_columns if column.name in rows.column_names]
    return tuple(rows.select(names).to_pylist())
