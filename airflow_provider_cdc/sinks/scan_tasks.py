"""Tables that tasks read back in portions, so that no process needs to hold all rows.

Support is optional: a table that is only :class:`~airflow_provider_cdc.sinks.protocol.Readable` is read as a whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import pyarrow as pa

from airflow_provider_cdc.sinks.protocol import Markers, Readable


class ScanTask(Protocol):
    """Some rows of a version of a table. It is pickled and sent to a task."""

    @property
    def size_bytes(self) -> int:
        """Approximate number of bytes to read."""

    def read_rows(self, columns: Sequence[str]) -> Iterator[pa.Table]:
        """Yield the rows in any order, in small portions, without rows that are marked as deleted.

        :param columns: columns of the sink's schema, returned in this order.
        """


@runtime_checkable
class Scannable(Protocol):
    """A table that can be read back in portions."""

    def plan_scan(self) -> tuple[Sequence[ScanTask], Markers]:
        """Return scan tasks that together read all rows of one version, and the markers of this version."""


@dataclass(frozen=True)
class InMemoryScanTask:
    """Rows that are in memory."""

    rows: pa.Table

    @property
    def size_bytes(self) -> int:
        """Bytes in memory."""
        return int(self.rows.nbytes)

    def read_rows(self, columns: Sequence[str]) -> Iterator[pa.Table]:
        """Yield the rows; see :class:`ScanTask`."""
        yield self.rows.select(list(columns))


def plan_table_scan(table: Readable) -> tuple[Sequence[ScanTask], Markers]:
    """Return scan tasks for the newest version of a table, and its markers."""
    if isinstance(table, Scannable):
        return table.plan_scan()
    rows, markers = table.read()
    return [InMemoryScanTask(rows)], markers
