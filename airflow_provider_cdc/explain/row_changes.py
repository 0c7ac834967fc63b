"""The changes of one row in a range of the binlog, in memory that does not grow with the changes of other rows."""

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

#: Bytes of row changes that are buffered before those of the row are filtered out of them.
_FLUSH_BYTES = 16 << 20


@dataclass(frozen=True)
class RowChangeSegment:
    """What happened to the row in a part of the range.

    :param timeline: numbers the transactions.
    :param changes: changes of the row, in binlog order.
    :param gtids: GTIDs of their transactions, by ``_cdc_seq``; may include others.
    :param truncation: ``_cdc_seq`` and time (microseconds since 1970) of a TRUNCATE or a CREATE TABLE.
    :param altered_at: end of a DDL that alters the table, or of a transaction whose rows have another layout. Earlier
        changes may belong to another table of the same name.
    """

    timeline: Timeline
    changes: pa.Table
    gtids: Mapping[int, str] = field(default_factory=dict)
    truncation: tuple[int, int] | None = None
    altered_at: Position | None = None

    @property
    def change_count(self) -> int:
        """Number of changes; a TRUNCATE counts as one."""
        return int(self.changes.num_rows) + (self.truncation is not None)

    def position_of(self, seq: int) -> Position:
        """Return the position at which a transaction ends."""
        return self.timeline.position(seq)


@dataclass(frozen=True)
class RowChangeReader:
    """Reads the changes of one row from the binlog.

    :param open_at: opens a blocking binlog stream at a position.
    :param definitions: definitions of the table; rows are returned by the newest one.
    :param look_back: finds XA transactions of the table that are prepared at a position.
    :param is_this_row: returns a mask of the changes that belong to the row.
    :param key_filter: the same, from an integer key alone; ``None`` for other keys.
    :param text_decoders: decoders of text columns.
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
        """Yield what happened to the row in (low, high], both of which are ends of transactions.

        :param binlog_begun: known start times of binlog files, by name; another file of the same name is refused.
        """
        captured, table = histories_by_table([self.definitions]), self.definitions.newest
        timeline, prepared = position_timeline(high), PreparedXaRows({}, self.look_back(low).prepared_rows, captured)
        gtids = dict[int, str]()
        # Indirect writes were already checked when the table was copied.
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
        """Yield the changes of the row read so far, up to a position; later ones are dropped.

        :param gtids: known GTIDs by ``_cdc_seq``; that of the last transaction is kept, because it may continue.
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
    """Return a timeline that numbers transactions of all binlog files that a server may have, by position only."""
    return Timeline("", f"{split_file(at.file)[0]}0")
