"""Types of Iceberg, their JSON, and the Arrow types of the source's columns."""

from __future__ import annotations

import itertools
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter
from pyiceberg.conversions import from_bytes, to_bytes
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.types import IcebergType as PyIcebergType
from pyiceberg.types import NestedField as PyNestedField

from airflow_provider_cdc.model.errors import NotReadyError, TerminalError
from airflow_provider_cdc.model.schema import SUPPORTED_TYPES, Column
from airflow_provider_cdc.sinks.iceberg.format.types import (
    NestedField,
    PrimitiveType,
    arrow_field_of,
    arrow_type_of,
    is_promotion,
    parse_type,
    type_of_arrow,
    type_to_json,
)
from airflow_provider_cdc.sinks.iceberg.format.values import (
    decode_value,
    encode_value,
    value_from_json,
    value_to_json,
    values_of_array,
)

#: Columns of the source, and the types that they have in a table.
COLUMNS = {
    "tinyint": "int",
    "tinyint unsigned": "int",
    "smallint unsigned": "int",
    "mediumint unsigned": "int",
    "int": "int",
    "int unsigned": "long",
    "bigint": "long",
    "bigint unsigned": "decimal(20, 0)",
    "decimal(38,10)": "decimal(38, 10)",
    "decimal(65,30)": "string",
    "time(6)": "long",
    "year": "int",
    "date": "date",
    "datetime(6)": "timestamp",
    "timestamp(6)": "timestamptz",
    "float": "float",
    "double": "double",
    "bit(64)": "binary",
    "json": "string",
    "varchar(10)": "string",
    "enum('a')": "string",
    "blob": "binary",
    "point": "binary",
    "inet6": "string",
    "uuid": "string",
}


def column_of(column_type: str) -> Column:
    kind, _, rest = column_type.replace(" unsigned", "").partition("(")
    digits = [int(part) for part in rest.rstrip(")").split(",")] if kind == "decimal" else [None, None]
    return Column("c", kind, column_type, True, precision=digits[0], scale=digits[1])


@pytest.mark.parametrize(("column_type", "expected"), COLUMNS.items())
@pytest.mark.parametrize("version", [2, 3])
def test_types_of_the_source(column_type: str, expected: str, version: int) -> None:
    kind = type_of_arrow("c", column_of(column_type).arrow_type, itertools.count(9), version)
    assert type_to_json(kind) == expected


def test_a_vector_is_a_list_whose_elements_have_an_id() -> None:
    kind = type_of_arrow("v", column_of("vector(3)").arrow_type, itertools.count(9), 2)
    assert type_to_json(kind) == {"type": "list", "element-id": 9, "element": "float", "element-required": False}
    field = arrow_field_of(NestedField(4, "v", kind))
    assert (field.metadata, field.type.value_field.metadata) == (
        {b"PARQUET:field_id": b"4"},
        {b"PARQUET:field_id": b"9"},
    )


@pytest.mark.parametrize("data_type", sorted(SUPPORTED_TYPES))
def test_every_supported_type_can_be_stored(data_type: str) -> None:
    column = Column("c", data_type, data_type, True)
    kind = type_of_arrow("c", column.arrow_type, itertools.count(9), 2)
    stored = arrow_type_of("c", kind)
    assert pa.nulls(1, column.arrow_type).cast(stored).null_count == 1


@pytest.mark.parametrize(
    ("arrow_type", "version", "problem"),
    [
        (pa.uint64(), 3, "column c: values of type uint64 cannot be stored in an Iceberg table"),
        (pa.decimal256(65, 30), 3, r"column c: values of type decimal256\(65, 30\)"),
        (pa.duration("us"), 3, "column c: values of type duration"),
        (pa.list_(pa.uint8()), 3, "column c: values of type uint8"),
        (pa.timestamp("ns"), 2, "type timestamp_ns needs version 3 of the Iceberg format, and the table has version 2"),
        (pa.list_(pa.timestamp("ns")), 2, "column c: type timestamp_ns needs version 3"),
        (pa.timestamp("us", tz="Europe/Berlin"), 3, "column c: values of type timestamp"),
    ],
)
def test_what_cannot_be_stored_is_refused_by_name(arrow_type: pa.DataType, version: int, problem: str) -> None:
    with pytest.raises(NotReadyError, match=problem):
        type_of_arrow("c", arrow_type, itertools.count(9), version)


