"""Which columns of a Parquet file are those of a table: by name, or by field id if the format identifies them so.

A column of a schema that has a field id is the column of the file with this id, whatever their names are. What else a
format says about its columns is in the metadata of the schema, so that it reaches each place where a file is read.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from airflow_provider_cdc.model.errors import TerminalError

#: Key, in the metadata of a column, of its field id.
FIELD_ID_KEY = b"PARQUET:field_id"
#: Keys, in the metadata of a column, of its names in files without field ids (JSON; without it, such files are
#: refused), and of its value in rows of files that lack it. Neither is written to files.
_NAMES_KEY, _DEFAULT_KEY = b"airflow-cdc.names", b"airflow-cdc.default"
#: Key, in the metadata of a schema, of the name of its table in messages.
_TABLE_KEY = b"airflow-cdc.table"
_READ_KEYS = {_NAMES_KEY, _DEFAULT_KEY, _TABLE_KEY}
#: What some writers write for a column without a field id.
_NO_ID = b"-1"


def identified_field(
    field: pa.Field, field_id: int | None, names: Sequence[str] | None = None, default: pa.Array | None = None
) -> pa.Field:
    """Return a column that is found in files by its field id.

    :param field_id: ``None`` if no file has the column.
    :param names: its names in files without field ids; ``None`` if it is not known which columns these have.
    :param default: its value, as an array of one, in rows of files that lack it; ``None`` for NULL.
    """
    metadata = {FIELD_ID_KEY: b"" if field_id is None else str(field_id).encode()}
    if names is not None:
        metadata[_NAMES_KEY] = json.dumps(list(names)).encode()
    if default is not None:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, pa.schema([("value", default.type)])) as writer:
            writer.write_batch(pa.record_batch([default], names=["value"]))
        metadata[_DEFAULT_KEY] = sink.getvalue().to_pybytes()
    return field.with_metadata(metadata)


def identified_schema(fields: Sequence[pa.Field], table: str, other: dict[bytes, bytes] | None = None) -> pa.Schema:
    """Return a schema of columns that are found by their field ids.

    :param table: name of the table in messages.
    :param other: other metadata of the schema.
    """
    return pa.schema(fields, metadata={**(other or {}), _TABLE_KEY: table.encode()})


def without_read_metadata(schema: pa.Schema) -> pa.Schema:
    """Return a schema as it is written to files."""
    fields = [f.with_metadata(_without_read_keys(f.metadata)) if f.metadata else f for f in schema]
    return pa.schema(fields, metadata=_without_read_keys(schema.metadata or {}))


def _without_read_keys(metadata: dict[bytes, bytes]) -> dict[bytes, bytes]:
    return {key: value for key, value in metadata.items() if key not in _READ_KEYS}


def field_id_of(field: pa.Field) -> bytes | None:
    """Return the field id of a column; ``None`` if it has none."""
    number = (field.metadata or {}).get(FIELD_ID_KEY)
    return None if number == _NO_ID else number


@dataclass(frozen=True)
class StoredColumns:
    """Where a file has the columns of a schema.

    :param schema: those of the columns that the file has.
    :param numbers: number of each of them in the file.
    :param leaves: numbers of the leaf columns with their values, in ascending order.
    """

    schema: pa.Schema
    numbers: Sequence[int]
    leaves: Sequence[int]

    @classmethod
    def find(cls, file_schema: pa.Schema, wanted: pa.Schema, location: str) -> StoredColumns:
        """Find the columns of a schema in a file.

        :param file_schema: all columns of the file.
        :param location: location of the file, for errors.
        :raises TerminalError: if the columns of the file cannot be identified.
        """
        by_name = {name: number for number, name in enumerate(file_schema.names)}
        by_id = {number: index for index, f in enumerate(file_schema) if (number := field_id_of(f)) is not None}
        found = [(f, _find_column(f, wanted, by_name, by_id, location)) for f in wanted]
        present = [(field, number) for field, number in found if number is not None]
        numbers = [number for _, number in present]
        starts, leaf_count = list[int](), 0
        for field in file_schema:
            starts.append(leaf_count)
            leaf_count += _count_leaves(field.type)
        ends = [*starts[1:], leaf_count]
        leaves = [leaf for number in sorted({*numbers}) for leaf in range(starts[number], ends[number])]
        return cls(pa.schema([field for field, _ in present]), numbers, leaves)

    def select(self, rows: pa.Table) -> pa.Table:
        """Return the columns, with the wanted names and types, of what was read of the file: its leaf columns."""
        order = {number: position for position, number in enumerate(sorted({*self.numbers}))}
        columns = [rows.column(order[number]) for number in self.numbers]
        return pa.table(columns, names=self.schema.names).cast(self.schema)


def default_of(field: pa.Field) -> pa.Scalar | None:
    """Return the value of a column in rows of files that lack it; ``None`` if it is NULL in them."""
    encoded = (field.metadata or {}).get(_DEFAULT_KEY)
    if encoded is None:
        return None
    with pa.ipc.open_stream(encoded) as reader:
        return reader.read_next_batch().column(0).cast(field.type)[0]


def _find_column(
    field: pa.Field, wanted: pa.Schema, by_name: dict[str, int], by_id: dict[bytes, int], location: str
) -> int | None:
    number = field_id_of(field)
    if number is None:
        return by_name.get(field.name)
    if by_id:
        return by_id.get(number)
    names: Any = (field.metadata or {}).get(_NAMES_KEY)
    if names is None:
        table = (wanted.metadata or {}).get(_TABLE_KEY, b"table").decode()
        raise TerminalError(
            f"the file {location} of the {table} has no field ids, so that it is not known which columns it has",
            "Other software has added it. Let the table property schema.name-mapping.default say which columns such "
            "files have, or remove the file from the table and insert its rows again",
        )
    return next((by_name[name] for name in json.loads(names) if name in by_name), None)


def _count_leaves(kind: pa.DataType) -> int:
    return sum(_count_leaves(kind.field(i).type) for i in range(kind.num_fields)) if kind.num_fields else 1
