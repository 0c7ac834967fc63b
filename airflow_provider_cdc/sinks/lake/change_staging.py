"""Staged changes of batches, written by tasks to files that later become part of the table.

Each row is written only once. Rows that a later change in the same batch has replaced, and deletes, are marked dead in
the file when it becomes part of the table.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_cdc.config.delete_policy import ALL_HARD, IGNORE, SOFT, DeletePolicy
from airflow_provider_cdc.model.changes import select_upserts
from airflow_provider_cdc.model.schema import META_COLUMNS, TableSchema
from airflow_provider_cdc.sinks.files.change_staging import FileChangeStaging, list_earlier_epoch_files
from airflow_provider_cdc.sinks.files.parquet import (
    CHANGE_BUFFER_BYTES,
    ChangeFileWriter,
    DataFile,
    describe_file,
    empty_table,
    open_parquet,
    read_file,
)
from airflow_provider_cdc.sinks.lake.log.table_log import TableLog
from airflow_provider_cdc.sinks.lake.merge.change_merger import (
    FILE_COLUMN,
    ROW_COLUMN,
    with_files_metadata,
    with_row_places,
)
from airflow_provider_cdc.sinks.lake.merge.partitions import PartitionedWriter, TableFormat
from airflow_provider_cdc.sinks.lake.merge.soft_deletes import add_deleted_column
from airflow_provider_cdc.sinks.lake.merge.table_edit import CHANGES_FOLDER
from airflow_provider_cdc.sinks.protocol import ChangeWriter
from airflow_provider_cdc.sinks.storage.storage import Storage

#: Metadata key, in a file of places, of the list of files that the places refer to.
_FILES_METADATA_KEY = "files"


class _SoftDeleteChangeWriter(ChangeFileWriter):
    """Writes changes with a column that marks deletes."""

    def add(self, changes: pa.RecordBatch) -> None:
        """Write changes."""
        super().add(add_deleted_column(changes, self._schema))


class TableChangeStaging:
    """Change staging of one pipeline.

    :param table_storage: returns the storage of a table.
    :param open_log: returns a log of a table that has read nothing yet.
    :param keyless_staging: staging for tables without a key, whose changes are applied only as a net change.
    :param deletes: how rows that the source deletes are handled.
    :param format_of: returns the format of a table.
    """

    def __init__(
        self,
        table_storage: Callable[[TableSchema], Storage],
        open_log: Callable[[TableSchema], TableLog],
        keyless_staging: FileChangeStaging,
        deletes: DeletePolicy = ALL_HARD,
        format_of: Callable[[TableSchema], TableFormat] = lambda table: TableFormat(table.sink_schema),
    ) -> None:
        self._table_storage, self._open_log, self._keyless_staging = table_storage, open_log, keyless_staging
        self._deletes, self._format_of = deletes, format_of

    def open_writer(self, table: TableSchema, range_name: str) -> ChangeWriter:
        """Return a writer; see :class:`~airflow_provider_cdc.sinks.protocol.ChangeStaging`."""
        table = table.copy
        if not table.key:
            return self._keyless_staging.open_writer(table, range_name)
        table_format = self._format_of(table)
        if table_format.is_partitioned:
            return _PartitionedChangeWriter(self._table_storage(table), range_name, table_format, table)
        is_soft = self._deletes.mode_of(table) == SOFT  # deletes are rows of the table, too
        writer = _SoftDeleteChangeWriter if is_soft else ChangeFileWriter
        return writer(
            self._table_storage(table),
            _change_file_path(range_name),
            table_format.file_schema,
            table_format.row_group_size,
        )

    def read_changes(self, table: TableSchema, range_names: Sequence[str]) -> pa.Table:
        """Return the changes of some batch ranges, in this order."""
        table = table.copy
        if not table.key:
            return self._keyless_staging.read_changes(table, range_names)
        storage, schema = self._table_storage(table), table.sink_schema
        if not self._format_of(table).is_partitioned:
            parts = [read_file(storage, _change_file_path(name), schema) for name in range_names]
            return self._without_ignored_deletes(table, pa.concat_tables(parts))
        row_places, files = _read_order_files(storage, table, range_names)
        rows = [read_file(storage, file.path, schema, partition=file.partition) for file in files]
        first = np.cumsum([0, *(file.rows for file in files)])
        order = first[row_places[FILE_COLUMN].to_numpy()] + row_places[ROW_COLUMN].to_numpy()
        changes = pa.concat_tables([empty_table(schema), *rows]).take(pa.array(order, pa.int64()))
        return self._without_ignored_deletes(table, changes)

    def read_for_apply(self, table: TableSchema, range_names: Sequence[str]) -> pa.Table:
        """Return the same changes without their values, but with the file and row of each."""
        table = table.copy
        if not table.key:
            return self._keyless_staging.read_for_apply(table, range_names)
        storage = self._table_storage(table)
        if self._format_of(table).is_partitioned:
            changes = with_files_metadata(*_read_order_files(storage, table, range_names))
            return self._without_ignored_deletes(table, changes)
        columns = _build_order_schema(table).names[:-2]
        files_and_rows = [
            describe_file(storage, _change_file_path(n), table.sink_schema, columns, table.integer_key_column)
            for n in range_names
        ]
        files, rows = zip(*files_and_rows, strict=True)
        return self._without_ignored_deletes(table, with_row_places(pa.concat_tables(rows), files))

    def _without_ignored_deletes(self, table: TableSchema, changes: pa.Table) -> pa.Table:
        """Return the changes without ignored deletes, which do not replace earlier changes of the same key either."""
        return select_upserts(changes) if self._deletes.mode_of(table) == IGNORE else changes

    def discard_applied(self, table: TableSchema, range_names: Iterable[str]) -> None:
        """Delete only what did not become part of the table; the commit has deleted files that it did not use."""
        if not table.key:
            self._keyless_staging.discard_applied(table, range_names)
        elif self._format_of(table).is_partitioned:
            self._table_storage(table).delete(*map(_change_file_path, range_names))

    def discard(self, table: TableSchema, range_names: Iterable[str]) -> None:
        """Delete changes that are not to be applied."""
        if not table.key:
            self._keyless_staging.discard(table, range_names)
            return
        storage, listed = self._table_storage(table), list(range_names)
        if self._format_of(table).is_partitioned:
            for name in listed:
                with suppress(FileNotFoundError):
                    storage.delete(*(file.path for file in _read_order_files(storage, table, [name])[1]))
        storage.delete(*map(_change_file_path, listed))

    def clear_older_epochs(self, tables: Iterable[TableSchema], epoch: int) -> None:
        """Delete what earlier epochs have left, unless it is, or was until recently, part of a table."""
        self._keyless_staging.clear_older_epochs((), epoch)
        for table in tables:
            storage = self._table_storage(table)
            if names := list_earlier_epoch_files(storage, CHANGES_FOLDER, epoch):
                log = self._open_log(table)
                log.refresh()
                if unneeded := [name for name in names if not log.references(name)]:
                    log.cross_check_files()
                    storage.delete(*unneeded)


class _PartitionedChangeWriter:
    """Writes changes to one file per partition, and their order and places to one more file."""

    def __init__(self, storage: Storage, name: str, table_format: TableFormat, table: TableSchema) -> None:
        folder, _, base = f"{CHANGES_FOLDER}/{name}".rpartition("/")
        self._files = PartitionedWriter(storage, folder, base, table_format)
        self._schema, self._order_schema = table_format.schema, _build_order_schema(table)
        self._order_file = ChangeFileWriter(storage, _change_file_path(name), self._order_schema)
        self._buffer = list[pa.RecordBatch]()

    def add(self, changes: pa.RecordBatch) -> None:
        """Write changes."""
        self._buffer.append(add_deleted_column(changes, self._schema))
        if sum(b.nbytes for b in self._buffer) >= CHANGE_BUFFER_BYTES:
            self._flush()

    def truncate(self) -> None:
        """Discard the changes added so far: the table is empty here."""
        self._buffer = []
        self._files.discard()
        self._order_file.truncate()

    def close(self) -> None:
        """Write the remaining changes, and finally the file with their order and places."""
        self._flush()
        files = self._files.close()
        self._order_file.close({_FILES_METADATA_KEY: json.dumps([file.to_json() for file in files])})

    def _flush(self) -> None:
        rows, self._buffer = pa.Table.from_batches(self._buffer, self._schema), []
        file_numbers, row_numbers = self._files.add(rows)
        columns = [*rows.select(self._order_schema.names[:-2]).columns, pa.array(file_numbers), pa.array(row_numbers)]
        for batch in pa.table(columns, schema=self._order_schema).combine_chunks().to_batches():
            self._order_file.add(batch)


def _build_order_schema(table: TableSchema) -> pa.Schema:
    """Return the schema of what :meth:`TableChangeStaging.read_for_apply` needs to know about changes."""
    fields = [f for f in table.sink_schema if f.name in table.key or f.name in META_COLUMNS]
    return pa.schema([*fields, (FILE_COLUMN, pa.int64()), (ROW_COLUMN, pa.int64())])


def _read_order_files(storage: Storage, table: TableSchema, names: Sequence[str]) -> tuple[pa.Table, list[DataFile]]:
    """Return the changes of some batch ranges in order, with the place of each, and the files that contain them."""
    parts, files, schema = [], list[DataFile](), _build_order_schema(table)
    for name in names:
        with open_parquet(storage, _change_file_path(name)) as order_file:
            rows = order_file.read().select(schema.names).cast(schema)
            listed = json.loads(order_file.metadata.metadata[_FILES_METADATA_KEY.encode()])
        numbers = pc.add(rows[FILE_COLUMN], pa.scalar(len(files), pa.int64()))
        parts.append(rows.set_column(schema.get_field_index(FILE_COLUMN), FILE_COLUMN, numbers))
        files += [DataFile.from_json(file) for file in listed]
    return pa.concat_tables([empty_table(schema), *parts]), files


def _change_file_path(name: str) -> str:
    return f"{CHANGES_FOLDER}/{name}.parquet"
