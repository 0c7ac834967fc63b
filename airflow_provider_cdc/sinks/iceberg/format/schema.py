"""Schemas: columns are identified by field ids, so that they can be renamed, and dropped, without touching files."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import pyarrow as pa

from airflow_provider_cdc.model.errors import NotReadyError, TerminalError
from airflow_provider_cdc.sinks.iceberg.format.types import (
    ListType,
    MapType,
    NestedField,
    PrimitiveType,
    StructType,
    arrow_field_of,
    parse_field,
    type_of_arrow,
    walk_fields,
)

#: Names of columns that readers add to those of each table.
METADATA_COLUMNS = ("_file", "_pos", "_deleted", "_spec_id", "_partition", "_row_id", "_last_updated_sequence_number")
#: Property with the field ids of files without field ids.
NAME_MAPPING_PROPERTY = "schema.name-mapping.default"
_MEMBERS = {"type", "schema-id", "fields", "identifier-field-ids"}


@dataclass(frozen=True)
class IcebergSchema:
    """A schema of a table.

    :param schema_id: identifies the schema in the table.
    :param identifier_field_ids: ids of the fields that identify a row.
    :param other: other members of its JSON.
    """

    schema_id: int
    fields: tuple[NestedField, ...]
    identifier_field_ids: tuple[int, ...] = ()
    other: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return its JSON."""
        identifiers = {"identifier-field-ids": [*self.identifier_field_ids]} if self.identifier_field_ids else {}
        return {
            "type": "struct",
            "schema-id": self.schema_id,
            **identifiers,
            "fields": [nested.to_json() for nested in self.fields],
            **self.other,
        }

    @cached_property
    def fields_by_id(self) -> Mapping[int, NestedField]:
        """All fields, including those nested in others."""
        return {nested.id: nested for nested in walk_fields(self.fields)}

    @cached_property
    def columns(self) -> Mapping[str, NestedField]:
        """The columns by name. A dot in a name has no meaning."""
        return {nested.name: nested for nested in self.fields}

    @cached_property
    def highest_field_id(self) -> int:
        """The highest field id."""
        return max(self.fields_by_id, default=0)

    def require_column(self, name: str) -> NestedField:
        """Return a column.

        :raises TerminalError: if there is none.
        """
        if name not in self.columns:
            raise TerminalError(
                f"the Iceberg table has no column {name}, but {', '.join(self.columns)}",
                "If other software has altered the table, start with a fresh table",
            )
        return self.columns[name]

    def primitive_type_of(self, field_id: int) -> PrimitiveType | None:
        """Return the type of a field; ``None`` if there is no such field, or it is nested."""
        nested = self.fields_by_id.get(field_id)
        return nested.type if nested and isinstance(nested.type, PrimitiveType) else None

    def arrow_schema(self) -> pa.Schema:
        """Return the Arrow schema of new data files; all fields have their ids.

        :raises TerminalError: if there is a column whose type is not supported.
        """
        return pa.schema([arrow_field_of(nested) for nested in self.fields])

    def has_same_fields(self, other: IcebergSchema) -> bool:
        """Return whether another schema differs in its id only."""
        return (self.fields, {*self.identifier_field_ids}) == (other.fields, {*other.identifier_field_ids})


def parse_schema(value: Mapping[str, Any]) -> IcebergSchema:
    """Return the schema with a JSON.

    :raises TerminalError: if it is not understood.
    """
    try:
        return IcebergSchema(
            value.get("schema-id", 0),
            tuple(parse_field(nested) for nested in value["fields"]),
            tuple(value.get("identifier-field-ids") or ()),
            {name: member for name, member in value.items() if name not in _MEMBERS},
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise TerminalError(
            f"an Iceberg schema is damaged: {error!r}", "Restore the table's metadata from a backup"
        ) from None


def new_schema(
    arrow_schema: pa.Schema,
    format_version: int,
    *,
    required: Collection[str] = (),
    identifiers: Collection[str] = (),
    docs: Mapping[str, str] | None = None,
) -> IcebergSchema:
    """Return the schema of a new table. Columns have the ids from 1 on, and nested fields those that follow.

    :param arrow_schema: columns with the Arrow types of their values.
    :param required: names of columns that are never NULL, in addition to those of ``identifiers``.
    :param identifiers: names of the columns that identify a row.
    :param docs: comments by column.
    :raises NotReadyError: if a name or type cannot be stored, naming the column.
    """
    check_column_names(arrow_schema.names)
    next_id = itertools.count(len(arrow_schema) + 1)
    fields = tuple(
        NestedField(
            number,
            column.name,
            type_of_arrow(column.name, column.type, next_id, format_version),
            column.name in required or column.name in identifiers,
            (docs or {}).get(column.name),
        )
        for number, column in enumerate(arrow_schema, 1)
    )
    ids = {nested.name: nested.id for nested in fields}
    return IcebergSchema(0, fields, tuple(ids[name] for name in identifiers))


def check_column_names(names: Collection[str]) -> None:
    """Refuse names that readers would not read as columns of the table.

    :raises NotReadyError: naming the column.
    """
    seen = dict[str, str]()
    for name in names:
        if name in METADATA_COLUMNS:
            raise NotReadyError(
                f"column {name}: readers of Iceberg tables have a column of this name themselves",
                "Exclude the column in source.exclude_columns",
            )
        if name.lower() in seen:
            raise NotReadyError(
                f"column {name}: there is also a column {seen[name.lower()]}, and Spark does not distinguish them",
                "Exclude one of them in source.exclude_columns",
            )
        seen[name.lower()] = name


def name_mapping_of(fields: Collection[NestedField]) -> list[dict[str, Any]]:
    """Return a name mapping: the field ids of files without field ids, by the current names.

    The value of :data:`NAME_MAPPING_PROPERTY` is its JSON text.
    """
    mapping = list[dict[str, Any]]()
    for nested in fields:
        children: Collection[NestedField] = ()
        match nested.type:
            case StructType(struct_fields):
                children = struct_fields
            case ListType(element_id, element):
                children = (NestedField(element_id, "element", element),)
            case MapType(key_id, key, value_id, value):
                children = (NestedField(key_id, "key", key), NestedField(value_id, "value", value))
        entry: dict[str, Any] = {"field-id": nested.id, "names": [nested.name]}
        mapping.append(entry | ({"fields": name_mapping_of(children)} if children else {}))
    return mapping
