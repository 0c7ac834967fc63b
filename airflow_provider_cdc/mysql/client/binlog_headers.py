"""What the beginning of a binlog file says: which transactions lie before it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pymysql.connections import Connection

from airflow_provider_cdc.model.gtid import GtidSet, MariadbGtidPosition
from airflow_provider_cdc.model.offset import Position
from airflow_provider_cdc.model.start_mode import FIRST_EVENT_POSITION
from airflow_provider_cdc.mysql.client.identity import is_mariadb
from airflow_provider_cdc.mysql.client.session import query_rows, query_value

#: Events of a binlog that are listed at a time: the server may hold commits while it lists them.
_EVENTS_PER_QUERY = 500


def previous_gtids(connection: Connection[Any], file: str) -> GtidSet | MariadbGtidPosition:
    """The GTIDs that lie before a binlog file."""
    if is_mariadb(connection):
        return MariadbGtidPosition.parse(gtids_at_position(connection, Position(file, FIRST_EVENT_POSITION)))
    # The set at the head of a file leaves out what the server never had in its binlog, as after a restore.
    purged = GtidSet.parse(query_value(connection, "SELECT @@global.gtid_purged") or "")
    for row in query_rows(connection, f"SHOW BINLOG EVENTS IN '{file}' LIMIT 3"):
        if row[2] == "Previous_gtids":
            return purged.union(GtidSet.parse(row[5] or ""))
    return purged


def gtids_at_position(connection: Connection[Any], at: Position) -> str:
    """The GTIDs at or before a position, of MariaDB."""
    return query_value(connection, f"SELECT BINLOG_GTID_POS('{at.file}', {at.position})") or ""


def next_file_after_torn_end(connection: Connection[Any], at: Position) -> Position | None:
    """The beginning of the next file, if it begins with the GTIDs of a place: what lies between is no transaction.

    MariaDB leaves a transaction that it was writing when it was killed in its binlog, cut off, and rolls it back.

    :param at: the end of the last whole transaction of a file.
    """
    if not is_mariadb(connection):
        return None  # MySQL cuts such a file when it starts again
    files = [str(row[0]) for row in query_rows(connection, "SHOW BINARY LOGS")]
    for file in files[files.index(at.file) + 1 :][:1]:
        head = Position(file, FIRST_EVENT_POSITION)
        if gtids_at_position(connection, head) == gtids_at_position(connection, at):
            return head
    return None


@dataclass(frozen=True)
class CheckpointedFile:
    """A binlog file of MariaDB; all transactions before it are committed in the engine.

    :param start: its beginning.
    :param exact_from: the first place in it that is the exact position of a view, if a view is opened from now on
        there.
    """

    start: Position
    exact_from: Position

    def is_exact_at(self, at: Position) -> bool:
        """Whether a view that was opened since is exactly as of the position that the server tells."""
        return at.file == self.start.file and self.exact_from <= at


def checkpointed_file(connection: Connection[Any], file: str) -> CheckpointedFile | None:
    """Look whether the newest binlog file of MariaDB says that all transactions before it are committed.

    When the server begins a file it tells its head as the position of views at once, though transactions of the file
    before are yet to be committed; and their leader may then tell the old file's offset in the new one. When they are
    done the server writes a ``Binlog_checkpoint`` that names the new file. It tells the end of that event as a
    position, too, which is no better if transactions stand before the event: they may not be committed yet.

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
