"""Progress of a walk through the binlog."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_provider_cdc.model.offset import Position
from airflow_provider_cdc.mysql.binlog.events.transactions import Transaction

#: A position or row count that no walk reaches.
NEVER = 1 << 62


@dataclass(frozen=True, slots=True)
class WalkStep:
    """Progress since the previous step.

    :param file: binlog file.
    :param position: end of the last whole transaction, or a position between transactions.
    :param ended_transactions: number of transactions that ended since the last step.
    :param counted_rows: number of changes to captured tables in them, with ``count_only``; an update counts as one.
    :param gtids: their GTIDs, with consecutive ones of a source joined: ``uuid:7-9``, ``uuid:tag:7-9``; for MariaDB
        only the last one: ``0-1-9``.
    :param transaction: last transaction of the step if it is more than rows: a TRUNCATE, a definition change, or a
        transaction that began as XA. Its rows, if any, are not decoded yet: see :meth:`BinlogWalker.decode_rows`.
    :param has_open_transaction: whether another transaction has begun.
    :param reached_position: end of the last event, in the current file.
    """

    file: str
    position: int
    ended_transactions: int
    counted_rows: int
    gtids: tuple[str, ...]
    transaction: Transaction | None
    has_open_transaction: bool
    reached_position: int

    def is_beyond(self, start: Position, size: int) -> bool:
        """Return whether a transaction is open and at least ``size`` bytes of binlog follow ``start``.

        A range ends with the transaction that makes it reach its maximum size. So if a transaction is open once the
        range has that size, it is the last one, and the range ends where it does.

        :param size: bytes, counted within the current file.
        """
        return (
            self.has_open_transaction
            and self.reached_position - (start.position if start.file == self.file else 0) >= size
        )
