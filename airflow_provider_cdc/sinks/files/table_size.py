"""The size of a sink table."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TableSize:
    """The size of a table, as recorded in its log: no data file is opened.

    :param files: number of data files.
    :param bytes: their size.
    :param rows: living rows; ``None`` if the log does not record their number.
    :param dead_rows: dead rows that are still in files.
    :param files_with_vectors: files that have a deletion vector.
    :param compactions: compactions committed since the table was created.
    """

    files: int
    bytes: int
    rows: int | None
    dead_rows: int
    files_with_vectors: int
    compactions: int

    def to_json(self) -> dict[str, int | None]:
        """Return a plain JSON value."""
        return dict(self.__dict__)
