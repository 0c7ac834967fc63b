"""How far a walk through the binlog has come."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_provider_cdc.model.offset import Position
from airflow_provider_cdc.mysql.binlog.events.transactions import Transaction

#: A position, or a number of rows, that no walk gets to.
NEVER = 1 << 62


@dataclass(frozen=True, slots=True)
class WalkStep:
    """How far the binlog has been walked.

    :param file: binlog file.
    :param position: end of the last whole transaction, or a place between transactions.
    :param ended_transactions: transactions that have ended since the last step.
    :param counted_rows: changes of captured tables in them, where rows are only counted; an update is one.
    :param gtids: their GTIDs, runs of one source in one text: ``uuid:7-9``, ``uuid:tag:7-9``; of MariaDB the last one:
        ``0-1-9``.
    :param transaction: a transaction that is more than its rows: TRUNCATE, a change of a definition, or one that began
        as XA; its rows, if any, have not been decoded: see :meth:`BinlogWalker.add`. It is the last one of the step.
    :param has_open_transaction: whether another transaction has been begun.
    :param reached_position: end of the last event, in the file that is being read.
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
        """Whether so many bytes of binlog lie between a place and the last event, in its file.

        A stretch ends with the transaction that makes it as large as it may be. So if one is open when the stretch has
        that size, it is the last one, and ends where the stretch does.
        """
        return (
            self.has_open_transaction
            and self.reached_position - (start.position if start.file == self.file else 0) >= size
        )
