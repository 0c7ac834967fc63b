"""The binlog as the changes of one table, for readers that have no state database."""

from __future__ import annotations

import secrets
import uuid
from collections.abc import Callable, Collection, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from airflow_provider_cdc.ddl.indirect_writes import IndirectWrites
from airflow_provider_cdc.model.changes import merge_in_binlog_order
from airflow_provider_cdc.model.definition_history import CapturedTables, DefinitionHistory, histories_by_table
from airflow_provider_cdc.model.errors import NotReadyError
from airflow_provider_cdc.model.offset import POSITION_BITS, Offset, Position, Timeline
from airflow_provider_cdc.model.schema import OP_COLUMN, SEQ_COLUMN, TS_COLUMN, TableSchema
from airflow_provider_cdc.mysql.binlog.events.binlog_stream import BinlogStream
from airflow_provider_cdc.mysql.binlog.events.transactions import Transaction
from airflow_provider_cdc.mysql.binlog.events.xa import PreparedXaRows, parse_xa_entry, read_prepared_rows
from airflow_provider_cdc.mysql.binlog.walk.binlog_reader import BinlogReader
from airflow_provider_cdc.mysql.client.catalog import find_tables, read_schema
from airflow_provider_cdc.mysql.client.charsets import load_decoders
from airflow_provider_cdc.mysql.client.session import connect
from airflow_provider_cdc.mysql.positions.binlog_files import binlog_sizes
from airflow_provider_cdc.mysql.positions.xa_lookback import XaLookback

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
#: Position of the first event in a binlog file.
FIRST_EVENT_POSITION = 4
#: Bytes of binlog rows to collect before their changes are returned.
FLUSH_BYTES = 16 << 20
_LOWEST_ID, _HIGHEST_ID = 1 << 20, (1 << 32) - 1


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
            table = read_schema(connection, *listed_tables[0], keeps=lambda *column: column[-1] not in exclude)
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
        return pa.schema([*self.table.arrow_schema, *_META_FIELDS])

    def open_binlog(self, args: dict[str, Any], at: Position, server: str | None, slot: int) -> BinlogStream:
        """Open the binlog.

        :param args: arguments of ``pymysql.connect``.
        :param slot: number of the reader, which no other reader uses at the same time.
        """
        random_id = _LOWEST_ID + secrets.randbelow(_HIGHEST_ID - _LOWEST_ID)
        number = random_id if self.server_id is None else self.server_id + slot
        return BinlogStream(
            args,
            server_id=number,
            replica_uuid=str(uuid.uuid4()),
            file=at.file,
            position=at.position,
            server=server,
        )

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

        def open_at(at: Position) -> BinlogStream:
            return self.open_binlog(args, at, start.server, slot)

        def open_beside(at: Position) -> BinlogStream:
            return self.open_binlog(args, at, start.server, slot + 1)

        def sizes() -> dict[str, int]:
            with closing(connect(args)) as connection:
                return binlog_sizes(connection)

        text_decoders = load_decoders(lambda: closing(connect(args)), [self.table])
        # An entry without a position has no rows of the table, and costs nothing.
        ending = sorted(text for text in start.open_xa if text not in end.open_xa or parse_xa_entry(text)[1] is None)
        lookback = XaLookback(start.at, sizes, open_beside, captured, "Start after it")
        prepared = PreparedXaRows(read_prepared_rows(ending, open_at, captured), lookback.prepared_rows, captured)
        # The planner has walked this range before, and has checked for indirect writes to the table.
        binlog_reader = BinlogReader(
            open_at,
            captured,
            timeline,
            text_decoders,
            with_before_images=self.before_images,
            with_gtids=True,
            indirect_writes=IndirectWrites,
        )
        with closing(binlog_reader) as binlog:
            binlog.expect_offset(start)
            for step in binlog.steps(start.at, end.at):
                if (item := step.transaction) is not None:
                    seq = timeline.seq(Position(step.file, step.position))
                    if item.emptied_table is not None:
                        yield from formatter.take_changes(binlog)
                        yield formatter.truncation_row(item, seq)
                    for _ in binlog.decode_rows(prepared.visible_rows(item), seq, item.commit_us):
                        yield from formatter.take_changes(binlog)
                if binlog.held_bytes >= FLUSH_BYTES:
                    large = step.is_beyond(start.at, range_bytes or self.range_bytes)
                    is_last = large and step.file == end.at.file
                    yield from formatter.take_changes(binlog, end.at if is_last else None)
            yield from formatter.take_changes(binlog)


class _BatchFormatter:
    """Formats changes as batches with the schema of the data source.

    :param table_changes: the table and its schema.
    :param timeline: numbers the transactions.
    """

    def __init__(self, table_changes: TableChanges, timeline: Timeline) -> None:
        self._table, self._schema, self._timeline = table_changes.table, table_changes.schema, timeline
        self._last_seq, self._last_row_count, self._last_gtid = -1, 0, ""

    def take_changes(self, binlog: BinlogReader, end: Position | None = None) -> Iterator[pa.RecordBatch]:
        """Yield the changes that a reader has collected, see :meth:`BinlogReader.take_changes`."""
        batches = [batch for _, batch in binlog.take_changes(end) if batch.num_rows]
        names = binlog.take_gtids()
        if batches:  # more than one if the connection was lost in between
            yield self._format(merge_in_binlog_order(batches), names)

    def truncation_row(self, item: Transaction, seq: int) -> pa.RecordBatch:
        """Return the row of a TRUNCATE or CREATE TABLE: the operation ``t``, and NULL in all columns of the table."""
        values = {SEQ_COLUMN: seq, OP_COLUMN: "t", TS_COLUMN: item.commit_us}
        schema = self._table.sink_schema
        arrays = [
            pa.array([values.get(f.name)], pa.int64() if f.name == TS_COLUMN else f.type).cast(f.type) for f in schema
        ]
        return self._format(pa.RecordBatch.from_arrays(arrays, schema=schema), {seq: item.gtid})

    def _format(self, batch: pa.RecordBatch, names: dict[int, str]) -> pa.RecordBatch:
        seqs = batch[SEQ_COLUMN].to_numpy()
        unique_seqs, first, seq_indexes = np.unique(seqs, return_index=True, return_inverse=True)
        numbers = np.arange(len(seqs)) - first[seq_indexes]
        if unique_seqs[0] == self._last_seq:  # a transaction that continues from the previous batch
            numbers[seq_indexes == 0] += self._last_row_count
            names.setdefault(self._last_seq, self._last_gtid)
        self._last_seq, self._last_row_count = int(seqs[-1]), int(numbers[-1]) + 1
        self._last_gtid = names.get(self._last_seq, "")
        files = [self._timeline.position(int(seq)).file for seq in unique_seqs]
        gtids = [names.get(int(seq)) or None for seq in unique_seqs]
        columns = [batch[name] for name in self._table.arrow_schema.names]
        columns += [batch[OP_COLUMN], batch[TS_COLUMN]]
        columns += [pa.array(values, pa.string()).take(pa.array(seq_indexes)) for values in (gtids, files)]
        columns += [pa.array(seqs & ((1 << POSITION_BITS) - 1)), pa.array(numbers, pa.int64())]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)
