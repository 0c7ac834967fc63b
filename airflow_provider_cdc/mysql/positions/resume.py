"""Check whether a stream may continue at an offset, before each epoch and at each survey.

The check is whether the server's binlog is still the one that was read (docs/correctness.md).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from pymysql.connections import Connection

from airflow_provider_cdc.model.errors import OtherHistoryError, PurgedError
from airflow_provider_cdc.model.gtid import GtidSet, MariadbGtidPosition
from airflow_provider_cdc.model.offset import Offset, Position
from airflow_provider_cdc.model.start_mode import FIRST_EVENT_POSITION
from airflow_provider_cdc.mysql.binlog.events.binlog_source import OpenStreamAt
from airflow_provider_cdc.mysql.binlog.events.xa import parse_xa_entry
from airflow_provider_cdc.mysql.client.binlog_headers import gtids_at_position, previous_gtids
from airflow_provider_cdc.mysql.client.gtids import query_executed_gtids, query_purged_gtids, wait_for_gtids
from airflow_provider_cdc.mysql.client.identity import check_same_server, is_gtid_mode_on, is_mariadb, server_identity
from airflow_provider_cdc.mysql.positions.binlog_files import are_files_renamed, binlog_sizes, with_file_start_time

_FRESH_SINK_REMEDY = "Start with a fresh sink.path (or remove the old one), and raise binlog_expire_logs_seconds"


def check_resume_offset(connection: Connection[Any], offset: Offset, open_at: OpenStreamAt) -> Offset:
    """Return the offset to continue from, which is exactly where reading stopped.

    It is ``offset`` itself, unless its file was removed and everything in that file had been read.

    :param open_at: opens a stream of the server's binlog.
    :raises PurgedError: if the server has removed what comes next.
    :raises OtherServerError: if the server is another one.
    :raises OtherHistoryError: if its binlog is not the one that was read.
    """
    check_same_server(server_identity(connection), offset.server)
    sizes = binlog_sizes(connection)
    (oldest, *_), at = sizes, offset.at
    if are_files_renamed(connection, at):  # such as by another --log-bin: only GTIDs help then (failover.py)
        raise PurgedError(
            f"the binlog position {at} is no longer on the server, whose files have another name, such as {oldest}",
            _FRESH_SINK_REMEDY,
        )
    if at.file in sizes:
        if sizes[at.file] < at.position:
            raise OtherHistoryError(f"{at.file} of the server ends at {sizes[at.file]}, and was read up to {at}")
        with_file_start_time(offset, open_at)
        (_check_domains if is_mariadb(connection) else _check_gtid_sets)(connection, offset)
    elif at < Position(oldest, 0):
        offset = _offset_after_purge(connection, offset, oldest, open_at)
    else:
        raise OtherHistoryError(f"the server has no binlog file after {[*sizes][-1]}, and was read up to {at}")
    _check_open_xa(offset, sizes)
    return offset


def why_purged(connection: Connection[Any], offset: Offset, open_at: OpenStreamAt) -> str | None:
    """Return why the server no longer has everything after an offset; ``None`` if it has.

    Parameters and other errors are those of :func:`check_resume_offset`.
    """
    try:
        if check_resume_offset(connection, offset, open_at) == offset:
            return None
    except PurgedError as error:
        return error.message
    return f"the binlog position {offset.at} is no longer on the server"


def _check_gtid_sets(connection: Connection[Any], offset: Offset) -> None:
    """Check, for MySQL, that everything before the file or purged was read, and that the server has all of it."""
    read = GtidSet.parse(offset.gtid_set)
    _wait_until_executed(connection, offset, read)
    if gap := query_purged_gtids(connection).subtract(read):
        raise PurgedError(f"the server has purged {gap}, which was not read up to {offset.at}", _FRESH_SINK_REMEDY)
    head = previous_gtids(connection, offset.at.file)
    assert isinstance(head, GtidSet)
    if more := head.subtract(read):
        raise OtherHistoryError(
            f"{more} is before binlog file {offset.at.file} of the server, but was not read up to {offset.at}"
        )


def _check_domains(connection: Connection[Any], offset: Offset) -> None:
    """Check, for MariaDB, that the GTIDs in its binlog up to the position are those that were read."""
    text = gtids_at_position(connection, offset.at)
    on_server, read = (MariadbGtidPosition.parse(gtids).newest for gtids in (text, offset.gtid_set))
    # If the file is the same, a missing domain was removed by FLUSH ... DELETE_DOMAIN_ID.
    if offset.file_start_time:
        read = {domain: newest for domain, newest in read.items() if domain in on_server}
    if on_server != read:
        raise OtherHistoryError(
            f"binlog position {offset.at} on the server corresponds to {text!r}, but was read as {offset.gtid_set!r}"
        )


def _offset_after_purge(connection: Connection[Any], offset: Offset, oldest: str, open_at: OpenStreamAt) -> Offset:
    """Return the beginning of the oldest file as offset, if the server shows that everything before it was read."""
    head, gap = previous_gtids(connection, oldest), ""
    first = offset.replace(file=oldest, position=FIRST_EVENT_POSITION, gtid_set=str(head), file_start_time=0)
    if isinstance(head, MariadbGtidPosition):
        is_proved = bool(head) and not offset.already_applied and head == MariadbGtidPosition.parse(offset.gtid_set)
    else:
        read, already_applied = GtidSet.parse(offset.gtid_set), GtidSet.parse(offset.already_applied)
        _wait_until_executed(connection, offset, read)
        more, already_applied = head.subtract(read.union(already_applied)), already_applied.subtract(head)
        # Nothing can be proved about transactions without a GTID, now or when the position was the end of the binlog.
        is_proved = offset.gtid_mode_on and is_gtid_mode_on(connection) and read.issubset(head) and not more
        first = first.replace(already_applied=str(already_applied))
        gap = f"; purged and never read: {more}" if more else ""
    if not is_proved:
        raise PurgedError(f"the binlog position {offset.at} is no longer on the server{gap}", _FRESH_SINK_REMEDY)
    return with_file_start_time(first, open_at)


def _wait_until_executed(connection: Connection[Any], offset: Offset, read: GtidSet) -> None:
    # Transactions in the binlog may not be committed in the engine yet.
    if missing := read.subtract(wait_for_gtids(query_executed_gtids, connection, read)):
        raise OtherHistoryError(f"the server no longer has {missing}, which was read up to {offset.at}")


def _check_open_xa(offset: Offset, files: Collection[str]) -> None:
    """Check that the binlog still has the open XA transactions, whose rows are read again from where they begin.

    :raises PurgedError: if it does not.
    """
    for xid, at in map(parse_xa_entry, offset.open_xa):
        if at is not None and at.file not in files:
            raise PurgedError(
                f"XA transaction {xid} was prepared at {at}, which is no longer on the server, and is still open",
                _FRESH_SINK_REMEDY,
            )
