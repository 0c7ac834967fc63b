"""Finds where the next batch of the stream ends: at the end of a complete transaction, within a budget of bytes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from pymysql.connections import Connection

from airflow_provider_cdc.core.gtid import GtidSet
from airflow_provider_cdc.core.offset import Offset, Position
from airflow_provider_cdc.core.schema import TableSchema
from airflow_provider_cdc.exceptions import TerminalError
from airflow_provider_cdc.mysql.backlog import Backlog
from airflow_provider_cdc.mysql.binlog.stream import BinlogStream
from airflow_provider_cdc.mysql.binlog.transactions import Reached, Transaction
from airflow_provider_cdc.mysql.session import rows, value
from airflow_provider_cdc.mysql.watermark import same_server, status

#: Seconds to wait for transactions that the stream has seen to be committed in the engine.
_COMMIT_SECONDS = 10.0


class Scanner:
    """Walks the binlog ahead of the batches, transaction by transaction, without decoding rows.

    :param connection: connection to the source.
    :param open_at: opens a binlog stream at a position.
    :param captured: captured tables; what may not happen to them stops the scan.
    """

    def __init__(
        self,
        connection: Connection[Any],
        open_at: Callable[[Position], BinlogStream],
        captured: Mapping[tuple[str, str], TableSchema],
    ) -> None:
        self._connection = connection
        self._backlog = Backlog(open_at, captured)
        self._ahead: Iterator[Transaction | Reached] = iter(())

    def advance(self, start: Offset, max_bytes: int) -> Offset:
        """End of the batch that begins at ``start``; ``start`` itself if nothing is new.

        :param max_bytes: bytes of binlog after which the batch ends with the next transaction.
        """
        same_server(value(self._connection, "SELECT @@server_uuid") or "", start.server)
        target, _ = status(self._connection)
        if target <= start.at:
            return start
        gtids, xa, at, size = GtidSet.parse(start.gtid_set), set(start.xa), start.at, 0
        for item in self._backlog.items(start.at, target):
            here = Position(item.file, item.position)
            size += here.position - at.position if here.file == at.file else here.position
            at = here
            if isinstance(item, Transaction):
                if item.gtid:
                    gtids = gtids.add(item.gtid)
                _follow_xa(item, xa, at)
                if size >= max_bytes:
                    break
        return Offset(start.server, at, str(gtids), tuple(sorted(xa)))

    def close(self) -> None:
        """Close the binlog stream and the connection."""
        self._backlog.close()
        self._connection.close()


def _follow_xa(transaction: Transaction, xa: set[str], at: Position) -> None:
    if transaction.xa_prepared is not None:
        xa.add(transaction.xa_prepared)
    if transaction.xa_finished is not None:
        if transaction.xa_finished not in xa:
            raise TerminalError(
                f"XA transaction {transaction.xa_finished} ends at {at} but was prepared before this pipeline began",
                "Its rows may be missing: start with a fresh sink.path (or remove the old one) and run again",
            )
        xa.discard(transaction.xa_finished)


def check_resume(connection: Connection[Any], offset: Offset) -> None:
    """Make sure that the stream can go on exactly where it stopped.

    :raises TerminalError: if the server is another one, has lost transactions, or has purged the position.
    """
    same_server(value(connection, "SELECT @@server_uuid") or "", offset.server)
    gtids = offset.gtid_set.replace("'", "")
    end = time.monotonic() + _COMMIT_SECONDS
    while True:
        inside, purged_inside, missing = rows(
            connection,
            f"SELECT GTID_SUBSET('{gtids}', @@global.gtid_executed), GTID_SUBSET(@@global.gtid_purged, '{gtids}'), "
            f"GTID_SUBTRACT(@@global.gtid_purged, '{gtids}')",
        )[0]
        # A transaction that was read from the binlog may still be on its way into the engine.
        if inside == "1" or time.monotonic() > end:
            break
        time.sleep(0.2)
    if inside != "1":
        raise TerminalError(
            f"the server no longer has all transactions up to {offset.at}: its binlogs were reset, or it lost commits",
            "The copy may hold rows that the server does not: start with a fresh sink.path (or remove the old one)",
        )
    logs = {str(row[0]): int(row[1] or 0) for row in rows(connection, "SHOW BINARY LOGS")}
    if purged_inside != "1" or offset.at.file not in logs or logs[offset.at.file] < offset.at.position:
        gap = f"; purged and never read: {missing}" if missing else ""
        raise TerminalError(
            f"the binlog position {offset.at} is no longer on the server{gap}",
            "Start with a fresh sink.path (or remove the old one), and raise binlog_expire_logs_seconds",
        )
