"""Types of Iceberg, and the Arrow types of their values.

A type is parsed from its JSON and gives the same JSON back. Types that this package cannot read or write are parsed
too, because a table may have a column that another program has added; they are refused by name when Arrow values are
needed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from airflow_provider_cdc.model.errors import NotReadyError, TerminalError
from airflow_provider_cdc.sinks.files.stored_columns import FIELD_ID_KEY

#: Format versions that are read and written.
FORMAT_VERSIONS = (2, 3)
#: Types that a format version has added.
_ADDED_BY_VERSION = {
    **dict.fromkeys(("unknown", "variant", "timestamp_ns", "timestamptz_ns"), 3),
    **dict.fromkeys(("geometry", "geography"), 3),
}
_DECIMAL = re.compile(r"decimal\(\s*(\d+)\s*,\s*(\d+)\s*\)")
_FIXED = re.compile(r"fixed\[\s*(\d+)\s*\]")
_ARROW_TYPES: Mapping[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "date": pa.date32(),
    "time": pa.time64("us"),
    "timestamp": pa.timestamp("us"),
    "timestamptz": pa.timestamp("us", tz="UTC"),
    "timestamp_ns": pa.timestamp("ns"),
    "timestamptz_ns": pa.timestamp("ns", tz="UTC"),
    "string": pa.string(),
    "uuid": pa.binary(16),
    "binary": pa.binary(),
}
#: Iceberg types by Arrow type. Integers of 8 and 16 bits are stored with 32 bits.
_BY_ARROW_TYPE = {
    **{arrow_type: name for name, arrow_type in _ARROW_TYPES.items() if name != "uuid"},
    pa.int8(): "int",
    pa.int16(): "int",
    pa.large_string(): "string",
    pa.large_binary(): "binary",
}
_MEMBERS_OF_FIELD = {"id", "name", "required", "type", "doc", "initial-default", "write-default"}


@dataclass(frozen=True)
class PrimitiveType:
    """A type without nested fields, including ``variant``.

    :param name: its JSON in canonical form, such as ``decimal(10, 2)``.
    """

    name: str

    @property
    def decimal_digits(self) -> tuple[int, int] | None:
        """Precision and scale; ``None`` if it is no decimal."""
        match = _DECIMAL.fullmatch(self.name)
        return (int(match[1]), int(match[2])) if match else None

    @property
    def fixed_length(self) -> int | None:
        """Number of bytes of each value; ``None`` if it is no ``fixed`` type."""
        match = _FIXED.fullmatch(self.name)
        return int(match[1]) if match else None

    @property
    def since_version(self) -> int:
        """The format version that has added the type."""
        return _ADDED_BY_VERSION.get(re.split(r"[(\[]", self.name)[0].strip(), 1)

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class ListType:
    """A list."""

    element_id: int
    element: IcebergType
    element_required: bool = False

    def __str__(self) -> str:
        return f"list<{self.element}>"


@dataclass(frozen=True)
class MapType:
    """A map."""

    key_id: int
    key: IcebergType
    value_id: int
    value: IcebergType
    value_required: bool = False

    def __str__(self) -> str:
        return f"map<{self.key}, {self.value}>"


@dataclass(frozen=True)
class NestedField:
    """A field of a struct, such as a column of a table.

    :param id: identifies the field in the table, forever.
    :param initial_default: JSON of its value in rows of files that were written before the field existed.
    :param write_default: JSON of its value in new rows of a writer that does not supply one.
    :param other: other members of its JSON.
    """

    id: int
    name: str
    type: IcebergType
    required: bool = False
    doc: str | None = None
    initial_default: Any = None
    write_default: Any = None
    other: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return its JSON."""
        optional = {"doc": self.doc, "initial-default": self.initial_default, "write-default": self.write_default}
        return {
            "id": self.id,
            "name": self.name,
            "required": self.required,
            "type": type_to_json(self.type),
            **{name: value for name, value in optional.items() if value is not None},
            **self.other,
        }


@dataclass(frozen=True)
class StructType:
    """A struct."""

    fields: tuple[NestedField, ...]

    def __str__(self) -> str:
        return f"struct<{', '.join(f'{f.name}: {f.type}' for f in self.fields)}>"


IcebergType = PrimitiveType | ListType | MapType | StructType


def parse_type(value: Any) -> IcebergType:
    """Return the type with a JSON.

    :raises TerminalError: if it is not understood.
    """
    try:
        if isinstance(value, str):
            return PrimitiveType(_canonical_name(value))
        match value["type"]:
            case "struct":
                return StructType(tuple(parse_field(f) for f in value["fields"]))
            case "list":
                return ListType(value["element-id"], parse_type(value["element"]), value["element-required"])
            case "map":
                key, item = parse_type(value["key"]), parse_type(value["value"])
                return MapType(value["key-id"], key, value["value-id"], item, value["value-required"])
    except (KeyError, TypeError):
        pass
    raise TerminalError(
        f"an Iceberg schema has a type that is not understood: {value!r}",
        "Restore the table's metadata if it is damaged; a newer version of this software may understand it",
    )


def parse_field(value: Mapping[str, Any]) -> NestedField:
    """Return the field with a JSON."""
    return NestedField(
        value["id"],
        value["name"],
        parse_type(value["type"]),
        value["required"],
        value.get("doc"),
        value.get("initial-default"),
        value.get("write-default"),
        {name: member for name, member in value.items() if name not in _MEMBERS_OF_FIELD},
    )


