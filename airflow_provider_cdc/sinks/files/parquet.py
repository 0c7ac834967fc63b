"""Parquet files: the one place where they are written and read."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from airflow_provider_cdc.model.errors import TerminalError
from airflow_provider_cdc.model.schema import DELETED_COLUMN, META_COLUMNS, SEQ_COLUMN
from airflow_provider_cdc.sinks.storage.disk import translate_disk_full
from airflow_provider_cdc.sinks.storage.storage import Storage

#: Bytes in memory of a row group that is put together from small tables.
_ROW_GROUP_BYTES = 32 << 20
#: Bytes of changes that are put together to one.
CHANGE_BUFFER_BYTES = 16 << 20
_COMPRESSION = "zstd"
#: Rows that tell whether the values of a column repeat.
_SAMPLE_ROWS = 2048
#: Columns that are not in a file, since all of its rows have one value there: as text, as the Delta log has it.
PartitionValues = Mapping[str, str | None]
NO_PARTITION: PartitionValues = {}


@dataclass(frozen=True)
class DataFile:
    """A file of rows inside the table's folder: Parquet, where this module has written it.

    :param path: path relative to the table's folder.
    :param size: bytes.
    :param rows: rows.
    :param low: smallest key, only for a single integer key.
    :param high: largest key, likewise.
    :param oldest: smallest ``_cdc_seq``.
    :param newest: largest ``_cdc_seq``.
    :param partition: values of the columns that are not in the file.
    :param parts: the files that have the rows, if it stands for several; then there is none of its own path.
    """

    path: str
    size: int
    rows: int
    low: int | None = None
    high: int | None = None
    oldest: int | None = None
    newest: int | None = None
    partition: PartitionValues = field(default_factory=dict, hash=False)
    parts: tuple[DataFile, ...] = ()

    def __post_init__(self) -> None:
        parts = (DataFile(**part) if isinstance(part, Mapping) else part for part in self.parts)
        object.__setattr__(self, "parts", tuple(parts))

    @property
    def files(self) -> tuple[DataFile, ...]:
        """The files that have its rows."""
        return self.parts or (self,)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON value; the keyword arguments of the class."""
        fields = {**self.__dict__, "parts": [part.to_json() for part in self.parts]}
        return {name: value for name, value in fields.items() if value or name not in ("partition", "parts")}


def write_file(
    storage: Storage,
    name: str,
    schema: pa.Schema,
    tables: Iterable[pa.Table],
    stats_column: str | None,
    *,
    ordered_by: Collection[str] = (),
    partition: PartitionValues = NO_PARTITION,
    row_group_size: int | None = None,
) -> DataFile:
    """Write tables as one Parquet file.

    Small ones share a row group: each costs about as much as compressing a few thousand rows. No more of them are held.

    :param storage: that of the table's folder.
    :param name: name of the file in it.
    :param schema: schema of all tables.
    :param stats_column: name of the single integer key column, for statistics.
    :param ordered_by: columns by which the rows are ordered.
    :param partition: what all rows have in columns that the schema lacks.
    :param row_group_size: rows of a row group; ``None`` for as many as are gathered.
    """
    spans = {name: _MinMax() for name in (stats_column, SEQ_COLUMN) if name is not None and name in schema.names}
    rows = 0
    groups = concat_small_tables(tables)
    first = next(groups, None)
    if first is None:
        first = empty_table(schema)
    with storage.open(name, "wb") as file:
        with pq.ParquetWriter(file, schema, compression=_COMPRESSION, **_writer_options(first, ordered_by)) as writer:
            while first is not None:
                group, first = first, None  # not held while the next one is made
                writer.write_table(group, row_group_size=row_group_size or max(1, group.num_rows))
                rows += group.num_rows
                for column, span in spans.items():
                    span.add(group[column])
                del group
                first = next(groups, None)
        size = file.tell()
    return DataFile(name, size, rows, *_file_bounds(spans, stats_column), partition=partition)


