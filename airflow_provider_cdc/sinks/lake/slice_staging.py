"""Slices of the snapshot, written by tasks to the folder of a table, of which they later become a part."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator

import pyarrow as pa

from airflow_provider_cdc.model.schema import DELETED_COLUMN
from airflow_provider_cdc.sinks.files.layout import slices_folder
from airflow_provider_cdc.sinks.files.parquet import DataFile, concat_small_tables, read_row_groups
from airflow_provider_cdc.sinks.lake.log.table_log import TableLog
from airflow_provider_cdc.sinks.lake.merge.partitions import PartitionedWriter, TableFormat, combine_files
from airflow_provider_cdc.sinks.lake.merge.soft_deletes import add_deleted_column
from airflow_provider_cdc.sinks.storage.storage import Storage


class SliceStaging(ABC):
    """Writes and reads the slices of one table.

    :param storage: storage of the table's folder.
    :param table_format: format of the table.
    """

    def __init__(self, storage: Storage, table_format: TableFormat) -> None:
        self.storage = storage
        self.schema = table_format.schema
        self._format = table_format
        self._slices_folder = slices_folder(table_format.source)

    @abstractmethod
    def open_log(self) -> TableLog:
        """Return a log of the table that has read nothing yet."""

    def stage(self, staging_path: str, rows: Iterable[pa.Table]) -> DataFile:
        """Write a slice of the snapshot to the table's folder."""
        name = f"{self._slices_folder}/{staging_path}.parquet"
        if self._format.is_partitioned:
            partitioned_file = self._stage_partitioned(name, rows)
            if partitioned_file.rows:
                return partitioned_file
            rows = ()  # no rows: write one empty file without a partition
        flagged_rows = (add_deleted_column(part, self.schema) for part in rows)
        return self._format.write_file(self.storage, name, flagged_rows, ordered_by=self._format.key_columns)

    def _stage_partitioned(self, name: str, rows: Iterable[pa.Table]) -> DataFile:
        folder, _, base = name.removesuffix(".parquet").rpartition("/")
        files = PartitionedWriter(self.storage, folder, base, self._format, self._format.key_columns)
        try:
            for portion in concat_small_tables(rows):
                files.add(add_deleted_column(portion, self.schema))
            return combine_files(name, files.close())
        except BaseException:
            files.discard()
            raise

    def is_staged(self, file: DataFile) -> bool:
        """Return whether all of its files exist with the size that was written."""
        sizes_match = all(self.storage.size(part.path) == part.size for part in file.files)
        return sizes_match and sum(part.size for part in file.files) == file.size

    def read_staged(self, file: DataFile) -> Iterator[pa.Table]:
        """Yield the rows of a slice, row group by row group."""
        names = [name for name in self.schema.names if name != DELETED_COLUMN]
        for part in file.files:
            partition = part.partition or dict.fromkeys(self._format.columns)  # of a slice without rows
            yield from read_row_groups(self.storage, part.path, self.schema, names, partition, may_lack_columns=True)

    def discard_staged(self, file: DataFile) -> None:
        """Delete the files of a slice."""
        self.storage.delete(*(part.path for part in file.files))

    def clear_staged(self, staging_folder: str) -> None:
        """Delete the slices in a folder, unless they are, or were until recently, part of the table."""
        if names := [name for name, _ in self.storage.list(f"{self._slices_folder}/{staging_folder}")]:
            log = self.open_log()
            log.refresh()
            if superseded := [name for name in names if not log.references(name)]:
                log.cross_check_files()
                self.storage.delete(*superseded)
