"""What happened in a range of the binlog, in order: row changes, and in between each TRUNCATE and other DDL."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_cdc.model.gtid import GtidSet, MariadbGtidPosition
from airflow_provider_cdc.model.offset import Position
from airflow_provider_cdc.model.schema import SEQ_COLUMN, TableSchema
from airflow_provider_cdc.mysql.binlog.events.xa import PreparedXaRows

if TYPE_CHECKING:  # compiled code, which drivers must not import
    from airflow_provider_cdc.mysql.binlog.walk.binlog_reader import BinlogReader
    from airflow_provider_cdc.mysql.binlog.walk.change_buffer import KeyFilter

#: Bytes of binlog rows to collect before their changes are yielded.
MAX_HELD_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class RowChanges:
    """Changes of rows of one table, in binlog order.

    :param table: the table, in the definition that its rows have there.
    :param batch: the changes, with the schema of the sink.
    :param gtids: GTIDs of their transactions by ``_cdc_seq``, if the reader is asked for them; may include others.
    """

    table: TableSchema
    batch: pa.RecordBatch
    gtids: Mapping[int, str]


@dataclass(frozen=True, slots=True)
class Truncation:
    """A TRUNCATE or CREATE TABLE, after which a captured table is empty.

    :param table: (database, table).
    :param seq: ``_cdc_seq`` of the statement.
    :param commit_us: its commit time, in microseconds since the epoch, UTC.
    :param gtid: its GTID; empty if the server assigns none.
    """

    table: tuple[str, str]
    seq: int
    commit_us: int
    gtid: str


@dataclass(frozen=True, slots=True)
class DefinitionChange:
    """A DDL that alters a captured table, or a transaction with rows of another layout; only with ``yield_ddl``.

    :param at: its end.
    """

    at: Position


def read_changes(
    binlog: BinlogReader,
    low: Position,
    high: Position,
    prepared: PreparedXaRows,
    *,
    key_filter: KeyFilter | None = None,
    applied_gtids: GtidSet | MariadbGtidPosition | None = None,
    range_bytes: int | None = None,
) -> Iterator[RowChanges | Truncation | DefinitionChange]:
    """Yield what happened after ``low`` and at or before ``high``, with about :data:`MAX_HELD_BYTES` in memory.

    :param low: end of a transaction, like ``high``. Errors are those of :meth:`.BinlogReader.steps`.
    :param prepared: the XA transactions that are prepared at ``low``.
    :param key_filter: changes may be left out if it is true for none of them.
    :param applied_gtids: transactions to leave out. The reader must be asked for GTIDs.
    :param range_bytes: bytes of binlog after which the range ends with the next transaction. The last transaction is
        then yielded in parts, also by a server that does not announce where it ends.
    :raises UnknownPrepareError: if an XA transaction is committed whose rows are not in the binlog.
    """
    high_seq, gtids = binlog.timeline.seq(high), dict[int, str]()

    def take(end: Position | None = None) -> Iterator[RowChanges]:
        nonlocal gtids
        batches = binlog.take_changes(end, key_filter)
        gtids |= binlog.take_gtids()
        newest = max((batch[SEQ_COLUMN][-1].as_py() for _, batch in batches), default=0)
        applied_seqs = [seq for seq, gtid in gtids.items() if gtid and gtid in applied_gtids] if applied_gtids else []
        for table, batch in batches:
            if newest > high_seq:
                batch = batch.filter(pc.less_equal(batch[SEQ_COLUMN], high_seq))
            if applied_seqs:
                batch = batch.filter(pc.invert(pc.is_in(batch[SEQ_COLUMN], pa.array(applied_seqs, pa.int64()))))
            if batch.num_rows:
                yield RowChanges(table, batch, gtids)
        # The last transaction may continue. Before MariaDB ends one, its changes cannot be taken at all.
        if batches:
            gtids = {seq: gtid for seq, gtid in gtids.items() if seq >= newest}

    for step in binlog.steps(low, high) if low < high else ():
        if (item := step.transaction) is not None and applied_gtids and item.gtid in applied_gtids:
            prepared.track(item)
        elif item is not None:
            seq = binlog.timeline.seq(Position(step.file, step.position))
            if item.altered_tables:
                yield from take()
                yield DefinitionChange(Position(item.file, item.position))
            if item.emptied_table is not None:
                yield from take()
                yield Truncation(item.emptied_table, seq, item.commit_us, item.gtid)
            for _ in binlog.decode_rows(prepared.visible_rows(item), seq, item.commit_us):
                yield from take()
        if binlog.held_bytes >= MAX_HELD_BYTES:
            # The last transaction of a range is in the file in which the range ends.
            is_last = range_bytes is not None and step.file == high.file and step.is_beyond(low, range_bytes)
            yield from take(high if is_last else None)
    yield from take()
