"""Find where a stream continues on another server, by GTIDs alone.

Positions mean nothing there, and the other server may have committed in a different order. docs/correctness.md argues
why nothing is lost or applied twice. The same server counts as another one if its binlog files were renamed.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pymysql.connections import Connection

from airflow_provider_cdc.model.errors import CdcError, PurgedError, TerminalError, TransientError
from airflow_provider_cdc.model.gtid import GtidSet, MariadbGtidPosition, gtid_class_of
from airflow_provider_cdc.model.offset import Offset, Position
from airflow_provider_cdc.mysql.binlog.events.binlog_source import OpenStreamAt
from airflow_provider_cdc.mysql.binlog.events.transactions import Transaction
from airflow_provider_cdc.mysql.binlog.events.xa import parse_xa_entry
from airflow_provider_cdc.mysql.client.gtids import (
    query_executed_gtids,
    query_logged_gtids,
    query_purged_gtids,
    wait_for_gtids,
)
from airflow_provider_cdc.mysql.client.identity import check_same_server, is_gtid_mode_on, is_mariadb, server_identity
from airflow_provider_cdc.mysql.client.session import query_value
from airflow_provider_cdc.mysql.positions.binlog_files import are_files_renamed, with_file_start_time
from airflow_provider_cdc.mysql.positions.start import BinlogPoint, PositionFinder

_FRESH_SINK_REMEDY = "start with a fresh sink.path (or remove the old one)"


def is_other_server(connection: Connection[Any], offset: Offset) -> bool:
    """Return whether an offset's positions mean nothing on the server that the connection reaches."""
    return server_identity(connection) != offset.server or are_files_renamed(connection, offset.at)


def fail_over(connection: Connection[Any], open_at: OpenStreamAt, offset: Offset) -> Offset:
    """Return the offset on this server for the same transactions.

    Its position is the last one before which there is nothing that ``offset`` lacks. Transactions that ``offset``
    includes and that come after the position are in ``already_applied``, and must not be applied again.

    :param connection: connection to the other server.
    :param open_at: opens a stream of its binlog that ends where the binlog ends.
    :raises TransientError: if the server does not have all transactions yet.
    :raises TerminalError: if it cannot be proved that it is the same database, or if it has purged what comes next.
    :raises PurgedError: instead of the latter, if it is the same server with renamed binlog files.
    """
    server = server_identity(connection)
    try:
        return _fail_over(connection, server, open_at, offset)
    except TerminalError as error:
        if server != offset.server or type(error) is not TerminalError:
            raise
        raise PurgedError(
            f"the binlog position {offset.at} is no longer on the server, whose files have another name, and GTIDs do "
            f"not determine where to continue: {error.message}",
            _FRESH_SINK_REMEDY.capitalize(),
        ) from None


def _fail_over(connection: Connection[Any], server: str, open_at: OpenStreamAt, offset: Offset) -> Offset:
    if not (offset.gtid_set and gtid_class_of(server) is gtid_class_of(offset.server) and _has_gtids(connection)):
        check_same_server(server, offset.server)
        raise TerminalError("transactions have no GTIDs, or had none when they were read", _FRESH_SINK_REMEDY)
    for xid, at in map(parse_xa_entry, offset.open_xa):
        if at is not None:
            raise TerminalError(
                f"XA transaction {xid} is open, and only the binlog of server {offset.server} has its rows, at {at}",
                f"Point the connection to that server until it has ended, or {_FRESH_SINK_REMEDY}",
            )
    place, already_applied = (_find_by_domains if is_mariadb(connection) else _find_by_gtid_set)(
        connection, server, open_at, offset
    )
    # Add those without captured rows, which may have been prepared in a file before the one that was read.
    xa = {parse_xa_entry(text)[0]: text for text in offset.open_xa} | place.open_xa
    xas, numbered = tuple(sorted(xa.values())), not is_mariadb(connection)
    end, applied = place.position, str(already_applied)
    new_offset = Offset(server, end.file, end.position, str(place.gtids), xas, applied, gtid_mode_on=numbered)
    return with_file_start_time(new_offset, open_at)


def _has_gtids(connection: Connection[Any]) -> bool:
    return is_mariadb(connection) or is_gtid_mode_on(connection)


# ------------------------------------------------------------ MySQL: sets


def _find_by_gtid_set(
    connection: Connection[Any], server: str, open_at: OpenStreamAt, offset: Offset
) -> tuple[BinlogPoint, GtidSet]:
    wanted = GtidSet.parse(offset.gtid_set).union(GtidSet.parse(offset.already_applied))
    if not offset.gtid_mode_on:
        raise TerminalError(
            f"the copy may hold transactions without GTIDs, because gtid_mode of server {offset.server} was not "
            f"known to be ON at the stream's position: it cannot be determined whether server {server} has them",
            f"Point the connection to the previous server until the stream has reached its end with gtid_mode=ON, or "
            f"{_FRESH_SINK_REMEDY}",
        )
    _wait_for_gtids(connection, server, wanted, offset)
    finder = PositionFinder(connection, open_at)
    file = finder.newest_file_before(wanted)
    assert file is not None  # nothing else was purged
    # While its gtid_mode is ON, the server sends no transactions without a GTID.
    place = finder.search_from(
        file, lambda _, item: isinstance(item, Transaction) and not (item.gtid and item.gtid in wanted)
    )
    assert isinstance(place.gtids, GtidSet)
    return place, wanted.subtract(place.gtids)


