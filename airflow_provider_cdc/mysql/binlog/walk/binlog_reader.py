"""Read consecutive ranges of the binlog over connections that may break."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from airflow_provider_cdc.model.definition_history import CapturedTables
from airflow_provider_cdc.model.errors import CdcError, DamageError, TerminalError, TornFileError, TransientError
from airflow_provider_cdc.model.offset import Offset, Position, Timeline
from airflow_provider_cdc.model.schema import TableSchema
from airflow_provider_cdc.mysql.binlog.events.binlog_source import OpenStreamAt
from airflow_provider_cdc.mysql.binlog.events.binlog_stream import BinlogStream
from airflow_provider_cdc.mysql.binlog.events.rows_event import RowsEvent
from airflow_provider_cdc.mysql.binlog.events.statement_guard import IndirectWritesLookup
from airflow_provider_cdc.mysql.binlog.walk.change_buffer import KeyFilter
from airflow_provider_cdc.mysql.binlog.walk.step import NEVER, WalkStep
from airflow_provider_cdc.mysql.binlog.walk.walker import BinlogWalker
from airflow_provider_cdc.mysql.client.charsets import UNICODE_DECODERS, CharsetDecoders

#: Seconds to wait before each attempt to reconnect.
_RECONNECT_DELAYS = (0.0, 0.5, 2.0)
#: Seconds without progress after which a position counts as unreachable.
_STALL_SECONDS = 120.0
#: Bytes of rows that may be decoded before their changes are taken, when many become visible at once.
_MAX_UNTAKEN_BYTES = 16 << 20


class BinlogReader:
    """Reads consecutive ranges of the binlog, usually over a single connection.

    :param open_at: opens a blocking binlog stream at a position.
    :param captured: definitions of the captured tables.
    :param timeline: numbers the transactions.
    :param decoders: see :class:`~airflow_provider_cdc.mysql.binlog.walk.change_buffer.ChangeBuffer`.
    :param count_only: whether rows are counted instead of decoded.
    :param with_before_images: whether each update also yields its old image, as ``b``.
    :param with_gtids: whether :meth:`take_gtids` returns the GTIDs of transactions with rows.
    :param yield_ddl: whether a definition change is reported in a step's transaction instead of raising an error.
    :param indirect_writes: see :class:`~airflow_provider_cdc.mysql.binlog.events.statement_guard.StatementGuard`.
    """

    def __init__(
        self,
        open_at: OpenStreamAt,
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
        self._open_at, self._captured, self.timeline, self._texts = open_at, captured, timeline, decoders
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
        #: Creation times of binlog files by name: known beforehand, or read over any of the connections.
        self.file_start_times: dict[str, int] = {}

    def remember_file_start(self, offset: Offset) -> None:
        """Remember when an offset's binlog file was created; reading stops at another file of the same name."""
        if offset.file_start_time:
            self.file_start_times.setdefault(offset.at.file, offset.file_start_time)

    def steps(self, low: Position, high: Position, rows: int = NEVER) -> Iterator[WalkStep]:
        """Walk from ``low`` to ``high``; both must be transaction boundaries.

        :param rows: with ``count_only``, the number of rows to walk; the walk ends with the transaction that reaches
            it.
        :raises TransientError: if the binlog does not reach ``high``, or if the connection is lost inside a transaction
            whose changes have been taken in part.
        :raises TerminalError: if the binlog is faulty, for example damaged at the same place in two reads.
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
                raise TransientError(f"the binlog did not reach {high}: it stopped at {self._at}", "Run again")
            yield step

    @property
    def current_position(self) -> Position | None:
        """Position reached between transactions; ``None`` while there is no connection."""
        return self._at if self._walker else None

    @property
    def held_bytes(self) -> int:
        """Bytes of rows whose changes have not been taken yet."""
        return self._walker.held_bytes if self._walker else 0

    def take_changes(
        self, end: Position | None = None, key_filter: KeyFilter | None = None
    ) -> list[tuple[TableSchema, pa.RecordBatch]]:
        """Return the changes since the last call, of whole transactions and of an open one whose end is known.

        :param end: end of the open transaction, for servers that do not announce it.
        :param key_filter: a buffer's changes are dropped if none of them matches.
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
        """Return GTIDs, by ``_cdc_seq``, of the transactions with rows that were read since the last call.

        Keep them for later calls of :meth:`take_changes`: a transaction may be taken in parts, or not yet.
        """
        names, self._gtids_by_seq = self._gtids_by_seq, {}
        return names | (self._walker.take_gtids() if self._walker is not None else {})

    def decode_rows(self, rows: Sequence[RowsEvent], seq: int, commit_us: int) -> Iterator[None]:
        """Decode row events that become visible at the current position.

        :returns: an iterator that yields whenever the changes should be taken to bound memory; exhaust it.
        """
        assert self._walker is not None  # row events come with a step
        size = 0
        for event in rows:
            if size >= _MAX_UNTAKEN_BYTES:
                yield
                size = 0
            self._walker.decode_rows(event, seq, commit_us)
            size += len(event.images)

    def close(self) -> None:
        """Close the connection and discard changes that have not been taken."""
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
                    if error.place == self._damaged_at:  # so the binlog itself is damaged, not just the transfer
                        self.close()
                        raise TerminalError(error.message, error.remedy) from None
                    self._damaged_at = error.place
                # The current position is the end of a transaction, so reconnecting neither loses nor repeats anything.
                # A server drops a connection that is not read for a long time, as between batches of an idle stream.
                at = self._resume_position(error)
                if pause is None or at is None or (self._walker is not None and self._walker.is_split):
                    self.close()
                    raise
                rescued = [*self._rescued, *(self._walker.take_complete() if self._walker else ())]
                names = self._gtids_by_seq | (self._walker.take_gtids() if self._walker else {})
                self.close()
                self._rescued, self._gtids_by_seq, self._at = rescued, names, at
                time.sleep(pause)
        raise AssertionError("unreachable")

    def _resume_position(self, error: CdcError) -> Position | None:
        """Return where to resume after an error; ``None`` if that is impossible."""
        if isinstance(error, TornFileError) and self._stream is not None:
            return self._stream.next_file_after_torn_end(self._at)
        return self._at

    def _connect(self, high: Position) -> None:
        self._stream = self._open_at(self._at)
        self._stream.expect_file_starts(self.file_start_times)
        self._walker = BinlogWalker(
            self._stream,
            self._captured,
            lambda file: self.timeline.seq(Position(file, 0)),
            self._texts,
            **self._walker_options,
        )
        self._steps = self._walker.steps(high, self._rows_left)
