"""Search the binlog backward for XA transactions that were prepared before the position where reading starts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from dataclasses import replace

from airflow_provider_cdc.model.definition_history import CapturedTables
from airflow_provider_cdc.model.errors import UnknownPrepareError
from airflow_provider_cdc.model.offset import Offset, Position, Timeline
from airflow_provider_cdc.model.start_mode import FIRST_EVENT_POSITION
from airflow_provider_cdc.mysql.binlog.events.binlog_source import BinlogSource, OpenStreamAt
from airflow_provider_cdc.mysql.binlog.events.rows_event import RowsEvent
from airflow_provider_cdc.mysql.binlog.events.transactions import Transaction
from airflow_provider_cdc.mysql.binlog.events.xa import (
    PreparedXaRows,
    format_xa_entry,
    parse_xa_entry,
    read_prepared_rows,
)
from airflow_provider_cdc.mysql.client.session import connect
from airflow_provider_cdc.mysql.positions.binlog_files import binlog_sizes

_FRESH = "Its rows are missing: start with a fresh sink.path (or remove the old one) and run again"


class XaLookback:
    """Finds XA transactions that are prepared at a position.

    Files are walked newest first, each from its beginning to the position or to its end. Each is walked once, and none
    that is older than the file with the wanted transaction. Names are reused, so the newest occurrence of one counts.

    :param at: the position, between two transactions.
    :param files: returns the server's binlog files in order, with the size of each.
    :param open_at: opens a binlog stream at a position, in addition to the one that is being read.
    :param captured: captured tables.
    :param remedy: remedy of the error for rows that are no longer in the binlog.
    """

    def __init__(
        self,
        at: Position,
        files: Callable[[], Mapping[str, int]],
        open_at: OpenStreamAt,
        captured: CapturedTables,
        remedy: str = _FRESH,
    ) -> None:
        self.position, self._files, self._open_at, self._captured, self._remedy = at, files, open_at, captured, remedy
        self._scanned_files: dict[str, dict[str, Position | None]] = {}

    def prepared_rows(self, xa_commit: Transaction) -> tuple[RowsEvent, ...]:
        """Return the captured rows of an XA transaction that is prepared at the position and ends after it.

        :param xa_commit: XA COMMIT of the transaction.
        :raises UnknownPrepareError: if the rows are not in the binlog.
        """
        xid = str(xa_commit.xa_finished)
        place = self.prepare_position(xid)
        if place is None:
            raise UnknownPrepareError(
                f"XA transaction {xid} is committed at {Position(xa_commit.file, xa_commit.start_position)}, but what "
                "it changed is no longer in the binlog (or it was prepared with sql_log_bin=0)",
                self._remedy,
            )
        return self._read_rows(xid, place)

    def offset_entry(self, xid: str) -> str | None:
        """Return the entry of an XA transaction in an offset at the position; ``None`` if it is not open there."""
        place = self.prepare_position(xid)
        if place is None:
            return None
        return format_xa_entry(xid, place if self._read_rows(xid, place) else None)

    def _read_rows(self, xid: str, place: Position) -> tuple[RowsEvent, ...]:
        return read_prepared_rows([format_xa_entry(xid, place)], self._open_at, self._captured)[xid]

    def prepare_position(self, xid: str) -> Position | None:
        """Return where an XA transaction that is prepared at the position begins; ``None`` if there is none."""
        file_sizes = self._files()
        for file in reversed([f for f in file_sizes if Position(f, 0) <= self.position]):
            if file not in self._scanned_files:
                self._scanned_files[file] = self._scan_file(file, min(self.position, Position(file, file_sizes[file])))
            if xid in self._scanned_files[file]:
                return self._scanned_files[file][xid]
        return None

    def _scan_file(self, file: str, high: Position) -> dict[str, Position | None]:
        """Return where the XA transactions begin that are prepared in a file and still open at its end.

        :returns: name -> position; ``None`` for those that only end in the file.
        """
        from airflow_provider_cdc.mysql.binlog.walk.binlog_reader import (
            BinlogReader,  # compiled code, which drivers must not import: see SnapshotJob.read
        )

        prepared, ended = dict[str, Position | None](), dict[str, Position | None]()
        with closing(BinlogReader(self._open_at, {}, Timeline("", file), count_only=True)) as binlog:
            for step in binlog.steps(Position(file, FIRST_EVENT_POSITION), high):
                if (item := step.transaction) is None:
                    continue
                if item.xa_prepared is not None:
                    prepared[item.xa_prepared] = Position(item.file, item.start_position)
                elif item.xa_finished is not None and prepared.pop(item.xa_finished, None) is None:
                    ended[item.xa_finished] = None  # most end in the file in which they were prepared, and are dropped
        return ended | prepared


def track_prepared_xa(
    source: BinlogSource,
    captured: CapturedTables,
    at: Position,
    open_xa: Iterable[str] = (),
    *,
    lookback_source: BinlogSource | None = None,
    remedy: str = _FRESH,
) -> PreparedXaRows:
    """Track the XA transactions that are prepared at a position.

    :param source: opens the binlog.
    :param captured: captured tables.
    :param at: the position, between two transactions.
    :param open_xa: entries of XA transactions whose rows are read now. Others are looked up when they are committed.
    :param lookback_source: opens the binlog for a lookup, while the other stream is being read. By default its ids are
        random.
    :param remedy: see :class:`XaLookback`.
    """

    def files() -> dict[str, int]:
        with closing(connect(source.connect_args)) as connection:
            return binlog_sizes(connection)

    lookback_source = lookback_source or replace(source, replica=None)
    lookback = XaLookback(at, files, lookback_source.open, captured, remedy)
    return PreparedXaRows(read_prepared_rows(open_xa, source.open, captured), lookback.prepared_rows, captured)


def select_open_xa(start: Offset, end: Offset) -> list[str]:
    """Return the entries of the XA transactions that are open at the start of a range and may end in it."""
    # One without rows may end in the range and be prepared again under its name: both offsets list it alike. It costs
    # nothing to read.
    return sorted(text for text in start.open_xa if text not in end.open_xa or parse_xa_entry(text)[1] is None)
