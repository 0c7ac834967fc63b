"""What a table of a sink takes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TableSize:
    """What a table takes, as far as its log says it: no file of rows is looked into.

    :param files: files of rows.
    :param bytes: their size.
    :param rows: living rows; ``None`` if that does not stand there.
    :param dead_rows: rows that are in files still, and do not count any more.
    :param files_with_vectors: files that have such rows.
    :param compactions: how many files have been compacted into one since the table was made.
    """

    files: int
    bytes: int
    rows: int | None
    dead_rows: int
    files_with_vectors: int
    compactions: int

    def to_json(self) -> dict[str, int | None]:
        """Plain JSON value."""
        return dict(self.__dict__)
