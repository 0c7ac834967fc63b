"""Find where the next batch of the stream ends.

A batch ends with the transaction that exhausts a budget of bytes or rows, or before a DDL that the stream must follow.
"""

from __future__ import annotations

import time
from typing import Any

from pymysql.connections import Connection

from airflow_provider_cdc.model.definition_history import CapturedTables
from airflow_provider_cdc.model.errors import OtherHistoryError, TransientError
from airflow_provider_cdc.model.offset import Offset, Position, Timeline
from airflow_provider_cdc.mysql.binlog.events.binlog_source import OpenStreamAt
from airflow_provider_cdc.mysql.binlog.walk.binlog_reader import BinlogReader
from airflow_provider_cdc.mysql.binlog.walk.step import NEVER
from airflow_provider_cdc.mysql.client.identity import binlog_end, check_same_server, is_gtid_mode_on, server_identity
from airflow_provider_cdc.mysql.client.indirect_writes import query_indirect_writes
from airflow_provider_cdc.mysql.positions.binlog_files import are_files_renamed
from airflow_provider_cdc.mysql.positions.offset_walk import OffsetWalk

#: Seconds between two checks for new changes.
_POLL_SECONDS = 0.1


class BatchPlanner:
    """Walks the binlog ahead of the batches. It counts rows and does not decode them.

    :param connection: connection to the source.
    :param open_at: opens a binlog stream at a position.
    :param captured: captured tables; a statement that is not allowed for them stops the scan.
    :param timeline: numbers the transactions.
    :param stop_at_ddl: whether a batch ends before a DDL that changes the definition of a captured table; otherwise
        such a DDL is an error.

    The attribute ``has_backlog`` is true if the last batch ended because it was full, so that more changes follow.
    """

    has_backlog = False

    def __init__(
        self,
        connection: Connection[Any],
        open_at: OpenStreamAt,
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
            # Indirect writes to a suspended table do not matter until it is re-snapshotted.
            indirect_writes=lambda: query_indirect_writes(
                connection, [name for name, definitions in captured.items() if not definitions.is_suspended]
            ),
        )

    def wait_for_changes(self, start: Offset, seconds: float) -> bool:
        """Wait until the binlog has grown.

        :param start: offset up to which the binlog is known.
        :param seconds: maximum time to wait.
        :returns: whether the binlog has grown.
        """
        until = time.monotonic() + seconds
        while binlog_end(self._connection) == start.at:
            if (left := until - time.monotonic()) <= 0:
                return False
            time.sleep(min(_POLL_SECONDS, left))
        return True

    def find_batch_end(self, start: Offset, max_bytes: int, max_rows: int = NEVER) -> Offset:
        """Return the end of the batch that begins at ``start``.

        :param max_bytes: bytes of binlog after which the batch ends with the next transaction.
        :param max_rows: changed rows of captured tables after which the batch ends with the next transaction.
        :returns: the end; ``start`` itself if there is nothing new, or if ``start`` is directly before a DDL.
        :raises OtherHistoryError: if the binlog does not continue what was read.
        :raises TransientError: if the server's binlog files were renamed.
        """
        check_same_server(server_identity(self._connection), start.server)
        # Checked before the end is read: everything after that end then has GTIDs.
        gtids_on = is_gtid_mode_on(self._connection)
        target = binlog_end(self._connection)
        if target.file != start.at.file and are_files_renamed(self._connection, start.at):
            raise TransientError(
                f"the binlog files of the server have another name now, such as {target.file}, and were read up to "
                f"{start.at}",
                "Run again: GTIDs show where to continue",
            )
        if target < start.at:
            raise OtherHistoryError(f"the binlog of the server ends at {target}, and was read up to {start.at}")
        if target == start.at or start.before_ddl:
            return start
        batch_end = self._walk(start, target, gtids_on, max_bytes, max_rows)
        if isinstance(batch_end, Offset):
            return batch_end
        # The walk went past the DDL, so walk the part before it again.
        end_before_ddl = self._walk(start, batch_end, gtids_on, max_bytes, max_rows) if start.at < batch_end else start
        assert isinstance(end_before_ddl, Offset)
        return end_before_ddl.replace(before_ddl=True)

    def _walk(
        self, start: Offset, target: Position, gtids_on: bool, max_bytes: int, max_rows: int
    ) -> Offset | Position:
        """Walk to the end of a batch, but not past a target.

        :param gtids_on: whether all transactions after the target have GTIDs.
        :returns: the end; or the position of a DDL that must be followed.
        """
        walk = OffsetWalk(self._binlog, start)
        for item in walk.walk_to(target, max_bytes, max_rows):
            if item is not None and item.altered_tables:
                return Position(item.file, item.start_position)
        numbered = gtids_on and (start.gtid_mode_on or target <= walk.at)
        return walk.make_offset(
            file_start_time=self._binlog.file_start_times.get(walk.at.file, 0), gtid_mode_on=numbered
        )

    def find_range_ends(
        self, start: Offset, max_bytes: int, max_rows: int, reader_count: int, min_range_bytes: int
    ) -> list[Offset]:
        """Return the ends of the ranges of the batch that begins at ``start``, in order; empty if there is nothing new.

        :param max_bytes: as for :meth:`find_batch_end`, for the whole batch.
        :param max_rows: likewise.
        :param reader_count: number of readers that the ranges are for.
        :param min_range_bytes: bytes of binlog that are worth a separate reader.
        """
        ends, target, at = list[Offset](), binlog_end(self._connection), start
        available_bytes = target.position - start.at.position if target.file == start.at.file else max_bytes
        size = min(max_bytes, max(min_range_bytes, -(-min(available_bytes, max_bytes) // reader_count)))
        rows = -(-max_rows // reader_count)
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