def _wait_for_gtids(connection: Connection[Any], server: str, wanted: GtidSet, offset: Offset) -> None:
    if missing := wanted.subtract(wait_for_gtids(query_executed_gtids, connection, wanted)):
        raise _missing_gtids_error(server, offset)(
            f"the connection reaches server {server} now, which has not executed {missing}, which the copy holds",
            f"Run again when it has caught up. If it never will, {_FRESH_SINK_REMEDY}",
        )
    if gap := query_purged_gtids(connection).subtract(wanted):
        raise TerminalError(
            f"the connection reaches server {server} now, which has purged {gap}, which was never read",
            f"Point the connection to a server that still has them in its binlog, or {_FRESH_SINK_REMEDY}",
        )


# ------------------------------------------------------------ MariaDB: an order in each domain


def _find_by_domains(
    connection: Connection[Any], server: str, open_at: OpenStreamAt, offset: Offset
) -> tuple[BinlogPoint, MariadbGtidPosition]:
    """Find the position by the newest GTID of each domain, which requires the same order within each domain."""
    # The later ones are newer and override the others.
    wanted = MariadbGtidPosition.parse(f"{offset.gtid_set},{offset.already_applied}")
    if query_value(connection, "SELECT @@global.gtid_strict_mode") != "1":
        raise TerminalError(
            f"the connection reaches server {server} now, where gtid_strict_mode is OFF: nothing proves that it ran "
            "the transactions of each domain in the same order as the previous server",
            "If only replication wrote to it while it was a replica, SET GLOBAL gtid_strict_mode = ON and run again; "
            f"otherwise {_FRESH_SINK_REMEDY}",
        )
    _wait_for_domains(connection, server, wanted, offset)
    finder = PositionFinder(connection, open_at)
    file = finder.newest_file_before(wanted)
    if file is None:
        first = finder.file_start(finder.files[0]).gtids
        raise TerminalError(
            f"the connection reaches server {server} now, whose binlog begins after {first}; the copy ends at "
            f"{wanted}, and the transactions in between were never read",
            f"Point the connection to a server that still has them in its binlog, or {_FRESH_SINK_REMEDY}",
        )
    first_missing: BinlogPoint | None = None
    reached_domains = set[int]()

    def meet(place: BinlogPoint) -> None:
        assert isinstance(place.gtids, MariadbGtidPosition)
        for domain, newest in wanted.newest.items():
            reached = place.gtids.newest.get(domain, (0, 0))
            if reached == newest:
                reached_domains.add(domain)
            elif reached[1] >= newest[1] and domain not in reached_domains:
                raise TerminalError(
                    f"the connection reaches server {server} now, which ran {_format_gtid(domain, reached)}, but never "
                    f"{_format_gtid(domain, newest)}, which the copy holds",
                    f"Point the connection to a server that did, or {_FRESH_SINK_REMEDY}",
                )

    def is_over(place: BinlogPoint, item: Transaction | Position) -> bool:
        nonlocal first_missing
        meet(place)
        if isinstance(item, Transaction):
            if item.gtid in place.gtids:
                raise TerminalError(
                    f"the connection reaches server {server} now, where {item.gtid} comes after {place.gtids}, at "
                    f"{item.file}:{item.start_position}",
                    f"Its binlog is not in GTID order: {_FRESH_SINK_REMEDY}",
                )
            if first_missing is None and item.gtid not in wanted:
                first_missing = replace(place, open_xa=dict(place.open_xa))
        return first_missing is not None and len(reached_domains) == len(wanted.newest)

    end = finder.search_from(file, is_over)
    meet(end)
    assert len(reached_domains) == len(wanted.newest)  # the server has them all, so each was found
    place = first_missing or end
    assert isinstance(place.gtids, MariadbGtidPosition)
    return place, MariadbGtidPosition(
        {d: at for d, at in wanted.newest.items() if _format_gtid(d, at) not in place.gtids}
    )


def _format_gtid(domain: int, newest: tuple[int, int]) -> str:
    return f"{domain}-{newest[0]}-{newest[1]}"


def _missing_gtids_error(server: str, offset: Offset) -> type[CdcError]:
    """Return the error for a server that lacks transactions. Only another server may still receive them."""
    return TerminalError if server == offset.server else TransientError


def _wait_for_domains(connection: Connection[Any], server: str, wanted: MariadbGtidPosition, offset: Offset) -> None:
    logged = wait_for_gtids(query_logged_gtids, connection, wanted)
    if not wanted.issubset(logged):
        raise _missing_gtids_error(server, offset)(
            f"the connection reaches server {server} now, whose binlog ends at {logged}, but the copy at {wanted}",
            f"Run again when it has caught up (it needs log_slave_updates). If it never will, {_FRESH_SINK_REMEDY}",
        )
