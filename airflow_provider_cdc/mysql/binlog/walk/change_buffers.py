"""Changes to all tables announced by a stream, and the kernels' description of these tables."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import pyarrow as pa

from airflow_provider_cdc.model.changes import merge_in_binlog_order
from airflow_provider_cdc.model.errors import TerminalError
from airflow_provider_cdc.model.schema import SEQ_COLUMN, TableSchema
from airflow_provider_cdc.model.unsupported_values import UnsupportedValue, binlog_value_error
from airflow_provider_cdc.mysql.binlog.events.rows_event import RowsEvent
from airflow_provider_cdc.mysql.binlog.events.table_map import TableMap
from airflow_provider_cdc.mysql.binlog.kernels import row_kernel, walk_state
from airflow_provider_cdc.mysql.binlog.walk.change_buffer import ChangeBuffer, KeyFilter
from airflow_provider_cdc.mysql.client.charsets import CharsetDecoders
from airflow_provider_cdc.native.primitives import PADDING

_MAX_COLUMN_BYTES = (1 << 31) - 64  # offsets have 31 bits
_MAX_TABLE_IDS = 1 << 14
_OPERATIONS = {"insert": row_kernel.INSERT, "update": row_kernel.UPDATE, "delete": row_kernel.DELETE}


class ChangeBuffers:
    """Change buffers of all tables, by *slot*, and the table maps that announce them, by table id.

    ``table_lines``, ``column_lines``, ``map_lines``, ``changed_slots`` and ``row_state`` are arguments of the kernels.

    :param state: state shared with the walk kernel, see :mod:`~airflow_provider_cdc.mysql.binlog.kernels.walk_state`.
    :param decoders: see :class:`~airflow_provider_cdc.mysql.binlog.walk.change_buffer.ChangeBuffer`.
    :param count_only: whether rows are counted instead of decoded.
    """

    def __init__(self, state: Any, decoders: CharsetDecoders, count_only: bool) -> None:
        self._state, self._decoders, self._count_only = state, decoders, count_only
        self._buffers: list[ChangeBuffer] = []
        # Not by id(): a table map may be garbage-collected, and that of another table allocated at its address.
        self._slots: WeakKeyDictionary[TableMap, int] = WeakKeyDictionary()
        self._announced: dict[int, tuple[Any, int]] = {}  # by table id: body of the table map, slot
        self.row_state: Any = np.zeros(row_kernel.STATE_SIZE, np.int64)
        self.changed_slots: Any = np.zeros(1, np.int64)
        self._lay_out_lines()
        self.map_lines: Any = np.full((64, walk_state.MAP_FIELDS), -1, np.int64)

    def __getitem__(self, slot: int) -> ChangeBuffer:
        return self._buffers[slot]

    def slot_of(self, table: TableMap) -> int:
        """Return the slot of a table with a given layout."""
        if table not in self._slots:
            same = [i for i, s in enumerate(self._buffers) if s.has_layout_of(table)]
            if not same:
                self._buffers.append(ChangeBuffer(table, self._decoders, count_only=self._count_only))
                self._lay_out_lines()
                same = [len(self._buffers) - 1]
            self._slots[table] = same[0]
        return self._slots[table]

    def announce_table_map(self, table_id: int, body: Any, table: TableMap | None) -> None:
        """Tell the kernel about a table map, which applies to the row events that follow in this statement.

        :param body: the event from the table's name on, followed by :data:`PADDING` bytes.
        :param table: ``None`` if the table's rows are not wanted.
        """
        slot = -1 if table is None else self.slot_of(table)
        if table_id not in self._announced and 2 * len(self._announced) + 2 > len(self.map_lines):
            self._grow_maps()
        self._announced[table_id] = body, slot
        self._insert_map(table_id, body, slot, int(self._state[walk_state.STATEMENT_NUMBER]))

    def _grow_maps(self) -> None:
        """Rebuild the hash table of table maps with more room.

        A server never reuses a table id. When there are too many, only those of this statement are kept; others that
        are still in use will be announced again.
        """
        statements = {
            int(line[walk_state.MAP_TABLE_ID]): int(line[walk_state.MAP_STATEMENT]) for line in self.map_lines
        }
        if len(self._announced) > _MAX_TABLE_IDS:
            now = int(self._state[walk_state.STATEMENT_NUMBER])
            self._announced = {
                known: announcement for known, announcement in self._announced.items() if statements.get(known) == now
            }
        lines = max(64, 1 << (2 * len(self._announced) + 2).bit_length())
        self.map_lines = np.full((lines, walk_state.MAP_FIELDS), -1, np.int64)
        for known, (other, its_slot) in self._announced.items():
            self._insert_map(known, other, its_slot, statements.get(known, -1))

    def announced_table_maps(self) -> dict[int, TableMap | None]:
        """Return the table maps that the kernel has seen in this statement, by table id."""
        announced_lines = self.map_lines[
            self.map_lines[:, walk_state.MAP_STATEMENT] == self._state[walk_state.STATEMENT_NUMBER]
        ]
        tables = {slot: space.table_map for slot, space in enumerate(self._buffers)}
        return {int(m[walk_state.MAP_TABLE_ID]): tables.get(int(m[walk_state.MAP_SLOT])) for m in announced_lines}

    def changed_buffers(self) -> Iterator[ChangeBuffer]:
        """Yield the buffers of the tables that the open transaction has changed."""
        for slot in self.changed_slots[: self._state[walk_state.CHANGED_TABLES]].tolist():
            yield self._buffers[slot]

    def mark_changed(self, slot: int) -> None:
        """Record that the open transaction changes a table."""
        space, state = self._buffers[slot], self._state
        if space.table_line[row_kernel.CHANGED_BY] != state[walk_state.TRANSACTION_NUMBER]:
            space.table_line[row_kernel.CHANGED_BY] = state[walk_state.TRANSACTION_NUMBER]
            space.table_line[row_kernel.OPEN_FIRST_ROW] = space.row_count
            space.table_line[row_kernel.OPEN_ROWS_TAKEN] = 0
            self.changed_slots[state[walk_state.CHANGED_TABLES]] = slot
            state[walk_state.CHANGED_TABLES] += 1

    def decode_rows(self, event: RowsEvent, seq: int, commit_us: int, place: str) -> None:
        """Decode a row event.

        :param place: current location, for error messages.
        """
        slot, state = self.slot_of(event.table), self._state
        state[walk_state.DECODED_BYTES] += len(event.images)
        present, at = (0 if event.present_columns else -1), len(event.present_columns)
        end = at + len(event.images)
        data: Any = np.empty(end + PADDING, np.uint8)
        data[:at], data[at:end] = np.frombuffer(event.present_columns, np.uint8), event.images
        change, with_before_images = _OPERATIONS[event.operation], state[walk_state.WITH_BEFORE_IMAGES]
        while True:
            why = row_kernel.read_rows(
                data,
                at,
                end,
                slot,
                change,
                present,
                with_before_images,
                seq,
                commit_us,
                self.table_lines,
                self.column_lines,
                self.row_state,
            )
            if why == row_kernel.DONE:
                return
            at = int(self.row_state[row_kernel.NEXT_IMAGE])
            self.handle_stop(slot, why, data, place)

    def handle_stop(self, slot: int, why: int, data: Any, place: str) -> None:
        """Handle the reason why a kernel stopped, so that it can continue.

        :param why: the kernel's return value.
        :param place: current location, for error messages.
        :raises TerminalError: for a value that cannot be copied.
        """
        space = self._buffers[slot]
        column = int(self.row_state[row_kernel.FAILED_COLUMN]) - int(space.table_line[row_kernel.FIRST_COLUMN])
        wanted = int(self.row_state[row_kernel.WANTED_SIZE])
        schema = space.table_map.schema
        if why == row_kernel.NEED_ROWS:
            space.grow_rows()
        elif why == row_kernel.NEED_ROOM and wanted < _MAX_COLUMN_BYTES:
            space.grow_column(column, wanted)
        elif why == row_kernel.NEED_ROOM:
            raise TerminalError.for_table(
                f"an event of {schema.label} with more than 2 GiB in one column", schema.label, place=place
            )
        else:
            failed_column = schema.columns[column] if self.row_state[row_kernel.FAILED_COLUMN] >= 0 else None
            if why == row_kernel.INVALID_VALUE:
                raise binlog_value_error(
                    schema, failed_column, "date", space.describe_invalid_date(column, data, wanted), place
                )
            raise binlog_value_error(schema, failed_column, "damaged", "damaged value", place)

    def take_changes(self, key_filter: KeyFilter | None) -> list[tuple[TableSchema, pa.RecordBatch]]:
        """Return the changes since the last call in binlog order, one batch per table.

        :param key_filter: a buffer's changes are dropped if none of them matches.
        """
        by_table: dict[tuple[str, str], tuple[TableSchema, list[pa.RecordBatch]]] = {}
        for space in self._buffers:
            if space.row_count and key_filter is not None and not space.has_match(*key_filter):
                space.clear()
            elif space.row_count:
                schema = space.table_map.schema
                by_table.setdefault(schema.id, (schema, []))[1].append(_take_batch(space))
        return [(schema, _merge_batches(schema, batches)) for schema, batches in by_table.values()]

    def _lay_out_lines(self) -> None:
        """Put the lines of all tables into one array, and those of their columns into another."""
        count = sum(len(s.column_lines) for s in self._buffers)
        tables: Any = np.zeros((max(1, len(self._buffers)), row_kernel.TABLE_FIELDS), np.int64)
        lines: Any = np.zeros((max(1, count), row_kernel.COLUMN_FIELDS), np.int64)
        first = 0
        for i, space in enumerate(self._buffers):
            space.move_lines(tables[i], lines[first : first + len(space.column_lines)], first)
            first += len(space.column_lines)
        touched: Any = np.zeros(len(tables), np.int64)
        touched[: len(self.changed_slots)] = self.changed_slots
        self.table_lines, self.column_lines, self.changed_slots = tables, lines, touched

    def _insert_map(self, table_id: int, body: Any, slot: int, statement: int) -> None:
        mask = len(self.map_lines) - 1
        at = (table_id * 0x9E37_79B1) & mask
        while self.map_lines[at, walk_state.MAP_TABLE_ID] not in (-1, table_id):
            at = (at + 1) & mask
        self.map_lines[at] = (table_id, slot, body.ctypes.data, len(body) - PADDING, statement)


def _take_batch(space: ChangeBuffer) -> pa.RecordBatch:
    try:
        return space.take_batch()
    except UnsupportedValue as error:
        schema, place = space.table_map.schema, f"_cdc_seq {error.seq}"
        raise binlog_value_error(schema, schema.columns[error.column], error.reason, error.description, place) from None


def _merge_batches(table: TableSchema, batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    """Merge changes to one table in binlog order; there are several layouts if ``binlog_row_metadata`` was changed."""
    try:
        return merge_in_binlog_order(batches)
    except ValueError as error:
        raise TerminalError.for_table(
            f"binlog_row_metadata was changed inside a transaction that changes {table.label} ({error}): the order of "
            "its changes is unknown",
            table.label,
            place=f"_cdc_seq {batches[0][SEQ_COLUMN][0].as_py()}",
            first="Change it only while no session is writing",
        ) from None
