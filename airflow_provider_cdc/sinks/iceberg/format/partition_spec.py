"""Partition specs: which columns, and which transforms of them, partition a table."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from airflow_provider_cdc.model.errors import NotReadyError, TerminalError
from airflow_provider_cdc.sinks.iceberg.format.schema import IcebergSchema
from airflow_provider_cdc.sinks.iceberg.format.transforms import Transform
from airflow_provider_cdc.sinks.iceberg.format.types import PrimitiveType

#: Ids of partition fields begin after this one.
LAST_UNUSED_FIELD_ID = 999
_MEMBERS = {"source-id", "source-ids", "field-id", "name", "transform"}


@dataclass(frozen=True)
class IcebergPartitionField:
    """A field of a partition spec.

    :param source_ids: field ids of the columns; one, unless another program has used a transform of several.
    :param field_id: identifies the field in all specs of the table.
    :param other: other members of its JSON.
    """

    source_ids: tuple[int, ...]
    field_id: int
    name: str
    transform: Transform
    other: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return its JSON."""
        single = len(self.source_ids) == 1
        source = {"source-id": self.source_ids[0]} if single else {"source-ids": [*self.source_ids]}
        return {**source, "field-id": self.field_id, "name": self.name, "transform": self.transform.text, **self.other}


@dataclass(frozen=True)
class PartitionSpec:
    """A partition spec; without fields, the table is not partitioned."""

    spec_id: int
    fields: tuple[IcebergPartitionField, ...] = ()

    @property
    def is_partitioned(self) -> bool:
        """Whether files have partition values."""
        return any(part.transform.kind != "void" for part in self.fields)

    def to_json(self) -> dict[str, Any]:
        """Return its JSON."""
        return {"spec-id": self.spec_id, "fields": [part.to_json() for part in self.fields]}

    def result_types(self, schema: IcebergSchema) -> dict[int, PrimitiveType]:
        """Return the types of the partition values, by partition field id.

        :raises TerminalError: if there is a transform, or a type, that this version does not support.
        """
        types = {}
        for part in self.fields:
            source = schema.primitive_type_of(part.source_ids[0]) if len(part.source_ids) == 1 else None
            if source is None or not part.transform.accepts_type(source):
                raise TerminalError(
                    f"partition field {part.name} of an Iceberg table has the transform {part.transform.text} of "
                    f"{source or 'columns that this version does not support'}",
                    "Other software has partitioned the table: replace the field, in Spark with "
                    f"ALTER TABLE t DROP PARTITION FIELD {part.name}",
                )
            types[part.field_id] = part.transform.result_type(source)
        return types

    def apply(self, rows: pa.Table, schema: IcebergSchema) -> dict[int, pa.Array]:
        """Return the partition values of rows, by partition field id.

        :param rows: rows of the table, with the current names of the columns.
        """
        self.result_types(schema)
        names = {nested.id: nested.name for nested in schema.fields}
        return {part.field_id: part.transform.apply(rows[names[part.source_ids[0]]]) for part in self.fields}


def parse_partition_spec(value: Mapping[str, Any]) -> PartitionSpec:
    """Return the spec with a JSON.

    :raises TerminalError: if it is damaged.
    """
    try:
        return PartitionSpec(value["spec-id"], tuple(_parse_partition_field(part) for part in value["fields"]))
    except (KeyError, TypeError) as error:
        raise TerminalError(
            f"a partition spec of an Iceberg table is damaged: {error!r}", "Restore the table's metadata from a backup"
        ) from None


def new_partition_spec(
    schema: IcebergSchema,
    wanted: Sequence[tuple[str, str]],
    *,
    spec_id: int = 0,
    last_partition_id: int = LAST_UNUSED_FIELD_ID,
    known_specs: Collection[PartitionSpec] = (),
) -> PartitionSpec:
    """Return a new spec.

    :param wanted: name of a column and text of a transform for each field.
    :param last_partition_id: the highest partition field id that the table has ever had.
    :param known_specs: specs of the table: an equivalent field has the same id.
    :raises NotReadyError: if a column cannot be partitioned that way, naming it.
    """
    known = {(p.source_ids, p.transform, p.name): p.field_id for spec in known_specs for p in spec.fields}
    fields, names = list[IcebergPartitionField](), {*schema.columns}
    for column, text in wanted:
        transform = Transform(text)
        source = schema.require_column(column)
        if not isinstance(source.type, PrimitiveType) or not transform.accepts_type(source.type):
            raise NotReadyError(
                f"column {column} of type {source.type} cannot partition an Iceberg table by {text}",
                "Partition by another column, or by identity, bucket[n], truncate[n], year, month, day or hour",
            )
        name = partition_field_name(column, transform)
        if name in names and transform.kind != "identity":
            raise NotReadyError(
                f"column {column}: partition field {name} would have the name of another one, or of a column",
                "Leave one of them out",
            )
        names.add(name)
        field_id = known.get(((source.id,), transform, name))
        if field_id is None:
            last_partition_id += 1
            field_id = last_partition_id
        fields.append(IcebergPartitionField((source.id,), field_id, name, transform))
    if len({part.field_id for part in fields}) < len(fields) or len({part.name for part in fields}) < len(fields):
        raise NotReadyError("an Iceberg table cannot be partitioned by a column twice the same way", "Leave one out")
    return PartitionSpec(spec_id, tuple(fields))


def describe_partition_field(name: str, transform: Transform) -> str:
    """Return the name of a partition field, with the width of its transform if it has one."""
    return f"{name}[{transform.width}]" if transform.width else name


def partition_field_name(column: str, transform: Transform) -> str:
    """Return the name of a partition field, as Spark makes it."""
    return column if transform.kind == "identity" else f"{column}_{_SUFFIXES.get(transform.kind, transform.kind)}"


_SUFFIXES = {"truncate": "trunc"}


def _parse_partition_field(value: Mapping[str, Any]) -> IcebergPartitionField:
    return IcebergPartitionField(
        tuple(value["source-ids"]) if "source-ids" in value else (value["source-id"],),
        value["field-id"],
        value["name"],
        Transform(value["transform"]),
        {name: member for name, member in value.items() if name not in _MEMBERS},
    )
