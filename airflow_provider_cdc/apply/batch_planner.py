"""Finds where the next batch of the stream ends: with the transaction that fills a budget of bytes or of rows, and
before a DDL that the stream has to follow.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from pymysql.connections import Connection

from airflow_provider_cdc.model.definition_history import CapturedTables
from airflow_provider_cdc.model.errors import OtherHistoryError, TransientError
from airflow_provider_cdc.model.gtid import gtid_class_of
from airflow_provider_cdc.model.offset import Offset, Position, Timeline
from airflow_provider_cdc.mysql.binlog.events.binlog_stream import BinlogStream
from airflow_provider_cdc.mysql.binlog.events.transactions import Transaction
from airflow_provider_cdc.mysql.binlog.events.xa import format_xa_entry, parse_xa_entry
from airflow_provider_cdc.mysql.binlog.walk.binlog_reader import BinlogReader
from airflow_provider_cdc.mysql.binlog.walk.step import NEVER
from airflow_provider_cdc.mysql.client.identity import binlog_end, check_same_server, is_gtid_mode_on, server_identity
from airflow_provider_cdc.mysql.client.indirect_writes import query_indirect_writes
from airflow_provider_cdc.mysql.positions.binlog_files import are_files_renamed

#: Seconds between two looks whether there are changes.
_POLL_SECONDS = 0.1


class BatchPlanner:
    """Walks the binlog ahead of the batches; it counts rows and does not decode them.

    :param connection: connection to the source.
    :param open_at: opens a binlog stream at a position.
    :param captured: captured tables; what may not happen to them stops the scan.
    :param timeline: numbers the transactions.
    :param stop_at_ddl: whether a batch ends before what changes the definition of a captured table, instead of an
        error.

    ``full`` says whether the last batch ended because it was full: there is more behind it.
    """

    has_backlog = False

    def __init__(
        self,
        connection: Connection[Any],
        open_at: Callable[[Position], BinlogStream],
        captured: CapturedTables,
        timeline: Timeline,
        *,
        stop_at_ddl: bool = False,
    ) -> None:
        self._connection = connection
        self._binlog = BinlogReader(
            open_at,
            captured,
            timeline,
            count_only=True,
            yield_ddl=stop_at_ddl,
            # What leads to a suspended table is of no concern, until it was read again.
            indirect_writes=lambda: query_indirect_writes(
                connection, [name for name, definitions in captured.items() if not definitions.is_suspended]
            ),
        )

    def wait_for_changes(self, start: Offset, seconds: float) -> bool:
        """Wait until something is new.

        :param start: up to where the binlog is known.
        :param seconds: how long at most.
        :returns: whether something is.
        """
        until = time.monotonic() + seconds
        while binlog_end(self._connection) == start.at:
            if (left := until - time.monotonic()) <= 0:
                return False
            time.sleep(min(_POLL_SECONDS, left))
        return True

    def find_batch_end(self, start: Offset, max_bytes: int, max_rows: int = NEVER) -> Offset:
        """End of the batch that begins at ``start``; ``start`` itself if nothing is new, or it stands before a DDL.

        :param max_bytes: bytes of binlog after which the batch ends with the next transaction.
        :param max_rows: changed rows of captured tables after which it does so, too.
        """
        check_same_server(server_identity(self._connection), start.server)
        gtids_on = is_gtid_mode_on(self._connection)  # looked at before the end: what comes behind that has GTIDs then
        target = binlog_end(self._connection)
        if target.file != start.at.file and are_files_renamed(self._connection, start.at):
            raise TransientError(
                f"the binlog files of the server have another name now, such as {target.file}, and were read up to "
                f"{start.at}",
                "Run again: GTIDs tell where to go on",
            )
        if target < start.at:
            raise OtherHistoryError(f"the binlog of the server ends at {target}, and was read up to {start.at}")
        if target == start.at or start.before_ddl:
            return start
        self._binlog.expect_offset(start)
        batch_end = self._walk(start, target, gtids_on, max_bytes, max_rows)
        if isinstance(batch_end, Offset):
            return batch_end
        # The DDL has been walked over, so what is before it is walked once more.
        end_before_ddl = self._walk(start, batch_end, gtids_on, max_bytes, max_rows) if start.at < batch_end else start
        assert isinstance(end_before_ddl, Offset)
        return replace(end_before_ddl, before_ddl=True)

    def _walk(
        self, start: Offset, target: Position, gtids_on: bool, max_bytes: int, max_rows: int
    ) -> Offset | Position:
        """Walk to the end of a batch, to a target at most.

        :param gtids_on: whether all that is behind the target has GTIDs.
        :returns: the end; or where a DDL begins that has to be followed.
        """
        kind: Any = gtid_class_of(start.server)
        gtids, applied_gtids, at, size, rows = (
            kind.parse(start.gtid_set),
            kind.parse(start.already_applied),
            start.at,
            0,
            0,
        )
        open_xa = {parse_xa_entry(text)[0]: text for text in start.open_xa}
        while at < target and size < max_bytes and rows < max_rows:
            # The budget in the present file; behind its end it is looked at again.
            end = min(target, Position(at.file, at.position + max_bytes - size))
            for step in self._binlog.steps(at, end, max_rows - rows):
                if step.transaction is not None and step.transaction.altered_tables:
                    return Position(step.transaction.file, step.transaction.start_position)
                rows += step.counted_rows
                here = Position(step.file, step.position)
                size += here.position - at.position if here.file == at.file else here.position
                at = here
                # The first offset of an older version may hold a few GTIDs from just behind its position.
                if step.gtids:
                    new_gtids = kind.parse(",".join(step.gtids))
                    if start.file_start_time and (repeated := gtids.repeated_in(new_gtids)):
                        raise OtherHistoryError(
                            f"{repeated} is in the binlog of the server before {at}, and was read before"
                        )
                    gtids = gtids.union(new_gtids)
                if step.transaction is not None:
                    track_xa(step.transaction, open_xa)
                if applied_gtids:
                    applied_gtids = applied_gtids.without(step.gtids)
        # Of an offset without it, the file's beginning is not taken for granted either.
        file_began = (
            self._binlog.file_start_times.get(at.file, 0) if start.file_start_time or at.file != start.at.file else 0
        )
        numbered = gtids_on and (start.gtid_mode_on or target <= at)
        return Offset(
            start.server, at, str(gtids), tuple(sorted(open_xa.values())), str(applied_gtids), file_began, numbered
        )

    def find_range_ends(
        self, start: Offset, max_bytes: int, max_rows: int, reader_count: int, min_range_bytes: int
    ) -> list[Offset]:
        """Ends of the pieces of the batch that begins at ``start``, one behind the other; none if nothing is new.

        :param max_bytes: as for :meth:`advance`, of the whole batch.
        :param max_rows: likewise.
        :param reader_count: number of readers that they are for.
        :param min_range_bytes: bytes of binlog that are worth a reader of their own.
        """
        ends, target, at = list[Offset](), binlog_end(self._connection), start
        available_bytes = target.position - start.at.position if target.file == start.at.file else max_bytes
        size, rows = (
            min(max_bytes, max(min_range_bytes, -(-min(available_bytes, max_bytes) // reader_count))),
            -(-max_rows // reader_count),
        )
        while (
            len(ends) < reader_count
            and len(ends) * size < max_bytes
            and (end := self.find_batch_end(at, size, rows)) != at
        ):
            ends.append(end)
            at = end
        self.has_backlog = at.at < target and not at.before_ddl
        return ends

    def close(self) -> None:
        """Close the binlog stream and the connection."""
        self._binlog.close()
        self._connection.close()


def track_xa(transaction: Transaction, open_xa: dict[str, str]) -> None:
    """Keep a list of open XA transactions up to date: entries by name.

    One that ends and is not in the list was prepared before the list was begun: who reads its rows looks back.
    """
    if transaction.xa_prepared is not None:
        start = Position(transaction.file, transaction.start_position) if transaction.prepared_rows else None
        open_xa[transaction.xa_prepared] = format_xa_entry(transaction.xa_prepared, start)
    if transaction.xa_finished is not None:
        open_xa.pop(transaction.xa_finished, None)
