"""Walk the binlog and collect typed changes: compiled kernels for ordinary transactions, plain Python for the rest.

The walk kernel processes blocks as received from the socket. Events that it does not know or finds irregular are
processed one by one in Python: checked by ``events.binlog_stream``, then assembled by ``events.transactions``. Both
share one state, so they can alternate even within a transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from airflow_provider_cdc.model.definition_history import CapturedTables
from airflow_provider_cdc.model.errors import REPORT_REMEDY, TerminalError, TornFileError, TransientError
from airflow_provider_cdc.model.offset import Position
from airflow_provider_cdc.model.schema import TableSchema
from airflow_provider_cdc.mysql.binlog.events.binlog_stream import BinlogStream
from airflow_provider_cdc.mysql.binlog.events.event import BinlogEvent
from airflow_provider_cdc.mysql.binlog.events.event_types import TABLE_MAP, TRANSACTION_PAYLOAD
from airflow_provider_cdc.mysql.binlog.events.rows_event import RowsEvent
from airflow_provider_cdc.mysql.binlog.events.statement_guard import IndirectWritesLookup
from airflow_provider_cdc.mysql.binlog.events.table_map import TableMap, parse_table_map_head
from airflow_provider_cdc.mysql.binlog.events.transactions import OpenTransaction, Transaction, TransactionAssembler
from airflow_provider_cdc.mysql.binlog.kernels import row_kernel, walk_kernel, walk_state
from airflow_provider_cdc.mysql.binlog.kernels.checksum import crc_tables
from airflow_provider_cdc.mysql.binlog.walk.blocks import BlockBuffer
from airflow_provider_cdc.mysql.binlog.walk.change_buffer import KeyFilter
from airflow_provider_cdc.mysql.binlog.walk.change_buffers import ChangeBuffers
from airflow_provider_cdc.mysql.binlog.walk.gtid_collector import GtidCollector
from airflow_provider_cdc.mysql.binlog.walk.payload_unpacker import PayloadUnpacker
from airflow_provider_cdc.mysql.binlog.walk.step import NEVER, WalkStep
from airflow_provider_cdc.mysql.client.charsets import UNICODE_DECODERS, CharsetDecoders
from airflow_provider_cdc.native.primitives import PADDING

_CRC = crc_tables()
_PAYLOAD = bytes([TRANSACTION_PAYLOAD])


class BinlogWalker:
    """Walks a binlog stream and keeps the changes until they are taken.

    :param stream: an open stream at the start of a transaction; nothing else may read from it.
    :param captured: definitions of the captured tables.
    :param seq_of: returns the ``_cdc_seq`` of position 0 of a binlog file.
    :param decoders: see :class:`~airflow_provider_cdc.mysql.binlog.walk.change_buffer.ChangeBuffer`.
    :param byte_budget: bytes of rows after which a step is made, even inside a transaction.
    :param with_before_images: whether each update also yields its old image, as ``b``.
    :param count_only: whether rows are counted instead of decoded.
    :param with_gtids: whether :meth:`take_gtids` returns the GTIDs of transactions with rows.
    :param yield_ddl: see :func:`~airflow_provider_cdc.mysql.binlog.events.transactions.read_transactions`.
    :param indirect_writes: see :class:`~airflow_provider_cdc.mysql.binlog.events.statement_guard.StatementGuard`.
    """

    def __init__(
        self,
        stream: BinlogStream,
        captured: CapturedTables,
        seq_of: Callable[[str], int],
        decoders: CharsetDecoders = UNICODE_DECODERS,
        *,
        byte_budget: int = 16 << 20,
        with_before_images: bool = False,
        count_only: bool = False,
        with_gtids: bool = False,
        yield_ddl: bool = False,
        indirect_writes: IndirectWritesLookup | None = None,
    ) -> None:
        self._stream, self._seq_of = stream, seq_of
        self._assembler = TransactionAssembler(captured, stream.collations, yield_ddl, indirect_writes)
        self._state: Any = np.zeros(walk_state.STATE_SIZE, np.int64)
        self._blocks, self._gtids = BlockBuffer(stream, self._state), GtidCollector(self._state)
        self._buffers = ChangeBuffers(self._state, decoders, count_only)
        self._transaction: OpenTransaction | None = None
        self._transaction_number, self._held_bytes = -1, 0
        self._unpacker = PayloadUnpacker(self._blocks, self._state)
        # Tables that only the Python code may read: by table id, the announcing statement and the table map.
        self._python_tables: dict[int, tuple[int, TableMap | None]] = {}
        self._failure: TransientError | TornFileError | None = None
        state = self._state
        state[walk_state.WITH_BEFORE_IMAGES], state[walk_state.COUNT_ONLY] = with_before_images, count_only
        state[walk_state.WITH_GTIDS], state[walk_state.BYTE_BUDGET] = with_gtids, byte_budget
        state[walk_state.MARIADB] = stream.is_mariadb
        state[walk_state.LAST_END] = stream.position
        self._safe_file = stream.file
        self._to_kernel()

    def steps(self, until: Position | None = None, rows: int = NEVER) -> Iterator[WalkStep]:
        """Continue the walk to the end of the stream, or until a step reaches ``until``.

        A step is made before waiting for the server, so changes that have arrived are never held back.

        :param rows: with ``count_only``, the number of rows to walk; the walk ends with the transaction that reaches
            it.
        """
        if self._failure is not None:
            raise self._failure
        state, item, moved = self._state, None, True
        state[walk_state.MAX_COUNTED_ROWS] = rows
        while True:
            to = NEVER
            if until is not None and self._stream.file == until.file:
                to = until.position
            state[walk_state.PAUSE_POSITION] = to
            why = self._run_kernel()
            if why == walk_state.NEED_UNPACKED and self._unpacker.unpack_ahead():
                continue
            if why in (walk_state.FOR_PYTHON, walk_state.NEED_UNPACKED):
                try:
                    going, item = self._handle_event()
                except (TransientError, TornFileError) as error:
                    self._failure = error
                    yield self._make_step(None)  # everything before the error is valid
                    raise
                if not going:
                    yield self._make_step(None)
                    return
            elif why == walk_state.NEED_DATA and state[walk_state.PAYLOAD_MODE]:
                if not self._unpacker.fill():
                    self._leave_payload()
                continue
            elif why == walk_state.NEED_DATA:
                if moved or state[walk_state.ENDED_TRANSACTIONS]:
                    yield self._make_step(None)
                    moved = False
                if not self._blocks.fill(int(state[walk_state.WANTED_BYTES])):
                    yield self._make_step(None)
                    return
                continue
            elif why != walk_state.PAUSE:
                self._handle_stop(why)
                continue
            moved = True
            here = Position(self._safe_file, int(state[walk_state.LAST_END]))
            far = until is not None and until <= here
            far = far or state[walk_state.COUNTED_ROWS] >= state[walk_state.MAX_COUNTED_ROWS]
            over = far and not state[walk_state.IS_OPEN]
            if item is not None or why == walk_state.PAUSE or over:
                yield self._make_step(item)
                item = None
            if over:
                return

    @property
    def held_bytes(self) -> int:
        """Bytes of rows decoded since changes were last taken."""
        return self._held_bytes + int(self._state[walk_state.DECODED_BYTES])

    def take_changes(self, key_filter: KeyFilter | None = None) -> list[tuple[TableSchema, pa.RecordBatch]]:
        """Return the changes since the last call in binlog order, one batch per table.

        Inside a transaction, call this only if :attr:`can_take` is true.

        :param key_filter: a buffer's changes are dropped if none of them matches.
        :raises TerminalError: for bytes that are not valid text, and for damaged documents.
        """
        self._held_bytes = self._state[walk_state.DECODED_BYTES] = 0
        if self._state[walk_state.COUNT_ONLY]:
            return []
        return self._buffers.take_changes(key_filter)

    def take_gtids(self) -> dict[int, str]:
        """Return the GTIDs of transactions with rows since the last call, by ``_cdc_seq``.

        The open transaction is included if its end is known.
        """
        state, names = self._state, self._gtids.take_by_seq()
        if state[walk_state.IS_OPEN] and state[walk_state.TRANSACTION_END]:
            known = self._transaction is not None and self._transaction_number == state[walk_state.TRANSACTION_NUMBER]
            gtid = self._transaction.gtid if known and self._transaction is not None else self._gtids.open_gtid()
            names[int(state[walk_state.FILE_SEQ] + state[walk_state.TRANSACTION_END])] = gtid
        return names

    def decode_rows(self, rows: RowsEvent, seq: int, commit_us: int) -> None:
        """Decode a row event that becomes visible at the current position, between two transactions."""
        self._buffers.decode_rows(rows, seq, commit_us, self._location())

    @property
    def can_take(self) -> bool:
        """Whether the ``_cdc_seq`` of all changes is known; false inside a transaction whose end is not known."""
        return not self._state[walk_state.IS_OPEN] or bool(self._state[walk_state.TRANSACTION_END])

    def expect_end(self, end: Position) -> None:
        """Set where the open transaction is expected to end and number its changes; verified when it ends."""
        state = self._state
        if state[walk_state.IS_OPEN] and not state[walk_state.TRANSACTION_END]:
            state[walk_state.TRANSACTION_END] = end.position
            for space in self._buffers.changed_buffers():
                space.renumber(int(space.table_line[row_kernel.OPEN_FIRST_ROW]), self._seq_of(end.file) + end.position)

    @property
    def is_split(self) -> bool:
        """Whether changes have been taken from a transaction that is still open."""
        if not self._state[walk_state.IS_OPEN]:
            return False
        return any(space.table_line[row_kernel.OPEN_ROWS_TAKEN] for space in self._buffers.changed_buffers())

    def take_complete(self) -> list[tuple[TableSchema, pa.RecordBatch]]:
        """Return the changes of whole transactions only, after the stream has broken."""
        if self._state[walk_state.IS_OPEN]:
            for space in self._buffers.changed_buffers():
                space.truncate(int(space.table_line[row_kernel.OPEN_FIRST_ROW]))
        return self.take_changes()

    # ------------------------------------------------------------ compiled kernels

    def _run_kernel(self) -> int:
        blocks, unpacked, tables = self._blocks, self._unpacker, self._buffers
        return int(
            walk_kernel.walk_packets(
                blocks.data,
                blocks.end,
                unpacked.data,
                unpacked.ahead_lines,
                self._state,
                tables.row_state,
                tables.map_lines,
                tables.table_lines,
                tables.column_lines,
                tables.changed_slots,
                self._gtids.runs,
                _CRC,
            )
        )

    def _handle_stop(self, why: int) -> None:
        """Handle the reason why the kernel stopped, so that it can continue."""
        state = self._state
        if why == walk_state.WRONG_END:
            raise TerminalError(
                f"the transaction at {self._stream.file}:{state[walk_state.START_POSITION]} does not end as expected",
                "Run again. If the error persists, start with a fresh sink.path",
            )
        data = (self._unpacker if state[walk_state.PAYLOAD_MODE] else self._blocks).data
        self._buffers.handle_stop(int(state[walk_state.FAILED_TABLE]), why, data, self._location())

    # ------------------------------------------------------------ plain Python

    def _handle_event(self) -> tuple[bool, Transaction | None]:
        """Process one event in Python; return whether there may be more, and a transaction to report."""
        if self._state[walk_state.PAYLOAD_MODE]:
            self._from_kernel()
            event: BinlogEvent | None = self._unpacker.next_event()
        else:
            packet = self._blocks.next_packet()
            if packet is None:
                return False, None
            if packet[:1] == b"\0" and packet[5:6] == _PAYLOAD:
                self._enter_payload(packet)
                return True, None
            self._from_kernel()
            event = self._stream.parse_packet(packet)
        if event is None:
            return False, None
        item = self._assemble_event(event)
        self._to_kernel()
        return True, item

    def _enter_payload(self, packet: bytes) -> None:
        """Start to walk the events inside a compressed transaction."""
        state, stream = self._state, self._stream
        stream.position = int(state[walk_state.POSITION])
        event = stream.parse_packet(packet)
        assert event is not None
        state[walk_state.POSITION] = stream.position
        self._unpacker.begin_streaming(event)

    def _leave_payload(self) -> None:
        """Continue after a compressed transaction."""
        if self._state[walk_state.IS_OPEN]:
            raise TerminalError(f"a compressed transaction without its end, before {self._location()}", REPORT_REMEDY)
        self._unpacker.end_streaming()

    def _assemble_event(self, event: BinlogEvent) -> Transaction | None:
        assembler, state = self._assembler, self._state
        open_before, transaction = assembler.open_transaction, None
        known = len(open_before.rows) if open_before else 0
        for result in assembler.feed(event):
            if isinstance(result, Position):
                state[walk_state.LAST_END], self._safe_file = result.position, result.file
            else:
                transaction = result
        open_now = assembler.open_transaction
        if open_now is not None:
            if open_now is not open_before:
                state[walk_state.STATEMENT_NUMBER] += 1
                state[walk_state.TRANSACTION_NUMBER] += 1
                state[walk_state.CHANGED_TABLES], state[walk_state.TRANSACTION_END] = 0, 0
                known = 0
            # Rows of XA transactions are kept undecoded: they may never become visible.
            if not open_now.is_xa or state[walk_state.COUNT_ONLY]:
                seq = int(state[walk_state.FILE_SEQ] + state[walk_state.TRANSACTION_END])
                for rows in open_now.rows[known:]:
                    self._buffers.mark_changed(self._buffers.slot_of(rows.table))
                    self._buffers.decode_rows(rows, seq, open_now.commit_us, self._location())
                open_now.rows[known:] = [replace(r, images=memoryview(b"")) for r in open_now.rows[known:]]
            if event.type == TABLE_MAP:
                self._announce_table_map(event, open_now)
            elif not open_now.table_maps:
                state[walk_state.STATEMENT_NUMBER] += 1  # the statement ended: its table maps are no longer valid
        if transaction is None:
            return None
        self._finish_transaction(transaction)
        late = open_before is not None and open_before.is_xa and transaction.rows
        is_xa = late or transaction.xa_prepared or transaction.xa_finished
        return transaction if is_xa or transaction.emptied_table or transaction.altered_tables else None

    def _announce_table_map(self, event: BinlogEvent, now: OpenTransaction) -> None:
        """Tell the kernel about a table map."""
        table_id = int.from_bytes(event.body[:6], "little")
        table = now.table_maps[table_id]
        body: Any = np.zeros(len(event.body) - 8 + PADDING, np.uint8)
        body[:-PADDING] = np.frombuffer(event.body[8:], np.uint8)
        definitions = self._assembler.captured.get(parse_table_map_head(event.body)[1])
        if definitions is not None and (table is None or definitions.at(Position(event.file, event.start)) is None):
            # Whether its rows count depends on the position, or on the end of an XA transaction. The kernel would treat
            # them as rows of a captured table wherever it sees the same table map again.
            self._python_tables[table_id] = int(self._state[walk_state.STATEMENT_NUMBER]), table
            return
        self._buffers.announce_table_map(table_id, body, table)

    def _location(self) -> str:
        return f"{self._stream.file}:{int(self._state[walk_state.POSITION])}"

    def _finish_transaction(self, transaction: Transaction) -> None:
        """Number the rows of a transaction that ended in Python, or discard them if it was rolled back."""
        state = self._state
        seq = self._seq_of(transaction.file) + transaction.position
        has_decoded_rows = state[walk_state.CHANGED_TABLES] and not state[walk_state.COUNT_ONLY]
        if transaction.xa_prepared is not None and has_decoded_rows:  # they would have to wait for XA COMMIT
            raise TerminalError(
                f"XA PREPARE of a transaction that did not begin as XA, at {transaction.file}:{transaction.position}",
                REPORT_REMEDY,
            )
        for space in self._buffers.changed_buffers():
            first = int(space.table_line[row_kernel.OPEN_FIRST_ROW])
            wrong = state[walk_state.TRANSACTION_END] != transaction.position or not transaction.rows
            if wrong and space.table_line[row_kernel.OPEN_ROWS_TAKEN]:
                self._handle_stop(walk_state.WRONG_END)
            if not transaction.rows:
                space.truncate(first)
            elif state[walk_state.COUNT_ONLY]:
                state[walk_state.COUNTED_ROWS] += space.row_count - first
            else:
                space.renumber(first, seq)
        state[walk_state.CHANGED_TABLES] = 0
        state[walk_state.ENDED_TRANSACTIONS] += 1
        state[walk_state.LAST_END], self._safe_file = transaction.position, transaction.file
        self._gtids.add(transaction.gtid, seq)

    def _from_kernel(self) -> None:
        """Copy the kernel's state to the Python code."""
        state, stream, assembler = self._state, self._stream, self._assembler
        stream.position = int(state[walk_state.POSITION])
        if not state[walk_state.IS_OPEN]:
            assembler.open_transaction = None
            return
        number = int(state[walk_state.TRANSACTION_NUMBER])
        if self._transaction is None or self._transaction_number != number:
            start, commit_us = int(state[walk_state.START_POSITION]), int(state[walk_state.COMMIT_US])
            self._transaction = OpenTransaction(self._gtids.open_gtid(), commit_us, stream.file, start)
            self._transaction_number = number
        tx = assembler.open_transaction = self._transaction
        tx.has_begun = bool(state[walk_state.HAS_BEGUN])
        statement = int(state[walk_state.STATEMENT_NUMBER])
        python_tables = {i: table for i, (said_in, table) in self._python_tables.items() if said_in == statement}
        tx.table_maps = self._buffers.announced_table_maps() | python_tables
        if tx.is_xa:
            return
        place = f"{stream.file}:{tx.start}"
        tx.rows = [RowsEvent(s.table_map, "insert", memoryview(b""), place) for s in self._buffers.changed_buffers()]

    def _to_kernel(self) -> None:
        """Copy the Python code's state to the kernel."""
        state, stream, tx = self._state, self._stream, self._assembler.open_transaction
        state[walk_state.POSITION] = stream.position
        state[walk_state.HAS_CHECKSUMS] = stream.has_checksums
        state[walk_state.FILE_SEQ] = self._seq_of(stream.file)
        state[walk_state.IS_OPEN] = tx is not None
        if tx is not None:
            state[walk_state.HAS_BEGUN] = walk_state.BEGUN_XA if tx.is_xa else int(tx.has_begun)
            if tx is not self._transaction:
                self._transaction, self._transaction_number = tx, int(state[walk_state.TRANSACTION_NUMBER])
                state[walk_state.START_POSITION], state[walk_state.COMMIT_US] = tx.start, tx.commit_us
                state[walk_state.GTID_KIND] = walk_state.GTID_IN_PYTHON if tx.gtid else walk_state.ANONYMOUS_KIND
            if tx.altered_tables:  # the end of this transaction must be handled in Python, which reports the DDL
                state[walk_state.GTID_KIND] = walk_state.GTID_IN_PYTHON

    def _make_step(self, item: Transaction | None) -> WalkStep:
        state = self._state
        gtids = self._gtids.take_texts()
        ended, rows = int(state[walk_state.ENDED_TRANSACTIONS]), int(state[walk_state.COUNTED_ROWS])
        self._held_bytes += int(state[walk_state.DECODED_BYTES])
        state[walk_state.MAX_COUNTED_ROWS] -= rows
        state[walk_state.ENDED_TRANSACTIONS] = state[walk_state.COUNTED_ROWS] = state[walk_state.DECODED_BYTES] = 0
        safe, reached, is_open = (int(state[i]) for i in (walk_state.LAST_END, walk_state.POSITION, walk_state.IS_OPEN))
        return WalkStep(self._safe_file, safe, ended, rows, gtids, item, bool(is_open), reached)
