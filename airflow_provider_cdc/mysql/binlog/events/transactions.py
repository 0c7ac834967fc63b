"""Assemble events into whole transactions.

Nothing is skipped silently: every event type is either handled, or known to carry no rows, or raises an error with its
type, its position and a remedy. Rows of captured tables are kept as raw bytes; rows of other tables are ignored based
on their table id.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from airflow_provider_cdc.ddl.affected_tables import Statement, classify_statement, format_xid
from airflow_provider_cdc.model.definition_history import CapturedTables
from airflow_provider_cdc.model.errors import REPORT_REMEDY, DdlError, TerminalError, TornFileError
from airflow_provider_cdc.model.offset import Position
from airflow_provider_cdc.model.table_names import fold_table
from airflow_provider_cdc.mysql.binlog.events.event import BinlogEvent, fail_at_event, fail_table_at_event
from airflow_provider_cdc.mysql.binlog.events.event_types import (
    BETWEEN_TRANSACTIONS,
    EXECUTE_LOAD_QUERY,
    HEARTBEATS,
    INCIDENT,
    PARTIAL_UPDATE_ROWS,
    QUERY,
    QUERY_COMPRESSED,
    SKIPPED_EVENTS,
    TABLE_MAP,
    TRANSACTION_PAYLOAD,
    TRANSACTION_STARTS,
    XA_PREPARE,
    XID,
)
from airflow_provider_cdc.mysql.binlog.events.gtid_event import parse_gtid_event
from airflow_provider_cdc.mysql.binlog.events.payload import inner_events
from airflow_provider_cdc.mysql.binlog.events.query import QueryEvent, parse_query_event
from airflow_provider_cdc.mysql.binlog.events.rows_event import ROWS_OPERATIONS, RowsEvent, parse_rows_event
from airflow_provider_cdc.mysql.binlog.events.spill import spill_to_disk
from airflow_provider_cdc.mysql.binlog.events.statement_guard import (
    THREAD_SPECIFIC_FLAG,
    IndirectWritesLookup,
    StatementGuard,
)
from airflow_provider_cdc.mysql.binlog.events.table_map import TableMap, parse_table_map, parse_table_map_head
from airflow_provider_cdc.mysql.client.collations import NO_COLLATIONS, Collations

_STMT_END = 1
#: Bytes of an XA transaction's rows that are kept in memory.
_MAX_HELD_BYTES = 16 << 20
_NO_TABLE = 0xFF_FFFF  # table id of a "dummy" rows event, which only ends a statement
FRESH_SINK_REMEDY = "To copy the new definition, use a fresh sink.path (or remove the old one) and run again"


@dataclass(frozen=True, slots=True)
class Transaction:
    """A whole transaction, or a statement that forms one on its own.

    :param file: binlog file.
    :param position: end of the transaction; of a compressed one, the end of the outer event.
    :param start_position: start of its GTID event.
    :param gtid: such as ``uuid:7`` or ``uuid:tag:7``, on MariaDB ``domain-server-7``; empty if the server assigns none.
    :param commit_us: commit time on this server, in microseconds since the epoch, UTC.
    :param rows: row events of captured tables, in order.
    :param xa_prepared: name of the XA transaction that is prepared here.
    :param prepared_rows: its row events of captured tables, which must not be visible before its XA COMMIT.
    :param xa_finished: name of the XA transaction that is ended here by XA COMMIT or XA ROLLBACK.
    :param xa_committed: whether that was an XA COMMIT.
    :param emptied_table: captured table that is emptied here by TRUNCATE.
    :param altered_tables: captured tables that are changed here by another DDL, or whose rows do not match their
        definition; only with ``yield_ddl``, otherwise an error is raised.
    :param ddl: the DDL statement, if it forms a transaction on its own.
    :param may_be_temporary: whether the DDL may affect a temporary table of the same name.
    """

    file: str
    position: int
    start_position: int
    gtid: str
    commit_us: int
    rows: tuple[RowsEvent, ...] = ()
    xa_prepared: str | None = None
    prepared_rows: tuple[RowsEvent, ...] = ()
    xa_finished: str | None = None
    xa_committed: bool = False
    emptied_table: tuple[str, str] | None = None
    altered_tables: frozenset[tuple[str, str]] = frozenset()
    ddl: QueryEvent | None = None
    may_be_temporary: bool = False


def read_transactions(
    events: Iterable[BinlogEvent],
    captured: CapturedTables,
    collations: Collations = NO_COLLATIONS,
    *,
    yield_ddl: bool = False,
) -> Iterator[Transaction | Position]:
    """Assemble events into whole transactions.

    :param events: events from the start of a transaction on.
    :param captured: definitions of the captured tables.
    :param collations: the server's collations; not needed without captured tables.
    :param yield_ddl: report definition changes in ``Transaction.altered_tables`` instead of raising an error.
    :returns: every transaction, including those without captured rows, and every position that is reached while none
        is open.
    :raises TerminalError: for anything that cannot be parsed or applied.
    :raises DdlError: for a statement that changes a captured table.
    """
    assembler = TransactionAssembler(captured, collations, yield_ddl)
    for event in events:
        if event.type == TRANSACTION_PAYLOAD:
            for inner in inner_events(event):
                yield from assembler.feed(inner)
            if assembler.open_transaction is not None:
                fail_at_event(event, "a compressed transaction without its end")
        else:
            yield from assembler.feed(event)


@dataclass(slots=True)
class OpenTransaction:
    """The transaction being read; see :class:`Transaction`."""

    gtid: str
    commit_us: int
    file: str
    start: int
    has_begun: bool = False
    is_xa: bool = False
    is_idle_alter: bool = False
    emptied_table: tuple[str, str] | None = None
    altered_tables: set[tuple[str, str]] = field(default_factory=set)
    ddl: QueryEvent | None = None
    may_be_temporary: bool = False
    rows: list[RowsEvent] = field(default_factory=list)
    table_maps: dict[int, TableMap | None] = field(default_factory=dict)
    held_bytes: int = 0
    spilled_events: int = 0

    def add_rows(self, rows: RowsEvent) -> None:
        """Add a row event; the rows of a large XA transaction, which may wait for long, are moved to disk."""
        self.rows.append(rows)
        self.held_bytes += len(rows.images)
        if self.is_xa and self.held_bytes >= _MAX_HELD_BYTES:
            fresh = self.rows[self.spilled_events :]
            data = spill_to_disk([row.images for row in fresh])
            self.rows[self.spilled_events :] = [
                replace(row, images=part) for row, part in zip(fresh, data, strict=True)
            ]
            self.held_bytes, self.spilled_events = 0, len(self.rows)


class TransactionAssembler:
    """Assembles the events of a binlog into transactions.

    ``open_transaction`` is the transaction being read. Callers that also process events in other ways may set it.

    :param captured: definitions of the captured tables.
    :param collations: the server's collations.
    :param yield_ddl: see :func:`read_transactions`.
    :param indirect_writes: see :class:`~airflow_provider_cdc.mysql.binlog.events.statement_guard.StatementGuard`.
    """

    def __init__(
        self,
        captured: CapturedTables,
        collations: Collations,
        yield_ddl: bool = False,
        indirect_writes: IndirectWritesLookup | None = None,
    ) -> None:
        self.captured, self._collations, self.yield_ddl = captured, collations, yield_ddl
        self._guard = StatementGuard(captured, indirect_writes)
        self.open_transaction: OpenTransaction | None = None
        # Table maps repeat constantly, so those that have been checked are cached by definition and content.
        self.checked_table_maps: dict[tuple[str, bytes], TableMap] = {}

    def feed(self, event: BinlogEvent) -> Iterator[Transaction | Position]:
        """Process the next event.

        :returns: the transaction or position that it completes, if any.
        :raises TerminalError: for an event that cannot be parsed or applied.
        :raises DdlError: for a statement that changes a captured table.
        """
        kind = event.type
        if kind == TABLE_MAP:
            self._handle_table_map(event)
        elif kind in ROWS_OPERATIONS:
            self._handle_rows(event)
        elif kind in TRANSACTION_STARTS:
            self._begin_transaction(event)
        elif kind in (QUERY, QUERY_COMPRESSED, EXECUTE_LOAD_QUERY):
            yield from self._handle_statement(event, parse_query_event(event))
        elif kind == XID:
            yield self._end_transaction(event)
        elif kind == XA_PREPARE:
            yield self._handle_xa_prepare(event)
        elif kind in HEARTBEATS:
            if self.open_transaction is None:
                yield Position(event.file, event.position)
        elif kind in BETWEEN_TRANSACTIONS:
            if self.open_transaction is not None:
                raise TornFileError(
                    f"transaction {self.open_transaction.gtid} is cut off, at {event.location} (event type "
                    f"{event.type})",
                    "Nothing proves that the binlog continues here without a gap: start with a fresh sink.path",
                )
            yield Position(event.file, event.position)
        elif kind not in SKIPPED_EVENTS:
            self._fail_unsupported(event)

    def _fail_unsupported(self, event: BinlogEvent) -> None:
        if event.type == INCIDENT:
            fail_at_event(
                event,
                "the server reports lost events (INCIDENT)",
                "Rows are missing from the binlog: start with a fresh sink.path",
            )
        if event.type == PARTIAL_UPDATE_ROWS:
            tx = self._require_transaction(event)
            table_id = int.from_bytes(event.body[:6], "little")
            if table_id not in tx.table_maps:
                fail_at_event(event, f"rows of an unannounced table id {table_id}")
            if table := tx.table_maps[table_id]:
                fail_table_at_event(
                    event,
                    table.schema.label,
                    f"a partial JSON update of {table.schema.label}",
                    "Set binlog_row_value_options='' in the sessions that write",
                )
            self._handle_statement_end(event, tx)
            return
        fail_at_event(event, f"event type {event.type}, which is not known", REPORT_REMEDY)

    def _require_transaction(self, event: BinlogEvent) -> OpenTransaction:
        if self.open_transaction is None:
            fail_at_event(event, "an event outside of a transaction", "start at a transaction's start")
        return self.open_transaction

    def _begin_transaction(self, event: BinlogEvent) -> None:
        if self.open_transaction is not None:
            fail_at_event(event, f"transaction {self.open_transaction.gtid} is cut off")
        try:
            begin = parse_gtid_event(event)
        except ValueError as error:
            fail_at_event(event, f"a GTID event that cannot be read ({error})")
        self.open_transaction = OpenTransaction(
            begin.gtid, begin.commit_us, event.file, event.start, begin.has_begun, begin.is_xa, begin.is_idle_alter
        )

    def _end_transaction(
        self,
        event: BinlogEvent,
        prepared: str | None = None,
        finished: str | None = None,
        committed: bool = False,
        keep: bool = True,
    ) -> Transaction:
        tx = self._require_transaction(event)
        self.open_transaction = None
        return Transaction(
            file=tx.file,
            position=event.position,
            start_position=tx.start,
            gtid=tx.gtid,
            commit_us=tx.commit_us,
            rows=tuple(tx.rows) if keep and prepared is None else (),
            xa_prepared=prepared,
            prepared_rows=tuple(tx.rows) if prepared is not None else (),
            xa_finished=finished,
            xa_committed=committed,
            emptied_table=tx.emptied_table,
            altered_tables=frozenset(tx.altered_tables),
            ddl=tx.ddl,
            may_be_temporary=tx.may_be_temporary,
        )

    def _handle_xa_prepare(self, event: BinlogEvent) -> Transaction:
        try:
            one_phase, format_id, gtrid_size, bqual_size = struct.unpack_from("<Biii", event.body)
        except struct.error:
            fail_at_event(event, "a cut off XA_PREPARE event")
        if one_phase:
            return self._end_transaction(event)
        name = bytes(event.body[13 : 13 + gtrid_size + bqual_size])
        return self._end_transaction(event, prepared=format_xid(format_id, name[:gtrid_size], name[gtrid_size:]))

    def _handle_statement(self, event: BinlogEvent, query: QueryEvent) -> Iterator[Transaction]:
        statement = classify_statement(query.sql, query.database, query.quoting)
        tx = self._require_transaction(event)
        if not tx.is_idle_alter:
            self._check_statement(event, statement, query)
        if statement.kind in ("begin", "xa_start"):
            tx.has_begun, tx.is_xa = True, statement.kind == "xa_start"
        elif statement.kind == "commit":
            if tx.rows:  # only the first table is reported: the others follow once it is suspended
                fail_table_at_event(
                    event,
                    tx.rows[0].schema.label,
                    f"a transaction that changed {tx.rows[0].schema.label} ends with COMMIT instead of an XID. It also "
                    "changed a table whose engine has no two-phase commit, such as Aria, so the server commits its "
                    "InnoDB rows out of binlog order, and may lose them if it is killed",
                    "Make the other table ENGINE=InnoDB (or Aria with TRANSACTIONAL=0)",
                )
            yield self._end_transaction(event)
        elif statement.kind == "rollback":
            yield self._end_transaction(event, keep=False)
        elif statement.kind in ("xa_commit", "xa_rollback"):
            yield self._end_transaction(event, finished=statement.xid, committed=statement.kind == "xa_commit")
        elif statement.kind == "rollback_to":
            if tx.rows:
                fail_table_at_event(
                    event,
                    tx.rows[0].schema.label,
                    f"ROLLBACK TO a savepoint in a transaction that changed {tx.rows[0].schema.label} and a "
                    "non-transactional table",
                    "Do not mix storage engines in one transaction",
                )
        elif not tx.has_begun:
            yield self._end_transaction(event)  # a DDL statement, which forms a transaction on its own

    def _check_statement(self, event: BinlogEvent, statement: Statement, query: QueryEvent) -> None:
        """Record or reject a statement that changes a captured table."""
        changed = self._guard.altered_tables(event, statement)
        if not changed:
            return
        tx = self._require_transaction(event)
        emptied_history = self.captured.get(statement.emptied_table) if statement.emptied_table is not None else None
        if emptied_history is not None and len({fold_table(schema.id) for schema in changed}) == 1 and not tx.has_begun:
            if emptied_history.at(Position(event.file, event.start)) is None:
                return  # this table is not captured here; the match is another one, whose name differs in case
            self._guard.check_truncate(event, statement)
            tx.emptied_table = statement.emptied_table
        elif self.yield_ddl:
            tx.altered_tables |= {schema.id for schema in changed}
            tx.ddl = None if tx.has_begun else query
            tx.may_be_temporary = bool(event.flags & THREAD_SPECIFIC_FLAG)
        else:
            message = f"{statement.summary} on captured table {changed[0].label}, at {event.location}"
            raise DdlError(message, FRESH_SINK_REMEDY, table=changed[0].label, place=event.location)

    def _handle_table_map(self, event: BinlogEvent) -> None:
        tx = self._require_transaction(event)
        try:
            table_id, name, at = parse_table_map_head(event.body)
        except IndexError:
            fail_at_event(event, "a cut off table map")
        schema, is_suspended = None, False
        if history := self.captured.get(name):
            schema = history.at(Position(event.file, event.start))
            if schema is None and tx.is_xa:  # its rows may become visible where the table is captured
                schema, is_suspended = history.versions[0][1], True
        if schema is None:
            tx.table_maps[table_id] = None
            return
        known = schema.fingerprint(), bytes(event.body[8:])
        if known not in self.checked_table_maps:
            try:
                self.checked_table_maps[known] = parse_table_map(
                    event.body, at, schema, event.location, self._collations
                )
            except TerminalError:
                if is_suspended:  # rows from before the DDL, which waited for the XA transaction to end
                    tx.table_maps[table_id] = None
                    return
                if not self.yield_ddl:
                    raise
                tx.altered_tables.add(name)
                tx.table_maps[table_id] = None
                return
        tx.table_maps[table_id] = self.checked_table_maps[known]

    def _handle_rows(self, event: BinlogEvent) -> None:
        tx = self._require_transaction(event)
        body = event.body
        table_id = int.from_bytes(body[:6], "little")
        if table_id in tx.table_maps:
            if table := tx.table_maps[table_id]:
                tx.add_rows(parse_rows_event(event, table))
        elif table_id != _NO_TABLE:
            fail_at_event(event, f"rows of an unannounced table id {table_id}", "start at a transaction's start")
        self._handle_statement_end(event, tx)

    def _handle_statement_end(self, event: BinlogEvent, tx: OpenTransaction) -> None:
        if int.from_bytes(event.body[6:8], "little") & _STMT_END:
            tx.table_maps.clear()
