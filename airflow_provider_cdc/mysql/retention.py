"""What binlog files the server has, how long it keeps them, and when each was begun."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from typing import Any

from pymysql.connections import Connection

from airflow_provider_cdc.core.offset import Position
from airflow_provider_cdc.mysql.binlog.stream import FORMAT_DESCRIPTION, BinlogStream
from airflow_provider_cdc.mysql.keys import text_literal
from airflow_provider_cdc.mysql.session import pairs, rows, value

#: Opens a binlog stream at a position.
OpenAt = Callable[[Position], BinlogStream]


def binlog_files(connection: Connection[Any]) -> list[str]:
    """Names of the binlog files that the server has, the oldest first."""
    return [str(row[0]) for row in rows(connection, "SHOW BINARY LOGS")]


def expire_seconds(connection: Connection[Any]) -> float | None:
    """Seconds that the server's settings keep a binlog file after its end; ``None`` for ever."""
    found = pairs(connection, "SHOW GLOBAL VARIABLES LIKE 'binlog_expire_logs%'")
    seconds = float(found.get("binlog_expire_logs_seconds", 0))
    return seconds if seconds > 0 and found.get("binlog_expire_logs_auto_purge", "ON") == "ON" else None


def table_sizes(connection: Connection[Any], tables: Iterable[tuple[str, str]]) -> list[tuple[int, int]]:
    """Rows and bytes of tables, by the server's statistics; one query.

    :param tables: (database, name) of each.
    """
    wanted = set(tables)
    listed = rows(
        connection,
        "SELECT table_schema, table_name, table_rows, data_length FROM information_schema.tables "
        f"WHERE table_schema IN ({', '.join(text_literal(d) for d in sorted({d for d, _ in wanted})) or 'NULL'})",
    )
    return [(int(r or 0), int(b or 0)) for d, t, r, b in listed if (d, t) in wanted]


def server_time(connection: Connection[Any]) -> float:
    """The server's clock in seconds since the epoch: files are as old as *it* says."""
    return float(value(connection, "SELECT UNIX_TIMESTAMP(NOW(6))") or 0)


def open_to_end(args: Mapping[str, Any], server_id: int, replica_uuid: str, at: Position) -> BinlogStream:
    """A binlog stream from a position on that ends where the binlog ends.

    :param args: pymysql.connect keyword arguments.
    :param server_id: replication server id of the reader; ``replica_uuid``: its uuid.
    """
    return BinlogStream(
        args, server_id=server_id, replica_uuid=replica_uuid, file=at.file, position=at.position, blocking=False
    )


def file_began(open_at: OpenAt, file: str) -> float | None:
    """When a binlog file was begun, by the server's clock: the time of its first event.

    :param open_at: opens a stream that ends where the binlog ends.
    """
    with closing(open_at(Position(file, 4))) as stream:
        for event in stream:
            if event.type == FORMAT_DESCRIPTION and event.timestamp:
                return float(event.timestamp)
    return None
