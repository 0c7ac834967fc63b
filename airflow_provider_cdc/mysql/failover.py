"""Finds where a stream goes on at another server: by the set of its GTIDs alone.

Positions mean nothing there, and the other server may have committed in another order. Why nothing is lost or done
twice is argued in docs/correctness.md.
"""

from __future__ import annotations

import time
from typing import Any

from pymysql.connections import Connection

from airflow_provider_cdc.core.gtid import GtidSet
from airflow_provider_cdc.core.offset import Offset
from airflow_provider_cdc.exceptions import TerminalError, TransientError
from airflow_provider_cdc.mysql.binlog.transactions import Transaction
from airflow_provider_cdc.mysql.retention import OpenAt
from airflow_provider_cdc.mysql.server import identity, is_mariadb, same_server
from airflow_provider_cdc.mysql.session import rows
from airflow_provider_cdc.mysql.start import Finder
from airflow_provider_cdc.mysql.xa import parse_entry

#: Seconds to wait for a server that is about to have all transactions.
_SECONDS = 10.0
_FRESH = "start with a fresh sink.path (or remove the old one)"


def take_over(connection: Connection[Any], open_at: OpenAt, offset: Offset) -> Offset:
    """The offset at this server that stands for the same transactions.

    It is the last place before which is nothing that ``offset`` lacks. What ``offset`` has and stands behind it is in
    ``held``: it is not to be applied again.

    :param connection: connection to the other server.
    :param open_at: opens a stream of its binlog that ends where the binlog ends.
    :raises TransientError: if the server does not have all transactions yet.
    :raises TerminalError: if it cannot be proved that it is the same database, or it has purged what comes next.
    """
    server = identity(connection)
    mode = "" if is_mariadb(connection) else rows(connection, "SELECT @@global.gtid_mode")[0][0]
    if mode != "ON" or not offset.gtid_set:
        same_server(server, offset.server)
    for xid, at in map(parse_entry, offset.xa):
        if at is not None:
            raise TerminalError(
                f"XA transaction {xid} is open, and its rows are in the binlog of server {offset.server} only, at {at}",
                f"Point the connection at that server until it has ended, or {_FRESH}",
            )
    wanted = GtidSet.parse(offset.gtid_set).union(GtidSet.parse(offset.held))
    _has_all(connection, server, wanted)
    finder = Finder(connection, open_at)
    heads = ((file, finder.beginning(file)) for file in reversed(finder.files))
    file = next(file for file, head in heads if isinstance(head.gtids, GtidSet) and head.gtids.issubset(wanted))
    # Of a transaction without a GTID nobody can tell whether it is in the copy.
    place = finder.search(file, lambda _, item: isinstance(item, Transaction) and not _is_in(item.gtid, wanted))
    assert isinstance(place.gtids, GtidSet)
    held = wanted.subtract(place.gtids)
    # Those without captured rows may have been prepared in a file before the one that was read.
    xa = {parse_entry(text)[0]: text for text in offset.xa} | place.xa
    return Offset(server, place.at, str(place.gtids), tuple(sorted(xa.values())), str(held))


def _is_in(gtid: str, held: GtidSet) -> bool:
    return bool(gtid) and gtid in held


def _has_all(connection: Connection[Any], server: str, wanted: GtidSet) -> None:
    end = time.monotonic() + _SECONDS
    while True:
        executed, purged = rows(connection, "SELECT @@global.gtid_executed, @@global.gtid_purged")[0]
        missing = wanted.subtract(GtidSet.parse(executed or ""))
        if not missing or time.monotonic() > end:
            break
        time.sleep(0.2)
    if missing:
        raise TransientError(
            f"the connection reaches server {server} now, and that has not executed {missing}, which the copy holds",
            f"Run again when it has caught up; if it never will, the copy holds what it does not: {_FRESH}",
        )
    if gap := GtidSet.parse(purged or "").subtract(wanted):
        raise TerminalError(
            f"the connection reaches server {server} now, and that has purged {gap}, which was never read",
            f"Point the connection at a server that still has them in its binlog, or {_FRESH}",
        )
