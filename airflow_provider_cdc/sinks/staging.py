"""Changes of batches in Parquet files, in a folder that all tasks and the driver share."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_provider_cdc.core.schema import TableSchema

#: Bytes of changes that are put together to one row group.
_GROUP_BYTES = 16 << 20


class FileStaging:
    """For sinks that have no better place for them.

    :param folder: folder of one epoch; those of the others lie beside it.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def writer(self, table: TableSchema, name: str) -> ChangeFile:
        """Begin to write; see :class:`~airflow_provider_cdc.sinks.protocol.Staging`."""
        self._folder.mkdir(parents=True, exist_ok=True)
        return ChangeFile(self.path(name), table.sink_schema)

    def read(self, table: TableSchema, names: Sequence[str]) -> pa.Table:
        """The changes of some pieces, in this order."""
        return pa.concat_tables([pq.ParquetFile(self.path(name)).read() for name in names]).cast(table.sink_schema)

    def discard(self, names: Iterable[str]) -> None:
        """Remove what is applied."""
        for name in names:
            self.path(name).unlink(missing_ok=True)

    def clear(self) -> None:
        """Remove what this and all other epochs have staged."""
        shutil.rmtree(self._folder.parent, ignore_errors=True)

    def path(self, name: str) -> Path:
        """File of what a piece has staged."""
        return self._folder / f"{name}.parquet"


class ChangeFile:
    """File of a table; small batches are put together to larger ones."""

    def __init__(self, path: Path, schema: pa.Schema) -> None:
        self._path, self._schema, self._held = path, schema, list[pa.RecordBatch]()
        self._writer = self._open()

    def _open(self) -> pq.ParquetWriter:
        return pq.ParquetWriter(self._path, self._schema, compression="zstd")

    def add(self, changes: pa.RecordBatch) -> None:
        """Write changes."""
        self._held.append(changes)
        if sum(b.nbytes for b in self._held) >= _GROUP_BYTES:
            self._flush()

    def empty(self) -> None:
        """The table is empty here: what came before does not count any more."""
        self._held = []
        self._writer.close()
        self._writer = self._open()

    def close(self) -> None:
        """Write what is left, and the end of the file."""
        self._flush()
        self._writer.close()

    def _flush(self) -> None:
        self._writer.write_table(pa.Table.from_batches(self._held, self._schema))
        self._held = []
