"""Finds positions in the binlog for readers of one table, and walks ahead of them.

Rows are decoded with the table's current definition, so a position is valid only if that has not changed since.
"""

from __future__ import annotations

import re
from typing import Any

from airflow_provider_cdc.data_source.table_changes import TableChanges
from airflow_provider_cdc.model.errors import NotReadyError, TerminalError
from airflow_provider_cdc.model.gtid import GtidSet, gtid_class_of
from airflow_provider_cdc.model.offset import Offset, Position, Timeline, split_file
from airflow_provider_cdc.model.start_mode import FIRST_EVENT_POSITION
from airflow_provider_cdc.mysql.binlog.events.binlog_source import OpenStreamAt
from airflow_provider_cdc.mysql.binlog.events.transactions import Transaction
from airflow_provider_cdc.mysql.binlog.walk.binlog_reader import BinlogReader
from airflow_provider_cdc.mysql.binlog.walk.step import NEVER
from airflow_provider_cdc.mysql.client import binlog_headers
from airflow_provider_cdc.mysql.client.identity import binlog_end, server_identity
from airflow_provider_cdc.mysql.client.indirect_writes import query_indirect_writes
from airflow_provider_cdc.mysql.client.session import connect
from airflow_provider_cdc.mysql.positions.binlog_files import binlog_sizes
from airflow_provider_cdc.mysql.positions.offset_walk import OffsetWalk
from airflow_provider_cdc.mysql.positions.resume import check_resume_offset

_POSITION_TEXT = re.compile(r"([^:]+\.\d+):(\d+)")
#: Bytes of the first step towards a GTID set, and the factor by which steps shrink.
_FIRST_STRIDE_BYTES, _STRIDE_DIVISOR = 64 << 20, 16