class _MinMax:
    """Smallest and largest value of a column."""

    def __init__(self) -> None:
        self.low: int | None = None
        self.high: int | None = None

    def add(self, column: pa.ChunkedArray) -> None:
        """Take in values."""
        extremes = pc.min_max(column).as_py()
        if extremes["min"] is not None:
            low, high = int(extremes["min"]), int(extremes["max"])
            self.low = low if self.low is None else min(low, self.low)
            self.high = high if self.high is None else max(high, self.high)


def _file_bounds(
    spans: Mapping[str, _MinMax], stats_column: str | None
) -> tuple[int | None, int | None, int | None, int | None]:
    """What :class:`DataFile` says of a file's values."""
    keys, seqs = (spans.get(name or "", _MinMax()) for name in (stats_column, SEQ_COLUMN))
    return keys.low, keys.high, seqs.low, seqs.high


def _writer_options(sample: pa.Table, ordered_by: Collection[str]) -> dict[str, list[str]]:
    """What makes writing fast: dictionaries and statistics only where they are of use.

    A dictionary of values that hardly repeat is given up when it has grown too large, after all the work. Lowest and
    highest texts tell nothing unless rows are ordered by them.
    """
    sample = sample.slice(0, _SAMPLE_ROWS)
    flat = [f for f in sample.schema if not pa.types.is_nested(f.type)]
    return {
        "use_dictionary": [f.name for f in flat if 2 * pc.count_distinct(sample[f.name]).as_py() <= sample.num_rows],
        "write_statistics": [f.name for f in flat if f.name in ordered_by or not _is_text_type(f.type)],
    }


def _is_text_type(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_binary(kind))


