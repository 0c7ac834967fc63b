"""Parquet files: all reading and writing of them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from airflow_provider_cdc.model.errors import TerminalError
from airflow_provider_cdc.model.json_record import JsonRecord
from airflow_provider_cdc.model.schema import DELETED_COLUMN, META_COLUMNS, SEQ_COLUMN
from airflow_provider_cdc.sinks.files.stored_columns import StoredColumns, default_of, field_id_of
from airflow_provider_cdc.sinks.storage.disk import translate_disk_full
from airflow_provider_cdc.sinks.storage.storage import Storage

#: Bytes in memory of a row group that is combined from small tables.
_ROW_GROUP_BYTES = 32 << 20
#: Bytes of changes that are combined into one write.
CHANGE_BUFFER_BYTES = 16 << 20
_COMPRESSION = "zstd"
#: Rows sampled to see whether the values of a column repeat.
_SAMPLE_ROWS = 2048
#: The partition of a file: values, as text, by name. If a name is that of a column, the column is not in the file, and
#: all of its rows have the value. Names of other values end with a space, with which no column name of a server ends.
PartitionValues = Mapping[str, str | None]
NO_PARTITION: PartitionValues = {}
#: Key, in the metadata of the schema of files, of the number that the schema has in its table, if the format has such
#: numbers.
SCHEMA_ID_KEY = b"airflow-cdc.schema-id"


class DataFile(JsonRecord, frozen=True):
    """A file of rows in the table's folder; Parquet if this module wrote it.

    :param path: path relative to the table's folder.
    :param size: bytes.
    :param rows: number of rows.
    :param low: smallest key, only for a single integer key.
    :param high: largest key, likewise.
    :param oldest: smallest ``_cdc_seq``; ``None`` if a row has none.
    :param newest: largest ``_cdc_seq``, likewise.
    :param partition: its partition.
    :param parts: the files with the rows, if this object represents several files; then ``path`` itself does not exist.
    :param schema_id: number of its schema in the table, if the format has such numbers.
    """

    path: str
    size: int
    rows: int
    low: int | None = None
    high: int | None = None
    oldest: int | None = None
    newest: int | None = None
    partition: PartitionValues = msgspec.field(default_factory=dict)
    parts: tuple[DataFile, ...] = ()
    schema_id: int | None = None

    @property
    def files(self) -> tuple[DataFile, ...]:
        """The files that contain its rows."""
        return self.parts or (self,)


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
    """Write tables as one Parquet file, which is deleted if that fails.

    Small tables share a row group, because each row group costs about as much as compressing a few thousand rows. No
    more tables than those of one row group are kept in memory.

    :param storage: storage of the table's folder.
    :param name: name of the file in it.
    :param schema: schema of the file; the types of all tables can be cast to its types.
    :param stats_column: name of the single integer key column, for statistics.
    :param ordered_by: columns by which the rows are ordered.
    :param partition: values, the same for all rows, of the columns that the schema lacks.
    :param row_group_size: rows per row group; ``None`` for all rows that are combined.
    """
    spans = {name: _MinMax() for name in (stats_column, SEQ_COLUMN) if name is not None and name in schema.names}
    rows = 0
    groups = (as_stored(group, schema) for group in concat_small_tables(tables))
    first = next(groups, None)
    if first is None:
        first = empty_table(schema)
    options = _writer_options(first, ordered_by)
    try:
        with storage.open(name, "wb") as file:
            with pq.ParquetWriter(file, schema, compression=_COMPRESSION, **options) as writer:
                while first is not None:
                    group, first = first, None  # free it before the next one is created
                    writer.write_table(group, row_group_size=row_group_size or max(1, group.num_rows))
                    rows += group.num_rows
                    for column, span in spans.items():
                        span.add(group[column])
                    del group
                    first = next(groups, None)
            size = file.tell()
    except BaseException:
        with suppress(Exception):  # the first error is the cause
            storage.delete(name)
        raise
    bounds = _file_bounds(spans, stats_column)
    return DataFile(name, size, rows, *bounds, partition=partition, schema_id=_schema_id_of(schema))


def as_stored(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return rows with the types of a file: some formats lack small integers, for example."""
    return rows if rows.schema == schema else rows.cast(schema)


