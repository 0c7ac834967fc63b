"""The beginning of a binlog file, which states the transactions before the file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pymysql.connections import Connection

from airflow_provider_cdc.model.gtid import GtidSet, MariadbGtidPosition
from airflow_provider_cdc.model.offset import Position
from airflow_provider_cdc.model.start_mode import FIRST_EVENT_POSITION
from airflow_provider_cdc.mysql.client.gtids import query_purged_gtids
from airflow_provider_cdc.mysql.client.identity import is_mariadb
from airflow_provider_cdc.mysql.client.session import query_rows, query_value

#: Binlog events to list at a time: the server may block commits while it lists them.
_EVENTS_PER_QUERY = 500


def previous_gtids(connection: Connection[Any], file: str) -> GtidSet | MariadbGtidPosition:
    """Return the GTIDs before a binlog file."""
    if is_mariadb(connection):
        return MariadbGtidPosition.parse(gtids_at_position(connection, Position(file, FIRST_EVENT_POSITION)))
    # The set at the head of a file does not include transactions that were never in the server's binlog, as after a
    # restore.
    purged = query_purged_gtids(connection)
    for row in query_rows(connection, f"SHOW BINLOG EVENTS IN '{file}' LIMIT 3"):
        if row[2] == "Previous_gtids":
            return purged.union(GtidSet.parse(row[5] or ""))
    return purged


def gtids_at_position(connection: Connection[Any], at: Position) -> str:
    """Return the GTIDs at or before a position (MariaDB)."""
    return query_value(connection, f"SELECT BINLOG_GTID_POS('{at.file}', {at.position})") or ""


def next_file_after_torn_end(connection: Connection[Any], at: Position) -> Position | None:
    """Return the beginning of the next file, if its GTIDs are those at ``at``: then no transaction is in between.

    If MariaDB is killed while it writes a transaction, the truncated transaction stays in its binlog and is rolled
    back.

    :param at: the end of the last complete transaction in a file.
    """
    if not is_mariadb(connection):
        return None  # MySQL truncates such a file when it restarts
    files = [str(row[0]) for row in query_rows(connection, "SHOW BINARY LOGS")]
    for file in files[files.index(at.file) + 1 :][:1]:
        head = Position(file, FIRST_EVENT_POSITION)
        if gtids_at_position(connection, head) == gtids_at_position(connection, at):
            return head
    return None


@dataclass(frozen=True)
class CheckpointedFile:
    """A MariaDB binlog file, with all transactions before it committed in the engine.

    :param start: its beginning.
    :param exact_from: the first position in the file that is exact for a view, if the view is opened from now on.
    """

    start: Position
    exact_from: Position

    def is_exact_at(self, at: Position) -> bool:
        """Return whether a view opened since then is exactly as of ``at``, the position that the server reports."""
        return at.file == self.start.file and self.exact_from <= at


def checkpointed_file(connection: Connection[Any], file: str) -> CheckpointedFile | None:
    """Check whether the newest MariaDB binlog file states that all transactions before it are committed.

    As soon as the server begins a file, it reports the head of that file as the position of views, although
    transactions in the previous file are not committed yet. Their leader may then also report the old file's offset in
    the new file. When they are committed, the server writes a ``Binlog_checkpoint`` that names the new file. It reports
    the end of that event as a position, too, which is not exact either if transactions precede the event: they may not
    be committed yet.

    :returns: ``None`` while there is no such event.
    """
    at, transactions = FIRST_EVENT_POSITION, 0
    events: list[Any] = [None] * _EVENTS_PER_QUERY
    while len(events) == _EVENTS_PER_QUERY:
        events = query_rows(connection, f"SHOW BINLOG EVENTS IN '{file}' FROM {at} LIMIT {_EVENTS_PER_QUERY}")
        for _, _, kind, _, end, text in events:
            transactions += kind == "Gtid"
            if kind == "Binlog_checkpoint" and text == file:
                return CheckpointedFile(
                    Position(file, FIRST_EVENT_POSITION), Position(file, int(end or 0) + (transactions > 0))
                )
        at = int(events[-1][1] or 0) if events else at
    return None
