"""Avro schemas of manifests and manifest lists, with the field ids of the specification."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Any

import fastavro

from airflow_provider_cdc.model.errors import TerminalError
from airflow_provider_cdc.sinks.iceberg.format.types import PrimitiveType

_AVRO_TYPES: Mapping[str, Any] = {
    "boolean": "boolean",
    "int": "int",
    "long": "long",
    "float": "float",
    "double": "double",
    "date": {"type": "int", "logicalType": "date"},
    "time": {"type": "long", "logicalType": "time-micros"},
    "timestamp": {"type": "long", "logicalType": "timestamp-micros", "adjust-to-utc": False},
    "timestamptz": {"type": "long", "logicalType": "timestamp-micros", "adjust-to-utc": True},
    "timestamp_ns": {"type": "long", "logicalType": "timestamp-nanos", "adjust-to-utc": False},
    "timestamptz_ns": {"type": "long", "logicalType": "timestamp-nanos", "adjust-to-utc": True},
    "string": "string",
    "binary": "bytes",
}
#: Maps of a data file by field: name, id, ids of key and value, type of the value.
_METRICS: tuple[tuple[str, int, int, int, str], ...] = (
    ("column_sizes", 108, 117, 118, "long"),
    ("value_counts", 109, 119, 120, "long"),
    ("null_value_counts", 110, 121, 122, "long"),
    ("nan_value_counts", 137, 138, 139, "long"),
    ("lower_bounds", 125, 126, 127, "bytes"),
    ("upper_bounds", 128, 129, 130, "bytes"),
)
#: Names of the maps of a data file.
METRIC_NAMES = tuple(metric[0] for metric in _METRICS)
_ENTRY_NAMES = {0: "status", 1: "snapshot_id", 2: "data_file", 3: "sequence_number", 4: "file_sequence_number"}
_FILE_NAMES = {
    134: "content",
    100: "file_path",
    101: "file_format",
    102: "partition",
    103: "record_count",
    104: "file_size_in_bytes",
    131: "key_metadata",
    132: "split_offsets",
    135: "equality_ids",
    140: "sort_order_id",
    142: "first_row_id",
    143: "referenced_data_file",
    144: "content_offset",
    145: "content_size_in_bytes",
}
#: Names of the fields of a manifest by id.
MANIFEST_NAMES: Mapping[int, str] = {
    **_ENTRY_NAMES,
    **_FILE_NAMES,
    **{number: name for name, number, *_ in _METRICS},
    **{key: "key" for _, _, key, _, _ in _METRICS},
    **{value: "value" for _, _, _, value, _ in _METRICS},
}
_COUNTS = (
    ("added_files_count", 504, "int"),
    ("existing_files_count", 505, "int"),
    ("deleted_files_count", 506, "int"),
    ("added_rows_count", 512, "long"),
    ("existing_rows_count", 513, "long"),
    ("deleted_rows_count", 514, "long"),
)
#: Names of the fields of a manifest list by id.
LIST_NAMES: Mapping[int, str] = {
    500: "manifest_path",
    501: "manifest_length",
    502: "partition_spec_id",
    517: "content",
    515: "sequence_number",
    516: "min_sequence_number",
    503: "added_snapshot_id",
    **{number: name for name, number, _ in _COUNTS},
    507: "partitions",
    509: "contains_null",
    518: "contains_nan",
    510: "lower_bound",
    511: "upper_bound",
    519: "key_metadata",
    520: "first_row_id",
}


@cache
def manifest_schema(partition: tuple[tuple[int, str, PrimitiveType], ...], format_version: int) -> Any:
    """Return the parsed Avro schema of a manifest.

    :param partition: id, name and type of each partition field.
    """
    values = [
        _avro_field(avro_name(name), number, _optional_type(_avro_type(number, kind)))
        for number, name, kind in partition
    ]
    new_in_version_3 = [
        _avro_field("first_row_id", 142, _optional_type("long")),
        _avro_field("referenced_data_file", 143, _optional_type("string")),
        _avro_field("content_offset", 144, _optional_type("long")),
        _avro_field("content_size_in_bytes", 145, _optional_type("long")),
    ]
    data_file = [
        _avro_field("content", 134, "int"),
        _avro_field("file_path", 100, "string"),
        _avro_field("file_format", 101, "string"),
        _avro_field("partition", 102, {"type": "record", "name": "r102", "fields": values}),
        _avro_field("record_count", 103, "long"),
        _avro_field("file_size_in_bytes", 104, "long"),
        *(
            _avro_field(name, number, _optional_type(_map_type(key_id, value_id, kind)))
            for name, number, key_id, value_id, kind in _METRICS
        ),
        _avro_field("key_metadata", 131, _optional_type("bytes")),
        _avro_field("split_offsets", 132, _optional_type({"type": "array", "items": "long", "element-id": 133})),
        _avro_field("equality_ids", 135, _optional_type({"type": "array", "items": "int", "element-id": 136})),
        _avro_field("sort_order_id", 140, _optional_type("int")),
        *(new_in_version_3 if format_version >= 3 else new_in_version_3[1:2]),
    ]
    entry = [
        _avro_field("status", 0, "int"),
        _avro_field("snapshot_id", 1, _optional_type("long")),
        _avro_field("sequence_number", 3, _optional_type("long")),
        _avro_field("file_sequence_number", 4, _optional_type("long")),
        _avro_field("data_file", 2, {"type": "record", "name": "r2", "fields": data_file}),
    ]
    return fastavro.parse_schema({"type": "record", "name": "manifest_entry", "fields": entry})


@cache
def manifest_list_schema(format_version: int) -> Any:
    """Return the parsed Avro schema of a manifest list."""
    summary = [
        _avro_field("contains_null", 509, "boolean"),
        _avro_field("contains_nan", 518, _optional_type("boolean")),
        _avro_field("lower_bound", 510, _optional_type("bytes")),
        _avro_field("upper_bound", 511, _optional_type("bytes")),
    ]
    partitions = {
        "type": "array",
        "items": {"type": "record", "name": "r508", "fields": summary},
        "element-id": 508,
    }
    fields = [
        _avro_field("manifest_path", 500, "string"),
        _avro_field("manifest_length", 501, "long"),
        _avro_field("partition_spec_id", 502, "int"),
        _avro_field("content", 517, "int"),
        _avro_field("sequence_number", 515, "long"),
        _avro_field("min_sequence_number", 516, "long"),
        _avro_field("added_snapshot_id", 503, "long"),
        *(_avro_field(name, number, kind) for name, number, kind in _COUNTS),
        _avro_field("partitions", 507, _optional_type(partitions)),
        _avro_field("key_metadata", 519, _optional_type("bytes")),
        *([_avro_field("first_row_id", 520, _optional_type("long"))] if format_version >= 3 else []),
    ]
    return fastavro.parse_schema({"type": "record", "name": "manifest_file", "fields": fields})


def decimal_bytes(precision: int) -> int:
    """Return the number of bytes of a decimal in Avro: as few as hold every value."""
    return int(10**precision).bit_length() // 8 + 1


def avro_name(name: str) -> str:
    """Return a name that Avro allows, as other writers make it."""
    if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        return name
    first = (
        name[0]
        if re.match(r"[A-Za-z_]", name)
        else f"_{name[0]}"
        if name[0].isdecimal()
        else _escape_character(name[0])
    )
    return first + "".join(c if re.match(r"[A-Za-z0-9_]", c) else _escape_character(c) for c in name[1:])


def _escape_character(character: str) -> str:
    return f"_x{ord(character):X}"


def _avro_type(number: int, kind: PrimitiveType) -> Any:
    if digits := kind.decimal_digits:
        size = decimal_bytes(digits[0])
        logical = {"logicalType": "decimal", "precision": digits[0], "scale": digits[1]}
        return {"type": "fixed", "name": f"fixed_{number}", "size": size, **logical}
    if kind.name == "uuid":
        return {"type": "fixed", "name": f"fixed_{number}", "size": 16, "logicalType": "uuid"}
    if kind.fixed_length is not None:
        return {"type": "fixed", "name": f"fixed_{number}", "size": kind.fixed_length}
    if kind.name not in _AVRO_TYPES:
        raise TerminalError(
            f"an Iceberg table is partitioned by values of type {kind}, which this version does not support",
            "Install a newer version of this software",
        )
    return _AVRO_TYPES[kind.name]


def _avro_field(name: str, number: int, kind: Any) -> dict[str, Any]:
    default = {"default": None} if isinstance(kind, list) else {}
    return {"name": name, "type": kind, "field-id": number, **default}


def _optional_type(kind: Any) -> list[Any]:
    return ["null", kind]


def _map_type(key_id: int, value_id: int, kind: str) -> dict[str, Any]:
    pair = [_avro_field("key", key_id, "int"), _avro_field("value", value_id, kind)]
    return {
        "type": "array",
        "logicalType": "map",
        "items": {"type": "record", "name": f"k{key_id}_v{value_id}", "fields": pair},
    }
