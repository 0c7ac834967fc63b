"""The changes of one row in a stretch of the binlog, however many others there are."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_cdc.ddl.indirect_writes import IndirectWrites
from airflow_provider_cdc.model.changes import conform_to_schema
from airflow_provider_cdc.model.definition_history import DefinitionHistory, histories_by_table
from airflow_provider_cdc.model.offset import Position, Timeline, split_file
from airflow_provider_cdc.model.schema import SEQ_COLUMN
from airflow_provider_cdc.mysql.binlog.events.binlog_stream import BinlogStream
from airflow_provider_cdc.mysql.binlog.events.xa import PreparedXaRows
from airflow_provider_cdc.mysql.binlog.walk.binlog_reader import BinlogReader
from airflow_provider_cdc.mysql.binlog.walk.change_buffer import KeyFilter
from airflow_provider_cdc.mysql.client.charsets import UNICODE_DECODERS, CharsetDecoders
from airflow_provider_cdc.mysql.positions.xa_lookback import XaLookback

#: Bytes of rows in the binlog that are held before those of the row are picked out.
_FLUSH_BYTES = 16 << 20


@dataclass(frozen=True)
class RowChangeSegment:
    """What happened to the row in a part of the stretch.

    :param timeline: numbers the transactions.
    :param changes: its changes, in binlog order.
    :param gtids: GTIDs of their transactions by ``_cdc_seq``, and more.
    :param truncation: ``_cdc_seq`` and time (in microseconds since 1970) of a TRUNCATE or a CREATE TABLE.
    :param altered_at: where a DDL ends that alters the table, or a transaction whose rows have another layout. What
        stands before it may be of another table of the same name.
    """

    timeline: Timeline
    changes: pa.Table
    gtids: Mapping[int, str] = field(default_factory=dict)
    truncation: tuple[int, int] | None = None
    altered_at: Position | None = None

    @property
    def change_count(self) -> int:
        """How many changes there are; a TRUNCATE is one."""
        return int(self.changes.num_rows) + (self.truncation is not None)

    def position_of(self, seq: int) -> Position:
        """Where a transaction ends."""
        return self.timeline.position(seq)


@dataclass(frozen=True)
class RowChangeReader:
    """Reads them.

    :param open_at: opens a blocking binlog stream at a position.
    :param definitions: the table's; rows are those of the newest one.
    :param look_back: finds XA transactions of the table that are prepared at a place.
    :param is_this_row: mask of the changes that are the row's.
    :param key_filter: the same of an integer key alone, if it is one.
    :param text_decoders: how its text is decoded.
    """

    open_at: Callable[[Position], BinlogStream]
    definitions: DefinitionHistory
    look_back: Callable[[Position], XaLookback]
    is_this_row: Callable[[pa.Table], pa.Array]
    key_filter: KeyFilter | None = None
    text_decoders: CharsetDecoders = UNICODE_DECODERS

    @property
    def schema(self) -> pa.Schema:
        """Schema of the changes."""
        return self.definitions.newest.sink_schema

    def read(
        self, low: Position, high: Position, binlog_begun: Mapping[str, int] | None = None
    ) -> Iterator[RowChangeSegment]:
        """What happened in (low, high], which are ends of transactions.

        :param binlog_begun: when binlog files were begun, as far as that is known: others of their names are refused.
        """
        captured, table = histories_by_table([self.definitions]), self.definitions.newest
        timeline, prepared = position_timeline(high), PreparedXaRows({}, self.look_back(low).prepared_rows, captured)
        gtids = dict[int, str]()
        # Whoever copies the table has judged what leads to it.
        binlog = BinlogReader(
            self.open_at,
            captured,
            timeline,
            self.text_decoders,
            with_gtids=True,
            yield_ddl=True,
            indirect_writes=IndirectWrites,
        )
        binlog.file_start_times.update(binlog_begun or {})
        with closing(binlog):
            for step in binlog.steps(low, high) if low < high else ():
                if (item := step.transaction) is not None:
                    seq = timeline.seq(Position(step.file, step.position))
                    if table.id in item.altered_tables:
                        yield from self._take_changes(binlog, high, gtids)
                        yield RowChangeSegment(
                            timeline, self.schema.empty_table(), altered_at=Position(item.file, item.position)
                        )
                    if item.emptied_table is not None:
                        yield from self._take_changes(binlog, high, gtids)
                        yield RowChangeSegment(
                            timeline, self.schema.empty_table(), {seq: item.gtid}, (seq, item.commit_us)
                        )
                    gtids |= {seq: item.gtid} if item.xa_committed else {}
                    for _ in binlog.decode_rows(prepared.visible_rows(item), seq, item.commit_us):
                        yield from self._take_changes(binlog, high, gtids)
                if binlog.held_bytes >= _FLUSH_BYTES:
                    yield from self._take_changes(binlog, high, gtids)
            yield from self._take_changes(binlog, high, gtids)

    def _take_changes(self, binlog: BinlogReader, high: Position, gtids: dict[int, str]) -> Iterator[RowChangeSegment]:
        """Changes up to a place that have been read; what stands behind it has been read in vain.

        :param gtids: GTIDs that are known, and may be asked for again: of a transaction that goes on.
        """
        batches = [
            conform_to_schema(batch, self.schema) for _, batch in binlog.take_changes(key_filter=self.key_filter)
        ]
        gtids |= binlog.take_gtids()
        timeline, last_seq = position_timeline(high), None
        for changes in batches:
            changes = changes.filter(pc.less_equal(changes[SEQ_COLUMN], timeline.seq(high)))
            if changes.num_rows:
                last_seq = changes[SEQ_COLUMN][-1].as_py()
                changes = changes.filter(self.is_this_row(changes))
            if changes.num_rows:
                yield RowChangeSegment(timeline, changes, dict(gtids))
        if last_seq is not None:
            for seq in gtids.keys() - {last_seq}:
                del gtids[seq]


def position_timeline(at: Position) -> Timeline:
    """Numbers the transactions of all binlog files that a server may have, by their positions alone."""
    return Timeline("", f"{split_file(at.file)[0]}0")
