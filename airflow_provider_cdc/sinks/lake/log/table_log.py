"""The protocol of a table's log: one version of the table, which advances when it is refreshed or committed to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

import pyarrow as pa
from pyroaring import BitMap

from airflow_provider_cdc.sinks.files.parquet import PartitionValues
from airflow_provider_cdc.sinks.storage.storage import Storage

#: Seconds for which a version is assumed to be the newest one unless a commit shows otherwise.
FRESH_SECONDS = 60


class RowOrigin(NamedTuple):
    """What the rows of a data file inherit from it, unless they state it themselves.

    :param first_row_id: the row id of its first row; those of the others follow.
    :param sequence_number: number of the commit that changed its rows last.
    """

    first_row_id: int
    sequence_number: int


class LiveFile(Protocol):
    """A data file in a version of a table."""

    @property
    def path(self) -> str:
        """Path in the table's folder."""

    @property
    def size(self) -> int:
        """Size in bytes."""

    @property
    def row_count(self) -> int | None:
        """Number of its rows, including dead ones; ``None`` if the log does not record it."""

    @property
    def dead_row_count(self) -> int:
        """Number of dead rows."""

    @property
    def partition(self) -> PartitionValues:
        """Its partition: values as text. Those of columns of the table are not in the file."""

    @property
    def row_origin(self) -> RowOrigin | None:
        """What its rows inherit from it; ``None`` if the format has no row ids."""

    def bounds(self, column: str) -> tuple[int, int] | None:
        """Return the lowest and highest value of an integer column.

        :returns: ``None`` if they are not known exactly, or a row may have NULL.
        """


class TableLog(Protocol):
    """The log of one table, at the version that was read last. Not thread-safe."""

    @property
    def storage(self) -> Storage:
        """Storage of the table's folder."""

    @property
    def name(self) -> str:
        """Name of the table in messages, such as ``Delta table /lake/shop/orders``."""

    @property
    def is_loaded(self) -> bool:
        """Whether a version has been read."""

    @property
    def seconds_since_refresh(self) -> float:
        """Seconds since the log was last checked for newer versions."""

    @property
    def files(self) -> Mapping[str, LiveFile]:
        """Live files by path."""

    def catch_up(self) -> None:
        """Advance to the newest version that this process knows, without a look at the storage.

        Only a log of one of several sources does that.
        """

    @property
    def other_files(self) -> Mapping[str, LiveFile]:
        """Live files of other source tables that are copied into the same table, by path."""

    @property
    def markers(self) -> Mapping[str, int]:
        """Markers by name."""

    @property
    def properties(self) -> Mapping[str, str]:
        """Properties of the table, some of which are this project's (``airflow-cdc.*``)."""

    @property
    def partition_columns(self) -> Sequence[str]:
        """Names of the columns that partition the table."""

    @property
    def table_id(self) -> str | None:
        """The number of the table, by which a table is recognized that has replaced another one of the same name."""

    @property
    def definition(self) -> object:
        """Columns and properties of the table; another object after they may have changed."""

    @property
    def revived_files(self) -> set[str]:
        """Files whose dead rows may be alive again, or that may come back: what is known of their rows is invalid.

        The caller removes those that it has dealt with.
        """

    def identify_columns(self, columns: pa.Schema) -> pa.Schema:
        """Return columns with what identifies them in the files of this version, for reading these files."""

    def exists(self) -> bool:
        """Return whether the table exists."""

    def refresh(self) -> None:
        """Advance to the newest version.

        :raises TerminalError: if there is no table, or it uses something that is not understood.
        """

    def dead_rows(self, path: str) -> BitMap:
        """Return the dead rows of a file, none if it is not live; callers must not modify the result."""

    def references(self, path: str) -> bool:
        """Return whether a data file is, or was until recently, part of the table."""

    def cross_check_files(self) -> None:
        """Check with other software that the live files are right, before files are permanently deleted.

        :raises TransientError: if that is not possible now.
        :raises TerminalError: if the two disagree.
        """


def excludes_span(file: LiveFile, column: str | None, key_span: tuple[int, int] | None) -> bool:
    """Return whether all values of a column in a file are known to lie outside a span."""
    bounds = file.bounds(column) if column and key_span else None
    return bounds is not None and key_span is not None and (bounds[0] > key_span[1] or bounds[1] < key_span[0])
