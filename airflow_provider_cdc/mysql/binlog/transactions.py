"""From events to whole transactions.

Nothing is skipped silently: every event type is either understood, or known to carry no rows, or stops the stream
with its type, its place and what to do. Rows of captured tables are kept as raw bytes; of other tables only the table
id is looked at.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, NoReturn
from uuid import UUID

from airflow_provider_cdc.core.ddl import Statement, classify, xid_text
from airflow_provider_cdc.core.schema import TableSchema
from airflow_provider_cdc.exceptions import TerminalError
from airflow_provider_cdc.mysql.binlog.payload import inner_events
from airflow_provider_cdc.mysql.binlog.query import read_query
from airflow_provider_cdc.mysql.binlog.stream import FORMAT_DESCRIPTION, HEARTBEAT, HEARTBEAT_V2, ROTATE, Event
from airflow_provider_cdc.mysql.binlog.table_map import TableMap, packed_int, read_table_map, table_of

QUERY, STOP, XID, TABLE_MAP, INCIDENT = 2, 3, 16, 19, 26
EXECUTE_LOAD_QUERY, GTID, ANONYMOUS_GTID, PREVIOUS_GTIDS = 18, 33, 34, 35
XA_PREPARE, PARTIAL_UPDATE_ROWS, TRANSACTION_PAYLOAD, GTID_TAGGED = 38, 39, 40, 42
_INSERT, _UPDATE, _DELETE = (23, 30), (24, 31), (25, 32)
_KINDS: dict[int, Literal["insert", "update", "delete"]] = {
    **dict.fromkeys(_INSERT, "insert"),
    **dict.fromkeys(_UPDATE, "update"),
    **dict.fromkeys(_DELETE, "delete"),
}
_ROWS_V1 = frozenset({23, 24, 25})
#: Events that stand between transactions and only show how far the log has been read.
_BETWEEN = frozenset({STOP, ROTATE, FORMAT_DESCRIPTION, PREVIOUS_GTIDS})
#: Events that carry no rows, with what they are for.
_WITHOUT_ROWS = {
    5: "INTVAR: value of an AUTO_INCREMENT for the statement that follows; that statement is judged",
    9: "APPEND_BLOCK: file content of a LOAD DATA by statement; the statement that follows is judged",
    11: "DELETE_FILE: takes such a file content back",
    13: "RAND: random seeds for the statement that follows",
    14: "USER_VAR: a user variable for the statement that follows",
    17: "BEGIN_LOAD_QUERY: file content, as APPEND_BLOCK",
    28: "IGNORABLE: by its definition",
    29: "ROWS_QUERY: the text of the statement whose rows follow",
    36: "TRANSACTION_CONTEXT: of group replication, for its certification",
    37: "VIEW_CHANGE: of group replication, membership",
}
_STMT_END = 1
_NO_TABLE = 0xFF_FFFF  # "dummy" rows event that only closes a statement
FRESH = "to take the new definition, start with a fresh sink.path (or remove the old one) and run again"


class DdlError(TerminalError):
    """A statement changed a captured table in a way that the stream cannot follow."""


@dataclass(frozen=True, slots=True)
class RowsEvent:
    """Changed rows of one captured table, not decoded yet.

    :param table: schema and layout.
    :param kind: what happened to the rows.
    :param data: row images one after the other; for updates before and after in turn.
    :param where: place for messages.
    """

    table: TableMap
    kind: Literal["insert", "update", "delete"]
    data: memoryview
    where: str

    @property
    def schema(self) -> TableSchema:
        """The captured table."""
        return self.table.schema


@dataclass(frozen=True, slots=True)
class Transaction:
    """A whole transaction, or a statement that is one by itself.

    :param file: binlog file.
    :param position: end of the whole transaction; of a compressed one the end of the outer event.
    :param start_position: where its GTID event starts.
    :param gtid: such as ``uuid:7``.
    :param commit_us: commit time on this server, microseconds since the epoch, UTC.
    :param rows: row events of captured tables in order.
    :param xa_prepared: name of the XA transaction that ends here prepared (without rows of captured tables).
    :param xa_finished: name of the XA transaction that an XA COMMIT or XA ROLLBACK ends here.
    """

    file: str
    position: int
    start_position: int
    gtid: str
    commit_us: int
    rows: tuple[RowsEvent, ...] = ()
    xa_prepared: str | None = None
    xa_finished: str | None = None


@dataclass(frozen=True, slots=True)
class Reached:
    """The log has been read up to here, and no transaction is open."""

    file: str
    position: int


def read_transactions(
    events: Iterable[Event], captured: Mapping[tuple[str, str], TableSchema]
) -> Iterator[Transaction | Reached]:
    """Assemble events into whole transactions.

    :param events: events from the start of a transaction on.
    :param captured: captured tables by (database, table), spelled as the server spells them.
    :returns: every transaction, also those without captured rows, and every place reached between them.
    :raises TerminalError: for anything that cannot be understood or followed.
    :raises DdlError: for a statement that changes a captured table.
    """
    assembler = _Assembler(captured)
    for event in events:
        if event.type == TRANSACTION_PAYLOAD:
            for inner in inner_events(event):
                yield from assembler.take(inner)
            if assembler.open is not None:
                _stop(event, "a compressed transaction without its end")
        else:
            yield from assembler.take(event)


@dataclass(slots=True)
class _Open:
    """The transaction that is being read."""

    gtid: str
    commit_us: int
    file: str
    start: int
    begun: bool = False
    xa: str | None = None
    rows: list[RowsEvent] = field(default_factory=list)
    tables: dict[int, TableMap | None] = field(default_factory=dict)


class _Assembler:
    def __init__(self, captured: Mapping[tuple[str, str], TableSchema]) -> None:
        self.captured = captured
        self.lower = {(database.lower(), table.lower()): schema for (database, table), schema in captured.items()}
        self.open: _Open | None = None
        # Table maps repeat without end: those that have been checked are known by their bytes.
        self.checked: dict[bytes, TableMap] = {}

    def take(self, event: Event) -> Iterator[Transaction | Reached]:
        kind = event.type
        if kind == TABLE_MAP:
            self.table_map(event)
        elif kind in _KINDS:
            self.rows(event, _KINDS[kind])
        elif kind == GTID:
            self.gtid(event)
        elif kind == QUERY:
            yield from self.statement(event, *read_query(event))
        elif kind == EXECUTE_LOAD_QUERY:
            yield from self.statement(event, *read_query(event, extra=13))
        elif kind == XID:
            yield self.end(event)
        elif kind == XA_PREPARE:
            yield self.xa_prepare(event)
        elif kind in (HEARTBEAT, HEARTBEAT_V2):
            if self.open is None:
                yield Reached(event.file, event.position)
        elif kind in _BETWEEN:
            if self.open is not None:
                _stop(event, f"transaction {self.open.gtid} is cut off")
            yield Reached(event.file, event.position)
        elif kind not in _WITHOUT_ROWS:
            self.refuse(event)

    def refuse(self, event: Event) -> None:
        if event.type == ANONYMOUS_GTID:
            _stop(
                event, "a transaction without GTID", "set gtid_mode=ON on the server, then start with a fresh sink.path"
            )
        if event.type == GTID_TAGGED:
            _stop(
                event,
                "a transaction with a tagged GTID, which is not supported yet",
                "let writers use gtid_next=AUTOMATIC without a tag, then start with a fresh sink.path",
            )
        if event.type == INCIDENT:
            _stop(
                event,
                "the server reports lost events (INCIDENT)",
                "rows are missing from the binlog: start with a fresh sink.path",
            )
        if event.type == PARTIAL_UPDATE_ROWS:
            tx = self.transaction(event)
            table_id = int.from_bytes(event.body[:6], "little")
            if table_id not in tx.tables:
                _stop(event, f"rows of an unannounced table id {table_id}")
            if table := tx.tables[table_id]:
                _stop(
                    event,
                    f"a partial JSON update of {table.schema.label}",
                    "set binlog_row_value_options='' in the sessions that write, then start with a fresh sink.path",
                )
            self.statement_end(event, tx)
            return
        _stop(event, f"event type {event.type}, which is not known", "report this with the server's version")

    def transaction(self, event: Event) -> _Open:
        if self.open is None:
            _stop(event, "an event outside of a transaction", "set gtid_mode=ON; start at a transaction's start")
        return self.open

    def gtid(self, event: Event) -> None:
        if self.open is not None:
            _stop(event, f"transaction {self.open.gtid} is cut off")
        body = event.body
        try:
            number = int.from_bytes(body[17:25], "little")
            gtid = f"{UUID(bytes=bytes(body[1:17]))}:{number}"
            # flags, uuid, number, kind of clock, two clock values; then the commit time in 7 bytes, whose top bit says
            # that the time on the origin follows.
            commit_us = int.from_bytes(body[42:49], "little") & ((1 << 55) - 1)
        except ValueError:
            _stop(event, "a cut off GTID event")
        self.open = _Open(gtid, commit_us or event.timestamp * 1_000_000, event.file, event.start)

    def end(
        self, event: Event, prepared: str | None = None, finished: str | None = None, keep: bool = True
    ) -> Transaction:
        tx = self.transaction(event)
        self.open = None
        return Transaction(
            file=tx.file,
            position=event.position,
            start_position=tx.start,
            gtid=tx.gtid,
            commit_us=tx.commit_us,
            rows=tuple(tx.rows) if keep else (),
            xa_prepared=prepared,
            xa_finished=finished,
        )

    def xa_prepare(self, event: Event) -> Transaction:
        try:
            one_phase, format_id, gtrid_size, bqual_size = struct.unpack_from("<Biii", event.body)
        except struct.error:
            _stop(event, "a cut off XA_PREPARE event")
        if one_phase:
            return self.end(event)
        tx = self.transaction(event)
        if tx.rows:
            _stop(
                event,
                f"an XA transaction on {tx.rows[0].schema.label}: XA on captured tables is not supported yet",
                "let its writer use plain transactions (or XA COMMIT ... ONE PHASE), then start with a fresh sink.path",
            )
        name = bytes(event.body[13 : 13 + gtrid_size + bqual_size])
        return self.end(event, prepared=xid_text(format_id, name[:gtrid_size], name[gtrid_size:]))

    def statement(self, event: Event, database: str, sql: str) -> Iterator[Transaction]:
        found = classify(sql, database)
        tx = self.transaction(event)
        self.check(event, found)
        if found.kind in ("begin", "xa_start"):
            tx.begun = True
        elif found.kind == "commit":
            yield self.end(event)
        elif found.kind == "rollback":
            yield self.end(event, keep=False)
        elif found.kind in ("xa_commit", "xa_rollback"):
            yield self.end(event, finished=found.xid)
        elif found.kind == "rollback_to":
            if tx.rows:
                _stop(
                    event,
                    f"ROLLBACK TO a savepoint in a transaction that changed {tx.rows[0].schema.label} and a "
                    "non-transactional table",
                    "do not mix storage engines in one transaction; start with a fresh sink.path",
                )
        elif not tx.begun:
            yield self.end(event)  # a statement of its own: DDL

    def check(self, event: Event, found: Statement) -> None:
        """Stop at a statement that changes a captured table. Its text stays unsaid: it may hold secrets."""
        hit = sorted(self.lower[table].label for table in found.tables if table in self.lower)
        hit += sorted(schema.label for (database, _), schema in self.lower.items() if database in found.databases)
        if found.anything and not hit:
            hit = sorted(schema.label for schema in self.lower.values())[:1]
        if not hit:
            return
        if found.kind == "dml":
            raise DdlError(
                f"{found.what} logged by statement may change captured table {hit[0]}, at {event.where}",
                "its rows are not in the binlog: let writers use binlog_format=ROW, then start with a fresh sink.path",
            )
        raise DdlError(f"{found.what} on captured table {hit[0]}, at {event.where}", FRESH)

    def table_map(self, event: Event) -> None:
        tx = self.transaction(event)
        try:
            table_id, name, at = table_of(event.body)
        except IndexError:
            _stop(event, "a cut off table map")
        schema = self.captured.get(name)
        if schema is None:
            tx.tables[table_id] = None
            return
        known = bytes(event.body[8:])
        if known not in self.checked:
            self.checked[known] = read_table_map(event.body, at, schema, event.where)
        tx.tables[table_id] = self.checked[known]

    def rows(self, event: Event, kind: Literal["insert", "update", "delete"]) -> None:
        tx = self.transaction(event)
        body = event.body
        table_id = int.from_bytes(body[:6], "little")
        if table_id in tx.tables:
            if table := tx.tables[table_id]:
                tx.rows.append(self.captured_rows(event, kind, table))
        elif table_id != _NO_TABLE:
            _stop(event, f"rows of an unannounced table id {table_id}", "start at a transaction's start")
        self.statement_end(event, tx)

    def statement_end(self, event: Event, tx: _Open) -> None:
        if int.from_bytes(event.body[6:8], "little") & _STMT_END:
            tx.tables.clear()

    def captured_rows(self, event: Event, kind: Literal["insert", "update", "delete"], table: TableMap) -> RowsEvent:
        body, label = event.body, table.schema.label
        try:
            at = 8 if event.type in _ROWS_V1 else 8 + int.from_bytes(body[8:10], "little")
            count, at = packed_int(body, at)
        except IndexError:
            _stop(event, f"a cut off rows event of {label}")
        if count != len(table.columns):
            _stop(event, f"rows of {label} with {count} columns, {len(table.columns)} expected")
        size, full = (count + 7) // 8, (1 << count) - 1
        for _ in range(2 if kind == "update" else 1):
            if int.from_bytes(body[at : at + size], "little") & full != full:
                _stop(
                    event,
                    f"row images of {label} are not full",
                    "set binlog_row_image=FULL in the sessions that write (it can differ from the global value), "
                    "then start with a fresh sink.path",
                )
            at += size
        return RowsEvent(table, kind, body[at:], event.where)


def _stop(event: Event, what: str, remedy: str = "report this with the server's version") -> NoReturn:
    raise TerminalError(f"{what}, at {event.where} (event type {event.type})", remedy)
