"""How rows of an Iceberg table are stored: all columns in each file, with field ids, and typed partition values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_cdc.model.schema import Column
from airflow_provider_cdc.sinks.files.parquet import (
    NO_PARTITION,
    SCHEMA_ID_KEY,
    DataFile,
    PartitionValues,
    read_row_groups,
    write_file,
)
from airflow_provider_cdc.sinks.files.stored_columns import identified_field, without_read_metadata
from airflow_provider_cdc.sinks.iceberg.format.partition_spec import describe_partition_field, partition_field_name
from airflow_provider_cdc.sinks.iceberg.format.partition_values import value_name
from airflow_provider_cdc.sinks.iceberg.format.schema import IcebergSchema
from airflow_provider_cdc.sinks.iceberg.format.table_metadata import TableMetadata
from airflow_provider_cdc.sinks.iceberg.format.transforms import Transform
from airflow_provider_cdc.sinks.iceberg.format.types import PrimitiveType, type_of_arrow
from airflow_provider_cdc.sinks.iceberg.log.column_ids import identify_columns
from airflow_provider_cdc.sinks.lake.log.table_log import RowOrigin
from airflow_provider_cdc.sinks.lake.merge.partitions import PartitionField, TableFormat
from airflow_provider_cdc.sinks.storage.storage import Storage

_VERSION_KEY = b"airflow-cdc.format-version"
#: Which columns transforms take that have a width.
_SOURCES = {
    "bucket": "a column of integers, decimals, text, bytes, dates or times",
    "truncate": "a column of integers, decimals or text",
}
#: Columns with what the rows of a rewritten file do not inherit from it, and their field ids.
ROW_ID_COLUMN, LAST_UPDATED_COLUMN = "_row_id", "_last_updated_sequence_number"
_LINEAGE_IDS = {ROW_ID_COLUMN: 2147483540, LAST_UPDATED_COLUMN: 2147483539}
_LINEAGE_FIELDS = [identified_field(pa.field(name, pa.int64()), number, ()) for name, number in _LINEAGE_IDS.items()]


class FileSchemaLookup:
    """The schema of new data files. Its field ids are those of the table, which is read only when they are needed.

    :param find_schema: returns it.
    """

    def __init__(self, find_schema: Callable[[], pa.Schema]) -> None:
        self._find_schema = find_schema

    def find(self) -> pa.Schema:
        """Return the schema."""
        return self._find_schema()

    def __reduce__(self) -> tuple[Any, ...]:
        return _known_schema, (self.find(),)


def _known_schema(schema: pa.Schema) -> FileSchemaLookup:
    return FileSchemaLookup(lambda: schema)


def _no_schema() -> pa.Schema:
    raise AssertionError("nothing is written in this format")


@dataclass(frozen=True)
class IcebergTableFormat(TableFormat):
    """How the rows of an Iceberg table are stored in its files.

    :param file_schema_lookup: finds the schema of new files.
    """

    file_schema_lookup: FileSchemaLookup = field(default=FileSchemaLookup(_no_schema), compare=False)

    @property
    def file_schema(self) -> pa.Schema:
        """Schema of the data files."""
        return without_read_metadata(self.file_schema_lookup.find())

    @property
    def rewritten_schema(self) -> pa.Schema:
        """Schema of rewritten files, whose rows have their row ids."""
        schema = self.file_schema
        return without_read_metadata(_with_lineage(schema)) if _has_row_ids(schema) else schema

    @classmethod
    def why_not_partitionable(
        cls, part: PartitionField, columns: Mapping[str, Column], schema: pa.Schema
    ) -> tuple[str, str] | None:
        """Return why a field cannot partition a table and the remedy; ``None`` if it can."""
        transform, column = transform_of(part), columns.get(part.column)
        if not transform.width or column is None:
            return super().why_not_partitionable(part, columns, schema)
        kind = type_of_arrow(part.column, schema.field(part.column).type, count(1), 3)
        # Partition values are handled as text, which truncated bytes are not.
        is_bytes = transform.kind == "truncate" and kind == PrimitiveType("binary")
        if not isinstance(kind, PrimitiveType) or not transform.accepts_type(kind) or is_bytes:
            return f"the column is {column.column_type}", f"{transform.kind}[n] takes {_SOURCES[transform.kind]}"
        name = partition_field_name(part.column, transform)
        if name.lower() in {other.lower() for other in schema.names}:
            return f"the table has a column {name} of its own", "Partition by that one, or leave this one out"
        return None

    @property
    def columns(self) -> list[str]:
        """Descriptions of the partition fields, in order."""
        transforms = [(part.column, transform_of(part)) for part in self.fields]
        return [describe_partition_field(partition_field_name(*named), named[1]) for named in transforms]

    @property
    def value_names(self) -> list[str]:
        """Names of the partition values, in order."""
        return [value_name(partition_field_name(part.column, transform_of(part))) for part in self.fields]

    def _value_texts(self, part: PartitionField, rows: pa.Table) -> pa.ChunkedArray:
        """Return values as text."""
        values = transform_of(part).apply(rows[part.column])
        return pa.chunked_array([values.cast(pa.string())], pa.string())

    def check_value(self, name: str, value: str | None) -> None:
        """Allow any value: none becomes part of a path."""

    def file_path(self, folder: str, values: PartitionValues, name: str) -> str:
        """Return the path of a file: partitions have no folders of their own."""
        return f"{folder}/{name}" if folder else name

    def file_name(self, stem: str, number: int) -> str:
        """Return the name of the file of a partition. Staged changes in the same folder are called like ``7-0-5-1``."""
        return f"{stem}.{number}.parquet"

    def read_for_rewrite(self, storage: Storage, path: str, origin: RowOrigin | None) -> Iterator[pa.Table]:
        """Yield the rows of a file, with their row ids and the number of the commit that has changed each last."""
        schema, start = self.file_schema_lookup.find(), 0
        if not _has_row_ids(schema):
            yield from read_row_groups(storage, path, schema, may_lack_columns=True)
            return
        for rows in read_row_groups(storage, path, _with_lineage(schema), may_lack_columns=True):
            yield rows if origin is None else _fill_lineage(rows, origin, start)
            start += rows.num_rows

    def write_rewritten_file(
        self, storage: Storage, path: str, rows: Iterable[pa.Table], values: PartitionValues = NO_PARTITION
    ) -> DataFile:
        """Write rows of one partition that :meth:`read_for_rewrite` has read."""
        return write_file(
            storage,
            path,
            self.rewritten_schema,
            rows,
            self.stats_column,
            partition=values,
            row_group_size=self.row_group_size,
        )


def transform_of(part: PartitionField) -> Transform:
    """Return the transform by which a table is partitioned."""
    return Transform(part.unit or "identity")


def file_schema_of(schema: IcebergSchema, metadata: TableMetadata, table: str) -> pa.Schema:
    """Return the schema of new data files, with its number, and the format version of the table.

    :param schema: the schema of the table that they get.
    :param metadata: metadata of the table.
    :param table: name of the table in messages.
    """
    numbers = {SCHEMA_ID_KEY: str(schema.schema_id), _VERSION_KEY: str(metadata.format_version)}
    columns = schema.arrow_schema().with_metadata({key: number.encode() for key, number in numbers.items()})
    return identify_columns(columns, schema, metadata.properties, table)


def schema_number_of(schema: pa.Schema) -> int:
    """Return the number that the schema of files has in its table."""
    return int(schema.metadata[SCHEMA_ID_KEY])


def _has_row_ids(schema: pa.Schema) -> bool:
    return int(schema.metadata[_VERSION_KEY]) >= 3


def _with_lineage(schema: pa.Schema) -> pa.Schema:
    return pa.schema([*schema, *_LINEAGE_FIELDS], metadata=schema.metadata)


def _fill_lineage(rows: pa.Table, origin: RowOrigin, start: int) -> pa.Table:
    """Return rows in which nothing is left to be inherited.

    :param start: number of the first row in its file.
    """
    first = origin.first_row_id + start
    inherited = {
        ROW_ID_COLUMN: pa.array(np.arange(first, first + rows.num_rows), pa.int64()),
        LAST_UPDATED_COLUMN: pa.scalar(origin.sequence_number, pa.int64()),
    }
    for lineage_field in _LINEAGE_FIELDS:
        index = rows.schema.get_field_index(lineage_field.name)
        values = pc.coalesce(rows[lineage_field.name], inherited[lineage_field.name])
        rows = rows.set_column(index, lineage_field, values)
    return rows
