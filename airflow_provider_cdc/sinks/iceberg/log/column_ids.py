"""How the columns of a table are found in its data files: by field id, whatever they are called there."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from airflow_provider_cdc.model.errors import TerminalError
from airflow_provider_cdc.sinks.files.stored_columns import identified_field, identified_schema
from airflow_provider_cdc.sinks.iceberg.format.schema import NAME_MAPPING_PROPERTY, IcebergSchema
from airflow_provider_cdc.sinks.iceberg.format.types import NestedField, PrimitiveType, arrow_type_of
from airflow_provider_cdc.sinks.iceberg.format.values import array_from_json


def identify_columns(columns: pa.Schema, schema: IcebergSchema, properties: Mapping[str, str], table: str) -> pa.Schema:
    """Return columns with what identifies them in files. A column that the table does not have is in no file.

    :param columns: names and types.
    :param schema: schema of the table that has the columns.
    :param properties: properties of the table.
    :param table: name of the table in messages.
    :raises TerminalError: if the table says of its columns what is not understood.
    """
    names = _names_by_id(properties, table)
    fields = list[pa.Field]()
    for column in columns:
        nested = schema.columns.get(column.name)
        number = nested.id if nested else None
        known_names = None if names is None else names.get(number or 0, ())
        fields.append(identified_field(column, number, known_names, _initial_default(nested)))
    return identified_schema(fields, table, columns.metadata)


def _initial_default(nested: NestedField | None) -> pa.Array | None:
    if nested is None or nested.initial_default is None or not isinstance(nested.type, PrimitiveType):
        return None
    return array_from_json(nested.type, nested.initial_default, arrow_type_of(nested.name, nested.type))


def _names_by_id(properties: Mapping[str, str], table: str) -> dict[int, Sequence[str]] | None:
    """Return the names of columns in files without field ids; ``None`` if the table has no name mapping."""
    text = properties.get(NAME_MAPPING_PROPERTY)
    if text is None:
        return None
    try:
        entries: Any = json.loads(text)
        return {int(entry["field-id"]): [*entry["names"]] for entry in entries if "field-id" in entry}
    except (ValueError, KeyError, TypeError) as error:
        raise TerminalError(
            f"the property {NAME_MAPPING_PROPERTY} of the {table} is damaged: {error!r}",
            "Remove the property, or let it be a name mapping as the Iceberg specification describes it",
        ) from None
