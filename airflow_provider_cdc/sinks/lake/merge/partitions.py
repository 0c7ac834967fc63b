"""Partitioned tables: each data file has rows of one partition, whose values are in the log and not in the file.

Folders are named after the values (Hive style), because some readers get the values from there. This package does not.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_cdc.model.column_policy import SOURCE_COLUMN, UNIQUE_KEY
from airflow_provider_cdc.model.errors import NotReadyError, TerminalError
from airflow_provider_cdc.model.schema import KEY_TYPES, PROJECT_COLUMNS, Column, TableSchema
from airflow_provider_cdc.sinks.files.parquet import (
    NO_PARTITION,
    DataFile,
    PartitionValues,
    read_row_groups,
    write_file,
)
from airflow_provider_cdc.sinks.lake.log.source_scope import WHOLE_TABLE, SourceScope
from airflow_provider_cdc.sinks.lake.log.table_log import RowOrigin
from airflow_provider_cdc.sinks.storage.storage import Storage

#: Parts of a date: number of characters of YYYY-MM-DD HH that determine it.
DATE_UNITS: Mapping[str, int] = {"year": 4, "month": 7, "day": 10, "hour": 13}
_TIME_TYPES = ("datetime", "timestamp")
#: Types of columns that may partition a table: key types whose text is complete in a path.
_PARTITION_TYPES = KEY_TYPES - {"binary", "varbinary", "time", *_TIME_TYPES}
#: Folder name of a NULL value, allowed column names in a path, and maximum length of a folder name.
NULL_FOLDER = "__HIVE_DEFAULT_PARTITION__"
_ALLOWED_NAME = re.compile(r"[^/\\=%#?*:\"\x00-\x1f\x7f]+")
_MAX_FOLDER_BYTES = 240
#: Maximum bytes of rows in memory that wait for more rows of their partitions.
BUFFER_BYTES = 64 << 20
SETTING = "sink.partition_by"
_CHANGE_VALUE_REMEDY = "Give the row another value in the source"
_PARTITION_VALUE_REMEDY = (
    f"{_CHANGE_VALUE_REMEDY}, then re-snapshot the table (airflow-cdc resnapshot); or leave the column out of "
    f"{SETTING} and start with a fresh sink.path"
)


@dataclass(frozen=True)
class PartitionField:
    """A column, or a part of a date, that partitions a table.

    :param column: name of a column of the source.
    :param unit: one of :data:`DATE_UNITS`, or another transform that the format of the table has, such as
        ``bucket[16]``; ``None`` for the column itself.
    """

    column: str
    unit: str | None = None

    @property
    def column_name(self) -> str:
        """Name of the column in the table."""
        return self.column if self.unit is None else f"{self.column}_{self.unit}"

    def __str__(self) -> str:
        return self.column if self.unit is None else f"{self.unit} of {self.column}"


@dataclass(frozen=True)
class TableFormat:
    """How the rows of a table are stored in its files, and how they are identified. A format may extend it.

    :param schema: schema of its rows, without parts of dates.
    :param fields: the columns, and parts of dates, that partition it.
    :param row_group_size: rows per row group of its files; ``None`` if it does not matter.
    :param key_columns: the key columns; none if rows are identified by all of their values.
    :param stats_column: column of the file statistics, if the key is a single integer.
    :param source: ``database.table`` whose rows these are, if the table has those of others, too; see
        :class:`~airflow_provider_cdc.sinks.lake.log.source_scope.SourceScope`.
    :param unique_keys: with ``source``, whether no key may occur in two source tables.
    """

    schema: pa.Schema
    fields: tuple[PartitionField, ...] = ()
    row_group_size: int | None = None
    key_columns: tuple[str, ...] = ()
    stats_column: str | None = None
    source: str | None = None
    unique_keys: bool = False

    @classmethod
    def for_table(cls, table: TableSchema, fields: Sequence[PartitionField]) -> Self:
        """Return the format of a captured table's sink table.

        :raises NotReadyError: if the table cannot be partitioned this way.
        """
        columns = {c.name: c for c in table.copied_columns}
        for part in fields:
            if problem := cls.why_not_partitionable(part, columns, table.sink_schema):
                raise NotReadyError(
                    f"{SETTING}: table {table.label} cannot be partitioned by {part}: {problem[0]}", problem[1]
                )
        if fields and columns.keys() <= {part.column_name for part in fields}:
            raise NotReadyError(
                f"{SETTING}: table {table.label} would be partitioned by all of its columns", "Leave one of them out"
            )
        if len({part.column_name for part in fields}) < len(fields):
            raise NotReadyError(f"{SETTING}: table {table.label} is partitioned by a column twice", "Leave one out")
        key, stats_column = table.key, table.integer_key_column
        if not table.shared:
            return cls(table.sink_schema, tuple(fields), None, key, stats_column)
        fields, is_unique = [PartitionField(SOURCE_COLUMN), *fields], table.shared == UNIQUE_KEY
        table_format = cls(table.sink_schema, tuple(fields), None, key, stats_column, table.label, is_unique)
        try:
            table_format.check_value(SOURCE_COLUMN, table.label)
        except TerminalError:
            raise NotReadyError(
                f"sink.routes: the name of table {table.label} is too long for the folder of its rows in a shared copy",
                "Copy the table into a separate one, or into Iceberg, whose partitions have no folders",
                table=table.label,
            ) from None
        return table_format

    @classmethod
    def why_not_partitionable(
        cls, part: PartitionField, columns: Mapping[str, Column], schema: pa.Schema
    ) -> tuple[str, str] | None:
        """Return why a field cannot partition a table and the remedy; ``None`` if it can.

        :param columns: the copied columns of the table in the source.
        :param schema: schema of the rows in the sink.
        """
        return _why_not_partitionable(part, columns)

    @property
    def is_partitioned(self) -> bool:
        """Whether the table is partitioned."""
        return bool(self.fields)

    @property
    def declared_key(self) -> tuple[str, ...]:
        """Columns that identify a row of the table for its readers."""
        with_source = self.source is not None and self.key_columns and not self.unique_keys
        return (SOURCE_COLUMN, *self.key_columns) if with_source else self.key_columns

    @property
    def scope(self) -> SourceScope:
        """What of the table belongs to the source."""
        return WHOLE_TABLE if self.source is None else SourceScope(self.source, self.value_names[0])

    @property
    def identity_columns(self) -> list[str]:
        """Columns that identify rows."""
        return list(self.key_columns) or [name for name in self.schema.names if name not in PROJECT_COLUMNS]

    @property
    def columns(self) -> list[str]:
        """Partition columns of the table, in order."""
        return [part.column_name for part in self.fields]

    @property
    def value_names(self) -> list[str]:
        """Names of the partition values, in order: those of columns that are in no data file."""
        return self.columns

    @cached_property
    def _columns_in_files(self) -> pa.Schema:
        return pa.schema([f for f in self.schema if f.name not in self.columns])

    @property
    def file_schema(self) -> pa.Schema:
        """Schema of the data files."""
        return self._columns_in_files

    @property
    def rewritten_schema(self) -> pa.Schema:
        """Schema of the data files that :meth:`write_rewritten_file` writes."""
        return self.file_schema

    def file_name(self, stem: str, number: int) -> str:
        """Return the name of the file of a partition, in its folder.

        :param stem: beginning of the names of files that are written together.
        :param number: number of the file among them.
        """
        return f"{stem}-{number}.parquet"

    def supports_vectors(self, path: str) -> bool:
        """Return whether rows of a file may be deleted by a deletion vector. If not, the file is rewritten."""
        return True

    def split_rows(self, rows: pa.Table) -> list[tuple[PartitionValues, Any]]:
        """Return the partitions of rows: the values of each, and the indices of its rows, in order.

        :raises TerminalError: if a value cannot be represented as a partition value.
        """
        if not self.fields:
            return [({}, np.arange(rows.num_rows))]
        texts = pa.table(
            [self._value_texts(part, rows) for part in self.fields], names=[str(i) for i in range(len(self.fields))]
        )
        listed = texts.append_column("row", pa.array(np.arange(rows.num_rows), pa.int64()))
        groups = listed.group_by(texts.column_names, use_threads=False).aggregate([("row", "list")])
        partitions = []
        for group, row_indices in zip(groups.select(texts.column_names).to_pylist(), groups["row_list"], strict=True):
            values: PartitionValues = dict(zip(self.value_names, group.values(), strict=True))
            for name, value in values.items():
                self.check_value(name, value)
            partitions.append((values, row_indices.values.to_numpy()))
        return partitions

    def _value_texts(self, part: PartitionField, rows: pa.Table) -> pa.ChunkedArray:
        """Return values as text."""
        column = rows[part.column]
        if part.unit is None:
            return column.cast(pa.string())
        if pa.types.is_timestamp(column.type):
            column = column.cast(pa.timestamp(column.type.unit))  # in UTC
        text = pc.utf8_slice_codeunits(column.cast(pa.string()), 0, DATE_UNITS[part.unit])
        if part.unit == "year":
            return text.cast(pa.int32()).cast(pa.string())
        return pc.replace_substring(text, " ", "-")

    def check_value(self, name: str, value: str | None) -> None:
        """Refuse a partition value that readers would not read as it is.

        :param name: name of the partition column.
        :raises TerminalError: if it cannot be represented.
        """
        if len(_partition_folder(name, value).encode()) > _MAX_FOLDER_BYTES:
            raise partition_value_error(
                f"a row has a text in partition column {name} that is too long for the name of a folder"
            )

    def file_path(self, folder: str, values: PartitionValues, name: str) -> str:
        """Return the path of a file of a partition.

        :param folder: folder that would contain the file without partitions; ``""`` for the table's folder.
        """
        return "/".join([*([folder] if folder else []), *(_partition_folder(n, values[n]) for n in self.columns), name])

    def write_file(
        self,
        storage: Storage,
        path: str,
        rows: Iterable[pa.Table],
        values: PartitionValues = NO_PARTITION,
        ordered_by: Sequence[str] = (),
    ) -> DataFile:
        """Write rows of one partition; see :func:`~airflow_provider_cdc.sinks.files.parquet.write_file`."""
        return write_file(
            storage,
            path,
            self.file_schema,
            rows,
            self.stats_column,
            ordered_by=ordered_by,
            partition=values,
            row_group_size=self.row_group_size,
        )

    def read_for_rewrite(self, storage: Storage, path: str, origin: RowOrigin | None) -> Iterator[pa.Table]:
        """Yield the rows of a file as they are stored, to be written to another file.

        :param origin: what the rows of the file inherit from it; ``None`` for nothing.
        """
        return read_row_groups(storage, path, self.file_schema, may_lack_columns=True)

    def write_rewritten_file(
        self, storage: Storage, path: str, rows: Iterable[pa.Table], values: PartitionValues = NO_PARTITION
    ) -> DataFile:
        """Write rows of one partition that :meth:`read_for_rewrite` has read."""
        return self.write_file(storage, path, rows, values)


class PartitionedWriter:
    """Writes rows to one file per partition, one file at a time: only one is open, and few rows wait in memory.

    :param storage: storage of the table's folder.
    :param folder: folder that contains the folders of the partitions.
    :param name: prefix of the file names.
    :param ordered_by: columns by which the rows are ordered.
    """

    def __init__(
        self,
        storage: Storage,
        folder: str,
        name: str,
        table_format: TableFormat,
        ordered_by: Sequence[str] = (),
    ) -> None:
        self._storage, self._folder, self._name = storage, folder, name
        self._format, self._ordered_by = table_format, ordered_by
        self._waiting: dict[int, list[pa.Table]] = {}
        self._open: dict[tuple[str | None, ...], int] = {}
        self._values: list[PartitionValues] = []
        self._rows: list[int] = []
        self._written: dict[int, DataFile] = {}

    def add(self, rows: pa.Table) -> tuple[Any, Any]:
        """Add rows.

        :returns: for each row, the number of its file and the row number in it; arrays of int64.
        """
        file, row = np.empty(rows.num_rows, np.int64), np.empty(rows.num_rows, np.int64)
        stored = rows.select(self._format.file_schema.names)
        for values, row_indices in self._format.split_rows(rows):
            number = self._open.setdefault(tuple(values.values()), len(self._values))
            if number == len(self._values):
                self._values.append(values)
                self._rows.append(0)
                self._waiting[number] = []
            file[row_indices] = number
            row[row_indices] = np.arange(len(row_indices)) + self._rows[number]
            self._rows[number] += len(row_indices)
            self._waiting[number].append(stored.take(pa.array(row_indices)))
        self._write_largest(BUFFER_BYTES)
        return file, row

    def close(self) -> list[DataFile]:
        """Write the remaining rows.

        :returns: all files, in the order of their numbers.
        """
        self._write_largest(-1)
        return [self._written[number] for number in range(len(self._values))]

    def discard(self) -> None:
        """Delete all files and start over."""
        self._storage.delete(*(self._file_path(number) for number in range(len(self._values))))
        self._waiting, self._open, self._written, self._values, self._rows = {}, {}, {}, [], []

    def _write_largest(self, max_bytes: int) -> None:
        sizes = {number: sum(rows.nbytes for rows in waiting) for number, waiting in self._waiting.items()}
        total = sum(sizes.values())
        if total <= max_bytes:
            return
        for number in sorted(sizes, key=lambda n: -sizes[n]):  # down to half, so that not every call writes a little
            if total <= max_bytes // 2:
                break
            total -= sizes[number]
            self._write_partition(number)

    def _write_partition(self, number: int) -> None:
        values, waiting = self._values[number], self._waiting.pop(number)
        del self._open[tuple(values.values())]  # later rows go to another file
        self._written[number] = self._format.write_file(
            self._storage, self._file_path(number), waiting, values, self._ordered_by
        )

    def _file_path(self, number: int) -> str:
        return self._format.file_path(self._folder, self._values[number], self._format.file_name(self._name, number))


def partition_value_error(problem: str) -> TerminalError:
    """Return the error for a row whose partition value cannot be represented."""
    return TerminalError(problem, _PARTITION_VALUE_REMEDY, first=_CHANGE_VALUE_REMEDY)


def combine_files(path: str, files: Iterable[DataFile]) -> DataFile:
    """Return one object that represents several files."""
    file_tuple = tuple(files)
    sums: dict[str, Any] = {name: sum(getattr(f, name) for f in file_tuple) for name in ("size", "rows")}
    for pick, names in ((min, ("low", "oldest")), (max, ("high", "newest"))):
        for name in names:
            values = [value for f in file_tuple if (value := getattr(f, name)) is not None]
            sums[name] = pick(values) if values else None
    return DataFile(path, parts=file_tuple, **sums)


def _partition_folder(name: str, value: str | None) -> str:
    return f"{name}={NULL_FOLDER if value is None else quote(value, safe='')}"


def _why_not_partitionable(field: PartitionField, columns: Mapping[str, Column]) -> tuple[str, str] | None:
    """Return why a field cannot partition a table and the remedy; ``None`` if it can."""
    column = columns.get(field.column)
    if column is None:
        return f"it has no column {field.column} that is copied", f"Its columns are {', '.join(columns)}"
    kind = column.data_type
    if not _ALLOWED_NAME.fullmatch(field.column):
        return "the column name cannot be a folder name", f"Leave it out of {SETTING}"
    if field.unit is None and kind in _TIME_TYPES:
        return (
            f"only a part of a {column.column_type} can be used",
            f"Write {{day: {field.column}}}, or year, month, hour",
        )
    if field.unit is None and kind not in _PARTITION_TYPES:
        return f"values of type {column.column_type} cannot form partitions", "Use a column of integers, text, or dates"
    if field.unit is not None and kind not in (*_TIME_TYPES, "date"):
        return f"the column is {column.column_type}", "Use a part of a DATE, DATETIME, or TIMESTAMP"
    if field.unit == "hour" and kind == "date":
        return "a DATE has no hour", f"Write {{day: {field.column}}}"
    if field.unit is not None and field.column_name.lower() in {name.lower() for name in (*columns, *PROJECT_COLUMNS)}:
        return f"the table has a column {field.column_name} of its own", "Partition by that one, or leave this one out"
    return None
