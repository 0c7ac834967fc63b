"""Changes of batches in Parquet files, in a storage that all tasks and the driver share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pyarrow as pa

from airflow_provider_cdc.core.schema import TableSchema
from airflow_provider_cdc.sinks.files import ChangeFile, read_file
from airflow_provider_cdc.sinks.layout import Layout
from airflow_provider_cdc.sinks.storage import Storage


class FileStaging:
    """For sinks that have no better place for them.

    :param storage: where they lie.
    :param layout: the names of the pipeline.
    :param epoch: epoch of the stream.
    """

    def __init__(self, storage: Storage, layout: Layout, epoch: int) -> None:
        self._storage, self._all = storage, layout.staging
        self._folder = f"{layout.staging}/epoch-{epoch}"

    def writer(self, table: TableSchema, name: str) -> ChangeFile:
        """Begin to write; see :class:`~airflow_provider_cdc.sinks.protocol.Staging`."""
        return ChangeFile(self._storage, self._file(name), table.sink_schema)

    def read(self, table: TableSchema, names: Sequence[str]) -> pa.Table:
        """The changes of some pieces, in this order."""
        return pa.concat_tables([read_file(self._storage, self._file(name), table.sink_schema) for name in names])

    def discard(self, names: Iterable[str]) -> None:
        """Remove what is applied."""
        self._storage.delete(*map(self._file, names))

    def clear(self) -> None:
        """Remove what this and all other epochs have staged."""
        self._storage.clear(self._all)

    def _file(self, name: str) -> str:
        return f"{self._folder}/{name}.parquet"
