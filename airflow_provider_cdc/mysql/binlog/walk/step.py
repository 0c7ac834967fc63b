"""How far a walk through the binlog has come."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_provider_cdc.model.offset import Position
from airflow_provider_cdc.mysql.binlog.events.transactions import Transaction

#: A position, or a number of rows, that no walk gets to.
NEVER = 1 << 62


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
