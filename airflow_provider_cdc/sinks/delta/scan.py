"""Reading a Delta table back in portions: one for each data file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
from pyroaring import BitMap

from airflow_provider_cdc.model.schema import DELETED
from airflow_provider_cdc.sinks.delta.log.log import Log
from airflow_provider_cdc.sinks.delta.merge.edit import alive
from airflow_provider_cdc.sinks.delta.merge.soft_deletes import living
from airflow_provider_cdc.sinks.files.parquet import Partition, row_groups
from airflow_provider_cdc.sinks.storage.storage import Storage


@dataclass(frozen=True)
class FilePortion:
    """The living rows of a data file.

    :param storage: that of the table's folder.
    :param schema: schema of the table's rows.
    :param path: name in the folder.
    :param size_bytes: bytes.
    :param serialized_dead: rows of it that are dead (serialized).
    :param partition: values of the columns that are not in the file.
    """

    storage: Storage
    schema: pa.Schema
    path: str
    size_bytes: int
    serialized_dead: bytes
    partition: Partition = field(default_factory=dict, hash=False)

    def read_rows(self, columns: Sequence[str]) -> Iterator[pa.Table]:
        """Row group by row group; see :class:`~airflow_provider_cdc.sinks.scanning.Portion`."""
        read_columns = [*columns, DELETED] if DELETED in self.schema.names else columns
        groups = row_groups(self.storage, self.path, self.schema, read_columns, self.partition, may_lack_columns=True)
        for rows in alive(groups, BitMap.deserialize(self.serialized_dead)):
            yield living(rows)


def portions_of(log: Log, schema: pa.Schema) -> list[FilePortion]:
    """Portions of a version.

    :param schema: schema of its rows.
    """
    return [
        FilePortion(log.storage, schema, f.path, f.size, bytes(log.dead_rows(f).serialize()), f.partition)
        for f in log.files.values()
    ]
