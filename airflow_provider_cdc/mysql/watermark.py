"""Low and high watermarks: positions that bound from below and from above what a SELECT sees.

A transaction is in the binlog before its rows are visible: the server writes the binlog, then commits in the engine.
So a position read just before a SELECT may already lie behind a transaction that the SELECT does not see; replaying
from there would lose its rows for ever. The barrier closes the gap: every GTID that is owned while the position is read
is waited for until its owner is done (see docs/traps.md).
"""

from __future__ import annotations

import time
from typing import Any

from pymysql.connections import Connection

from airflow_provider_cdc.core.gtid import GtidSet, parse_owned
from airflow_provider_cdc.core.offset import Offset, Position
from airflow_provider_cdc.exceptions import NotReadyError, TerminalError, TransientError
from airflow_provider_cdc.mysql.session import rows, value

#: Seconds to wait for transactions that stand between binlog and engine.
BARRIER_SECONDS = 30.0


def status(connection: Connection[Any]) -> tuple[Position, str]:
    """Current end of the binlog and ``Executed_Gtid_Set`` from one statement.

    The statement holds the log's lock, so the position is the end of a complete transaction.

    :raises NotReadyError: if the server writes no binlog.
    """
    found = rows(connection, "SHOW BINARY LOG STATUS")
    if not found:
        raise NotReadyError("the server writes no binary log", "Start it with --log-bin and binlog_format=ROW")
    file, position, _, _, gtids = found[0][:5]
    return Position(str(file), int(position or 0)), (gtids or "").replace("\n", "")


def low_watermark(connection: Connection[Any], server: str | None = None, timeout: float = BARRIER_SECONDS) -> Offset:
    """A position such that every transaction at or before it is visible to any SELECT that starts afterwards.

    :param server: expected ``server_uuid``; ``None`` accepts any.
    :param timeout: seconds to wait for the barrier.
    :raises TransientError: if an owner does not finish in time; there is no low watermark then.
    """
    identity, mode = rows(connection, "SELECT @@server_uuid, @@global.gtid_mode")[0]
    if mode != "ON":
        raise NotReadyError(f"gtid_mode is {mode}", "Set gtid_mode=ON and enforce_gtid_consistency=ON on the server")
    same_server(str(identity), server)
    at, _ = status(connection)
    waiting, polls, end = _owned(connection), 0, time.monotonic() + timeout
    while waiting:
        waiting = waiting & _owned(connection)
        polls += 1
        if waiting and time.monotonic() > end:
            raise TransientError(
                f"{', '.join(sorted(waiting)[:3])} stood between binlog and engine for {timeout:g} s at {at}",
                "Look for a stalled commit (semi-sync, disk) or a session with gtid_next set, then run again",
            )
        if polls > 20:
            time.sleep(min(0.05, polls * 0.0005))
    # Read after the barrier, so it has every GTID at or before the position, and perhaps some just behind it.
    gtids = GtidSet.parse(value(connection, "SELECT @@global.gtid_executed") or "")
    return Offset(str(identity), at, str(gtids))


def high_watermark(connection: Connection[Any], server: str) -> tuple[Position, int]:
    """Position at or behind every transaction that an earlier SELECT saw, and the server's time in microseconds UTC.

    The binlog is written before the engine commits, so the end of the log after a read bounds what was read.
    """
    at, _ = status(connection)
    identity, clock = rows(connection, "SELECT @@server_uuid, CAST(UNIX_TIMESTAMP(NOW(6)) * 1000000 AS UNSIGNED)")[0]
    same_server(str(identity), server)
    return at, int(clock or 0)


def same_server(found: str, expected: str | None) -> None:
    """Refuse to go on with another server than the one the pipeline began with.

    :raises TerminalError: if they differ.
    """
    if expected is not None and found != expected:
        raise TerminalError(
            f"the connection reaches server {found}, but this pipeline began on {expected}",
            "Point the connection at the original server (no load balancer), or start with a fresh sink.path",
        )


def _owned(connection: Connection[Any]) -> frozenset[str]:
    return parse_owned(value(connection, "SELECT @@global.gtid_owned") or "")
