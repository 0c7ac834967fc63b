"""Where we are in the binlog, and the one number that orders all transactions of a pipeline."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from airflow_provider_cdc.exceptions import TerminalError

#: Bits of ``_cdc_seq`` that hold the end position of a transaction; the file's ordinal stands above them.
POSITION_BITS = 41
_FILE = re.compile(r"(.*\.)(\d+)")


def split_file(file: str) -> tuple[str, int]:
    """``binlog.000017`` -> (``binlog.``, 17). File numbers compare as numbers: 999999 < 1000000.

    :raises TerminalError: for a name without a numeric suffix.
    """
    match = _FILE.fullmatch(file)
    if match is None:
        raise TerminalError(
            f"binlog file name {file!r} has no numeric suffix", "Check @@log_bin_basename on the server"
        )
    return match[1], int(match[2])


@dataclass(frozen=True)
class Position:
    """End of a complete transaction in the binlog of one server.

    :param file: binlog file, such as ``binlog.000017``.
    :param position: byte offset in it (64 bits).
    """

    file: str
    position: int

    def _order(self) -> tuple[int, int]:
        return split_file(self.file)[1], self.position

    def __lt__(self, other: Position) -> bool:
        return self._order() < other._order()

    def __le__(self, other: Position) -> bool:
        return self._order() <= other._order()

    def __str__(self) -> str:
        return f"{self.file}:{self.position}"

    def to_json(self) -> list[Any]:
        """Plain JSON value: [file, position]."""
        return [self.file, self.position]

    @classmethod
    def from_json(cls, value: list[Any]) -> Position:
        """Inverse of :meth:`to_json`."""
        return cls(str(value[0]), int(value[1]))


@dataclass(frozen=True)
class Offset:
    """A resumable point: a position of a named server with the GTIDs that lie at or before it.

    :param server: ``server_uuid``.
    :param at: file and position, always the end of a complete transaction.
    :param gtid_set: GTIDs at or before the position, in the server's text form. At the very start of a pipeline it may
        hold a few GTIDs just behind the position (transactions in flight then); reading on makes it exact.
    :param xa: xids prepared and still open at the position, known to hold no row of a captured table.
    """

    server: str
    at: Position
    gtid_set: str
    xa: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Plain JSON value; :meth:`from_json` turns it back."""
        return {
            "server": self.server,
            "file": self.at.file,
            "position": self.at.position,
            "gtid_set": self.gtid_set,
            "xa": list(self.xa),
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Offset:
        """Inverse of :meth:`to_json`."""
        at = Position(str(value["file"]), int(value["position"]))
        return cls(str(value["server"]), at, str(value["gtid_set"]), tuple(value.get("xa", ())))


@dataclass(frozen=True)
class Lineage:
    """Maps positions to ``_cdc_seq`` and back.

    A segment is one unbroken run of binlog files of one server. This version knows one segment: another server, or a
    server whose binlogs were reset, stops the pipeline instead of opening the next one.

    :param server: ``server_uuid`` of the segment.
    :param start_file: first binlog file of the segment.
    :param base: ordinal of that file; ordinals of one pipeline never go back.
    """

    server: str
    start_file: str
    base: int = 1

    def seq(self, at: Position) -> int:
        """``_cdc_seq`` of a transaction that ends at ``at``: file ordinal in the high bits, position in the low 41.

        :raises TerminalError: for a file of another series or before the segment.
        """
        prefix, number = split_file(at.file)
        own_prefix, first = split_file(self.start_file)
        if prefix != own_prefix or number < first or at.position >= 1 << POSITION_BITS:
            raise TerminalError(
                f"binlog position {at} does not belong to the series that began with {self.start_file}",
                "The server's binlogs were reset or renamed: start with a fresh sink.path (or remove the old one)",
            )
        return (self.base + number - first) << POSITION_BITS | at.position

    def position(self, seq: int) -> Position:
        """Inverse of :meth:`seq`."""
        prefix, first = split_file(self.start_file)
        number = (seq >> POSITION_BITS) - self.base + first
        return Position(f"{prefix}{number:06d}", seq & ((1 << POSITION_BITS) - 1))

    def to_json(self) -> dict[str, Any]:
        """Plain JSON value; :meth:`from_json` turns it back."""
        return {"server": self.server, "start_file": self.start_file, "base": self.base}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Lineage:
        """Inverse of :meth:`to_json`."""
        return cls(str(value["server"]), str(value["start_file"]), int(value["base"]))
