"""One binlog event, and the errors raised at an event that cannot be applied."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn

from airflow_provider_cdc.model.errors import REPORT_REMEDY, TerminalError


@dataclass(frozen=True, slots=True)
class BinlogEvent:
    """One binlog event.

    :param type: event type code.
    :param timestamp: start of the statement in seconds since the epoch, from the header.
    :param body: content after the header, without checksum.
    :param file: binlog file.
    :param position: end of the event in the file. Artificial events (heartbeats, and the rotate and format events at
        the start of a stream) have the stream's current position.
    :param start: start of the event in the file.
    :param server_id: id of the server that wrote it first.
    :param flags: flags of its header.
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
        """The event's location for messages: ``file:start``."""
        return f"{self.file}:{self.start}"


def fail_at_event(event: BinlogEvent, what: str, remedy: str = REPORT_REMEDY) -> NoReturn:
    """Raise an error at an event.

    :param what: what is wrong; the location is added.
    :raises TerminalError: always.
    """
    raise TerminalError(f"{what}, at {event.location} (event type {event.type})", remedy)


def fail_table_at_event(event: BinlogEvent, table: str, what: str, first: str = "") -> NoReturn:
    """Raise an error at an event that affects a single table.

    :param table: ``database.table``.
    :param what: what is wrong; the location is added.
    :param first: what to do before the table is re-snapshotted, if anything.
    :raises TerminalError: always.
    """
    message = f"{what}, at {event.location} (event type {event.type})"
    raise TerminalError.for_table(message, table, place=event.location, first=first)
