"""May a stream go on at an offset? Checked before each epoch and at each survey."""

from __future__ import annotations

import time
from typing import Any

from pymysql.connections import Connection

from airflow_provider_cdc.core.gtid import MariadbPosition
from airflow_provider_cdc.core.offset import Offset
from airflow_provider_cdc.exceptions import PurgedError, TerminalError
from airflow_provider_cdc.mysql.server import identity, is_mariadb, same_server
from airflow_provider_cdc.mysql.session import rows, value
from airflow_provider_cdc.mysql.xa import parse_entry

_FRESH = "Start with a fresh sink.path (or remove the old one), and raise binlog_expire_logs_seconds"
#: Seconds to wait for transactions that the stream has seen to be committed in the engine.
_COMMIT_SECONDS = 10.0


def check_resume(connection: Connection[Any], offset: Offset) -> None:
    """Make sure that the stream can go on exactly where it stopped.

    :raises PurgedError: if the server has removed what comes next.
    :raises TerminalError: if it is another one, or has lost transactions.
    """
    same_server(identity(connection), offset.server)
    _check_xa(connection, offset)
    if is_mariadb(connection):
        _check_mariadb(connection, offset)
        return
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
        raise PurgedError(f"the binlog position {offset.at} is no longer on the server{gap}", _FRESH)


def _check_xa(connection: Connection[Any], offset: Offset) -> None:
    """Rows of open XA transactions are read again from where they were prepared."""
    logs: set[str] | None = None
    for xid, at in map(parse_entry, offset.xa):
        if at is not None:
            logs = logs or {str(row[0]) for row in rows(connection, "SHOW BINARY LOGS")}
            if at.file not in logs:
                raise PurgedError(
                    f"XA transaction {xid} was prepared at {at}, which is no longer on the server, and is still open",
                    _FRESH,
                )


def _check_mariadb(connection: Connection[Any], offset: Offset) -> None:
    """The server says which GTIDs its binlog has up to a position: the same ones as when it was read."""
    logs = {str(row[0]): int(row[1] or 0) for row in rows(connection, "SHOW BINARY LOGS")}
    if logs.get(offset.at.file, -1) < offset.at.position:
        raise PurgedError(f"the binlog position {offset.at} is no longer on the server", _FRESH)
    found = value(connection, f"SELECT BINLOG_GTID_POS('{offset.at.file}', {offset.at.position})") or ""
    if MariadbPosition.parse(found) != MariadbPosition.parse(offset.gtid_set):
        raise TerminalError(
            f"the binlog position {offset.at} of the server stands for {found!r} and was read as {offset.gtid_set!r}: "
            "its binlogs were reset, or it is another server",
            "Start with a fresh sink.path (or remove the old one) and run again",
        )
