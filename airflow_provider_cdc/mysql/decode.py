"""Row events of whole transactions as Arrow change tables."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from airflow_provider_cdc.core.schema import TableSchema
from airflow_provider_cdc.exceptions import TerminalError
from airflow_provider_cdc.mysql.binlog.rows import decode_rows
from airflow_provider_cdc.mysql.binlog.transactions import RowsEvent


class ChangeBuffer:
    """Collects the changes of one table in binlog order; see :mod:`airflow_provider_cdc.core.changes`.

    :param table: the table.
    """

    def __init__(self, table: TableSchema) -> None:
        self.table = table
        names = [c.name for c in table.columns]
        self._key = [names.index(name) for name in table.key]
        self._rows: list[tuple[Any, ...]] = []
        self._meta: list[tuple[int, str, int]] = []

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, event: RowsEvent, seq: int, commit_us: int) -> None:
        """Decode one row event.

        :param seq: ``_cdc_seq`` of its transaction.
        :param commit_us: commit time in microseconds since the epoch, UTC.
        :raises TerminalError: for a row that cannot be understood.
        """
        kind = {"insert": "c", "update": "u", "delete": "d"}[event.kind]
        for before, after in decode_rows(event):
            if after is None:
                self._add(before, seq, "d", commit_us)
                continue
            if before is not None and any(before[i] != after[i] for i in self._key):
                self._add(before, seq, "d", commit_us)
            self._add(after, seq, kind, commit_us)

    def _add(self, row: tuple[Any, ...] | None, seq: int, op: str, commit_us: int) -> None:
        if row is None:
            raise TerminalError(f"a row event of {self.table.label} has no image", "Set binlog_row_image=FULL")
        self._rows.append(row)
        self._meta.append((seq, op, commit_us))

    def take(self) -> pa.Table:
        """The changes collected so far as a table of the sink's schema; the buffer is empty afterwards."""
        schema = self.table.sink_schema
        values = list(zip(*self._rows, strict=True)) or [()] * len(self.table.columns)
        values += list(zip(*self._meta, strict=True)) or [()] * 3
        arrays = [pa.array(list(v), type=field.type) for v, field in zip(values, schema, strict=True)]
        self._rows, self._meta = [], []
        return pa.Table.from_arrays(arrays, schema=schema)
