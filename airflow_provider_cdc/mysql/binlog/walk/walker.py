"""The binlog as batches of typed changes: machine code for ordinary transactions, the plain code for all else.

The machine code walks blocks as they come from the socket. What it does not know, and what is not as it should be, is
taken by the plain code, event by event: the checks of :mod:`.stream`, then the assembler of :mod:`.transactions`. Both
share one state, so they take turns in the middle of a transaction, too.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
from zstandard import ZstdDecompressor

from airflow_provider_cdc.core.changes import in_order
from airflow_provider_cdc.core.definitions import Captured
from airflow_provider_cdc.core.offset import Position
from airflow_provider_cdc.core.schema import TableSchema
from airflow_provider_cdc.core.unfit import UnfitValue, in_binlog
from airflow_provider_cdc.exceptions import REPORT, TerminalError, TornFileError, TransientError
from airflow_provider_cdc.mysql.binlog.events.binlog_stream import BinlogStream, Event
from airflow_provider_cdc.mysql.binlog.events.event_types import TABLE_MAP, TRANSACTION_PAYLOAD
from airflow_provider_cdc.mysql.binlog.events.judge import LookUp
from airflow_provider_cdc.mysql.binlog.events.table_map import TableMap, table_of
from airflow_provider_cdc.mysql.binlog.events.transactions import (
    Assembler,
    OpenTransaction,
    Reached,
    RowsEvent,
    Transaction,
)
from airflow_provider_cdc.mysql.binlog.kernels import row as row_kernel
from airflow_provider_cdc.mysql.binlog.kernels import walk as walk_kernel
from airflow_provider_cdc.mysql.binlog.kernels import walk_state
from airflow_provider_cdc.mysql.binlog.kernels.checksum import crc_tables
from airflow_provider_cdc.mysql.binlog.walk.blocks import Blocks
from airflow_provider_cdc.mysql.binlog.walk.space import Only, Space
from airflow_provider_cdc.mysql.binlog.walk.unpacked import Unpacked
from airflow_provider_cdc.mysql.machine.primitives import SLACK
from airflow_provider_cdc.mysql.server.charsets import UNICODE, Decoders

_RUNS = 4096
NEVER = 1 << 62
_MOST = (1 << 31) - 64  # offsets have 31 bits
_CHANGES = {"insert": row_kernel.INSERT, "update": row_kernel.UPDATE, "delete": row_kernel.DELETE}
_CRC = crc_tables()
_PAYLOAD = bytes([TRANSACTION_PAYLOAD])


@dataclass(frozen=True, slots=True)
class Step:
    """How far the binlog has been walked.

    :param file: binlog file.
    :param position: end of the last whole transaction, or a place between transactions.
    :param ended: transactions that have ended since the last step.
    :param rows: changes of captured tables in them, where rows are only counted; an update is one.
    :param gtids: their GTIDs, runs of one source in one text: ``uuid:7-9``, ``uuid:tag:7-9``; of MariaDB the last one:
        ``0-1-9``.
    :param item: a transaction that is more than its rows: TRUNCATE, a change of a definition, or one that began as XA;
        its rows, if any, have not been decoded: see :meth:`Walker.add`. It is the last one of the step.
    :param open: whether another transaction has been begun.
    :param reached: end of the last event, in the file that is being read.
    """

    file: str
    position: int
    ended: int
    rows: int
    gtids: tuple[str, ...]
    item: Transaction | None
    open: bool
    reached: int

    def is_beyond(self, start: Position, size: int) -> bool:
        """Whether so many bytes of binlog lie between a place and the last event, in its file.

        A stretch ends with the transaction that makes it as large as it may be. So if one is open when the stretch has
        that size, it is the last one, and ends where the stretch does.
        """
        return self.open and self.reached - (start.position if start.file == self.file else 0) >= size


class Walker:
    """Walks a binlog stream; the changes are kept until they are taken.

    :param stream: an open stream, from the start of a transaction on; nothing else may read from it.
    :param captured: the definitions of captured tables.
    :param seq_of: ``_cdc_seq`` of position 0 of a binlog file.
    :param texts: see :class:`~airflow_provider_cdc.mysql.binlog.walk.space.Space`.
    :param budget: bytes of rows after which a step is made, also inside of a transaction.
    :param both: whether updates give their old image, too, as ``b``.
    :param count_only: whether rows are only counted, not decoded.
    :param named: whether :meth:`names` tells the GTIDs of transactions with rows.
    :param tell_ddl: see :func:`~airflow_provider_cdc.mysql.binlog.events.transactions.read_transactions`.
    :param detours: see :class:`~airflow_provider_cdc.mysql.binlog.events.judge.Judge`.
    """

    def __init__(
        self,
        stream: BinlogStream,
        captured: Captured,
        seq_of: Callable[[str], int],
        texts: Decoders = UNICODE,
        *,
        budget: int = 16 << 20,
        both: bool = False,
        count_only: bool = False,
        named: bool = False,
        tell_ddl: bool = False,
        detours: LookUp | None = None,
    ) -> None:
        self._stream, self._seq_of, self._texts = stream, seq_of, texts
        self._assembler = Assembler(captured, tell_ddl, detours)
        self._spaces: list[Space] = []
        self._slots: dict[int, int] = {}  # by the identity of the table map
        self._told: dict[int, tuple[Any, int]] = {}  # by table id: body of the table map, slot
        self._state: Any = np.zeros(walk_state.STATE, np.int64)
        self._blocks = Blocks(stream, self._state)
        self._inner: Any = np.zeros(row_kernel.STATE, np.int64)
        self._runs: Any = np.zeros((_RUNS, walk_state.RUN_FIELDS), np.int64)
        self._gtids: list[str] = []
        self._names: dict[int, str] = {}
        self._tx: OpenTransaction | None = None
        self._tx_number, self._held = -1, 0
        self._unpacked: Unpacked | None = None  # the compressed transaction that is being walked
        self._decompressor, self._outside = ZstdDecompressor(), 0
        self._set_aside: dict[int, int] = {}  # table ids that are for the plain code, and the statement of each
        self._touched: Any = np.zeros(1, np.int64)
        self._failure: TransientError | TornFileError | None = None
        self._lay_out()
        self._maps: Any = np.full((64, walk_state.MAP_FIELDS), -1, np.int64)
        state = self._state
        state[walk_state.BOTH], state[walk_state.COUNT_ONLY], state[walk_state.NAMED] = both, count_only, named
        state[walk_state.BUDGET] = budget
        state[walk_state.MARIADB] = stream.is_mariadb
        state[walk_state.SAFE] = stream.position
        self._safe_file = stream.file
        self._to_kernel()

    def steps(self, until: Position | None = None, rows: int = NEVER) -> Iterator[Step]:
        """Walk on; ends with the stream, and after the step that reaches ``until``.

        A step is made before waiting for the server, so what has come is never held back.

        :param rows: where rows are counted: how many to walk; the transaction with the last of them is the last one.
        """
        if self._failure is not None:
            raise self._failure
        state, item, moved = self._state, None, True
        state[walk_state.MOST] = rows
        while True:
            to = NEVER
            if until is not None and self._stream.file == until.file:
                to = until.position
            state[walk_state.LIMIT] = to
            why = self._walk()
            if why == walk_state.EVENT:
                try:
                    going, item = self._event()
                except (TransientError, TornFileError) as error:
                    self._failure = error
                    yield self._step(None)  # what was walked before is done
                    raise
                if not going:
                    yield self._step(None)
                    return
            elif why == walk_state.MORE and self._unpacked is not None:
                if not self._unpacked.fill():
                    self._leave()
                continue
            elif why == walk_state.MORE:
                if moved or state[walk_state.ENDED]:
                    yield self._step(None)
                    moved = False
                if not self._blocks.fill(int(state[walk_state.WANTED])):
                    yield self._step(None)
                    return
                continue
            elif why != walk_state.PAUSE:
                self._resolve(why)
                continue
            moved = True
            here = Position(self._safe_file, int(state[walk_state.SAFE]))
            far = until is not None and until <= here
            over = (far or state[walk_state.COUNTED] >= state[walk_state.MOST]) and not state[walk_state.OPEN]
            if item is not None or why == walk_state.PAUSE or over:
                yield self._step(item)
                item = None
            if over:
                return

    @property
    def held(self) -> int:
        """Bytes of rows that have been decoded since changes were last taken."""
        return self._held + int(self._state[walk_state.BYTES])

    def take(self, only: Only | None = None) -> list[tuple[TableSchema, pa.RecordBatch]]:
        """The changes since the last time, a batch a table, in binlog order.

        Inside of a transaction they may be taken if the server told how long it is (``can_take``).

        :param only: changes may be left out if there are none for which this is true.
        :raises TerminalError: for bytes that are not text, and damaged documents.
        """
        self._held = self._state[walk_state.BYTES] = 0
        if self._state[walk_state.COUNT_ONLY]:
            return []
        found: dict[tuple[str, str], tuple[TableSchema, list[pa.RecordBatch]]] = {}
        for space in self._spaces:
            if space.rows and only is not None and not space.has(*only):
                space.forget()
            elif space.rows:
                schema = space.table.schema
                found.setdefault(schema.id, (schema, []))[1].append(self._batch(space))
        return [(schema, _together(schema, batches)) for schema, batches in found.values()]

    def names(self) -> dict[int, str]:
        """GTIDs by ``_cdc_seq`` of the transactions with rows since the last time, that of the open one included."""
        self._drain()
        state, names, self._names = self._state, self._names, {}
        if state[walk_state.OPEN] and state[walk_state.EXPECTED]:
            known = self._tx is not None and self._tx_number == state[walk_state.TRANSACTION]
            gtid = self._tx.gtid if known and self._tx is not None else self._gtid_text()
            names[int(state[walk_state.BASE] + state[walk_state.EXPECTED])] = gtid
        return names

    def add(self, rows: RowsEvent, seq: int, commit_us: int) -> None:
        """Decode a row event that becomes visible here, between two transactions."""
        self._decode(rows, self._slot(rows.table), seq, commit_us)

    @property
    def can_take(self) -> bool:
        """Whether the numbers of all changes are known: not inside of a transaction of a server that does not tell."""
        return not self._state[walk_state.OPEN] or bool(self._state[walk_state.EXPECTED])

    def expect_end(self, end: Position) -> None:
        """Number the changes of the open transaction as one that ends there; that is checked when it does."""
        state = self._state
        if state[walk_state.OPEN] and not state[walk_state.EXPECTED]:
            state[walk_state.EXPECTED] = end.position
            for slot in self._touched[: state[walk_state.TOUCHED]].tolist():
                space = self._spaces[slot]
                space.stamp(int(space.line[row_kernel.OPEN_ROW]), self._seq_of(end.file) + end.position)

    @property
    def is_split(self) -> bool:
        """Whether a transaction is open of which changes have been taken."""
        state = self._state
        changed = self._touched[: state[walk_state.TOUCHED]].tolist() if state[walk_state.OPEN] else []
        return any(self._spaces[slot].line[row_kernel.TAKEN] for slot in changed)

    def rescue(self) -> list[tuple[TableSchema, pa.RecordBatch]]:
        """The changes of whole transactions, when the stream has broken."""
        state = self._state
        if state[walk_state.OPEN]:
            for slot in self._touched[: state[walk_state.TOUCHED]].tolist():
                self._spaces[slot].cut(int(self._spaces[slot].line[row_kernel.OPEN_ROW]))
        return self.take()

    # ------------------------------------------------------------ with the machine code

    def _walk(self) -> int:
        source = self._unpacked or self._blocks
        return int(
            walk_kernel.walk(
                source.data,
                source.end,
                self._state,
                self._inner,
                self._maps,
                self._tables,
                self._lines,
                self._touched,
                self._runs,
                _CRC,
            )
        )

    def _resolve(self, why: int) -> None:
        """Do what has to be done before the machine code can go on."""
        state = self._state
        if why == walk_state.SPLIT:
            raise TerminalError(
                f"the transaction at {self._stream.file}:{state[walk_state.START]} does not end where it said",
                "run again; if it stays, start with a fresh sink.path",
            )
        self._make_space(self._spaces[int(state[walk_state.TABLE])], why, (self._unpacked or self._blocks).data)

    def _make_space(self, space: Space, why: int, data: Any) -> None:
        column = int(self._inner[row_kernel.COLUMN]) - int(space.line[row_kernel.FIRST])
        wanted = int(self._inner[row_kernel.WANTED])
        if why == row_kernel.ROWS:
            space.more_rows()
        elif why == row_kernel.ROOM and wanted < _MOST:
            space.make_room(column, wanted)
        elif why == row_kernel.ROOM:
            raise TerminalError(
                f"an event of {space.table.schema.label} with more than 2 GiB in one column",
                REPORT,
            )
        else:
            place = f"{self._stream.file}:{int(self._state[walk_state.POSITION])}"
            schema = space.table.schema
            found = schema.columns[column] if self._inner[row_kernel.COLUMN] >= 0 else None
            if why == row_kernel.VALUE:
                raise in_binlog(schema, found, "date", space.why(column, data, wanted), place)
            raise in_binlog(schema, found, "damaged", "damaged value", place)

    def _lay_out(self) -> None:
        """One array for the lines of all tables, and one for the lines of all their columns."""
        count = sum(len(s.lines) for s in self._spaces)
        tables: Any = np.zeros((max(1, len(self._spaces)), row_kernel.TABLE_FIELDS), np.int64)
        lines: Any = np.zeros((max(1, count), row_kernel.FIELDS), np.int64)
        first = 0
        for i, space in enumerate(self._spaces):
            space.move(tables[i], lines[first : first + len(space.lines)], first)
            first += len(space.lines)
        touched: Any = np.zeros(len(tables), np.int64)
        touched[: len(self._touched)] = self._touched
        self._tables, self._lines, self._touched = tables, lines, touched

    def _lay_out_maps(self, size: int) -> None:
        said = {int(line[walk_state.ID]): int(line[walk_state.SAID]) for line in self._maps}
        self._maps = np.full((size, walk_state.MAP_FIELDS), -1, np.int64)
        for table_id, (body, slot) in self._told.items():
            self._put(table_id, body, slot, said.get(table_id, -1))

    def _put(self, table_id: int, body: Any, slot: int, said: int) -> None:
        mask = len(self._maps) - 1
        at = (table_id * 0x9E37_79B1) & mask
        while self._maps[at, walk_state.ID] not in (-1, table_id):
            at = (at + 1) & mask
        self._maps[at] = (table_id, slot, body.ctypes.data, len(body) - SLACK, said)

    # ------------------------------------------------------------ with the plain code

    def _event(self) -> tuple[bool, Transaction | None]:
        """Take one event the plain way; (whether there is more, a transaction that ended)."""
        if self._unpacked is not None:
            self._from_kernel()
            event: Event | None = self._unpacked.take()
        else:
            packet = self._blocks.packet()
            if packet is None:
                return False, None
            if packet[:1] == b"\0" and packet[5:6] == _PAYLOAD:
                self._enter(packet)
                return True, None
            self._from_kernel()
            event = self._stream.accept(packet)
        if event is None:
            return False, None
        item = self._assemble(event)
        self._to_kernel()
        return True, item

    def _enter(self, packet: bytes) -> None:
        """Walk the events inside of a compressed transaction from now on."""
        state, stream = self._state, self._stream
        stream.position = int(state[walk_state.POSITION])
        event = stream.accept(packet)
        assert event is not None
        self._unpacked = Unpacked(event, state, self._decompressor)
        self._outside, state[walk_state.AT] = int(state[walk_state.AT]), 0
        state[walk_state.PACKED], state[walk_state.POSITION] = True, stream.position
        self._unpacked.fill()

    def _leave(self) -> None:
        """Go on behind it."""
        state = self._state
        if state[walk_state.OPEN]:
            place = f"{self._stream.file}:{self._stream.position}"
            raise TerminalError(f"a compressed transaction without its end, before {place}", REPORT)
        self._unpacked, state[walk_state.AT], state[walk_state.PACKED] = None, self._outside, False

    def _assemble(self, event: Event) -> Transaction | None:
        assembler, state = self._assembler, self._state
        was, known = assembler.open, len(assembler.open.rows) if assembler.open else 0
        found = None
        for result in assembler.take(event):
            if isinstance(result, Reached):
                state[walk_state.SAFE], self._safe_file = result.position, result.file
            else:
                found = result
        now = assembler.open
        if now is not None:
            if now is not was:
                state[walk_state.STATEMENT] += 1
                state[walk_state.TRANSACTION] += 1
                state[walk_state.TOUCHED], state[walk_state.EXPECTED] = 0, 0
                known = 0
            # Rows of XA transactions that are to be decoded are kept as they are: they may never become visible.
            if not now.xa or state[walk_state.COUNT_ONLY]:
                for rows in now.rows[known:]:
                    self._add(rows, now.commit_us)
                now.rows[known:] = [replace(r, data=memoryview(b"")) for r in now.rows[known:]]
            if event.type == TABLE_MAP:
                self._announce(event, now)
            elif not now.tables:
                state[walk_state.STATEMENT] += 1  # its end: what was announced counts no more
        if found is None:
            return None
        self._ended(found)
        late = was is not None and was.xa and found.rows
        return found if late or found.xa_prepared or found.xa_finished or found.emptied or found.altered else None

    def _announce(self, event: Event, now: OpenTransaction) -> None:
        """Let the machine code know a table map."""
        table_id = int.from_bytes(event.body[:6], "little")
        table = now.tables[table_id]
        body: Any = np.zeros(len(event.body) - 8 + SLACK, np.uint8)
        body[:-SLACK] = np.frombuffer(event.body[8:], np.uint8)
        if table is None and table_of(event.body)[1] in self._assembler.captured:
            # Whether its rows count depends on the place, so they are for the plain code.
            self._set_aside[table_id] = int(self._state[walk_state.STATEMENT])
            return
        slot = -1 if table is None else self._slot(table)
        if table_id not in self._told and 2 * len(self._told) + 2 > len(self._maps):
            if len(self._told) > 1 << 16:
                self._told.clear()  # ids that are no more; those that are will be told again
            self._lay_out_maps(2 * len(self._maps))
        self._told[table_id] = body, slot
        self._put(table_id, body, slot, int(self._state[walk_state.STATEMENT]))

    def _slot(self, table: TableMap) -> int:
        if id(table) not in self._slots:
            same = [i for i, s in enumerate(self._spaces) if s.fits(table)]
            if not same:
                self._spaces.append(Space(table, self._texts, count_only=bool(self._state[walk_state.COUNT_ONLY])))
                self._lay_out()
                same = [len(self._spaces) - 1]
            self._slots[id(table)] = same[0]
        return self._slots[id(table)]

    def _add(self, event: RowsEvent, commit_us: int) -> None:
        """Decode rows of a transaction that the plain code reads."""
        slot, state = self._slot(event.table), self._state
        space = self._spaces[slot]
        if space.line[row_kernel.OPEN] != state[walk_state.TRANSACTION]:
            space.line[row_kernel.OPEN] = state[walk_state.TRANSACTION]
            space.line[row_kernel.OPEN_ROW], space.line[row_kernel.TAKEN] = space.rows, 0
            self._touched[state[walk_state.TOUCHED]] = slot
            state[walk_state.TOUCHED] += 1
        self._decode(event, slot, int(state[walk_state.BASE] + state[walk_state.EXPECTED]), commit_us)

    def _decode(self, event: RowsEvent, slot: int, seq: int, commit_us: int) -> None:
        space, state = self._spaces[slot], self._state
        state[walk_state.BYTES] += len(event.data)
        present, at = (0 if event.present else -1), len(event.present)
        end = at + len(event.data)
        data: Any = np.empty(end + SLACK, np.uint8)
        data[:at], data[at:end] = np.frombuffer(event.present, np.uint8), event.data
        change, both = _CHANGES[event.kind], state[walk_state.BOTH]
        while True:
            why = row_kernel.read_rows(
                data, at, end, slot, change, present, both, seq, commit_us, self._tables, self._lines, self._inner
            )
            if why == row_kernel.DONE:
                return
            at = int(self._inner[row_kernel.AT])
            self._make_space(space, why, data)

    def _ended(self, found: Transaction) -> None:
        """A transaction has ended by the plain code: number its rows, or forget them if they were taken back."""
        state = self._state
        seq = self._seq_of(found.file) + found.position
        if found.xa_prepared is not None and state[walk_state.TOUCHED] and not state[walk_state.COUNT_ONLY]:
            # Its rows would have to wait for XA COMMIT, and they have not been kept.
            raise TerminalError(f"an XA PREPARE of what did not begin as XA, at {found.file}:{found.position}", REPORT)
        for slot in self._touched[: state[walk_state.TOUCHED]].tolist():
            space = self._spaces[slot]
            first, is_gone = int(space.line[row_kernel.OPEN_ROW]), bool(space.line[row_kernel.TAKEN])
            wrong = state[walk_state.EXPECTED] != found.position or not found.rows
            if is_gone and wrong:
                self._resolve(walk_state.SPLIT)
            if not found.rows:
                space.cut(first)
            elif state[walk_state.COUNT_ONLY]:
                state[walk_state.COUNTED] += space.rows - first
            else:
                space.stamp(first, seq)
        state[walk_state.TOUCHED] = 0
        state[walk_state.ENDED] += 1
        state[walk_state.SAFE], self._safe_file = found.position, found.file
        self._drain()
        if found.gtid:
            self._gtids.append(found.gtid)
            if state[walk_state.NAMED]:
                self._names[seq] = found.gtid

    def _from_kernel(self) -> None:
        """Give the plain code what the machine code knows."""
        state, stream, assembler = self._state, self._stream, self._assembler
        stream.position = int(state[walk_state.POSITION])
        if not state[walk_state.OPEN]:
            assembler.open = None
            return
        number = int(state[walk_state.TRANSACTION])
        if self._tx is None or self._tx_number != number:
            start, commit_us = int(state[walk_state.START]), int(state[walk_state.COMMIT])
            self._tx, self._tx_number = OpenTransaction(self._gtid_text(), commit_us, stream.file, start), number
        tx = assembler.open = self._tx
        tx.begun = bool(state[walk_state.BEGUN])
        said = self._maps[self._maps[:, walk_state.SAID] == state[walk_state.STATEMENT]]
        tables = {slot: space.table for slot, space in enumerate(self._spaces)}
        tx.tables = {int(m[walk_state.ID]): tables.get(int(m[walk_state.SLOT])) for m in said}
        number = int(state[walk_state.STATEMENT])
        tx.tables |= {table_id: None for table_id, said_in in self._set_aside.items() if said_in == number}
        if tx.xa:
            return
        changed, place = self._touched[: state[walk_state.TOUCHED]].tolist(), f"{stream.file}:{tx.start}"
        tx.rows = [RowsEvent(tables[slot], "insert", memoryview(b""), place) for slot in changed]

    def _to_kernel(self) -> None:
        """Give the machine code what the plain code knows."""
        state, stream, tx = self._state, self._stream, self._assembler.open
        state[walk_state.POSITION] = stream.position
        state[walk_state.CHECKED] = stream.has_checksums
        state[walk_state.BASE] = self._seq_of(stream.file)
        state[walk_state.OPEN] = tx is not None
        if tx is not None:
            state[walk_state.BEGUN] = walk_state.XA if tx.xa else int(tx.begun)
            if tx is not self._tx:
                self._tx, self._tx_number = tx, int(state[walk_state.TRANSACTION])
                state[walk_state.START], state[walk_state.COMMIT] = tx.start, tx.commit_us
                state[walk_state.KIND] = walk_state.IN_WORDS if tx.gtid else walk_state.ANONYMOUS

    def _gtid_text(self) -> str:
        source = self._state[walk_state.KIND : walk_state.KIND + walk_state.SOURCE_FIELDS].tolist()
        number = int(self._state[walk_state.GNO])
        return _text(*source, number, number)

    def _drain(self) -> None:
        """Turn the machine code's GTIDs into text."""
        for line in self._runs[: self._state[walk_state.RUNS]].tolist():
            *run, seq = line
            self._gtids.append(_text(*run))
            if seq:
                self._names[seq] = self._gtids[-1]
        self._state[walk_state.RUNS] = 0

    def _step(self, item: Transaction | None) -> Step:
        state = self._state
        self._drain()
        gtids, self._gtids = tuple(self._gtids), []
        ended, rows = int(state[walk_state.ENDED]), int(state[walk_state.COUNTED])
        self._held += int(state[walk_state.BYTES])
        state[walk_state.MOST] -= rows
        state[walk_state.ENDED] = state[walk_state.COUNTED] = state[walk_state.BYTES] = 0
        safe, reached, is_open = (int(state[i]) for i in (walk_state.SAFE, walk_state.POSITION, walk_state.OPEN))
        return Step(self._safe_file, safe, ended, rows, gtids, item, bool(is_open), reached)

    def _batch(self, space: Space) -> pa.RecordBatch:
        try:
            return space.take()
        except UnfitValue as error:
            schema = space.table.schema
            place = f"_cdc_seq {error.seq}"
            raise in_binlog(schema, schema.columns[error.column], error.reason, error.what, place) from None


def _together(table: TableSchema, batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    """Changes of one table that came in several layouts, since ``binlog_row_metadata`` was changed: in binlog order."""
    try:
        return in_order(batches)
    except ValueError as error:
        raise TerminalError(
            f"binlog_row_metadata was changed inside of a transaction that changes {table.label} ({error}): the order "
            "of its changes is not known",
            "change it while nobody writes; now start with a fresh sink.path",
        ) from None


def _text(kind: int, high: int, low: int, *more: int) -> str:
    *tag, first, last = more
    if kind == walk_state.OF_MARIADB:
        return f"{high}-{low}-{last}"
    if kind == walk_state.OF_MYSQL:
        numbers = f"{first}-{last}" if first < last else f"{last}"
        uuid = UUID(int=(high & (1 << 64) - 1) << 64 | low & (1 << 64) - 1)
        name = struct.pack("<4q", *tag).rstrip(b"\0").decode()
        return f"{uuid}:{name}:{numbers}" if name else f"{uuid}:{numbers}"
    return ""
