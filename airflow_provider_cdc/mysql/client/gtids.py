"""The GTIDs of a server: those that it has executed, and those that it has purged."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar

from pymysql.connections import Connection

from airflow_provider_cdc.model.gtid import GtidSet, MariadbGtidPosition
from airflow_provider_cdc.mysql.client.session import query_value

#: Seconds to wait for transactions that are in the binlog but not committed in the engine, or still to be replicated.
WAIT_SECONDS = 10.0
G = TypeVar("G", GtidSet, MariadbGtidPosition)


def query_executed_gtids(connection: Connection[Any]) -> GtidSet:
    """Return the GTIDs of committed transactions (MySQL)."""
    return GtidSet.parse(query_value(connection, "SELECT @@global.gtid_executed") or "")


def query_purged_gtids(connection: Connection[Any]) -> GtidSet:
    """Return the GTIDs of transactions that are no longer in the binlog (MySQL)."""
    return GtidSet.parse(query_value(connection, "SELECT @@global.gtid_purged") or "")


def query_logged_gtids(connection: Connection[Any]) -> MariadbGtidPosition:
    """Return the GTID position of the end of the binlog (MariaDB)."""
    return MariadbGtidPosition.parse(query_value(connection, "SELECT @@global.gtid_binlog_pos") or "")


def wait_for_gtids(read: Callable[[Connection[Any]], G], connection: Connection[Any], wanted: G) -> G:
    """Wait until a server has some GTIDs, at most :data:`WAIT_SECONDS`.

    :param read: returns the GTIDs that the server has.
    :returns: the GTIDs that it has then.
    """
    end = time.monotonic() + WAIT_SECONDS
    while True:
        gtids = read(connection)
        if wanted.issubset(gtids) or time.monotonic() > end:
            return gtids
        time.sleep(0.2)
