"""Which schema of a table has the columns of a definition, and the schema that a table without one gets.

Tasks write files before readers see them, and for an overwrite even before the table has their columns. Their field ids
are therefore those of a schema that the metadata has already, though it need not be the current one.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import pyarrow as pa

from airflow_provider_cdc.model.errors import TransientError
from airflow_provider_cdc.sinks.files.parquet import read_field_ids
from airflow_provider_cdc.sinks.iceberg.format.schema import IcebergSchema, check_column_names
from airflow_provider_cdc.sinks.iceberg.format.table_metadata import TableMetadata
from airflow_provider_cdc.sinks.iceberg.format.types import NestedField, is_promotion, type_of_arrow
from airflow_provider_cdc.sinks.storage.storage import Storage

#: Number of the schema of files that are written before their table is created: that of a new table.
NEW_TABLE_SCHEMA_ID = -1


def column_types(columns: pa.Schema, format_version: int) -> list[tuple[str, str]]:
    """Return names and Iceberg types of columns.

    :raises NotReadyError: if a type cannot be stored, naming the column.
    """
    unused_ids = itertools.count(1)
    return [(c.name, str(type_of_arrow(c.name, c.type, unused_ids, format_version))) for c in columns]


def has_same_columns(schema: IcebergSchema, columns: pa.Schema, format_version: int) -> bool:
    """Return whether a schema has columns with these names and types, in this order."""
    return _types_of(schema) == column_types(columns, format_version)


def find_schema(
    metadata: TableMetadata, columns: pa.Schema, key: Collection[str], docs: Mapping[str, str]
) -> IcebergSchema | None:
    """Return the schema of a table with these columns, this key and these comments; ``None`` if it has none.

    Other schemas than the current one count only if a column that both have is the same column in them.

    :param docs: comments by column.
    """
    current, wanted = metadata.current_schema, column_types(columns, metadata.format_version)
    others = sorted((s for s in metadata.schemas.values() if s is not current), key=lambda s: -s.schema_id)
    for schema in (current, *others):
        has_docs = all(nested.doc == docs.get(nested.name) for nested in schema.fields)
        if _types_of(schema) == wanted and _key_of(schema) == {*key} and has_docs:
            shared = [(c, current.columns[c.name]) for c in schema.fields if c.name in current.columns]
            if all(one.id == other.id for one, other in shared if str(one.type) == str(other.type)):
                return schema
    return None


def build_schema(
    metadata: TableMetadata, columns: pa.Schema, key: Sequence[str], docs: Mapping[str, str]
) -> tuple[IcebergSchema, int]:
    """Return a schema that a table does not have yet, and the highest field id then.

    A column that the table has, with this type or one that can be widened to it, stays the same column.

    :param docs: comments by column.
    :raises NotReadyError: if a name or type cannot be stored, naming the column.
    """
    check_column_names(columns.names)
    current, version = metadata.current_schema, metadata.format_version
    unused_ids = itertools.count(max(metadata.last_column_id, current.highest_field_id) + 1)
    fields = list[NestedField]()
    for column in columns:
        known = current.columns.get(column.name)
        kind = type_of_arrow(column.name, column.type, itertools.count(1), version)
        required, doc = column.name in key, docs.get(column.name)
        if known is not None and str(known.type) == str(kind):
            fields.append(replace(known, required=required, doc=doc))
        elif known is not None and is_promotion(known.type, kind, version):
            fields.append(replace(known, type=kind, required=required, doc=doc))
        else:
            number = next(unused_ids)
            kind = type_of_arrow(column.name, column.type, unused_ids, version)
            fields.append(NestedField(number, column.name, kind, required, doc))
    ids = {nested.name: nested.id for nested in fields}
    schema = IcebergSchema(max(metadata.schemas) + 1, tuple(fields), tuple(ids[name] for name in key))
    return schema, max(metadata.last_column_id, schema.highest_field_id)


def has_ids_of_new_table(schema: IcebergSchema) -> bool:
    """Return whether the columns have the field ids that :func:`~.schema.new_schema` gives them."""
    return [nested.id for nested in schema.fields] == [*range(1, len(schema.fields) + 1)]


def check_file_schema(
    metadata: TableMetadata,
    schema: IcebergSchema,
    schema_id: int | None,
    storage: Storage,
    path: str,
    *,
    is_shared: bool = False,
) -> None:
    """Refuse a file whose columns have other field ids than the columns of the table with the same names.

    Readers would not find their values.

    :param schema: the schema that the table has when the file is added.
    :param schema_id: number of the schema with which the file was written.
    :param storage: storage of the table's folder.
    :param path: path of the file.
    :param is_shared: whether the table has columns of several definitions, so that its first ones may not be those with
        which the file was written.
    :raises TransientError: if it must be written again.
    """
    written: Mapping[str, int] | None = None
    if schema_id == NEW_TABLE_SCHEMA_ID:
        if has_ids_of_new_table(schema) and not is_shared:
            return
        written = read_field_ids(storage, path)  # the table has been altered since
    elif schema_id is not None and schema_id in metadata.schemas:
        written = {nested.name: nested.id for nested in metadata.schemas[schema_id].fields}
    columns = schema.columns
    if not written or any(columns[name].id != number for name, number in written.items() if name in columns):
        raise TransientError(
            f"the file {path} was written with schema {schema_id} of the Iceberg table at {metadata.location}, whose "
            f"columns are others than those of schema {schema.schema_id}",
            "Run again: its rows are written again, with the columns that the table has now",
        )


def _types_of(schema: IcebergSchema) -> list[tuple[str, str]]:
    return [(nested.name, str(nested.type)) for nested in schema.fields]


def _key_of(schema: IcebergSchema) -> set[str]:
    """Return the names of the columns that are never NULL if they are those that identify rows; otherwise, no key."""
    required = {nested.name for nested in schema.fields if nested.required}
    identifiers = {nested.name for nested in schema.fields if nested.id in schema.identifier_field_ids}
    return required if required == identifiers else {" "}
