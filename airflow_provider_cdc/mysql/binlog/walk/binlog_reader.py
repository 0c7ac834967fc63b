"""Reads stretches of the binlog one after the other, over connections that may break."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from airflow_provider_cdc.model.definition_history import CapturedTables
from airflow_provider_cdc.model.errors import CdcError, DamageError, TerminalError, TornFileError, TransientError
from airflow_provider_cdc.model.offset import Offset, Position, Timeline
from airflow_provider_cdc.model.schema import TableSchema
from airflow_provider_cdc.mysql.binlog.events.binlog_stream import BinlogStream
from airflow_provider_cdc.mysql.binlog.events.rows_event import RowsEvent
from airflow_provider_cdc.mysql.binlog.events.statement_guard import IndirectWritesLookup
from airflow_provider_cdc.mysql.binlog.walk.change_buffer import KeyFilter
from airflow_provider_cdc.mysql.binlog.walk.step import NEVER, WalkStep
from airflow_provider_cdc.mysql.binlog.walk.walker import BinlogWalker
from airflow_provider_cdc.mysql.client.charsets import UNICODE_DECODERS, CharsetDecoders

#: Seconds before each new connection after one was lost.
_RECONNECT_DELAYS = (0.0, 0.5, 2.0)
#: Seconds without any progress after which a position counts as unreachable.
_STALL_SECONDS = 120.0
#: Bytes of rows that become visible at once and are decoded before the changes are taken.
_MAX_UNTAKEN_BYTES = 16 << 20


class BinlogReader:
    """Reads stretches of the binlog one after the other, mostly over one connection.

    :param open_at: opens a blocking binlog stream at a position.
    :param captured: the definitions of captured tables.
    :param timeline: numbers the transactions.
    :param decoders: see :class:`~airflow_provider_cdc.mysql.binlog.walk.change_buffer.ChangeBuffer`.
    :param count_only: whether rows are only counted.
    :param with_before_images: whether updates give their old image, too, as ``b``.
    :param with_gtids: whether :meth:`names` tells the GTIDs of transactions with rows.
    :param yield_ddl: whether a change of a definition is told in a step's item, instead of an error.
    :param indirect_writes: see :class:`~airflow_provider_cdc.mysql.binlog.events.statement_guard.StatementGuard`.
    """

    def __init__(
        self,
        open_at: Callable[[Position], BinlogStream],
        captured: CapturedTables,
        timeline: Timeline,
        decoders: CharsetDecoders = UNICODE_DECODERS,
        *,
        count_only: bool = False,
        with_before_images: bool = False,
        with_gtids: bool = False,
        yield_ddl: bool = False,
        indirect_writes: IndirectWritesLookup | None = None,
    ) -> None:
        self._open_at, self._captured, self._lineage, self._texts = open_at, captured, timeline, decoders
        self._walker_options: dict[str, Any] = {
            "count_only": count_only,
            "with_before_images": with_before_images,
            "with_gtids": with_gtids,
            "yield_ddl": yield_ddl,
            "indirect_writes": indirect_writes,
        }
        self._stream: BinlogStream | None = None
        self._walker: BinlogWalker | None = None
        self._steps: Iterator[WalkStep] = iter(())
        self._at, self._rows_left = Position("", 0), NEVER
        self._rescued: list[tuple[TableSchema, pa.RecordBatch]] = []
        self._gtids_by_seq: dict[int, str] = {}
        self._damaged_at: str | None = None
        #: When files were begun, by name: known from before, or read over any of the connections.
        self.file_start_times: dict[str, int] = {}

    def expect_offset(self, offset: Offset) -> None:
        """Take note of when the file of an offset was begun: another one of its name stops the reading."""
        if offset.file_start_time:
            self.file_start_times.setdefault(offset.at.file, offset.file_start_time)

    def steps(self, low: Position, high: Position, rows: int = NEVER) -> Iterator[WalkStep]:
        """Walk from ``low`` to ``high``, both ends of transactions.

        :param rows: where rows are counted: how many to walk; the transaction with the last of them is the last one.
        :raises TransientError: if the log does not get to ``high``, or the connection was lost inside of a transaction
            of which changes have been taken.
        :raises TerminalError: if something is wrong with the binlog, such as damage that is found twice at one place.
        """
        if self._walker is None or low != self._at:
            self.close()
            self._at = low
        elif low < high:
            self._steps = self._walker.steps(high, rows)
        self._rows_left = rows
        alive, last_reached = time.monotonic(), -1
        while self._at < high and self._rows_left > 0:
            step = self._next_step(high)
            self._rows_left -= step.counted_rows
            at = Position(step.file, step.position)
            if self._at < at or step.reached_position != last_reached:
                self._at, alive, last_reached = max(self._at, at), time.monotonic(), step.reached_position
            elif time.monotonic() - alive > _STALL_SECONDS:
                raise TransientError(f"the binlog did not reach {high}, it stands at {self._at}", "Run again")
            yield step

    @property
    def current_position(self) -> Position | None:
        """Where it stands; ``None`` while it has no connection."""
        return self._at if self._walker else None

    @property
    def held_bytes(self) -> int:
        """Bytes of rows whose changes have not been taken."""
        return self._walker.held_bytes if self._walker else 0

    def take_changes(
        self, end: Position | None = None, key_filter: KeyFilter | None = None
    ) -> list[tuple[TableSchema, pa.RecordBatch]]:
        """The changes since the last time: of whole transactions, and of an open one whose end is known.

        :param end: where the transaction ends that is open, for servers that do not tell.
        :param key_filter: changes may be left out if there are none for which this is true.
        """
        walker, rescued, self._rescued = self._walker, self._rescued, []
        if walker is None:
            return rescued
        if not walker.can_take:
            if end is None:
                return rescued
            walker.expect_end(end)
        return rescued + walker.take_changes(key_filter)

    def take_gtids(self) -> dict[int, str]:
        """GTIDs by ``_cdc_seq`` of the transactions whose changes have been taken since the last time."""
        names, self._gtids_by_seq = self._gtids_by_seq, {}
        return names | (self._walker.take_gtids() if self._walker else {})

    def decode_rows(self, rows: Sequence[RowsEvent], seq: int, commit_us: int) -> Iterator[None]:
        """Decode row events that become visible here.

        :returns: each time when the changes should be taken before there are too many; to be walked to its end.
        """
        assert self._walker is not None  # they come with a step
        size = 0
        for event in rows:
            if size >= _MAX_UNTAKEN_BYTES:
                yield
                size = 0
            self._walker.decode_rows(event, seq, commit_us)
            size += len(event.images)

    def close(self) -> None:
        """Close the connection; changes that have not been taken are forgotten."""
        if self._stream is not None:
            self._stream.close()
        self._stream = self._walker = None
        self._rescued, self._gtids_by_seq = [], {}

    def _next_step(self, high: Position) -> WalkStep:
        for pause in (*_RECONNECT_DELAYS, None):
            try:
                if self._walker is None:
                    self._connect(high)
                step = next(self._steps, None)
                if step is not None:
                    return step
                raise TransientError(f"the server ended the binlog stream at {self._at}", "Run again")
            except (TransientError, TornFileError) as error:
                if isinstance(error, DamageError):
                    if error.place == self._damaged_at:  # not on the way, then, but in the log
                        self.close()
                        raise TerminalError(error.message, error.remedy) from None
                    self._damaged_at = error.place
                # Where we stand is the end of a transaction, so nothing is lost or read twice by connecting again. A
                # server drops a connection that nobody reads from for long, as between two batches of an idle stream.
                at = self._resume_position(error)
                if pause is None or at is None or (self._walker is not None and self._walker.is_split):
                    self.close()
                    raise
                rescued = [*self._rescued, *(self._walker.take_complete() if self._walker else ())]
                names = self.take_gtids()
                self.close()
                self._rescued, self._gtids_by_seq, self._at = rescued, names, at
                time.sleep(pause)
        raise AssertionError("unreachable")

    def _resume_position(self, error: CdcError) -> Position | None:
        """Where to go on after an error; ``None`` for nowhere."""
        if isinstance(error, TornFileError) and self._stream is not None:
            return self._stream.next_file_after_torn_end(self._at)
        return self._at

    def _connect(self, high: Position) -> None:
        self._stream = self._open_at(self._at)
        self._stream.expect_file_starts(self.file_start_times)
        self._walker = BinlogWalker(
            self._stream,
            self._captured,
            lambda file: self._lineage.seq(Position(file, 0)),
            self._texts,
            **self._walker_options,
        )
        self._steps = self._walker.steps(high, self._rows_left)
