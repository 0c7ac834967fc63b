"""How far a binlog position lags behind the end: in bytes, and by the time of the oldest commit in between."""

from __future__ import annotations

from contextlib import closing
from typing import Any

from pymysql.connections import Connection

from airflow_provider_cdc.model.offset import Position
from airflow_provider_cdc.mysql.binlog.events.binlog_source import OpenStreamAt
from airflow_provider_cdc.mysql.binlog.events.event_types import TRANSACTION_STARTS
from airflow_provider_cdc.mysql.binlog.events.gtid_event import parse_gtid_event
from airflow_provider_cdc.mysql.positions.binlog_files import binlog_sizes


def unread_bytes(connection: Connection[Any], at: Position) -> int | None:
    """Return the bytes of binlog after a position; ``None`` if its file is not on the server."""
    sizes = binlog_sizes(connection)
    if at.file not in sizes:
        return None
    later = list(sizes)[list(sizes).index(at.file) :]
    return max(0, sum(sizes[file] for file in later) - at.position)


def oldest_unread_commit(open_at: OpenStreamAt, at: Position) -> float | None:
    """Return when the first transaction after a position was committed; ``None`` if there is none.

    Only the first event of the transaction is read, whatever its size.

    :param open_at: opens a stream that ends where the binlog ends.
    :param at: the end of a transaction.
    :returns: seconds since the epoch by the server's clock; whole seconds on MariaDB.
    """
    with closing(open_at(at)) as stream:
        for event in stream:
            if event.type in TRANSACTION_STARTS:
                return parse_gtid_event(event).commit_us / 1e6
    return None