def test_nanoseconds_are_in_version_3() -> None:
    assert str(type_of_arrow("c", pa.timestamp("ns", tz="UTC"), itertools.count(9), 3)) == "timestamptz_ns"


@pytest.mark.parametrize(
    "name", ["variant", "geometry(srid:4326)", "geography(srid:4326, karney)", "unknown", "future"]
)
def test_types_of_others_are_retained_and_refused_by_name(name: str) -> None:
    kind = parse_type(name)
    assert type_to_json(kind) == name
    with pytest.raises(TerminalError, match=f"column c has the Iceberg type {name.partition('(')[0]}"):
        arrow_type_of("c", kind)


def test_spaces_in_types_do_not_matter() -> None:
    assert parse_type("decimal( 9 ,2 )") == parse_type("decimal(9, 2)") == PrimitiveType("decimal(9, 2)")
    assert str(parse_type("fixed[ 3 ]")) == "fixed[3]"


def test_a_type_that_is_not_understood() -> None:
    with pytest.raises(TerminalError, match="a type that is not understood: {'type': 'tree'}"):
        parse_type({"type": "tree"})


def primitive_names() -> st.SearchStrategy[str]:
    digits = st.integers(1, 38).flatmap(lambda p: st.tuples(st.just(p), st.integers(0, p)))
    return st.one_of(
        st.sampled_from(["boolean", "int", "long", "float", "double", "date", "time", "timestamp", "timestamptz"]),
        st.sampled_from(["string", "uuid", "binary", "fixed[16]"]),
        digits.map(lambda d: f"decimal({d[0]},{d[1]})"),
    )


@st.composite
def nested_json(draw: st.DrawFn, ids: Any = None, depth: int = 0) -> Any:
    ids = ids or itertools.count(1)
    shape = draw(st.sampled_from(["primitive"] * 3 + (["struct", "list", "map"] if depth < 3 else [])))
    if shape == "struct":
        names = draw(st.lists(st.sampled_from(["a", "b.c", "é", "d"]), min_size=1, unique=True))
        fields = [
            {"id": next(ids), "name": n, "required": draw(st.booleans()), "type": draw(nested_json(ids, depth + 1))}
            for n in names
        ]
        return {"type": "struct", "fields": fields}
    if shape == "list":
        element = {"element-id": next(ids), "element": draw(nested_json(ids, depth + 1))}
        return {"type": "list", **element, "element-required": draw(st.booleans())}
    if shape == "map":
        key = {"key-id": next(ids), "key": draw(nested_json(ids, depth + 1))}
        value = {"value-id": next(ids), "value": draw(nested_json(ids, depth + 1))}
        return {"type": "map", **key, **value, "value-required": draw(st.booleans())}
    return draw(primitive_names())


@given(nested_json())
def test_types_as_pyiceberg_reads_them(value: Any) -> None:
    adapter = TypeAdapter[Any](PyNestedField)
    theirs: PyIcebergType = adapter.validate_python(
        {"id": 1000, "name": "c", "required": False, "type": value}
    ).field_type
    kind = parse_type(value)
    written = adapter.validate_python({"id": 1000, "name": "c", "required": False, "type": type_to_json(kind)})
    assert written.field_type == theirs
    assert parse_type(type_to_json(kind)) == kind
    expected = schema_to_pyarrow(Schema(PyNestedField(1000, "c", theirs, required=False))).field(0).type
    assert small(arrow_type_of("c", kind)) == small(expected)


def small(kind: pa.DataType) -> str:
    """They read texts and bytes with long offsets, uuids as such."""
    return str(kind).replace("large_", "").replace("extension<arrow.uuid>", "fixed_size_binary[16]")


@pytest.mark.parametrize(
    ("old", "new", "version", "expected"),
    [
        ("int", "long", 2, True),
        ("float", "double", 2, True),
        ("decimal(5, 2)", "decimal(7, 2)", 2, True),
        ("decimal(5, 2)", "decimal(7, 3)", 2, False),
        ("decimal(7, 2)", "decimal(5, 2)", 2, False),
        ("long", "int", 3, False),
        ("int", "decimal(20, 0)", 3, False),
        ("int", "string", 3, False),
        ("date", "timestamp", 2, False),
        ("date", "timestamp", 3, True),
        ("date", "timestamptz", 3, False),
    ],
)
def test_promotions(old: str, new: str, version: int, expected: bool) -> None:
    assert is_promotion(parse_type(old), parse_type(new), version) is expected


