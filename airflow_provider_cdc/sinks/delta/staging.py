"""Changes of batches, written by tasks where they stay: in files that become part of the table.

A row is written once. What a later change of the same batch has outdated, and what deletes, is dead in the file when it
becomes part of the table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import pyarrow as pa

from airflow_provider_cdc.core.changes import upserts
from airflow_provider_cdc.core.deletes import ALL_HARD, IGNORE, SOFT, Deletes
from airflow_provider_cdc.core.schema import META_COLUMNS, TableSchema
from airflow_provider_cdc.sinks.delta.deleted import marked, with_mark
from airflow_provider_cdc.sinks.delta.edit import CHANGES
from airflow_provider_cdc.sinks.delta.log import Log
from airflow_provider_cdc.sinks.delta.merge import placed
from airflow_provider_cdc.sinks.files import ChangeFile, described, read_file
from airflow_provider_cdc.sinks.staging import FileStaging, of_earlier_epochs
from airflow_provider_cdc.sinks.storage import Storage


class _MarkedChanges(ChangeFile):
    """Changes that say of themselves whether they delete."""

    def add(self, changes: pa.RecordBatch) -> None:
        """Write changes."""
        super().add(marked(changes, self._schema))


class DeltaStaging:
    """Staging of one pipeline.

    :param folder: the storage of a table.
    :param aside: for tables without a key, of whose changes only a sum is applied.
    :param deletes: what becomes of rows that are deleted in the source.
    """

    def __init__(
        self, folder: Callable[[TableSchema], Storage], aside: FileStaging, deletes: Deletes = ALL_HARD
    ) -> None:
        self._folder, self._aside, self._deletes = folder, aside, deletes

    def writer(self, table: TableSchema, name: str) -> ChangeFile:
        """Begin to write; see :class:`~airflow_provider_cdc.sinks.protocol.Staging`."""
        if not table.key:
            return self._aside.writer(table, name)
        schema = table.sink_schema
        if self._deletes.of(table) == SOFT:  # a delete is a row of the table, too
            return _MarkedChanges(self._folder(table), _file(name), with_mark(schema))
        return ChangeFile(self._folder(table), _file(name), schema)

    def read(self, table: TableSchema, names: Sequence[str]) -> pa.Table:
        """The changes of some pieces, in this order."""
        if not table.key:
            return self._aside.read(table, names)
        storage = self._folder(table)
        return self._counting(
            table, pa.concat_tables([read_file(storage, _file(name), table.sink_schema) for name in names])
        )

    def changes(self, table: TableSchema, names: Sequence[str]) -> pa.Table:
        """The same without the values, and with the place of each."""
        if not table.key:
            return self._aside.changes(table, names)
        columns = [c for c in table.sink_schema.names if c in table.key or c in META_COLUMNS]
        storage = self._folder(table)
        found = [described(storage, _file(n), table.sink_schema, columns, table.integer_key) for n in names]
        return self._counting(table, placed(pa.concat_tables([rows for _, rows in found]), [file for file, _ in found]))

    def _counting(self, table: TableSchema, changes: pa.Table) -> pa.Table:
        """Without deletes that are ignored: also not in the place of an earlier change of the same key."""
        return upserts(changes) if self._deletes.of(table) == IGNORE else changes

    def applied(self, table: TableSchema, names: Iterable[str]) -> None:
        """They are part of the table, and if not, the commit has removed them."""
        if not table.key:
            self._aside.applied(table, names)

    def discard(self, table: TableSchema, names: Iterable[str]) -> None:
        """Remove what is not to be applied."""
        if not table.key:
            self._aside.discard(table, names)
        else:
            self._folder(table).delete(*map(_file, names))

    def clear(self, tables: Iterable[TableSchema], epoch: int) -> None:
        """Remove what earlier epochs have left, and is not, and was not until recently, part of a table."""
        self._aside.clear((), epoch)
        for table in tables:
            storage = self._folder(table)
            if names := of_earlier_epochs(storage, CHANGES, epoch):
                log = Log(storage)
                log.refresh()
                storage.delete(*(name for name in names if name not in log.files and name not in log.removed))


def _file(name: str) -> str:
    return f"{CHANGES}/{name}.parquet"