class ChangesPlanner:
    """Finds positions in the binlog and walks ahead.

    :param table_changes: the table and how to read it.
    """

    def __init__(self, table_changes: TableChanges) -> None:
        self._table_changes, args = table_changes, table_changes.look_up_connection()
        self._connection = connect(args)
        self._server = server = server_identity(self._connection)
        self._gtid_kind: Any = gtid_class_of(server)
        timeline = Timeline(server, f"{split_file(self.binlog_end().file)[0]}0")
        self._table_reader, self._gtid_reader = (
            BinlogReader(
                open_at,
                captured,
                timeline,
                count_only=True,
                yield_ddl=True,
                indirect_writes=lambda: query_indirect_writes(self._connection, [table_changes.table.id]),
            )
            for open_at, captured in ((self._opener(0), table_changes.captured), (self._opener(1), {}))
        )

    def _opener(self, slot: int) -> OpenStreamAt:
        args = self._table_changes.look_up_connection()
        return self._table_changes.binlog_source(args, self._server, slot).open

    def close(self) -> None:
        """Close the connections."""
        self._table_reader.close()
        self._gtid_reader.close()
        self._connection.close()

    def binlog_end(self) -> Position:
        """Return the current end of the binlog."""
        return binlog_end(self._connection)

    def find_offset(self, text: str) -> Offset:
        """Return the offset that a text describes.

        :param text: ``earliest`` (the first position from which the table has its current definition), ``latest``,
            ``file:position``, or a GTID set (the position after it).
        :raises NotReadyError: if there is no such position.
        """
        if text in ("earliest", "latest"):
            return self._earliest() if text == "earliest" else self._offset_at(self.binlog_end())
        if match := _POSITION_TEXT.fullmatch(text):
            return self._offset_at(Position(match[1], int(match[2])))
        kinds = "earliest, latest, file:position"
        if self._gtid_kind is GtidSet:
            try:
                return self._offset_after_gtids(GtidSet.parse(text))
            except ValueError:
                kinds += " or a GTID set"
        raise NotReadyError(f"{text!r} is not a position in the binlog of this server", f"Give {kinds}")

    def check_readable(self, start: Offset) -> None:
        """Make sure that reading can begin or continue at an offset.

        :raises TerminalError: if the server no longer has it, or the table was altered since. The error names the
            positions up to which and from which it can be read.
        """
        self._gtid_reader.close()  # its server id is used below
        check_resume_offset(self._connection, start, self._opener(1))
        if (item := self.walk(start, self.binlog_end())[1]) is not None:
            raise self.altered_error(item)

    def walk(self, start: Offset, target: Position, size: int | None = None) -> tuple[Offset, Transaction | None]:
        """Walk to a position without decoding rows.

        :param size: bytes of binlog after which to stop at the next transaction, or ``None`` for no limit.
        :returns: the offset that was reached, and the next transaction if the walk stopped because it alters the table.
        """
        return self._walk(self._table_reader, start, target, size)

    def find_range_ends(
        self, start: Offset, target: Position, size: int | None = None
    ) -> tuple[list[Offset], Transaction | None]:
        """Divide the binlog up to a position into ranges.

        :param size: bytes of binlog after which to stop at the next range, or ``None`` for no limit.
        :returns: the ends of the ranges, and the transaction after the last end if that transaction alters the table.
        """
        ends: list[Offset] = []
        while start.at < target and (size is None or len(ends) * self._table_changes.range_bytes < size):
            reached, item = self.walk(start, target, self._table_changes.range_bytes)
            if reached.at != start.at:
                ends.append(reached)
            if item is not None:
                return ends, item
            start = reached
        return ends, None

    def altered_error(self, item: Transaction) -> TerminalError:
        """Return the error for a transaction that alters the table."""
        return TerminalError(
            f"table {self._table_changes.table.label} was altered at {item.file}:{item.start_position}, or its rows "
            "there have a different layout than the current table",
            f"Begin after it: use {item.file}:{item.position} as `start`, and a new checkpoint",
        )

    # ------------------------------------------------------------ positions

    def _offset_at(self, at: Position) -> Offset:
        """Return the offset of a position, which must be the end of a transaction.

        :raises NotReadyError: if the position does not exist or is inside a transaction.
        """
        file_sizes = binlog_sizes(self._connection)
        if not FIRST_EVENT_POSITION <= at.position <= file_sizes.get(at.file, -1):
            first_file, last_file = next(iter(file_sizes)), list(file_sizes.items())[-1]
            raise NotReadyError(
                f"there is no position {at} in the binlog of this server",
                f"The binlog ranges from {first_file}:{FIRST_EVENT_POSITION} to {last_file[0]}:{last_file[1]}",
            )
        reached = self._walk_gtids(self._file_start(at.file), at)
        if reached.at != at:
            raise NotReadyError(
                f"binlog position {at} is inside a transaction", f"Give the end of one, such as {reached.at}"
            )
        return reached

    def _walk_gtids(self, start: Offset, target: Position, size: int | None = None) -> Offset:
        # This walk does not track the rows of XA transactions. Open ones are looked up when they end.
        return self._walk(self._gtid_reader, start, target, size)[0].replace(open_xa=())

    def _file_start(self, file: str) -> Offset:
        """Return the offset of the beginning of a file."""
        gtids = str(binlog_headers.previous_gtids(self._connection, file))
        return Offset(self._server, file, FIRST_EVENT_POSITION, gtids)

    def _earliest(self) -> Offset:
        start = self._file_start(next(iter(binlog_sizes(self._connection))))
        while True:
            reached, item = self.walk(start, self.binlog_end())
            if item is None:
                return start
            start = self._walk_gtids(reached, Position(item.file, item.position))

    def _offset_after_gtids(self, wanted: GtidSet) -> Offset:
        """Return the first offset whose GTID set is exactly the given one.

        :raises NotReadyError: if there is none.
        """
        for file in reversed(list(binlog_sizes(self._connection))):
            at = self._file_start(file)
            if GtidSet.parse(at.gtid_set).issubset(wanted):
                break
        else:
            raise NotReadyError(
                f"the binlog of this server no longer has everything after the GTID set {wanted}",
                f"It begins after {at.gtid_set}",
            )
        end, size = self.binlog_end(), _FIRST_STRIDE_BYTES
        while at.at < end and GtidSet.parse(at.gtid_set) != wanted:
            reached = self._walk_gtids(at, end, size)
            if wanted.issubset(GtidSet.parse(reached.gtid_set)) and size > 1:
                size = max(1, size // _STRIDE_DIVISOR)  # overshot: retry with a smaller step
            else:
                at = reached
                if size == 1 and wanted.issubset(GtidSet.parse(at.gtid_set)):
                    break
        gtids = GtidSet.parse(at.gtid_set)
        if gtids != wanted:
            more, less = gtids.subtract(wanted), wanted.subtract(gtids)
            difference = f"{more} precedes its last transaction" if more else f"{less} does not exist yet"
            raise NotReadyError(
                f"the GTID set {wanted} is not a position in the binlog of this server: {difference}",
                "Give file:position, or a set such as @@global.gtid_executed of this server",
            )
        return at

    def _walk(
        self, binlog: BinlogReader, start: Offset, target: Position, size: int | None = None
    ) -> tuple[Offset, Transaction | None]:
        walk = OffsetWalk(binlog, start)
        first_altering: Transaction | None = None  # rows of another layout: the DDL that explains them comes after them
        for item in walk.walk_to(target, NEVER if size is None else size):
            if item is not None and item.altered_tables:
                first_altering = first_altering or item
                if item.ddl is not None:
                    return self._offset_before(binlog, start, first_altering), item
        if first_altering is not None:
            return self._offset_before(binlog, start, first_altering), first_altering
        return walk.make_offset(file_start_time=binlog.file_start_times.get(walk.at.file, 0)), None

    def _offset_before(self, binlog: BinlogReader, start: Offset, item: Transaction) -> Offset:
        binlog.close()
        return self._walk(binlog, start, Position(item.file, item.start_position))[0]