def concat_small_tables(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """The tables, put together as far as they are small (without copying)."""
    pending: list[pa.Table] = []
    size = 0
    for table in tables:
        if pending and size + table.nbytes > _ROW_GROUP_BYTES:
            yield pa.concat_tables(pending)
            pending, size = [], 0
        pending.append(table)
        size += table.nbytes
    if pending:
        yield pa.concat_tables(pending)


def empty_table(schema: pa.Schema) -> pa.Table:
    """A table without rows. Not ``empty_table()`` of the schema: that loads pandas where it has timestamps."""
    return pa.Table.from_batches([], schema)


@contextmanager
def open_parquet(storage: Storage, name: str) -> Iterator[pq.ParquetFile]:
    """A file, open to be read."""
    with storage.open(name, "rb") as opened, _parquet_file(storage, opened) as file:
        yield file


def _parquet_file(storage: Storage, opened: pa.NativeFile) -> pq.ParquetFile:
    """Where each read is a request, what is wanted of a row group is read with as few as possible."""
    return pq.ParquetFile(opened, pre_buffer=storage.is_remote)


def has_only_columns(storage: Storage, name: str, schema: pa.Schema) -> bool:
    """Whether all columns of a file are such of a schema, and of the same types."""
    with open_parquet(storage, name) as file:
        known_types = {field.name: field.type for field in schema}
        return all(known_types.get(field.name) == field.type for field in file.schema_arrow)


def read_row_groups(
    storage: Storage,
    name: str,
    schema: pa.Schema,
    columns: Sequence[str] | None = None,
    partition: PartitionValues = NO_PARTITION,
    may_lack_columns: bool = False,
) -> Iterator[pa.Table]:
    """Rows of a file, row group by row group.

    :param schema: schema of its rows.
    :param columns: only these columns.
    :param partition: columns that are not in the file, as in :class:`DataFile`.
    :param may_lack_columns: whether the file may be older than some of the table's columns: those are NULL in all of
        its rows.
    :raises TerminalError: if it lacks others.
    """
    wanted_schema = schema if columns is None else pa.schema([schema.field(c) for c in columns])
    with open_parquet(storage, name) as file:
        stored = _stored_schema(storage, name, file, wanted_schema, partition, may_lack_columns)
        # Not read_row_group(columns=...): it takes a dot in a column's name for a path into a struct.
        reads_all_columns = columns is None and stored.names == wanted_schema.names
        indices = None if reads_all_columns else [file.schema_arrow.get_field_index(c) for c in stored.names]
        for number in range(file.metadata.num_row_groups):
            group = file.reader.read_row_group(number, column_indices=indices).select(stored.names).cast(stored)
            rows = file.metadata.row_group(number).num_rows
            yield group if stored == wanted_schema else _add_missing_columns(group, rows, wanted_schema, partition)


def read_row_numbers(
    storage: Storage,
    name: str,
    schema: pa.Schema,
    row_numbers: Any,
    partition: PartitionValues = NO_PARTITION,
    may_lack_columns: bool = False,
) -> Iterator[pa.Table]:
    """Some rows of a file in their order, in portions. Row groups that have none of them are not read.

    :param row_numbers: their numbers, in ascending order.
    :param schema: as for :func:`row_groups`, and ``partition``, and ``may_lack_columns``.
    """
    with open_parquet(storage, name) as file:
        stored = _stored_schema(storage, name, file, schema, partition, may_lack_columns)
        groups = [file.metadata.row_group(number) for number in range(file.metadata.num_row_groups)]
        indices = [file.schema_arrow.get_field_index(c) for c in stored.names]
        first = np.cumsum([0, *(group.num_rows for group in groups)])
        hit_groups = np.unique(np.searchsorted(first, row_numbers, side="right") - 1).tolist()
        while hit_groups:
            group_numbers = [hit_groups.pop(0)]
            size = groups[group_numbers[0]].total_byte_size
            while hit_groups and (size := size + groups[hit_groups[0]].total_byte_size) <= _ROW_GROUP_BYTES:
                group_numbers.append(hit_groups.pop(0))
            candidates = (
                file.reader.read_row_groups(group_numbers, column_indices=indices).select(stored.names).cast(stored)
            )
            numbers = np.concatenate([np.arange(first[n], first[n + 1]) for n in group_numbers])
            low, high = np.searchsorted(row_numbers, [numbers[0], numbers[-1] + 1])
            part = candidates.take(pa.array(np.searchsorted(numbers, row_numbers[low:high])))
            yield part if stored == schema else _add_missing_columns(part, part.num_rows, schema, partition)


def _stored_schema(
    storage: Storage,
    name: str,
    file: pq.ParquetFile,
    wanted_schema: pa.Schema,
    partition: PartitionValues,
    may_lack_columns: bool,
) -> pa.Schema:
    """The columns that stand in a file, of those that are wanted."""
    file_columns = set(file.schema_arrow.names)
    absent_columns = [n for n in wanted_schema.names if n not in file_columns and n not in partition]
    if missing := [n for n in absent_columns if not may_lack_columns or n in (*META_COLUMNS, DELETED_COLUMN)]:
        raise TerminalError(
            f"the file {storage.location(name)} lacks column {missing[0]}",
            "It was written by something else, or under another definition: use a fresh sink.path",
        )
    return pa.schema([f for f in wanted_schema if f.name not in partition and f.name not in absent_columns])


def _add_missing_columns(
    table: pa.Table, row_count: int, wanted_schema: pa.Schema, partition: PartitionValues
) -> pa.Table:
    """Rows with the columns that are not in their file."""

    def column(field: pa.Field) -> Any:
        if field.name in partition:
            return pa.repeat(pa.scalar(partition[field.name], pa.string()), row_count).cast(field.type)
        return table[field.name] if field.name in table.column_names else pa.nulls(row_count, field.type)

    return pa.table([column(f) for f in wanted_schema], schema=wanted_schema)


def read_file(
    storage: Storage,
    name: str,
    schema: pa.Schema,
    columns: Sequence[str] | None = None,
    partition: PartitionValues = NO_PARTITION,
    may_lack_columns: bool = False,
) -> pa.Table:
    """Likewise, all rows at once."""
    if columns is None and not partition:  # all row groups at the same time
        with open_parquet(storage, name) as file:
            stored = _stored_schema(storage, name, file, schema, partition, may_lack_columns)
            table = file.read().select(stored.names).cast(stored)
            return table if stored == schema else _add_missing_columns(table, table.num_rows, schema, partition)
    wanted_schema = schema if columns is None else pa.schema([schema.field(c) for c in columns])
    return pa.concat_tables(
        [empty_table(wanted_schema), *read_row_groups(storage, name, schema, columns, partition, may_lack_columns)]
    )


def describe_file(
    storage: Storage, name: str, schema: pa.Schema, columns: Sequence[str], stats_column: str | None
) -> tuple[DataFile, pa.Table]:
    """A file that was written elsewhere, and some of its columns.

    :param stats_column: as for :func:`write_file`.
    """
    wanted_schema = pa.schema([schema.field(c) for c in columns])
    with storage.open(name, "rb") as opened, _parquet_file(storage, opened) as file:
        _stored_schema(
            storage, name, file, schema, NO_PARTITION, may_lack_columns=False
        )  # it is to become part of the table as it is
        indices = [file.schema_arrow.get_field_index(c) for c in wanted_schema.names]
        table = file.reader.read_all(column_indices=indices).select(wanted_schema.names).cast(wanted_schema)
        size = opened.size()
    spans = {column: _MinMax() for column in (stats_column, SEQ_COLUMN) if column is not None}
    for column, span in spans.items():
        span.add(table[column])
    return DataFile(name, size, table.num_rows, *_file_bounds(spans, stats_column)), table


class ChangeFileWriter:
    """Changes of one table in a piece of a batch; small batches of rows are put together to larger ones.

    :param name: name of the file.
    :param schema: schema of its rows.
    :param row_group_size: rows of a row group; ``None`` for as many as are put together.
    """

    def __init__(self, storage: Storage, name: str, schema: pa.Schema, row_group_size: int | None = None) -> None:
        self._storage, self._name, self._schema, self._row_group_size = storage, name, schema, row_group_size
        self._buffer = list[pa.RecordBatch]()
        self._open_file()

    def _open_file(self) -> None:
        self._file = self._storage.open(self._name, "wb")
        self._writer: pq.ParquetWriter | None = None  # begun with the first rows: they tell how to write the others

    def add(self, changes: pa.RecordBatch) -> None:
        """Write changes."""
        self._buffer.append(changes)
        if sum(b.nbytes for b in self._buffer) >= CHANGE_BUFFER_BYTES:
            self._flush()

    def truncate(self) -> None:
        """The table is empty here: what came before does not count any more."""
        self._buffer = []
        self._close_file()
        self._open_file()

    def close(self, metadata: Mapping[str, str] = {}) -> None:
        """Write what is left, and the end of the file.

        :param metadata: goes into the file's metadata.
        """
        self._flush()
        self._close_file(metadata)

    def _close_file(self, metadata: Mapping[str, str] = {}) -> None:
        if self._writer is None:
            self._flush()
        assert self._writer is not None
        self._writer.add_key_value_metadata(dict(metadata))
        with translate_disk_full(self._storage.location(self._name)):
            self._writer.close()
            self._file.close()

    def _flush(self) -> None:
        rows = pa.Table.from_batches(self._buffer, self._schema)
        with translate_disk_full(self._storage.location(self._name)):
            if self._writer is None:
                options = _writer_options(rows, ())
                self._writer = pq.ParquetWriter(self._file, self._schema, compression=_COMPRESSION, **options)
            self._writer.write_table(rows, row_group_size=self._row_group_size)
        self._buffer = []


def split_by_size(tables: Iterable[pa.Table], size: int) -> Iterator[Iterator[pa.Table]]:
    """Tables as groups of about a size, each to be read before the next one is asked for. Those without rows go.

    :param size: bytes in memory.
    """
    nonempty_tables = (table for table in tables if table.num_rows)
    for head in nonempty_tables:

        def portion(head: pa.Table = head) -> Iterator[pa.Table]:
            portion_bytes = head.nbytes
            yield head
            while portion_bytes < size and (table := next(nonempty_tables, None)) is not None:
                portion_bytes += table.nbytes
                yield table

        yield portion()
