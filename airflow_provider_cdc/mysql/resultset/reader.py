"""Read result sets directly into Arrow columns, by the binary protocol (docs/decisions/0017-binary-protocol.md).

The server sends numbers and dates in their binary form: nothing is printed, rounded or parsed. The connection is
PyMySQL's. Its rows are read from the socket in large blocks, by machine code
(:mod:`airflow_provider_cdc.mysql.resultset.row_kernel`).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Set
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import pyarrow as pa
from pymysql.connections import Connection
from pymysql.constants import CLIENT, COMMAND
from pymysql.err import MySQLError, raise_mysql_exception

from airflow_provider_cdc.model.errors import DamageError, OtherColumnsError, TransientError
from airflow_provider_cdc.model.unsupported_values import UnsupportedValue
from airflow_provider_cdc.mysql.client.session import translate_errors
from airflow_provider_cdc.mysql.resultset import row_kernel
from airflow_provider_cdc.mysql.resultset.columns import ColumnBuffers, kind_and_scale
from airflow_provider_cdc.native import buffers
from airflow_provider_cdc.native.primitives import PADDING

#: Bytes to receive at a time: few enough to be in the processor's cache still when they are decoded.
_RECEIVE_BYTES = 256 << 10
_LARGEST_PACKET = 0xFFFFFF
#: Column buffers up to this many bytes are kept for the next chunk.
_MAX_KEPT_BYTES = 64 << 20


def query_arrow(connection: Connection[Any], sql: str, schema: pa.Schema, nulls: Set[str] = frozenset()) -> pa.Table:
    """Run a SELECT and return its rows.

    While the rows are read, they need twice their size in memory. A string column of more than 1 GiB is returned in
    several chunks.

    :param sql: a SELECT without parameters.
    :param schema: one field per selected column, of the type that represents all values of the server's type.
    :param nulls: names of the columns in which a zero date becomes NULL.
    :raises UnsupportedValue: for a value that cannot be copied exactly, such as a zero date; the connection is closed.
    :raises TransientError: if the connection breaks.
    :raises OtherColumnsError: if the server's columns do not match the schema.
    :raises TerminalError: if the server's answer cannot be parsed.
    """
    return pa.Table.from_batches(query_arrow_batches(connection, sql, schema, nulls), schema=schema)


def query_arrow_batches(
    connection: Connection[Any], sql: str, schema: pa.Schema, nulls: Set[str] = frozenset(), size: int | None = None
) -> Generator[pa.RecordBatch, None, None]:
    """Like :func:`query_arrow`, but yield the rows in one or more batches.

    The connection is busy until the last batch is consumed. A caller that stops early must close the iterator, which
    closes the connection.

    :param size: approximate bytes per batch; a row is never split.
    """
    with translate_errors("reading from the source"):
        wire: Any = connection  # the following is not the driver's public interface
        wire._execute_command(COMMAND.COM_STMT_PREPARE, sql)
        prepared = wire._read_packet().get_all_data()
        statement, count = prepared[1:5], int.from_bytes(prepared[5:7], "little")
        reader = _readers.setdefault(connection, _RowReader())
        try:
            reader.read_definitions(wire, count)
            wire._execute_command(COMMAND.COM_STMT_EXECUTE, statement + b"\0\1\0\0\0")
            wire._read_packet()  # the number of columns again, or an error
            reader.prepare(reader.read_definitions(wire, count), schema, nulls, size)
            yield from reader.read_rows()
        except MySQLError:
            raise  # the error ends the server's answer; if the connection broke, the driver has closed it
        except BaseException:
            wire._force_close()  # the rest of the answer is still arriving
            raise
        finally:
            if wire.open:
                wire._execute_command(COMMAND.COM_STMT_CLOSE, statement)


class _RowReader:
    """State kept between two statements of a connection, without a reference to it, so that it can be freed."""

    def __init__(self) -> None:
        self._data: Any = np.empty(_RECEIVE_BYTES + PADDING, np.uint8)
        self._state = np.zeros(row_kernel.STATE_SIZE, np.int64)
        self._at = self._end = self._packet_number = 0
        self._receive: Callable[[memoryview], int] = lambda _: 0
        self._columns: ColumnBuffers | None = None
        self._definitions: list[bytes] = []
        self._nulls: Set[str] = frozenset()
        self._batch_bytes: int | None = None

    def read_definitions(self, wire: Any, count: int) -> list[bytes]:
        """Read the definitions of ``count`` columns, from the second packet of an answer."""
        # Bypass the driver's buffer: if it contained the end of an answer, its readinto1 would wait for more.
        self._receive, self._at, self._end, self._packet_number = wire._rfile.raw.readinto, 0, 0, 2
        buffered = wire._rfile.read(len(wire._rfile.peek()))  # what the driver has already received
        self._make_room(len(buffered))
        self._data[: len(buffered)] = np.frombuffer(buffered, np.uint8)
        self._end = len(buffered)
        definitions = [self._read_packet() for _ in range(count)]
        if not wire.client_flag & wire.server_capabilities & CLIENT.DEPRECATE_EOF:
            self._read_packet()
        return definitions

    def prepare(self, definitions: list[bytes], schema: pa.Schema, nulls: Set[str], batch_bytes: int | None) -> None:
        """Prepare to read rows with these column definitions.

        :param batch_bytes: bytes of allocated buffers at which the rows are returned as a batch.
        """
        self._batch_bytes = batch_bytes
        space = self._columns
        known = (
            space is not None
            and schema.equals(space.schema)
            and (batch_bytes is None or space.allocated_bytes < batch_bytes)
        )
        if known and definitions == self._definitions and nulls == self._nulls:
            return
        if len(definitions) != len(schema):
            raise OtherColumnsError(f"the server sends {len(definitions)} columns, not {len(schema)}", _ALTERED)
        kinds = []
        for field, definition in zip(schema, definitions, strict=True):
            # After six strings, the last one the column's name: 12, character set, length, type, flags, decimals.
            tail = definition[-13:]
            charset, flags = int.from_bytes(tail[1:3], "little"), int.from_bytes(tail[8:10], "little")
            kind = kind_and_scale(tail[7], flags, charset, tail[10], field.type)
            if kind is None:
                raise OtherColumnsError(
                    f"column {field.name}: the server's type {tail[7]} is not {field.type}", _ALTERED
                )
            kinds.append(
                (kind[0], 1) if kind[0] in (row_kernel.DATE, row_kernel.DATETIME) and field.name in nulls else kind
            )
        self._columns, self._definitions, self._nulls = ColumnBuffers(schema, tuple(kinds)), definitions, nulls

    def read_rows(self) -> Iterator[pa.RecordBatch]:
        """Read the rows up to the end of the answer, in batches."""
        buffers_of_columns, state = self._columns, self._state
        assert buffers_of_columns is not None
        batches: list[pa.RecordBatch] = []
        state[:] = 0
        while True:
            yield from batches
            batches.clear()
            state[row_kernel.DATA_AT], state[row_kernel.PACKET_NUMBER] = self._at, self._packet_number
            why = row_kernel.read_rows(
                self._data, self._end, buffers_of_columns.column_lines, buffers_of_columns.row_capacity, state
            )
            self._at, self._packet_number = int(state[row_kernel.DATA_AT]), int(state[row_kernel.PACKET_NUMBER])
            if why == row_kernel.MULTI_PACKET_ROW:
                why = self._read_large_row(batches)
            if why == row_kernel.NEED_DATA:
                self._receive_more(int(state[row_kernel.WANTED_BYTES]))
            elif why == row_kernel.NOT_A_ROW:
                break
            elif why != row_kernel.ROW_READ:
                self._handle_stop(why, batches)
        last = self._read_packet()
        if last[0] == 0xFF:
            raise_mysql_exception(last)  # the server failed in the middle of the result
        if last[0] != 0xFE:
            raise _malformed("a packet that is neither a row nor an end")
        yield buffers_of_columns.copy_batch(int(state[row_kernel.ROW]))
        if buffers_of_columns.allocated_bytes > _MAX_KEPT_BYTES:
            self._columns = None

    def _read_large_row(self, batches: list[pa.RecordBatch]) -> int:
        """Read a row that spans several packets."""
        space, state, packet = self._columns, self._state, bytearray(self._read_packet())
        assert space is not None
        size = len(packet)
        data = np.frombuffer(packet + bytes(PADDING), np.uint8)
        while True:
            if state[row_kernel.ROW] == space.row_capacity:
                space.grow_rows()
            why = int(row_kernel.read_row(data, 0, size, space.column_lines, state[row_kernel.ROW], state))
            if why == row_kernel.ROW_READ:
                state[row_kernel.ROW] += 1
                return why
            self._handle_stop(why, batches)

    def _handle_stop(self, why: int, batches: list[pa.RecordBatch]) -> None:
        """Do what the kernel needs before it can continue, or raise the error that it found."""
        space, state = self._columns, self._state
        assert space is not None
        column = int(state[row_kernel.FAILED_COLUMN])
        full = self._batch_bytes is not None and space.allocated_bytes >= self._batch_bytes and state[row_kernel.ROW]
        if why == row_kernel.NEED_ROWS and not full:
            space.grow_rows()
        elif why in (row_kernel.NEED_ROWS, row_kernel.NEED_ROOM):
            if full or (state[row_kernel.WANTED_BYTES] > buffers.MAX_STRING_BYTES and state[row_kernel.ROW]):
                batches.append(space.copy_batch(int(state[row_kernel.ROW])))
                state[row_kernel.ROW] = 0
            else:
                space.grow_column(column, int(state[row_kernel.WANTED_BYTES]))
        elif why == row_kernel.INVALID_VALUE:
            raise UnsupportedValue(
                column, "date", f"{_format_date(self._data, int(state[row_kernel.WANTED_BYTES]))} is not a date"
            )
        else:
            raise _malformed(
                "packets out of order" if why == row_kernel.OUT_OF_SEQUENCE else "a row that cannot be understood"
            )

    def _read_packet(self) -> bytes:
        pieces = []
        while True:
            self._ensure(4)
            size = int.from_bytes(self._data[self._at : self._at + 3].tobytes(), "little")
            if self._data[self._at + 3] != self._packet_number:
                raise _malformed("packets out of order")
            self._ensure(4 + size)
            pieces.append(self._data[self._at + 4 : self._at + 4 + size].tobytes())
            self._at, self._packet_number = self._at + 4 + size, (self._packet_number + 1) & 255
            if size < _LARGEST_PACKET:
                return b"".join(pieces)

    def _ensure(self, size: int) -> None:
        while self._end - self._at < size:
            self._receive_more(size)

    def _receive_more(self, size: int) -> None:
        """Receive the available bytes, after making room for ``size`` unread bytes."""
        left = self._end - self._at
        if self._at and (not left or self._at + size > len(self._data) - PADDING):
            self._data[:left] = self._data[self._at : self._end].copy()
            self._at, self._end = 0, left
        self._make_room(size)
        got = self._receive(memoryview(self._data)[self._end : len(self._data) - PADDING])
        if not got:
            raise TransientError("the server closed the connection in the middle of a result", "Run again")
        self._end += got

    def _make_room(self, size: int) -> None:
        if self._at + size > len(self._data) - PADDING:
            larger: Any = np.empty(size + _RECEIVE_BYTES + PADDING, np.uint8)
            larger[: self._end] = self._data[: self._end]
            self._data = larger


_readers: WeakKeyDictionary[Connection[Any], _RowReader] = WeakKeyDictionary()
_ALTERED = "If the table was altered, start with a fresh sink.path"


def _malformed(what: str) -> DamageError:
    return DamageError(f"the server's answer cannot be understood: {what}")


def _format_date(data: Any, at: int) -> str:
    """Format the date at an offset of the received data: its length, then year, month and day."""
    if not data[at]:
        return "0000-00-00"
    return f"{int(data[at + 1]) | int(data[at + 2]) << 8:04d}-{data[at + 3]:02d}-{data[at + 4]:02d}"
