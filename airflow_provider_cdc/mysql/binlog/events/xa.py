"""XA transactions: their rows are logged at XA PREPARE, but become visible only at XA COMMIT."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import closing

from airflow_provider_cdc.model.definition_history import CapturedTables
from airflow_provider_cdc.model.errors import TransientError
from airflow_provider_cdc.model.offset import Position
from airflow_provider_cdc.mysql.binlog.events.binlog_source import OpenStreamAt
from airflow_provider_cdc.mysql.binlog.events.rows_event import RowsEvent
from airflow_provider_cdc.mysql.binlog.events.transactions import Transaction, read_transactions


class PreparedXaRows:
    """Keeps the rows of XA transactions from XA PREPARE until they end.

    :param known_rows: rows of the transactions that are already prepared at the start of reading, by XA name.
    :param look_back: finds the rows of a committed transaction that was prepared before the start of reading.
    :param captured: definitions of the captured tables.
    """

    def __init__(
        self,
        known_rows: Mapping[str, tuple[RowsEvent, ...]],
        look_back: Callable[[Transaction], tuple[RowsEvent, ...]],
        captured: CapturedTables,
    ) -> None:
        self._rows, self._look_back, self._captured = dict(known_rows), look_back, captured

    def visible_rows(self, transaction: Transaction) -> tuple[RowsEvent, ...]:
        """Return the row events that become visible with a transaction; call this in binlog order."""
        if transaction.xa_finished is None:
            self.track(transaction)
            return transaction.rows
        rows = self._rows.pop(transaction.xa_finished, None)
        if not transaction.xa_committed:
            return ()
        if rows is None:
            rows = self._look_back(transaction)
        # A re-snapshotted table already has everything that became visible before; what counts is not when rows were
        # written, but when they became visible.
        here = Position(transaction.file, transaction.start_position)
        return tuple(event for event in rows if self._captured[event.schema.id].at(here) is not None)

    def track(self, transaction: Transaction) -> None:
        """Record what a transaction prepares or finishes, without returning its changes."""
        if transaction.xa_prepared is not None:
            self._rows[transaction.xa_prepared] = transaction.prepared_rows
        if transaction.xa_finished is not None:
            self._rows.pop(transaction.xa_finished, None)


def format_xa_entry(xid: str, at: Position | None) -> str:
    """Format an open XA transaction for an offset: its name and, if it has captured rows, where it begins."""
    return xid if at is None else f"{xid} {at.file}:{at.position}"


def parse_xa_entry(text: str) -> tuple[str, Position | None]:
    """Parse the output of :func:`format_xa_entry`."""
    xid, _, place = text.partition(" ")
    file, _, position = place.rpartition(":")
    return xid, Position(file, int(position)) if place else None


def read_prepared_rows(
    entries: Iterable[str],
    open_at: OpenStreamAt,
    captured: CapturedTables,
) -> dict[str, tuple[RowsEvent, ...]]:
    """Read the rows of prepared XA transactions from the binlog.

    :param entries: an offset's open XA transactions.
    :param open_at: opens a binlog stream at a position.
    :param captured: definitions of the captured tables.
    :returns: row events by XA name.
    :raises TransientError: if an entry's position has no such XA PREPARE.
    """
    rows_by_xid: dict[str, tuple[RowsEvent, ...]] = {}
    for text in entries:
        xid, at = parse_xa_entry(text)
        rows_by_xid[xid] = ()
        if at is not None:
            with closing(open_at(at)) as stream:
                transaction = next(
                    t for t in read_transactions(stream, captured, stream.collations) if isinstance(t, Transaction)
                )
            if transaction.xa_prepared != xid:
                raise TransientError(f"there is no XA PREPARE of {xid} at {at}", "Run again")
            rows_by_xid[xid] = transaction.prepared_rows
    return rows_by_xid
