"""Staged changes of batches in Parquet files, in a storage that the driver and all tasks share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pyarrow as pa

from airflow_provider_cdc.model.schema import TableSchema
from airflow_provider_cdc.sinks.files.parquet import ChangeFileWriter, read_file
from airflow_provider_cdc.sinks.storage.storage import Storage


class FileChangeStaging:
    """Change staging for sinks that have no better place.

    :param storage: storage of the files.
    :param folder: folder in it that contains nothing else.
    """

    def __init__(self, storage: Storage, folder: str) -> None:
        self._storage, self._folder = storage, folder

    def open_writer(self, table: TableSchema, range_name: str) -> ChangeFileWriter:
        """Return a writer; see :class:`~airflow_provider_cdc.sinks.protocol.ChangeStaging`."""
        return ChangeFileWriter(self._storage, self._file_path(range_name), table.sink_schema)

    def read_changes(self, table: TableSchema, range_names: Sequence[str]) -> pa.Table:
        """Return the changes of some batch ranges, in this order."""
        return pa.concat_tables(
            [read_file(self._storage, self._file_path(name), table.sink_schema) for name in range_names]
        )

    def read_for_apply(self, table: TableSchema, range_names: Sequence[str]) -> pa.Table:
        """Return the same as :meth:`read_changes`: there is no other form."""
        return self.read_changes(table, range_names)

    def discard_applied(self, table: TableSchema, range_names: Iterable[str]) -> None:
        """Delete changes that have been applied."""
        self.discard(table, range_names)

    def discard(self, table: TableSchema, range_names: Iterable[str]) -> None:
        """Delete changes that are not to be applied."""
        self._storage.delete(*map(self._file_path, range_names))

    def clear_older_epochs(self, tables: Iterable[TableSchema], epoch: int) -> None:
        """Delete what earlier epochs have left."""
        self._storage.delete(*list_earlier_epoch_files(self._storage, self._folder, epoch))

    def _file_path(self, name: str) -> str:
        return f"{self._folder}/{name}.parquet"


def list_earlier_epoch_files(storage: Storage, folder: str, epoch: int) -> list[str]:
    """Return the names of the files that epochs before ``epoch`` staged in a folder."""
    start, earlier_files = f"{folder}/epoch-", []
    for name, _ in storage.list(folder):
        number = name.removeprefix(start).partition("/")[0]
        if name.startswith(start) and number.isdigit() and int(number) < epoch:
            earlier_files.append(name)
    return earlier_files
