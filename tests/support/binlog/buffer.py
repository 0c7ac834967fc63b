"""Row events as Arrow change tables by the machine code alone, without what walks the binlog."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from airflow_provider_cdc.model.schema import TableSchema
from airflow_provider_cdc.model.unsupported_values import UnsupportedValue, binlog_value_error
from airflow_provider_cdc.mysql.binlog.events.rows_event import RowsEvent
from airflow_provider_cdc.mysql.binlog.kernels import row_kernel as kernel
from airflow_provider_cdc.mysql.binlog.walk.change_buffer import ChangeBuffer
from airflow_provider_cdc.mysql.client.charsets import UNICODE_DECODERS, CharsetDecoders
from airflow_provider_cdc.native.buffers import MAX_STRING_BYTES
from airflow_provider_cdc.native.primitives import PADDING

_CHANGES = {"insert": kernel.INSERT, "update": kernel.UPDATE, "delete": kernel.DELETE}


class CountedChanges:
    """Collects the changes of one table in binlog order; see :mod:`airflow_provider_cdc.model.changes`.

    :param table: the table.
    :param texts: how its text is decoded.
    :param both: whether updates give their old image, too, with the operation ``b``.
    """

    def __init__(self, table: TableSchema, texts: CharsetDecoders = UNICODE_DECODERS, *, both: bool = False) -> None:
        self.table, self._texts, self._both = table, texts, both
        self._space: ChangeBuffer | None = None
        self._batches: list[pa.RecordBatch] = []
        self._data: Any = np.empty(0, np.uint8)
        self._state = np.zeros(kernel.STATE_SIZE, np.int64)

    def __len__(self) -> int:
        return sum(int(b.num_rows) for b in self._batches) + (self._space.row_count if self._space else 0)

    def add(self, event: RowsEvent, seq: int, commit_us: int) -> None:
        """Decode one row event.

        :param seq: ``_cdc_seq`` of its transaction.
        :param commit_us: commit time in microseconds since the epoch, UTC.
        :raises TerminalError: for a row that cannot be understood.
        """
        space = self._space_for(event)
        present, content = (0 if event.present_columns else -1), event.present_columns + bytes(event.images)
        at, size, change = len(event.present_columns), len(content), _CHANGES[event.operation]
        if len(self._data) < size + PADDING:
            self._data = np.empty(size + (size >> 1) + PADDING, np.uint8)
        self._data[:size] = np.frombuffer(content, np.uint8)
        while True:
            line, lines, state = space.table_line.reshape(1, -1), space.column_lines, self._state
            why = kernel.read_rows(
                self._data, at, size, 0, change, present, self._both, seq, commit_us, line, lines, state
            )
            at, column = int(state[kernel.NEXT_IMAGE]), int(state[kernel.FAILED_COLUMN])
            if why == kernel.DONE:
                return
            if why == kernel.NEED_ROWS:
                space.grow_rows()
            elif why == kernel.NEED_ROOM:
                if state[kernel.WANTED_SIZE] > MAX_STRING_BYTES and space.row_count:
                    self._flush()
                else:
                    space.grow_column(column, int(state[kernel.WANTED_SIZE]))
            else:
                found = self.table.columns[column] if column >= 0 else None
                if why == kernel.INVALID_VALUE:
                    what = space.describe_invalid_date(column, self._data, int(state[kernel.WANTED_SIZE]))
                    raise binlog_value_error(self.table, found, "date", what, event.location)
                raise binlog_value_error(self.table, found, "damaged", "damaged value", event.location)

    def take(self) -> pa.Table:
        """The changes collected so far as a table of the sink's schema; the buffer is empty afterwards.

        :raises TerminalError: for bytes that are not text, and damaged documents.
        """
        self._flush()
        batches, self._batches = self._batches, []
        return pa.Table.from_batches(batches, schema=self.table.sink_schema)

    def _flush(self) -> None:
        if self._space is not None and self._space.row_count:
            try:
                self._batches.append(self._space.take_batch())
            except UnsupportedValue as error:
                column, place = self.table.columns[error.column], f"_cdc_seq {error.seq}"
                raise binlog_value_error(self.table, column, error.reason, error.description, place) from None

    def _space_for(self, event: RowsEvent) -> ChangeBuffer:
        space, table = self._space, event.table
        if space is None or (space.table_map is not table and not space.has_layout_of(table)):
            self._flush()
            self._space = space = ChangeBuffer(table, self._texts)
        return space


def counted(event: RowsEvent) -> int:
    """Rows of an event by the machine code that only counts them; it needs no character sets."""
    space, at, end = (
        ChangeBuffer(event.table, UNICODE_DECODERS, count_only=True),
        len(event.present_columns),
        len(event.present_columns + event.images),
    )
    data = np.frombuffer(bytearray(event.present_columns + event.images + bytes(PADDING)), np.uint8)
    state: Any = np.zeros(kernel.STATE_SIZE, np.int64)
    line, lines, change = space.table_line.reshape(1, -1), space.column_lines, _CHANGES[event.operation]
    present = 0 if event.present_columns else -1
    if kernel.read_rows(data, at, end, 0, change, present, False, 7, 9, line, lines, state) != kernel.DONE:
        raise binlog_value_error(event.schema, None, "damaged", "damaged value", event.location)
    return space.row_count
