"""Parquet files: the one place where they are written and read."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from airflow_provider_cdc.sinks.storage import Storage

#: Bytes in memory of a row group that is put together from small tables.
_ROW_GROUP_BYTES = 32 << 20
#: Bytes of changes that are put together to one.
_CHANGES_BYTES = 16 << 20
_COMPRESSION = "zstd"
#: Rows that tell whether the values of a column repeat.
_SAMPLE_ROWS = 2048


@dataclass(frozen=True)
class DataFile:
    """A file of rows inside the table's folder: Parquet, where this module has written it.

    :param path: path relative to the table's folder.
    :param size: bytes.
    :param rows: rows.
    :param low: smallest key, only for a single integer key.
    :param high: largest key, likewise.
    """

    path: str
    size: int
    rows: int
    low: int | None = None
    high: int | None = None

    def to_json(self) -> dict[str, Any]:
        """Plain JSON value; the keyword arguments of the class."""
        return dict(self.__dict__)


def write_file(
    storage: Storage,
    name: str,
    schema: pa.Schema,
    tables: Iterable[pa.Table],
    key: str | None,
    *,
    ordered_by: Collection[str] = (),
) -> DataFile:
    """Write tables as one Parquet file.

    Small ones share a row group: each costs about as much as compressing a few thousand rows. No more of them are held.

    :param storage: that of the table's folder.
    :param name: name of the file in it.
    :param schema: schema of all tables.
    :param key: name of the single integer key column, for statistics.
    :param ordered_by: columns by which the rows are ordered.
    """
    low: list[int] = []
    high: list[int] = []
    rows = 0
    groups = _row_groups(tables)
    first = next(groups, None)
    if first is None:
        first = schema.empty_table()
    with storage.open(name, "wb") as file:
        with pq.ParquetWriter(file, schema, compression=_COMPRESSION, **_encoding(first, ordered_by)) as writer:
            while first is not None:
                group, first = first, None  # not held while the next one is made
                writer.write_table(group, row_group_size=max(1, group.num_rows))
                rows += group.num_rows
                if key is not None and group.num_rows:
                    span = pc.min_max(group[key]).as_py()
                    low.append(int(span["min"]))
                    high.append(int(span["max"]))
                del group
                first = next(groups, None)
        size = file.tell()
    return DataFile(name, size, rows, min(low, default=None), max(high, default=None))


def _encoding(sample: pa.Table, ordered_by: Collection[str]) -> dict[str, list[str]]:
    """What makes writing fast: dictionaries and statistics only where they are of use.

    A dictionary of values that hardly repeat is given up when it has grown too large, after all the work. Lowest and
    highest texts tell nothing unless rows are ordered by them.
    """
    sample = sample.slice(0, _SAMPLE_ROWS)
    flat = [f for f in sample.schema if not pa.types.is_nested(f.type)]
    return {
        "use_dictionary": [f.name for f in flat if 2 * pc.count_distinct(sample[f.name]).as_py() <= sample.num_rows],
        "write_statistics": [f.name for f in flat if f.name in ordered_by or not _is_text(f.type)],
    }


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_binary(kind))


def _row_groups(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """The tables, put together as far as they are small (without copying)."""
    held: list[pa.Table] = []
    size = 0
    for table in tables:
        if held and size + table.nbytes > _ROW_GROUP_BYTES:
            yield pa.concat_tables(held)
            held, size = [], 0
        held.append(table)
        size += table.nbytes
    if held:
        yield pa.concat_tables(held)


def row_groups(
    storage: Storage, name: str, schema: pa.Schema, columns: Sequence[str] | None = None
) -> Iterator[pa.Table]:
    """Rows of a file, row group by row group.

    :param schema: schema of its rows.
    :param columns: only these columns.
    """
    wanted = schema if columns is None else pa.schema([schema.field(c) for c in columns])
    with storage.open(name, "rb") as opened, pq.ParquetFile(opened) as file:
        # Not read_row_group(columns=...): it takes a dot in a column's name for a path into a struct.
        indices = [file.schema_arrow.get_field_index(c) for c in wanted.names] if columns is not None else None
        for number in range(file.metadata.num_row_groups):
            found = file.reader.read_row_group(number, column_indices=indices)
            yield found.select(wanted.names).cast(wanted)


def read_file(storage: Storage, name: str, schema: pa.Schema, columns: Sequence[str] | None = None) -> pa.Table:
    """Likewise, all rows at once."""
    if columns is None:  # all row groups at the same time
        with storage.open(name, "rb") as opened, pq.ParquetFile(opened) as file:
            return file.read().select(schema.names).cast(schema)
    wanted = pa.schema([schema.field(c) for c in columns])
    return pa.concat_tables([wanted.empty_table(), *row_groups(storage, name, schema, columns)])


class ChangeFile:
    """Changes of one table in a piece of a batch; small batches of rows are put together to larger ones.

    :param name: name of the file.
    :param schema: schema of its rows.
    """

    def __init__(self, storage: Storage, name: str, schema: pa.Schema) -> None:
        self._storage, self._name, self._schema = storage, name, schema
        self._held = list[pa.RecordBatch]()
        self._open()

    def _open(self) -> None:
        self._file = self._storage.open(self._name, "wb")
        self._writer = pq.ParquetWriter(self._file, self._schema, compression=_COMPRESSION)

    def add(self, changes: pa.RecordBatch) -> None:
        """Write changes."""
        self._held.append(changes)
        if sum(b.nbytes for b in self._held) >= _CHANGES_BYTES:
            self._flush()

    def empty(self) -> None:
        """The table is empty here: what came before does not count any more."""
        self._held = []
        self._end()
        self._open()

    def close(self) -> None:
        """Write what is left, and the end of the file."""
        self._flush()
        self._end()

    def _end(self) -> None:
        self._writer.close()
        self._file.close()

    def _flush(self) -> None:
        self._writer.write_table(pa.Table.from_batches(self._held, self._schema))
        self._held = []


def portions(tables: Iterable[pa.Table], size: int) -> Iterator[Iterator[pa.Table]]:
    """Tables as groups of about a size, each to be read before the next one is asked for. Those without rows go.

    :param size: bytes in memory.
    """
    rest = (table for table in tables if table.num_rows)
    for head in rest:

        def portion(head: pa.Table = head) -> Iterator[pa.Table]:
            held = head.nbytes
            yield head
            while held < size and (table := next(rest, None)) is not None:
                held += table.nbytes
                yield table

        yield portion()