def type_to_json(kind: IcebergType) -> Any:
    """Return the JSON of a type."""
    match kind:
        case PrimitiveType(name):
            return name
        case StructType(fields):
            return {"type": "struct", "fields": [f.to_json() for f in fields]}
        case ListType(element_id, element, required):
            element_json = type_to_json(element)
            return {"type": "list", "element-id": element_id, "element": element_json, "element-required": required}
        case MapType():
            return {
                "type": "map",
                "key-id": kind.key_id,
                "key": type_to_json(kind.key),
                "value-id": kind.value_id,
                "value": type_to_json(kind.value),
                "value-required": kind.value_required,
            }


def walk_fields(fields: tuple[NestedField, ...]) -> Iterator[NestedField]:
    """Yield fields and all fields nested in them; elements, keys and values have these names."""
    for nested in fields:
        yield nested
        match nested.type:
            case StructType(children):
                yield from walk_fields(children)
            case ListType(element_id, element, required):
                yield from walk_fields((NestedField(element_id, "element", element, required),))
            case MapType():
                key = NestedField(nested.type.key_id, "key", nested.type.key, True)
                item = NestedField(nested.type.value_id, "value", nested.type.value, nested.type.value_required)
                yield from walk_fields((key, item))


def check_type(column: str, kind: IcebergType, format_version: int) -> None:
    """Refuse a type that a format version does not have.

    :raises NotReadyError: naming the column and the type.
    """
    for nested in walk_fields((NestedField(0, column, kind),)):
        if isinstance(nested.type, PrimitiveType) and nested.type.since_version > format_version:
            raise NotReadyError(
                f"column {column}: type {nested.type} needs version {nested.type.since_version} of the Iceberg format, "
                f"and the table has version {format_version}",
                "Exclude the column in source.exclude_columns",
            )


def type_of_arrow(column: str, arrow_type: pa.DataType, next_id: Iterator[int], format_version: int) -> IcebergType:
    """Return the type that stores values of an Arrow type.

    :param column: name of the column, for errors.
    :param next_id: yields unused field ids, for the elements of lists.
    :raises NotReadyError: if there is none, naming the column and the type.
    """
    if pa.types.is_decimal(arrow_type) and 0 <= arrow_type.scale <= arrow_type.precision <= 38:
        kind: IcebergType = PrimitiveType(f"decimal({arrow_type.precision}, {arrow_type.scale})")
    elif pa.types.is_list(arrow_type):
        element_id = next(next_id)
        kind = ListType(element_id, type_of_arrow(column, arrow_type.value_type, next_id, format_version))
    elif pa.types.is_fixed_size_binary(arrow_type):
        kind = PrimitiveType(f"fixed[{arrow_type.byte_width}]")
    elif arrow_type in _BY_ARROW_TYPE:
        kind = PrimitiveType(_BY_ARROW_TYPE[arrow_type])
    else:
        raise NotReadyError(
            f"column {column}: values of type {arrow_type} cannot be stored in an Iceberg table",
            "Exclude the column in source.exclude_columns",
        )
    check_type(column, kind, format_version)
    return kind


def arrow_type_of(column: str, kind: IcebergType) -> pa.DataType:
    """Return the Arrow type of the values of a type in files; fields have their ids.

    :param column: name of the column, for errors.
    :raises TerminalError: if there is none, naming the column and the type.
    """
    match kind:
        case ListType(element_id, element, required):
            return pa.list_(arrow_field_of(NestedField(element_id, "element", element, required)))
        case StructType(fields):
            return pa.struct([arrow_field_of(f) for f in fields])
        case MapType():
            key = NestedField(kind.key_id, "key", kind.key, True)
            item = NestedField(kind.value_id, "value", kind.value, kind.value_required)
            return pa.map_(arrow_field_of(key), arrow_field_of(item))
        case PrimitiveType(name):
            if digits := kind.decimal_digits:
                return pa.decimal128(*digits)
            if kind.fixed_length is not None:
                return pa.binary(kind.fixed_length)
            if name in _ARROW_TYPES:
                return _ARROW_TYPES[name]
    raise TerminalError(
        f"column {column} has the Iceberg type {kind}, which this version does not support",
        "Drop the column, or install a newer version of this software",
    )


def arrow_field_of(nested: NestedField) -> pa.Field:
    """Return the Arrow field of a field in files, with its field id."""
    metadata = {FIELD_ID_KEY: str(nested.id).encode()}
    return pa.field(nested.name, arrow_type_of(nested.name, nested.type), not nested.required, metadata)


def is_promotion(old: IcebergType, new: IcebergType, format_version: int) -> bool:
    """Return whether files with values of an old type are read as a new type, so that only metadata changes."""
    if not isinstance(old, PrimitiveType) or not isinstance(new, PrimitiveType):
        return False
    old_digits, new_digits = old.decimal_digits, new.decimal_digits
    if old_digits and new_digits:
        return old_digits[0] < new_digits[0] <= 38 and old_digits[1] == new_digits[1]
    promotions = {("int", "long"), ("float", "double")}
    if format_version >= 3:
        promotions |= {("date", "timestamp"), ("date", "timestamp_ns")}
    return (old.name, new.name) in promotions or (old.name == "unknown" and format_version >= 3)


def _canonical_name(name: str) -> str:
    if match := _DECIMAL.fullmatch(name):
        return f"decimal({match[1]}, {match[2]})"
    if match := _FIXED.fullmatch(name):
        return f"fixed[{match[1]}]"
    return name
