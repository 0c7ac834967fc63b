"""Avro files as Iceberg uses them: fields are identified by ids, whatever the writer has named them.

The schema in the header of a file is rewritten before the file is read: fields get the names of the specification by
their ids, so that records need not be translated. Logical types are dropped, so that values stay as they are stored:
Python has no date of the year 0.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Mapping
from typing import Any

import fastavro

from airflow_provider_cdc.model.errors import TerminalError

_MAGIC = b"Obj\x01"
_HEADER_SCHEMA = fastavro.parse_schema({"type": "map", "values": "bytes"})
_PREFIX, _DECIMAL_PREFIX = "field_", "decimal_"
#: Compression of files that are written: every reader knows it, and paths repeat.
CODEC = "deflate"


def write_records(schema: Any, records: Iterable[Mapping[str, Any]], properties: Mapping[str, str]) -> bytes:
    """Return the bytes of a file.

    :param schema: parsed Avro schema.
    :param properties: key-value metadata.
    """
    file = io.BytesIO()
    fastavro.writer(file, schema, records, codec=CODEC, metadata=dict(properties), codec_compression_level=1)
    return file.getvalue()


def read_records(data: bytes, names: Mapping[int, str], location: str) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Return the records of a file and its key-value metadata.

    :param names: names of fields by id.
    :param location: location of the file, for errors.
    :raises TerminalError: if it is damaged.
    """
    try:
        if data[: len(_MAGIC)] != _MAGIC:
            raise ValueError("it does not begin as an Avro file")
        header = io.BytesIO(data)
        header.seek(len(_MAGIC))
        # None of the types that fastavro knows for a record fits a header.
        found: Any = fastavro.schemaless_reader(header, _HEADER_SCHEMA, None)
        schema = json.loads(found["avro.schema"])
        _rename_fields(schema, names, set())
        file = io.BytesIO()
        file.write(_MAGIC)
        fastavro.schemaless_writer(file, _HEADER_SCHEMA, {**found, "avro.schema": json.dumps(schema).encode()})
        file.write(memoryview(data)[header.tell() :])
        file.seek(0)
        records: list[Any] = list(fastavro.reader(file))
    except (ValueError, KeyError, EOFError, TypeError, IndexError, fastavro.read.SchemaResolutionError) as error:
        raise TerminalError(
            f"{location} is damaged, or compressed in a way that is not supported: {error}",
            "Restore the file from a backup, or roll the table back to an older snapshot",
        ) from None
    return records, {key: value.decode() for key, value in found.items() if not key.startswith("avro.")}


def unknown_field_name(field_id: int, *, is_decimal: bool = False) -> str:
    """Return the name that a field gets whose id has none, such as that of a partition value."""
    return f"{_DECIMAL_PREFIX if is_decimal else _PREFIX}{field_id}"


def unknown_field_value(name: str, value: Any) -> tuple[int, Any]:
    """Return the id of a field that :func:`unknown_field_name` has named, and its value; decimals are unscaled."""
    if name.startswith(_DECIMAL_PREFIX):
        number = int(name.removeprefix(_DECIMAL_PREFIX))
        return number, None if value is None else int.from_bytes(value, "big", signed=True)
    return int(name.removeprefix(_PREFIX)), value


def _rename_fields(schema: Any, names: Mapping[int, str], decimals: set[str]) -> bool:
    """Give fields of a schema, in place, their names by id; fields with other ids get names that nothing else has.

    :param decimals: names of decimal types so far: a type that occurs again is referred to by its name.
    :returns: whether the schema is that of a decimal, or of a decimal or NULL.
    """
    if isinstance(schema, list):
        are_decimals = [_rename_fields(branch, names, decimals) for branch in schema]
        return any(are_decimals)
    if not isinstance(schema, dict):
        return schema in decimals
    is_decimal = bool(schema.pop("logicalType", None) == "decimal")
    if is_decimal and "name" in schema:
        decimals.add(schema["name"])
    for field in schema.get("fields", ()):
        field.pop("default", None)
        has_decimal = _rename_fields(field["type"], names, decimals)
        if (number := field.get("field-id")) is not None:
            field["name"] = names.get(number) or unknown_field_name(number, is_decimal=has_decimal)
    for part in ("items", "values", "type"):
        if isinstance(schema.get(part), (dict, list)):
            _rename_fields(schema[part], names, decimals)
    return is_decimal
