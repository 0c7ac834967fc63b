"""Walk the binlog from an offset, without decoding rows, and know the offset of what has been reached."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from airflow_provider_cdc.model.errors import OtherHistoryError
from airflow_provider_cdc.model.gtid import gtid_class_of
from airflow_provider_cdc.model.offset import Offset, Position
from airflow_provider_cdc.mysql.binlog.events.transactions import Transaction
from airflow_provider_cdc.mysql.binlog.events.xa import format_xa_entry, parse_xa_entry
from airflow_provider_cdc.mysql.binlog.walk.step import NEVER, WalkStep

if TYPE_CHECKING:  # compiled code, which drivers must not import
    from airflow_provider_cdc.mysql.binlog.walk.binlog_reader import BinlogReader


class OffsetWalk:
    """A walk from an offset.

    :param binlog: reads the binlog, with ``count_only``.
    :param start: the offset.
    """

    def __init__(self, binlog: BinlogReader, start: Offset) -> None:
        kind: Any = gtid_class_of(start.server)
        self._binlog, self._start, self._kind = binlog, start, kind
        self._gtids, self._applied_gtids = kind.parse(start.gtid_set), kind.parse(start.already_applied)
        self._open_xa = {parse_xa_entry(text)[0]: text for text in start.open_xa}
        #: Position that has been reached.
        self.at = start.at
        binlog.remember_file_start(start)

    def walk_to(self, target: Position, max_bytes: int = NEVER, max_rows: int = NEVER) -> Iterator[Transaction | None]:
        """Walk to a position, or to the end of the transaction that exhausts a budget of bytes or rows.

        :returns: yields what each step ends with, before the step counts as reached. See :class:`.WalkStep`.
        :raises OtherHistoryError: if a transaction was read before.
        """
        size = rows = 0
        while self.at < target and size < max_bytes and rows < max_rows:
            # The budget within this file; it is checked again at the end of the file.
            end = min(target, Position(self.at.file, self.at.position + max_bytes - size))
            for step in self._binlog.steps(self.at, end, max_rows - rows):
                yield step.transaction
                rows += step.counted_rows
                size += step.position - (self.at.position if step.file == self.at.file else 0)
                self._advance(step)

    def make_offset(self, *, file_start_time: int, gtid_mode_on: bool = False) -> Offset:
        """Return the offset of what has been reached.

        :param file_start_time: when its file was begun, 0 if unknown.
        :param gtid_mode_on: whether everything after it has GTIDs.
        """
        open_xa = tuple(sorted(self._open_xa.values()))
        texts = str(self._gtids), open_xa, str(self._applied_gtids)
        return Offset(self._start.server, self.at.file, self.at.position, *texts, file_start_time, gtid_mode_on)

    def _advance(self, step: WalkStep) -> None:
        self.at = Position(step.file, step.position)
        if step.gtids:
            gtids = self._kind.parse(",".join(step.gtids))
            if repeated := self._gtids.repeated_in(gtids):
                raise OtherHistoryError(
                    f"{repeated} is in the binlog of the server before {self.at}, but was already read"
                )
            self._gtids = self._gtids.union(gtids)
        if self._applied_gtids:
            self._applied_gtids = self._applied_gtids.minus_all(step.gtids)
        if (item := step.transaction) is not None and item.xa_prepared is not None:
            start = Position(item.file, item.start_position) if item.prepared_rows else None
            self._open_xa[item.xa_prepared] = format_xa_entry(item.xa_prepared, start)
        if item is not None and item.xa_finished is not None:
            # Without an entry, it was prepared before the walk began: its rows are found by looking back.
            self._open_xa.pop(item.xa_finished, None)
