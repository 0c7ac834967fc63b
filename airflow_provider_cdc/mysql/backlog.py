"""Forward reading of the binlog between watermarks, over one connection for many chunks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping

from airflow_provider_cdc.core.offset import Position
from airflow_provider_cdc.core.schema import TableSchema
from airflow_provider_cdc.exceptions import TransientError
from airflow_provider_cdc.mysql.binlog.stream import BinlogStream
from airflow_provider_cdc.mysql.binlog.transactions import Reached, Transaction, read_transactions

#: Rather than skip more than this many bytes, connect again at the wanted position.
_SKIP_BYTES = 32 << 20
#: Seconds before each new connection after one was lost.
_PAUSES = (0.0, 0.5, 2.0)
#: Seconds without any progress after which a position counts as unreachable.
_STALL_SECONDS = 120.0


class Backlog:
    """Reads windows (LW, HW] of the binlog; later windows continue on the same connection.

    :param open_at: opens a blocking binlog stream at a position.
    :param captured: tables whose rows are wanted.
    """

    def __init__(
        self, open_at: Callable[[Position], BinlogStream], captured: Mapping[tuple[str, str], TableSchema]
    ) -> None:
        self._open_at = open_at
        self._captured = captured
        self._stream: BinlogStream | None = None
        self._items: Iterator[Transaction | Reached] = iter(())
        self._at = Position("", 0)
        self._held: Transaction | Reached | None = None

    def between(self, low: Position, high: Position) -> Iterator[Transaction]:
        """Transactions that end after ``low`` and at or before ``high``, in order.

        :raises TransientError: if the log does not get to ``high``.
        """
        if high <= low:
            return
        for item in self.items(low, high):
            if isinstance(item, Transaction):
                yield item

    def items(self, low: Position, high: Position) -> Iterator[Transaction | Reached]:
        """Like :meth:`between`, but with the positions reached in between."""
        if self._stream is None or low < self._at or not self._near(low):
            self._reopen(low)
        alive = time.monotonic()
        while self._at < high:
            item = self._next()
            at = Position(item.file, item.position)
            if high < at:
                # Boundaries of others may be skipped over; what lies behind belongs to the next window.
                self._held = item
                return
            if self._at < at:
                self._at, alive = at, time.monotonic()
            elif time.monotonic() - alive > _STALL_SECONDS:
                raise TransientError(f"the binlog did not reach {high}, it stands at {self._at}", "Run again")
            if low < at:
                yield item

    def close(self) -> None:
        """Close the connection."""
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def _next(self) -> Transaction | Reached:
        if self._held is not None:
            held, self._held = self._held, None
            return held
        for pause in (*_PAUSES, None):
            try:
                if self._stream is None:
                    self._reopen(self._at)
                item = next(self._items, None)
                if item is not None:
                    return item
                raise TransientError(f"the server ended the binlog stream at {self._at}", "Run again")
            except TransientError:
                # Where we stand is the end of a transaction, so nothing is lost or read twice by connecting again. A
                # server drops a connection that nobody reads from for long, as between two batches of an idle stream.
                self.close()
                if pause is None:
                    raise
                time.sleep(pause)
        raise AssertionError("unreachable")

    def _near(self, low: Position) -> bool:
        return low.file == self._at.file and low.position - self._at.position < _SKIP_BYTES

    def _reopen(self, low: Position) -> None:
        self.close()
        self._stream = self._open_at(low)
        self._items = read_transactions(self._stream, self._captured)
        self._at, self._held = low, None
