"""The binlog as the changes of one table, for readers that have no state database."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from airflow_provider_cdc.ddl.indirect_writes import IndirectWrites
from airflow_provider_cdc.model.definition_history import CapturedTables, DefinitionHistory, histories_by_table
from airflow_provider_cdc.model.errors import NotReadyError
from airflow_provider_cdc.model.offset import POSITION_BITS, Offset, Timeline
from airflow_provider_cdc.model.schema import OP_COLUMN, SEQ_COLUMN, TS_COLUMN, TableSchema
from airflow_provider_cdc.mysql.binlog.events.binlog_source import BinlogSource
from airflow_provider_cdc.mysql.binlog.walk.binlog_reader import BinlogReader
from airflow_provider_cdc.mysql.binlog.walk.changes import RowChanges, Truncation, read_changes
from airflow_provider_cdc.mysql.client.catalog import find_tables, read_schema
from airflow_provider_cdc.mysql.client.charsets import load_decoders
from airflow_provider_cdc.mysql.client.session import connect
from airflow_provider_cdc.mysql.positions.xa_lookback import select_open_xa, track_prepared_xa

#: Columns after the table's own.
GTID, FILE, POS, ROW = "_cdc_gtid", "_cdc_file", "_cdc_pos", "_cdc_row"
_META_FIELDS = (
    pa.field(OP_COLUMN, pa.string()),
    pa.field(TS_COLUMN, pa.timestamp("us", tz="UTC")),
    pa.field(GTID, pa.string()),
    pa.field(FILE, pa.string()),
    pa.field(POS, pa.int64()),
    pa.field(ROW, pa.int64()),
)


@dataclass(frozen=True)
class TableChanges:
    """Reads the changes of one table.

    :param look_up_connection: returns the arguments of ``pymysql.connect``. It is pickled, so it must not hold a
        secret.
    :param table: the table's current definition.
    :param range_bytes: approximate number of bytes of binlog that one task reads.
    :param before_images: whether an update also yields its before image, with the operation ``b``.
    :param server_id: replication server id of the first reader. The ids of the other readers follow it. ``None`` for
        random ids.
    """

    look_up_connection: Callable[[], dict[str, Any]]
    table: TableSchema
    range_bytes: int
    before_images: bool = False
    server_id: int | None = None

    @classmethod
    def look_up(
        cls,
        look_up_connection: Callable[[], dict[str, Any]],
        database: str,
        name: str,
        zero_dates: str,
        exclude: Collection[str] = (),
        **how: Any,
    ) -> TableChanges:
        """Look the table up on the server.

        :param exclude: names of columns to leave out.
        :raises NotReadyError: if the table does not exist, or its values cannot be read exactly.
        """
        with closing(connect(look_up_connection())) as connection:
            listed_tables = find_tables(connection, lambda *listed: listed == (database, name))
            if not listed_tables:
                raise NotReadyError(
                    f"there is no table {database}.{name}", "Check the option `table` and the user's grants"
                )
            table = read_schema(
                connection, *listed_tables[0], lambda table: table.select_columns(lambda name: name not in exclude)
            )
        if unknown := sorted(set(exclude) - set(table.excluded)):
            raise NotReadyError(
                f"column {unknown[0]} of {table.label} cannot be excluded",
                "It is part of the key, or does not exist",
            )
        return cls(look_up_connection, table.replace(zero_dates=zero_dates, full_before_images=True), **how)

    @property
    def captured(self) -> CapturedTables:
        """The table with its current definition, which is used for everything that is read."""
        return histories_by_table([DefinitionHistory.from_single(self.table)])

    @property
    def schema(self) -> pa.Schema:
        """Arrow schema of the changes."""
        return pa.schema([*self.table.column_schema, *_META_FIELDS])

    def binlog_source(self, args: dict[str, Any], server: str | None, slot: int) -> BinlogSource:
        """Return the binlog for one reader.

        :param args: arguments of ``pymysql.connect``.
        :param slot: number of the reader, which no other reader uses at the same time.
        """
        replica = None if self.server_id is None else (self.server_id + slot, str(uuid.uuid4()))
        return BinlogSource(args, server, replica)

    def read(self, start: Offset, end: Offset, slot: int, range_bytes: int | None = None) -> Iterator[pa.RecordBatch]:
        """Yield the changes of the transactions in (start, end], in binlog order. Repeated reads return the same
        changes.

        :param slot: number of the reader. The next number is used as well.
        :param range_bytes: size with which the range was planned, if it differs from the current setting.
        :raises TerminalError: if a change cannot be parsed or followed.
        """
        args, captured = self.look_up_connection(), self.captured
        timeline = Timeline(start.server, start.at.file)
        formatter = _BatchFormatter(self, timeline)

        source = self.binlog_source(args, start.server, slot)
        text_decoders = load_decoders(lambda: closing(connect(args)), [self.table])
        prepared = track_prepared_xa(
            source,
            captured,
            start.at,
            select_open_xa(start, end),
            lookback_source=self.binlog_source(args, start.server, slot + 1),
            remedy="Start after it",
        )
        # The planner has walked this range before, and has checked for indirect writes to the table.
        binlog_reader = BinlogReader(
            source.open,
            captured,
            timeline,
            text_decoders,
            with_before_images=self.before_images,
            with_gtids=True,
            indirect_writes=IndirectWrites,
        )
        with closing(binlog_reader) as binlog:
            binlog.remember_file_start(start)
            for change in read_changes(binlog, start.at, end.at, prepared, range_bytes=range_bytes or self.range_bytes):
                if isinstance(change, RowChanges):
                    yield formatter.format_changes(change.batch, change.gtids)
                elif isinstance(change, Truncation):
                    yield formatter.format_truncation(change)


class _BatchFormatter:
    """Formats changes as batches with the schema of the data source.

    :param table_changes: the table and its schema.
    :param timeline: numbers the transactions.
    """

    def __init__(self, table_changes: TableChanges, timeline: Timeline) -> None:
        self._table, self._schema, self._timeline = table_changes.table, table_changes.schema, timeline
        self._last_seq, self._last_row_count = -1, 0

    def format_truncation(self, truncation: Truncation) -> pa.RecordBatch:
        """Return the row of a TRUNCATE or CREATE TABLE: the operation ``t``, and NULL in all columns of the table."""
        values = {SEQ_COLUMN: truncation.seq, OP_COLUMN: "t", TS_COLUMN: truncation.commit_us}
        schema = self._table.row_schema
        arrays = [
            pa.array([values.get(f.name)], pa.int64() if f.name == TS_COLUMN else f.type).cast(f.type) for f in schema
        ]
        batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
        return self.format_changes(batch, {truncation.seq: truncation.gtid})

    def format_changes(self, batch: pa.RecordBatch, gtids: Mapping[int, str]) -> pa.RecordBatch:
        """Return changes in binlog order.

        :param gtids: GTIDs of their transactions, by ``_cdc_seq``.
        """
        seqs = batch[SEQ_COLUMN].to_numpy()
        unique_seqs, first, seq_indexes = np.unique(seqs, return_index=True, return_inverse=True)
        numbers = np.arange(len(seqs)) - first[seq_indexes]
        if unique_seqs[0] == self._last_seq:  # a transaction that continues from the previous batch
            numbers[seq_indexes == 0] += self._last_row_count
        self._last_seq, self._last_row_count = int(seqs[-1]), int(numbers[-1]) + 1
        files = [self._timeline.position(int(seq)).file for seq in unique_seqs]
        names = [gtids.get(int(seq)) or None for seq in unique_seqs]
        columns = [batch[name] for name in self._table.column_schema.names]
        columns += [batch[OP_COLUMN], batch[TS_COLUMN]]
        columns += [pa.array(values, pa.string()).take(pa.array(seq_indexes)) for values in (names, files)]
        columns += [pa.array(seqs & ((1 << POSITION_BITS) - 1)), pa.array(numbers, pa.int64())]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)
