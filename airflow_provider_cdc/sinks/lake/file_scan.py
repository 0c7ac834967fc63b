"""Reading a table back with one scan task per data file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
from pyroaring import BitMap

from airflow_provider_cdc.model.schema import DELETED_COLUMN
from airflow_provider_cdc.sinks.files.parquet import PartitionValues, read_row_groups
from airflow_provider_cdc.sinks.lake.log.table_log import TableLog
from airflow_provider_cdc.sinks.lake.merge.soft_deletes import drop_deleted_rows
from airflow_provider_cdc.sinks.lake.merge.table_edit import without_dead_rows
from airflow_provider_cdc.sinks.storage.storage import Storage


@dataclass(frozen=True)
class FileScanTask:
    """Reads the living rows of a data file.

    :param storage: storage of the table's folder.
    :param schema: schema of the table's rows.
    :param path: path in the folder.
    :param size_bytes: bytes.
    :param serialized_dead: its dead rows (serialized bitmap).
    :param partition: values of the columns that are not in the file.
    """

    storage: Storage
    schema: pa.Schema
    path: str
    size_bytes: int
    serialized_dead: bytes
    partition: PartitionValues = field(default_factory=dict, hash=False)

    def read_rows(self, columns: Sequence[str]) -> Iterator[pa.Table]:
        """Yield the rows, row group by row group; see :class:`~airflow_provider_cdc.sinks.scan_tasks.ScanTask`."""
        read_columns = [*columns, DELETED_COLUMN] if DELETED_COLUMN in self.schema.names else columns
        groups = read_row_groups(
            self.storage, self.path, self.schema, read_columns, self.partition, may_lack_columns=True
        )
        for rows in without_dead_rows(groups, BitMap.deserialize(self.serialized_dead)):
            yield drop_deleted_rows(rows)


def plan_file_scan(log: TableLog, schema: pa.Schema) -> list[FileScanTask]:
    """Return the scan tasks of a version.

    :param schema: schema of its rows.
    """
    schema = log.identify_columns(schema)
    return [
        FileScanTask(log.storage, schema, f.path, f.size, bytes(log.dead_rows(f.path).serialize()), f.partition)
        for f in log.files.values()
    ]
