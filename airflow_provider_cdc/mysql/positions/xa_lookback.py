"""Looks back in the binlog for XA transactions that were prepared before a place from which it is read."""

from __future__ import annotations

import secrets
import uuid
from collections.abc import Callable, Mapping
from contextlib import closing
from functools import partial
from typing import Any

from airflow_provider_cdc.model.definition_history import CapturedTables
from airflow_provider_cdc.model.errors import UnknownPrepareError
from airflow_provider_cdc.model.offset import Position, Timeline
from airflow_provider_cdc.mysql.binlog.events.binlog_stream import BinlogStream
from airflow_provider_cdc.mysql.binlog.events.rows_event import RowsEvent
from airflow_provider_cdc.mysql.binlog.events.transactions import Transaction
from airflow_provider_cdc.mysql.binlog.events.xa import format_xa_entry, read_prepared_rows
from airflow_provider_cdc.mysql.client.session import connect
from airflow_provider_cdc.mysql.positions.binlog_files import binlog_sizes

#: Where the first event of a file stands.
_FIRST_EVENT = 4
_LOWEST_ID, _HIGHEST_ID = 1 << 20, (1 << 32) - 1
_FRESH = "Its rows are missing: start with a fresh sink.path (or remove the old one) and run again"


class XaLookback:
    """Finds XA transactions that are prepared at a place.

    Files are walked from their beginning to the place, or to their end, the newest first; each once, and none before
    the one that has what is looked for. The newest mention of a name counts, for names are used again.

    :param position: the place, between two transactions.
    :param files: the server's binlog files in their order, and the size of each.
    :param open_at: opens a binlog stream at a position, beside the one that is being read.
    :param captured: captured tables.
    """

    def __init__(
        self,
        at: Position,
        files: Callable[[], Mapping[str, int]],
        open_at: Callable[[Position], BinlogStream],
        captured: CapturedTables,
        remedy: str = _FRESH,
    ) -> None:
        self.position, self._files, self._open_at, self._captured, self._remedy = at, files, open_at, captured, remedy
        self._scanned_files: dict[str, dict[str, Position | None]] = {}

    def prepared_rows(self, xa_commit: Transaction) -> tuple[RowsEvent, ...]:
        """The rows of captured tables of an XA transaction that is prepared at the place and ends behind it.

        :param xa_commit: its XA COMMIT.
        :raises UnknownPrepareError: if they are not in the binlog.
        """
        xid = str(xa_commit.xa_finished)
        place = self.prepare_position(xid)
        if place is None:
            raise UnknownPrepareError(
                f"XA transaction {xid} is committed at {Position(xa_commit.file, xa_commit.start_position)}, and what "
                "it changed "
                "is no longer in the binlog (or was prepared with sql_log_bin=0)",
                self._remedy,
            )
        return read_prepared_rows([format_xa_entry(xid, place)], self._open_at, self._captured)[xid]

    def offset_entry(self, xid: str) -> str | None:
        """How an offset at the place lists an XA transaction; ``None`` if the binlog does not say that it is open."""
        place = self.prepare_position(xid)
        if place is None:
            return None
        has_rows = read_prepared_rows([format_xa_entry(xid, place)], self._open_at, self._captured)[xid]
        return format_xa_entry(xid, place if has_rows else None)

    def prepare_position(self, xid: str) -> Position | None:
        """Where an XA transaction begins that is prepared at the place."""
        file_sizes = self._files()
        for file in reversed([f for f in file_sizes if Position(f, 0) <= self.position]):
            if file not in self._scanned_files:
                self._scanned_files[file] = self._scan_file(file, min(self.position, Position(file, file_sizes[file])))
            if xid in self._scanned_files[file]:
                return self._scanned_files[file][xid]
        return None

    def _scan_file(self, file: str, high: Position) -> dict[str, Position | None]:
        """Where those begin that are prepared in a file and stay open; ``None`` for those that end there only."""
        from airflow_provider_cdc.mysql.binlog.walk.binlog_reader import (
            BinlogReader,  # compiled: not for drivers, see SnapshotJob.read
        )

        prepared, ended = dict[str, Position | None](), dict[str, Position | None]()
        with closing(BinlogReader(self._open_at, {}, Timeline("", file), count_only=True)) as binlog:
            for step in binlog.steps(Position(file, _FIRST_EVENT), high):
                if (item := step.transaction) is None:
                    continue
                if item.xa_prepared is not None:
                    prepared[item.xa_prepared] = Position(item.file, item.start_position)
                elif item.xa_finished is not None and prepared.pop(item.xa_finished, None) is None:
                    ended[item.xa_finished] = None  # most end in the file in which they were prepared: those may go
        return ended | prepared


def make_xa_lookback(
    connect_args: Mapping[str, Any], server: str, captured: CapturedTables, at: Position
) -> XaLookback:
    """A :class:`XaLookback` with connections of its own, as any number of readers may need at any time.

    :param connect_args: pymysql.connect keyword arguments.
    :param server: identity of the server.
    """

    def files() -> dict[str, int]:
        with closing(connect(connect_args)) as connection:
            return binlog_sizes(connection)

    return XaLookback(at, files, partial(_open_with_random_id, connect_args, server), captured)


def _open_with_random_id(connect_args: Mapping[str, Any], server: str, at: Position) -> BinlogStream:
    """A binlog stream from a position on, under a replication server id by chance: no other reader is thrown out."""
    return BinlogStream(
        connect_args,
        server_id=_LOWEST_ID + secrets.randbelow(_HIGHEST_ID - _LOWEST_ID),
        replica_uuid=str(uuid.uuid4()),
        file=at.file,
        position=at.position,
        server=server,
    )