def _schema_id_of(schema: pa.Schema) -> int | None:
    number = (schema.metadata or {}).get(SCHEMA_ID_KEY)
    return None if number is None else int(number)


class _MinMax:
    """Smallest and largest value of a column; unknown if a value is NULL."""

    def __init__(self) -> None:
        self.low: int | None = None
        self.high: int | None = None
        self._has_nulls = False

    def add(self, column: pa.ChunkedArray) -> None:
        """Update the bounds with the values of a column."""
        self._has_nulls |= column.null_count > 0
        if self._has_nulls:
            self.low = self.high = None
            return
        extremes = pc.min_max(column).as_py()
        if extremes["min"] is not None:
            low, high = int(extremes["min"]), int(extremes["max"])
            self.low = low if self.low is None else min(low, self.low)
            self.high = high if self.high is None else max(high, self.high)


def _file_bounds(
    spans: Mapping[str, _MinMax], stats_column: str | None
) -> tuple[int | None, int | None, int | None, int | None]:
    """Return the bounds for a :class:`DataFile`: smallest and largest key, smallest and largest ``_cdc_seq``."""
    keys, seqs = (spans.get(name or "", _MinMax()) for name in (stats_column, SEQ_COLUMN))
    return keys.low, keys.high, seqs.low, seqs.high


