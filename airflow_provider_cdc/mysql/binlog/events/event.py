"""One event of the binlog, and how its reader stops at one that cannot be followed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn

from airflow_provider_cdc.model.errors import REPORT_REMEDY, TerminalError


@dataclass(frozen=True, slots=True)
class BinlogEvent:
    """One event of the binlog.

    :param type: event type code.
    :param timestamp: seconds since the epoch, as the header says: when the statement started.
    :param body: what follows the header, without checksum.
    :param file: binlog file.
    :param position: where the event ends in the file. Events that the server makes up (heartbeats, the rotate and
        format events at the start of a stream) stand where the stream stands.
    :param start: where it starts.
    :param server_id: id of the server that wrote it first.
    :param flags: of its header.
    """

    type: int
    timestamp: int
    body: memoryview
    file: str
    position: int
    start: int
    server_id: int = 0
    flags: int = 0

    @property
    def location(self) -> str:
        """The place for messages: ``file:start``."""
        return f"{self.file}:{self.start}"


def fail_at_event(event: BinlogEvent, what: str, remedy: str = REPORT_REMEDY) -> NoReturn:
    """Stop at an event.

    :param what: what is wrong; its place is added.
    :raises TerminalError: always.
    """
    raise TerminalError(f"{what}, at {event.location} (event type {event.type})", remedy)


def fail_table_at_event(event: BinlogEvent, table: str, what: str, first: str = "") -> NoReturn:
    """Stop at an event because of one table.

    :param table: ``database.table``.
    :param what: what is wrong; its place is added.
    :param first: what has to be done before the table is read again, if anything.
    :raises TerminalError: always.
    """
    message = f"{what}, at {event.location} (event type {event.type})"
    raise TerminalError.for_table(message, table, place=event.location, first=first)
