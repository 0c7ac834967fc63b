"""The changes of one row in a range of the binlog, in memory that does not grow with the changes of other rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field

import pyarrow as pa

from airflow_provider_cdc.ddl.indirect_writes import IndirectWrites
from airflow_provider_cdc.model.changes import conform_to_schema
from airflow_provider_cdc.model.definition_history import DefinitionHistory, histories_by_table
from airflow_provider_cdc.model.offset import Position, Timeline, split_file
from airflow_provider_cdc.mysql.binlog.events.binlog_source import BinlogSource
from airflow_provider_cdc.mysql.binlog.walk.binlog_reader import BinlogReader
from airflow_provider_cdc.mysql.binlog.walk.change_buffer import KeyFilter
from airflow_provider_cdc.mysql.binlog.walk.changes import RowChanges, Truncation, read_changes
from airflow_provider_cdc.mysql.client.charsets import UNICODE_DECODERS, CharsetDecoders
from airflow_provider_cdc.mysql.positions.xa_lookback import track_prepared_xa


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

    :param source: opens the binlog.
    :param definitions: definitions of the table; rows are returned by the newest one.
    :param is_this_row: returns a mask of the changes that belong to the row.
    :param key_filter: the same, from an integer key alone; ``None`` for other keys.
    :param text_decoders: decoders of text columns.
    """

    source: BinlogSource
    definitions: DefinitionHistory
    is_this_row: Callable[[pa.Table], pa.Array]
    key_filter: KeyFilter | None = None
    text_decoders: CharsetDecoders = UNICODE_DECODERS

    @property
    def schema(self) -> pa.Schema:
        """Schema of the changes."""
        return self.definitions.newest.row_schema

    def read(
        self, low: Position, high: Position, binlog_begun: Mapping[str, int] | None = None
    ) -> Iterator[RowChangeSegment]:
        """Yield what happened to the row in (low, high], both of which are ends of transactions.

        :param binlog_begun: known start times of binlog files, by name; another file of the same name is refused.
        """
        captured, timeline = histories_by_table([self.definitions]), position_timeline(high)
        # Indirect writes were already checked when the table was copied.
        binlog = BinlogReader(
            self.source.open,
            captured,
            timeline,
            self.text_decoders,
            with_gtids=True,
            yield_ddl=True,
            indirect_writes=IndirectWrites,
        )
        binlog.file_start_times.update(binlog_begun or {})
        prepared = track_prepared_xa(self.source, captured, low)
        with closing(binlog):
            for change in read_changes(binlog, low, high, prepared, key_filter=self.key_filter):
                if isinstance(change, RowChanges):
                    changes = conform_to_schema(change.batch, self.schema)
                    changes = changes.filter(self.is_this_row(changes))
                    if changes.num_rows:
                        yield RowChangeSegment(timeline, changes, change.gtids)
                    continue
                nothing = self.schema.empty_table()
                if isinstance(change, Truncation):
                    gtids, truncation = {change.seq: change.gtid}, (change.seq, change.commit_us)
                    yield RowChangeSegment(timeline, nothing, gtids, truncation)
                else:
                    yield RowChangeSegment(timeline, nothing, altered_at=change.at)


def position_timeline(at: Position) -> Timeline:
    """Return a timeline that numbers transactions of all binlog files that a server may have, by position only."""
    return Timeline("", f"{split_file(at.file)[0]}0")