def _writer_options(sample: pa.Table, ordered_by: Collection[str]) -> dict[str, list[str]]:
    """Return options that make writing fast: dictionaries and statistics only where they help.

    If values rarely repeat, the writer builds a dictionary only to give it up when it grows too large. Lowest and
    highest text values are of no use unless the rows are ordered by them.
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
    """Yield the tables, with small ones concatenated (without copying)."""
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
    """Return a table without rows. ``Schema.empty_table()`` would load pandas for timestamp columns."""
    return pa.Table.from_batches([], schema)


@contextmanager
def open_parquet(storage: Storage, name: str) -> Iterator[pq.ParquetFile]:
    """Open a file for reading."""
    with storage.open(name, "rb") as opened, _parquet_file(storage, opened) as file:
        yield file


def _parquet_file(storage: Storage, opened: pa.NativeFile) -> pq.ParquetFile:
    """Open a file; if each read is a request, fetch the wanted part of a row group in as few reads as possible."""
    return pq.ParquetFile(opened, pre_buffer=storage.is_remote)


def has_only_columns(storage: Storage, name: str, schema: pa.Schema) -> bool:
    """Return whether every column of a file is in a schema, with the same type, and the same field id if it has one."""
    with open_parquet(storage, name) as file:
        known = {field.name: (field.type, field_id_of(field)) for field in schema}
        return all(known.get(field.name) == (field.type, field_id_of(field)) for field in file.schema_arrow)


def read_field_ids(storage: Storage, name: str) -> dict[str, int]:
    """Return the field ids of the columns of a file that have one, by name."""
    with open_parquet(storage, name) as file:
        return {f.name: int(number) for f in file.schema_arrow if (number := field_id_of(f)) is not None}


def read_row_groups(
    storage: Storage,
    name: str,
    schema: pa.Schema,
    columns: Sequence[str] | None = None,
    partition: PartitionValues = NO_PARTITION,
    may_lack_columns: bool = False,
) -> Iterator[pa.Table]:
    """Yield the rows of a file, row group by row group.

    :param schema: schema of its rows.
    :param columns: read only these columns; ``None`` for all.
    :param partition: values of the columns that are not in the file, as in :class:`DataFile`.
    :param may_lack_columns: whether the file may be older than some columns of the table, which are then NULL in all of
        its rows.
    :raises TerminalError: if it lacks other columns.
    """
    wanted_schema = _select_columns(schema, columns)
    with open_parquet(storage, name) as file:
        stored = _find_columns(storage, name, file, wanted_schema, partition, may_lack_columns)
        for number in range(file.metadata.num_row_groups):
            # Not read_row_group(columns=...): it interprets a dot in a column name as a path into a struct.
            group = stored.select(file.reader.read_row_group(number, column_indices=stored.leaves))
            rows = file.metadata.row_group(number).num_rows
            yield _add_missing_columns(group, rows, wanted_schema, partition)


def read_row_numbers(
    storage: Storage,
    name: str,
    schema: pa.Schema,
    row_numbers: Any,
    partition: PartitionValues = NO_PARTITION,
    may_lack_columns: bool = False,
) -> Iterator[pa.Table]:
    """Yield some rows of a file, in order and in portions. Row groups without any of them are not read.

    :param schema: as for :func:`read_row_groups`, like ``partition`` and ``may_lack_columns``.
    :param row_numbers: their row numbers, in ascending order.
    """
    with open_parquet(storage, name) as file:
        stored = _find_columns(storage, name, file, schema, partition, may_lack_columns)
        groups = [file.metadata.row_group(number) for number in range(file.metadata.num_row_groups)]
        first = np.cumsum([0, *(group.num_rows for group in groups)])
        hit_groups = np.unique(np.searchsorted(first, row_numbers, side="right") - 1).tolist()
        while hit_groups:
            group_numbers = [hit_groups.pop(0)]
            size = groups[group_numbers[0]].total_byte_size
            while hit_groups and (size := size + groups[hit_groups[0]].total_byte_size) <= _ROW_GROUP_BYTES:
                group_numbers.append(hit_groups.pop(0))
            candidates = stored.select(file.reader.read_row_groups(group_numbers, column_indices=stored.leaves))
            numbers = np.concatenate([np.arange(first[n], first[n + 1]) for n in group_numbers])
            low, high = np.searchsorted(row_numbers, [numbers[0], numbers[-1] + 1])
            numbers_in_part = np.searchsorted(numbers, row_numbers[low:high])
            part = candidates.take(pa.array(numbers_in_part))
            yield _add_missing_columns(part, len(numbers_in_part), schema, partition)


def _select_columns(schema: pa.Schema, columns: Sequence[str] | None) -> pa.Schema:
    return schema if columns is None else pa.schema([schema.field(c) for c in columns], metadata=schema.metadata)


def _find_columns(
    storage: Storage,
    name: str,
    file: pq.ParquetFile,
    wanted_schema: pa.Schema,
    partition: PartitionValues,
    may_lack_columns: bool,
) -> StoredColumns:
    """Find those of the wanted columns that are in a file."""
    in_file = [field for field in wanted_schema if field.name not in partition]
    columns = pa.schema(in_file, metadata=wanted_schema.metadata)
    location = storage.location(name)
    stored = StoredColumns.find(file.schema_arrow, columns, location)
    absent_columns = [f.name for f in in_file if f.name not in stored.schema.names and default_of(f) is None]
    if missing := [n for n in absent_columns if not may_lack_columns or n in (*META_COLUMNS, DELETED_COLUMN)]:
        raise TerminalError(
            f"the file {location} lacks column {missing[0]}",
            "It was written by other software, or under another definition: use a fresh sink.path",
        )
    return stored


def _add_missing_columns(
    table: pa.Table, row_count: int, wanted_schema: pa.Schema, partition: PartitionValues
) -> pa.Table:
    """Return rows with the columns that are not in their file."""
    if table.column_names == wanted_schema.names:
        return table

    def column(field: pa.Field) -> Any:
        if field.name in partition:
            return pa.repeat(pa.scalar(partition[field.name], pa.string()), row_count).cast(field.type)
        if field.name in table.column_names:
            return table[field.name]
        default = default_of(field)
        return pa.nulls(row_count, field.type) if default is None else pa.repeat(default, row_count)

    return pa.table([column(f) for f in wanted_schema], schema=wanted_schema)


def read_file(
    storage: Storage,
    name: str,
    schema: pa.Schema,
    columns: Sequence[str] | None = None,
    partition: PartitionValues = NO_PARTITION,
    may_lack_columns: bool = False,
) -> pa.Table:
    """Return all rows of a file; parameters as for :func:`read_row_groups`."""
    if columns is None and not partition:  # all row groups in parallel
        with open_parquet(storage, name) as file:
            stored = _find_columns(storage, name, file, schema, partition, may_lack_columns)
            table = stored.select(file.reader.read_all(column_indices=stored.leaves))
            return _add_missing_columns(table, file.metadata.num_rows, schema, partition)
    wanted_schema = _select_columns(schema, columns)
    return pa.concat_tables(
        [empty_table(wanted_schema), *read_row_groups(storage, name, schema, columns, partition, may_lack_columns)]
    )


def describe_file(
    storage: Storage, name: str, schema: pa.Schema, columns: Sequence[str], stats_column: str | None
) -> tuple[DataFile, pa.Table]:
    """Return the description of a file that was written elsewhere, and some of its columns.

    :param stats_column: as for :func:`write_file`.
    """
    wanted_schema = pa.schema([schema.field(c) for c in columns])
    with storage.open(name, "rb") as opened, _parquet_file(storage, opened) as file:
        # It becomes part of the table unchanged.
        _find_columns(storage, name, file, schema, NO_PARTITION, may_lack_columns=False)
        stored = _find_columns(storage, name, file, wanted_schema, NO_PARTITION, may_lack_columns=False)
        table = stored.select(file.reader.read_all(column_indices=stored.leaves))
        size = opened.size()
        schema_id = _schema_id_of(file.schema_arrow)
    spans = {column: _MinMax() for column in (stats_column, SEQ_COLUMN) if column is not None}
    for column, span in spans.items():
        span.add(table[column])
    return DataFile(name, size, table.num_rows, *_file_bounds(spans, stats_column), schema_id=schema_id), table


class ChangeFileWriter:
    """Writes the changes of one table in a batch range; small record batches are combined into larger ones.

    :param name: name of the file.
    :param schema: schema of the file; the types of all changes can be cast to its types.
    :param row_group_size: rows per row group; ``None`` for all rows that are combined.
    """

    def __init__(self, storage: Storage, name: str, schema: pa.Schema, row_group_size: int | None = None) -> None:
        self._storage, self._name, self._schema, self._row_group_size = storage, name, schema, row_group_size
        self._buffer = list[pa.RecordBatch]()
        self._open_file()

    def _open_file(self) -> None:
        self._file = self._storage.open(self._name, "wb")
        self._writer: pq.ParquetWriter | None = None  # created with the first rows, which determine its options

    def add(self, changes: pa.RecordBatch) -> None:
        """Write changes."""
        self._buffer.append(changes)
        if sum(b.nbytes for b in self._buffer) >= CHANGE_BUFFER_BYTES:
            self._flush()

    def truncate(self) -> None:
        """Discard the changes added so far: the table is empty here."""
        self._buffer = []
        self._close_file()
        self._open_file()

    def close(self, metadata: Mapping[str, str] = {}) -> None:
        """Write the remaining changes and finish the file.

        :param metadata: added to the metadata of the file.
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
        rows = pa.Table.from_batches(self._buffer) if self._buffer else empty_table(self._schema)
        rows = as_stored(rows, self._schema)
        with translate_disk_full(self._storage.location(self._name)):
            if self._writer is None:
                options = _writer_options(rows, ())
                self._writer = pq.ParquetWriter(self._file, self._schema, compression=_COMPRESSION, **options)
            self._writer.write_table(rows, row_group_size=self._row_group_size)
        self._buffer = []


def split_by_size(tables: Iterable[pa.Table], size: int) -> Iterator[Iterator[pa.Table]]:
    """Yield groups of tables of about the given size, without empty tables.

    Each group must be consumed before the next one is requested.

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
