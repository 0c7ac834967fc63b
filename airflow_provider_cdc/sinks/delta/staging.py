"""Changes of batches, written by tasks where they stay: in files that become part of the table.

A row is written once. What a later change of the same batch has outdated, and what deletes, is dead in the file when it
becomes part of the table.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_cdc.config.deletes import ALL_HARD, IGNORE, SOFT, Deletes
from airflow_provider_cdc.model.changes import upserts
from airflow_provider_cdc.model.schema import META_COLUMNS, TableSchema
from airflow_provider_cdc.sinks.delta.log.log import Log
from airflow_provider_cdc.sinks.delta.merge.edit import CHANGES
from airflow_provider_cdc.sinks.delta.merge.merge import FILE, ROW, in_files, placed
from airflow_provider_cdc.sinks.delta.merge.partitions import PartitionedFiles, Partitioning
from airflow_provider_cdc.sinks.delta.merge.soft_deletes import marked, with_mark
from airflow_provider_cdc.sinks.delta.upkeep import check_live
from airflow_provider_cdc.sinks.files.parquet import (
    CHANGES_BYTES,
    ChangeFile,
    DataFile,
    described,
    parquet,
    read_file,
    without_rows,
)
from airflow_provider_cdc.sinks.files.staging import FileStaging, of_earlier_epochs
from airflow_provider_cdc.sinks.protocol import ChangeWriter
from airflow_provider_cdc.sinks.storage.storage import Storage

#: In the metadata of a file of places: the files that these are in.
_FILES = "files"


class _MarkedChanges(ChangeFile):
    """Changes that say of themselves whether they delete."""

    def add(self, changes: pa.RecordBatch) -> None:
        """Write changes."""
        super().add(marked(changes, self._schema))


class DeltaStaging:
    """Staging of one pipeline.

    :param table_storage: the storage of a table.
    :param keyless_staging: for tables without a key, of whose changes only a sum is applied.
    :param deletes: what becomes of rows that are deleted in the source.
    :param partitioning_of: how a table is partitioned.
    """

    def __init__(
        self,
        table_storage: Callable[[TableSchema], Storage],
        keyless_staging: FileStaging,
        deletes: Deletes = ALL_HARD,
        partitioning_of: Callable[[TableSchema], Partitioning] = lambda table: Partitioning(table.sink_schema),
    ) -> None:
        self._table_storage, self._keyless_staging, self._deletes, self._partitioning_of = (
            table_storage,
            keyless_staging,
            deletes,
            partitioning_of,
        )

    def open_writer(self, table: TableSchema, range_name: str) -> ChangeWriter:
        """Begin to write; see :class:`~airflow_provider_cdc.sinks.protocol.Staging`."""
        if not table.key:
            return self._keyless_staging.open_writer(table, range_name)
        schema = table.sink_schema
        if partitioning := self._partitioning_of(table):
            return _PartitionedChanges(self._table_storage(table), range_name, partitioning, table)
        group_rows = partitioning.row_group_size
        if self._deletes.mode_of(table) == SOFT:  # a delete is a row of the table, too
            return _MarkedChanges(self._table_storage(table), _file(range_name), with_mark(schema), group_rows)
        return ChangeFile(self._table_storage(table), _file(range_name), schema, group_rows)

    def read_changes(self, table: TableSchema, range_names: Sequence[str]) -> pa.Table:
        """The changes of some pieces, in this order."""
        if not table.key:
            return self._keyless_staging.read_changes(table, range_names)
        storage, schema = self._table_storage(table), table.sink_schema
        if not self._partitioning_of(table):
            return self._without_ignored_deletes(
                table, pa.concat_tables([read_file(storage, _file(name), schema) for name in range_names])
            )
        row_places, files = _heads(storage, table, range_names)
        rows = [read_file(storage, file.path, schema, partition=file.partition) for file in files]
        first = np.cumsum([0, *(file.rows for file in files)])
        order = first[row_places[FILE].to_numpy()] + row_places[ROW].to_numpy()
        return self._without_ignored_deletes(
            table, pa.concat_tables([without_rows(schema), *rows]).take(pa.array(order, pa.int64()))
        )

    def read_for_apply(self, table: TableSchema, range_names: Sequence[str]) -> pa.Table:
        """The same without the values, and with the place of each."""
        if not table.key:
            return self._keyless_staging.read_for_apply(table, range_names)
        storage = self._table_storage(table)
        if self._partitioning_of(table):
            return self._without_ignored_deletes(table, in_files(*_heads(storage, table, range_names)))
        columns = _head_schema(table).names[:-2]
        files_and_rows = [
            described(storage, _file(n), table.sink_schema, columns, table.integer_key_column) for n in range_names
        ]
        return self._without_ignored_deletes(
            table, placed(pa.concat_tables([rows for _, rows in files_and_rows]), [file for file, _ in files_and_rows])
        )

    def _without_ignored_deletes(self, table: TableSchema, changes: pa.Table) -> pa.Table:
        """Without deletes that are ignored: also not in the place of an earlier change of the same key."""
        return upserts(changes) if self._deletes.mode_of(table) == IGNORE else changes

    def discard_applied(self, table: TableSchema, range_names: Iterable[str]) -> None:
        """They are part of the table, and if not, the commit has removed them."""
        if not table.key:
            self._keyless_staging.discard_applied(table, range_names)
        elif self._partitioning_of(table):
            self._table_storage(table).delete(*map(_file, range_names))

    def discard(self, table: TableSchema, range_names: Iterable[str]) -> None:
        """Remove what is not to be applied."""
        if not table.key:
            self._keyless_staging.discard(table, range_names)
            return
        storage, listed = self._table_storage(table), list(range_names)
        if self._partitioning_of(table):
            for name in listed:
                with suppress(FileNotFoundError):
                    storage.delete(*(file.path for file in _heads(storage, table, [name])[1]))
        storage.delete(*map(_file, listed))

    def clear_older_epochs(self, tables: Iterable[TableSchema], epoch: int) -> None:
        """Remove what earlier epochs have left, and is not, and was not until recently, part of a table."""
        self._keyless_staging.clear_older_epochs((), epoch)
        for table in tables:
            storage = self._table_storage(table)
            if names := of_earlier_epochs(storage, CHANGES, epoch):
                log = Log(storage)
                log.refresh()
                if unneeded := [name for name in names if name not in log.files and name not in log.tombstones]:
                    check_live(log)
                    storage.delete(*unneeded)


class _PartitionedChanges:
    """Changes of a table with partitions: files of these, and one that says in which order they come, and where."""

    def __init__(self, storage: Storage, name: str, partitioning: Partitioning, table: TableSchema) -> None:
        folder, _, base = f"{CHANGES}/{name}".rpartition("/")
        self._files = PartitionedFiles(storage, folder, base, partitioning, table.integer_key_column)
        self._schema, self._order_schema = partitioning.schema, _head_schema(table)
        self._order_file = ChangeFile(storage, _file(name), self._order_schema)
        self._buffer = list[pa.RecordBatch]()

    def add(self, changes: pa.RecordBatch) -> None:
        """Write changes."""
        self._buffer.append(marked(changes, self._schema))
        if sum(b.nbytes for b in self._buffer) >= CHANGES_BYTES:
            self._flush()

    def truncate(self) -> None:
        """The table is empty here: what came before does not count any more."""
        self._buffer = []
        self._files.discard()
        self._order_file.truncate()

    def close(self) -> None:
        """Write what is left, and last of all what says where it is."""
        self._flush()
        files = self._files.close()
        self._order_file.close({_FILES: json.dumps([file.to_json() for file in files])})

    def _flush(self) -> None:
        rows, self._buffer = pa.Table.from_batches(self._buffer, self._schema), []
        file_numbers, row_numbers = self._files.add(rows)
        order_rows = (
            rows.select(self._order_schema.names[:-2])
            .append_column(FILE, pa.array(file_numbers))
            .append_column(ROW, pa.array(row_numbers))
        )
        for batch in order_rows.combine_chunks().to_batches():
            self._order_file.add(batch)


def _head_schema(table: TableSchema) -> pa.Schema:
    """Schema of what :meth:`DeltaStaging.changes` has to know of changes."""
    fields = [f for f in table.sink_schema if f.name in table.key or f.name in META_COLUMNS]
    return pa.schema([*fields, (FILE, pa.int64()), (ROW, pa.int64())])


def _heads(storage: Storage, table: TableSchema, names: Sequence[str]) -> tuple[pa.Table, list[DataFile]]:
    """Changes of some pieces in their order, with the place of each, and the files that have them."""
    parts, files, schema = [], list[DataFile](), _head_schema(table)
    for name in names:
        with parquet(storage, _file(name)) as order_file:
            rows = order_file.read().select(schema.names).cast(schema)
            listed = json.loads(order_file.metadata.metadata[_FILES.encode()])
        file_column_index = schema.get_field_index(FILE)
        parts.append(rows.set_column(file_column_index, FILE, pc.add(rows[FILE], pa.scalar(len(files), pa.int64()))))
        files += [DataFile(**file) for file in listed]
    return pa.concat_tables([without_rows(schema), *parts]), files


def _file(name: str) -> str:
    return f"{CHANGES}/{name}.parquet"
