"""Binlog positions and offsets, and the one number that orders all transactions of a pipeline."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from airflow_provider_cdc.model.errors import TerminalError
from airflow_provider_cdc.model.json_record import JsonRecord

#: Bits of ``_cdc_seq`` for the end position of a transaction; the file's ordinal uses the bits above.
POSITION_BITS = 41
#: Bits for the ordinal: together they fill the 63 bits of a non-negative number.
ORDINAL_BITS = 63 - POSITION_BITS
_FILE = re.compile(r"(.*\.)(\d+)")


def split_file(file: str) -> tuple[str, int]:
    """Split ``binlog.000017`` into (``binlog.``, 17). File numbers compare as numbers: 999999 < 1000000.

    :raises TerminalError: for a name without a numeric suffix.
    """
    match = _FILE.fullmatch(file)
    if match is None:
        raise TerminalError(
            f"binlog file name {file!r} has no numeric suffix", "Check @@log_bin_basename on the server"
        )
    return match[1], int(match[2])


class Position(JsonRecord, frozen=True, array_like=True):
    """End of a complete transaction in the binlog of one server; in JSON ``[file, position]``.

    :param file: binlog file, such as ``binlog.000017``.
    :param position: byte offset in it (64 bits).
    """

    file: str
    position: int

    def _sort_key(self) -> tuple[int, int]:
        return split_file(self.file)[1], self.position

    def __lt__(self, other: Position) -> bool:
        return self._sort_key() < other._sort_key()

    def __le__(self, other: Position) -> bool:
        return self._sort_key() <= other._sort_key()

    def __str__(self) -> str:
        return f"{self.file}:{self.position}"


class Offset(JsonRecord, frozen=True):
    """A point to resume from: a position on a given server, and the GTIDs at or before it.

    :param server: ``server_uuid``.
    :param file: binlog file.
    :param position: byte offset in it, always the end of a complete transaction.
    :param gtid_set: GTIDs at or before the position, as the server writes them.
    :param open_xa: XA transactions that are prepared and not yet committed at the position: only the xid if it has no
        row of a captured table, otherwise also the position where it begins (``mysql/binlog/events/xa.py``).
    :param already_applied: GTIDs that the sink already has although they come after the position, because this server
        committed in a different order than the previous one.
    :param file_start_time: when the server began the file, in seconds on its own clock: a file of the same name that
        was begun at another time is another file. 0 if unknown.
    :param gtid_mode_on: whether MySQL's ``gtid_mode`` was ON at the position, so that later transactions have GTIDs.
        ``False`` also if that is unknown.
    :param before_ddl: whether the stream must follow a DDL before it reads on. Only set for ends of batches, never for
        a resume point.
    """

    server: str
    file: str
    position: int
    gtid_set: str
    open_xa: tuple[str, ...] = msgspec.field(default=(), name="xa")
    already_applied: str = msgspec.field(default="", name="held")
    file_start_time: int = 0
    gtid_mode_on: bool = False
    before_ddl: bool = False

    @property
    def at(self) -> Position:
        """File and position."""
        return Position(self.file, self.position)

    def to_json(self) -> dict[str, Any]:
        """Return a plain JSON value, in which ``xa`` is always present."""
        return {**super().to_json(), "xa": list(self.open_xa)}


class Timeline(JsonRecord, frozen=True):
    """Maps positions to ``_cdc_seq`` and back.

    A segment is one unbroken sequence of binlog files of one server; a failover starts the next segment.

    :param server: ``server_uuid`` of the segment.
    :param start_file: first binlog file of the segment.
    :param first_ordinal: ordinal of that file; ordinals of one pipeline never decrease.
    :param previous: the segments before this one.
    """

    server: str
    start_file: str
    first_ordinal: int = 1
    previous: Timeline | None = None

    @property
    def segments(self) -> list[Timeline]:
        """All segments, oldest first, each with its predecessors."""
        return [*(self.previous.segments if self.previous else ()), self]

    @property
    def newest_segment(self) -> Timeline:
        """The newest segment without its predecessors.

        No two segments of a pipeline are equal, even for the same server.
        """
        return self.replace(previous=None)

    def with_segment(self, server: str, start_file: str, highest_seq: int) -> Timeline:
        """Return the timeline with one more segment.

        :param server: server of the segment.
        :param start_file: first binlog file of the segment.
        :param highest_seq: the highest ``_cdc_seq`` used so far; all of the new segment are higher.
        """
        return Timeline(server, start_file, (highest_seq >> POSITION_BITS) + 1, self)

    def seq(self, at: Position) -> int:
        """Return the ``_cdc_seq`` of a transaction that ends at ``at``.

        The high bits are the file's ordinal, the low 41 bits the position.

        :param at: a position in this segment.
        :raises TerminalError: for a file of another series or before the segment, or a value too large for its bits.
        """
        prefix, number = split_file(at.file)
        own_prefix, first = split_file(self.start_file)
        if prefix != own_prefix or number < first:
            raise TerminalError(
                f"binlog position {at} does not belong to the series that began with {self.start_file}",
                "The server's binlogs were reset or renamed: start with a fresh sink.path (or remove the old one)",
            )
        ordinal = self.first_ordinal + number - first
        if at.position >= 1 << POSITION_BITS or ordinal >= 1 << ORDINAL_BITS:
            raise TerminalError(
                f"binlog position {at} cannot be numbered: limits are 2 TiB a file and {1 << ORDINAL_BITS:,} files",
                "Start with a fresh sink.path (or remove the old one): files are counted from the pipeline's first",
                place=str(at),
            )
        return ordinal << POSITION_BITS | at.position

    def position(self, seq: int) -> Position:
        """Inverse of :meth:`seq`, for any segment."""
        if self.previous is not None and seq >> POSITION_BITS < self.first_ordinal:
            return self.previous.position(seq)
        prefix, first = split_file(self.start_file)
        number = (seq >> POSITION_BITS) - self.first_ordinal + first
        return Position(f"{prefix}{number:06d}", seq & ((1 << POSITION_BITS) - 1))
