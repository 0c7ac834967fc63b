"""The binlog files on the server: how long it keeps them, when each was begun, and what is after a position."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing
from typing import Any

from pymysql.connections import Connection

from airflow_provider_cdc.model.gtid import GtidSet
from airflow_provider_cdc.model.offset import Offset, Position, split_file
from airflow_provider_cdc.model.start_mode import FIRST_EVENT_POSITION
from airflow_provider_cdc.mysql.binlog.events.binlog_source import OpenStreamAt
from airflow_provider_cdc.mysql.binlog.events.event_types import FORMAT_DESCRIPTION, TRANSACTION_STARTS
from airflow_provider_cdc.mysql.binlog.events.gtid_event import parse_gtid_event
from airflow_provider_cdc.mysql.client.identity import binlog_end, is_mariadb
from airflow_provider_cdc.mysql.client.key_sql import text_literal
from airflow_provider_cdc.mysql.client.session import query_pairs, query_rows, query_value


def list_binlog_files(connection: Connection[Any]) -> list[str]:
    """Return the names of the binlog files on the server, oldest first."""
    return list(binlog_sizes(connection))


def binlog_sizes(connection: Connection[Any]) -> dict[str, int]:
    """Return the binlog files on the server, oldest first, each with its size in bytes."""
    return {str(row[0]): int(row[1] or 0) for row in query_rows(connection, "SHOW BINARY LOGS")}


def are_files_renamed(connection: Connection[Any], at: Position) -> bool:
    """Return whether the server has binlog files, and the base name of none is that of a position's file."""
    series, files = split_file(at.file)[0], list_binlog_files(connection)
    return bool(files) and all(split_file(file)[0] != series for file in files)


def binlog_expire_seconds(connection: Connection[Any]) -> float | None:
    """Return how long the server keeps a finished binlog file, in seconds; ``None`` if it keeps them forever."""
    variables = query_pairs(connection, "SHOW GLOBAL VARIABLES LIKE 'binlog_expire_logs%'")
    seconds = float(variables.get("binlog_expire_logs_seconds", 0))
    return seconds if seconds > 0 and variables.get("binlog_expire_logs_auto_purge", "ON") == "ON" else None


def estimate_table_sizes(connection: Connection[Any], tables: Iterable[tuple[str, str]]) -> list[tuple[int, int]]:
    """Return the estimated (rows, bytes) of tables, from the server's statistics, in one query.

    :param tables: (database, name) of each table.
    """
    wanted = set(tables)
    catalog_rows = query_rows(
        connection,
        "SELECT table_schema, table_name, table_rows, data_length FROM information_schema.tables "
        f"WHERE table_schema IN ({', '.join(text_literal(d) for d in sorted({d for d, _ in wanted})) or 'NULL'})",
    )
    return [(int(r or 0), int(b or 0)) for d, t, r, b in catalog_rows if (d, t) in wanted]


def server_time(connection: Connection[Any]) -> float:
    """Return the server's clock in seconds since the epoch. The age of its files must be measured by it."""
    return float(query_value(connection, "SELECT UNIX_TIMESTAMP(NOW(6))") or 0)


def file_start_time(open_at: OpenStreamAt, file: str, known: int = 0) -> int:
    """Return when a binlog file was begun, by the server's clock: the time of its first event.

    :param known: expected time, 0 if there is none.
    :returns: seconds since the epoch; 0 if unknown.
    :raises OtherHistoryError: if the file was begun at another time than expected.
    """
    with closing(open_at(Position(file, FIRST_EVENT_POSITION))) as stream:
        stream.expect_file_starts({file: known} if known else {})
        next((event for event in stream if event.type == FORMAT_DESCRIPTION), None)
        return stream.file_start_times.get(file, 0)


def with_file_start_time(offset: Offset, open_at: OpenStreamAt) -> Offset:
    """Return an offset with the time at which its file was begun. If it already has that time, compare the two.

    :raises OtherHistoryError: if the file was begun at another time.
    """
    return offset.replace(file_start_time=file_start_time(open_at, offset.at.file, offset.file_start_time))


def with_exact_gtids(connection: Connection[Any], offset: Offset, open_at: OpenStreamAt) -> Offset:
    """Return an offset without the GTIDs after its position (MySQL), as its GTID set was read later than that."""
    if not offset.gtid_set or is_mariadb(connection):
        return offset
    end, later_gtids = binlog_end(connection), list[str]()
    if end <= offset.at:
        return offset
    with closing(open_at(offset.at)) as stream:
        for event in stream:
            if event.type in TRANSACTION_STARTS:
                later_gtids.append(parse_gtid_event(event).gtid)
            if end <= Position(event.file, event.position):
                break
    exact = GtidSet.parse(offset.gtid_set).subtract(GtidSet().with_all(filter(None, later_gtids)))
    return offset.replace(gtid_set=str(exact))


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