# ---------------------------------------------------------------- single values

LONG = st.integers(-(1 << 63), (1 << 63) - 1)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "boolean": st.booleans(),
    "int": st.integers(-(1 << 31), (1 << 31) - 1),
    "long": LONG,
    "float": st.floats(width=32, allow_nan=False, allow_infinity=False),
    "double": st.floats(allow_nan=False, allow_infinity=False),
    "date": st.integers(-719528, 2932896),  # from the year 0 to 9999
    "time": st.integers(0, 86_400 * 10**6 - 1),
    "timestamp": st.integers(-62167219200 * 10**6, 253402300799999999),
    "timestamptz": st.integers(-62167219200 * 10**6, 253402300799999999),
    "timestamp_ns": LONG.filter(lambda value: value != -(1 << 63)),
    "string": st.text(st.characters(exclude_categories=["Cs"])),
    "uuid": st.binary(min_size=16, max_size=16),
    "binary": st.binary(),
    "fixed[3]": st.binary(min_size=3, max_size=3),
    "decimal(38, 10)": st.integers(-(10**38) + 1, 10**38 - 1),
    "decimal(5, 0)": st.integers(-(10**5) + 1, 10**5 - 1),
}


@given(st.sampled_from(sorted(VALUES)).flatmap(lambda name: st.tuples(st.just(name), VALUES[name])))
def test_single_values(named: tuple[str, Any]) -> None:
    name, value = named
    kind = PrimitiveType(name)
    data = encode_value(kind, value)
    assert decode_value(kind, data) == value
    assert value_from_json(kind, value_to_json(kind, value)) == value
    theirs: Any = TypeAdapter[Any](PyNestedField).validate_python(
        {"id": 1, "name": "c", "required": False, "type": name}
    )
    expected = Decimal(value).scaleb(-kind.decimal_digits[1]) if kind.decimal_digits and abs(value) < 10**28 else value
    if kind.decimal_digits is None or expected is not value:
        read = from_bytes(theirs.field_type, data)
        assert read == expected
        assert to_bytes(theirs.field_type, expected) == data


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("decimal(9, 2)", 1420, "14.20"),
        ("decimal(9, 2)", -5, "-0.05"),
        ("date", 17486, "2017-11-16"),
        ("time", 81068123456, "22:31:08.123456"),
        ("timestamp", 1510871468123456, "2017-11-16T22:31:08.123456"),
        ("timestamptz", 1510871468123456, "2017-11-16T22:31:08.123456+00:00"),
        ("uuid", bytes.fromhex("f79c3e09677c4bbda4793f349cb785e7"), "f79c3e09-677c-4bbd-a479-3f349cb785e7"),
        ("fixed[4]", b"\0\1\2\xff", "000102ff"),
    ],
)
def test_defaults_as_in_the_specification(name: str, value: Any, expected: str) -> None:
    assert value_to_json(PrimitiveType(name), value) == expected


@pytest.mark.parametrize(
    ("name", "data", "expected"),
    [
        ("long", b"\xff\xff\xff\xff", -1),
        ("double", b"\0\0\x80\x3f", 1.0),
        ("timestamp", b"\1\0\0\0", 86_400_000_000),
        ("timestamp_ns", b"\1\0\0\0", 86_400_000_000_000),
        ("decimal(20, 0)", b"\x7f", 127),
    ],
)
def test_bounds_of_files_from_before_a_promotion(name: str, data: bytes, expected: Any) -> None:
    assert decode_value(PrimitiveType(name), data) == expected


def test_values_that_have_no_form() -> None:
    with pytest.raises(TerminalError, match="default value nan"):
        value_to_json(PrimitiveType("double"), float("nan"))
    with pytest.raises(TerminalError, match="Iceberg type variant"):
        encode_value(PrimitiveType("variant"), 1)
    with pytest.raises(TerminalError, match="a bound of a column of type long is damaged"):
        decode_value(PrimitiveType("long"), b"\0")


def test_values_of_arrow_arrays() -> None:
    number = Decimal("-12345678901234567890123456789012345.678")
    assert values_of_array(pa.array([number, None], pa.decimal128(38, 3))) == [
        -12345678901234567890123456789012345678,
        None,
    ]
    assert values_of_array(pa.array([-719528], pa.int32()).cast(pa.date32())) == [-719528]
    assert values_of_array(pa.array([5], pa.int64()).cast(pa.timestamp("us", tz="UTC"))) == [5]
