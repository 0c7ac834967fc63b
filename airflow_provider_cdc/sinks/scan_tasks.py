"""Tables that are read back in portions, by tasks: no process need hold all rows.

A sink need not offer this: what is only :class:`~airflow_provider_cdc.sinks.protocol.Readable` is read at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import pyarrow as pa

from airflow_provider_cdc.sinks.protocol import Markers, Readable


class ScanTask(Protocol):
    """Some rows of a version of a table. It travels to a task, pickled."""

    @property
    def size_bytes(self) -> int:
        """Bytes to read, about."""

    def read_rows(self, columns: Sequence[str]) -> Iterator[pa.Table]:
        """The rows in any order, few at a time; those that are marked as deleted are not among them.

        :param columns: columns of the sink's schema, which are given in this order.
        """


@runtime_checkable
class Scannable(Protocol):
    """A table that can be read back in portions."""

    def plan_scan(self) -> tuple[Sequence[ScanTask], Markers]:
        """Portions of one version, which together are all of its rows, and the markers that stood then."""


@dataclass(frozen=True)
class InMemoryScanTask:
    """Rows that are in memory.

    :param rows: these rows.
    """

    rows: pa.Table

    @property
    def size_bytes(self) -> int:
        """Bytes in memory."""
        return int(self.rows.nbytes)

    def read_rows(self, columns: Sequence[str]) -> Iterator[pa.Table]:
        """See :class:`ScanTask`."""
        yield self.rows.select(list(columns))


def plan_table_scan(table: Readable) -> tuple[Sequence[ScanTask], Markers]:
    """Portions of the newest version of a table, and its markers."""
    if isinstance(table, Scannable):
        return table.plan_scan()
    rows, markers = table.read()
    return [InMemoryScanTask(rows)], markers
