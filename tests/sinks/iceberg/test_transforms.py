"""Partition transforms and specs: the values of the specification, and those of pyiceberg."""

from __future__ import annotations

import datetime
import uuid
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter
from pyiceberg.transforms import BucketTransform, TruncateTransform, parse_transform
from pyiceberg.types import NestedField as PyNestedField

from airflow_provider_cdc.model.errors import NotReadyError, TerminalError
from airflow_provider_cdc.sinks.iceberg.format.partition_spec import (
    PartitionSpec,
    new_partition_spec,
    parse_partition_spec,
)
from airflow_provider_cdc.sinks.iceberg.format.schema import new_schema
from airflow_provider_cdc.sinks.iceberg.format.transforms import Transform, hash_column
from airflow_provider_cdc.sinks.iceberg.format.types import PrimitiveType
from airflow_provider_cdc.sinks.iceberg.format.values import values_of_array

UTC = datetime.UTC


def moment(text: str) -> int:
    """Microseconds since 1970."""
    parsed = datetime.datetime.fromisoformat(text)
    since = parsed - datetime.datetime(1970, 1, 1, tzinfo=parsed.tzinfo and UTC)
    return since // datetime.timedelta(microseconds=1)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (pa.array([34], pa.int32()), 2017239379),
        (pa.array([34], pa.int16()), 2017239379),
        (pa.array([34], pa.int64()), 2017239379),
        (pa.array([Decimal("14.20")], pa.decimal128(9, 2)), -500754589),
        (pa.array([datetime.date(2017, 11, 16)]), -653330422),
        (pa.array([datetime.time(22, 31, 8)], pa.time64("us")), -662762989),
        (pa.array([moment("2017-11-16T22:31:08")], pa.timestamp("us")), -2047944441),
        (pa.array([moment("2017-11-16T22:31:08.000001")], pa.timestamp("us")), -1207196810),
        (pa.array([moment("2017-11-16T14:31:08-08:00")], pa.timestamp("us", tz="UTC")), -2047944441),
        (pa.array([moment("2017-11-16T22:31:08.000001") * 1000 + 1], pa.timestamp("ns")), -1207196810),
        (pa.array(["iceberg"]), 1210000089),
        (pa.array([uuid.UUID("f79c3e09-677c-4bbd-a479-3f349cb785e7").bytes], pa.binary(16)), 1488055340),
        (pa.array([b"\0\1\2\3"], pa.binary(4)), -188683207),
        (pa.array([b"\0\1\2\3"]), -188683207),
    ],
    ids=str,
)
def test_hashes_of_the_specification(values: pa.Array, expected: int) -> None:
    assert hash_column(values).tolist() == [expected]
    padded = pa.concat_arrays([pa.nulls(2, values.type), values, pa.nulls(1, values.type)])
    assert hash_column(padded[1:])[1] == expected, "an array that begins in the middle of its buffers"


#: Arrow types, their values, and the values as pyiceberg has them.
LONG = st.integers(-(1 << 63), (1 << 63) - 1)
CASES: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "int": (pa.int32(), st.integers(-(1 << 31), (1 << 31) - 1)),
    "long": (pa.int64(), LONG),
    "decimal(20, 0)": (pa.decimal128(20, 0), st.integers(-(10**20) + 1, 10**20 - 1)),
    "decimal(9, 2)": (pa.decimal128(9, 2), st.integers(-(10**9) + 1, 10**9 - 1)),
    "date": (pa.date32(), st.integers(-719162, 2932896)),
    "timestamp": (pa.timestamp("us"), st.integers(-62135596800 * 10**6, 253402300799999999)),
    "timestamptz": (pa.timestamp("us", tz="UTC"), st.integers(-62135596800 * 10**6, 253402300799999999)),
    "string": (pa.string(), st.text(st.characters(exclude_categories=["Cs"]))),
    "binary": (pa.binary(), st.binary()),
}


def array_of(name: str, values: list[Any]) -> pa.Array:
    kind = CASES[name][0]
    if pa.types.is_decimal(kind):
        return pa.array([None if v is None else as_theirs(name, v) for v in values], kind)
    if pa.types.is_date32(kind):
        return pa.array(values, pa.int32()).cast(kind)
    return pa.array(values, pa.int64()).cast(kind) if pa.types.is_timestamp(kind) else pa.array(values, kind)


def as_theirs(name: str, value: Any) -> Any:
    digits = PrimitiveType(name).decimal_digits
    return Decimal(value).scaleb(-digits[1]) if digits else value


def columns() -> st.SearchStrategy[tuple[str, list[Any]]]:
    return st.sampled_from(sorted(CASES)).flatmap(
        lambda name: st.tuples(st.just(name), st.lists(st.none() | CASES[name][1], max_size=20))
    )


def their_type(name: str) -> Any:
    field: Any = TypeAdapter[Any](PyNestedField).validate_python(
        {"id": 1, "name": "c", "required": False, "type": name}
    )
    return field.field_type


@given(columns(), st.integers(1, (1 << 31) - 1))
def test_buckets_as_pyiceberg_has_them(column: tuple[str, list[Any]], width: int) -> None:
    name, values = column
    theirs = BucketTransform(width).transform(their_type(name))
    expected = [None if value is None else theirs(as_theirs(name, value)) for value in values]
    result = Transform(f"bucket[{width}]").apply(array_of(name, values))
    assert result.to_pylist() == expected and result.type == pa.int32()


@given(columns().filter(lambda c: not c[0].startswith(("date", "timestamp"))), st.integers(1, 1000))
def test_truncations_as_pyiceberg_has_them(column: tuple[str, list[Any]], width: int) -> None:
    name, values = column
    lowest = {"int": -(1 << 31), "long": -(1 << 63)}.get(name, -(10**20)) + width
    values = [value for value in values if not isinstance(value, int) or value >= lowest]  # theirs do not wrap
    theirs = TruncateTransform(width).transform(their_type(name))
    expected = [None if value is None else theirs(as_theirs(name, value)) for value in values]
    result = Transform(f"truncate[{width}]").apply(array_of(name, values))
    assert result.type == CASES[name][0]
    digits = PrimitiveType(name).decimal_digits
    if digits:
        unscaled = [None if value is None else int(value.scaleb(digits[1])) for value in expected]
        assert [None if v is None else int(v) for v in words(result)] == unscaled
    else:
        assert result.to_pylist() == expected


def words(array: pa.Array) -> list[int | None]:
    """Unscaled decimals, those too that a truncation has given more digits than their type has."""
    data = (array.buffers()[1] or pa.py_buffer(b"")).to_pybytes()
    numbers = [int.from_bytes(data[i * 16 : i * 16 + 16], "little", signed=True) for i in range(len(array))]
    return [n if v else None for n, v in zip(numbers, array.is_valid().to_pylist(), strict=True)]


@given(st.integers(-(10**38) + 1, 10**38 - 1), st.integers(1, (1 << 31) - 1))
def test_truncations_of_long_decimals(unscaled: int, width: int) -> None:
    digits = tuple(map(int, str(abs(unscaled))))
    values = pa.array([Decimal((unscaled < 0, digits, -10))], pa.decimal128(38, 10))
    assert words(Transform(f"truncate[{width}]").apply(values)) == [unscaled - unscaled % width]


def test_truncations_of_the_specification() -> None:
    assert Transform("truncate[10]").apply(pa.array([1, -1], pa.int32())).to_pylist() == [0, -10]
    prices = pa.array([Decimal("10.65"), None, Decimal("-0.05")], pa.decimal128(9, 2))
    assert Transform("truncate[50]").apply(prices).to_pylist() == [Decimal("10.50"), None, Decimal("-0.50")]
    assert Transform("truncate[3]").apply(pa.array(["iceberg", "äöüß"])).to_pylist() == ["ice", "äöü"]
    assert Transform("truncate[3]").apply(pa.array([b"\1\2\3\4\5"])).to_pylist() == [b"\1\2\3"]
    wrapped = Transform("truncate[10]").apply(pa.array([-(1 << 63)], pa.int64()))
    assert wrapped.to_pylist() == [(1 << 63) - 2], "as in Java"


@given(
    columns().filter(lambda c: c[0].startswith(("date", "timestamp"))),
    st.sampled_from(["year", "month", "day", "hour"]),
)
def test_parts_of_dates_as_pyiceberg_has_them(column: tuple[str, list[Any]], part: str) -> None:
    name, values = column
    if (name, part) == ("date", "hour"):
        with pytest.raises(TerminalError, match="transform hour cannot be computed for values of type date32"):
            Transform(part).apply(array_of(name, values))
        return
    theirs = parse_transform(part).transform(their_type(name))
    result = Transform(part).apply(array_of(name, values))
    assert values_of_array(result) == [None if value is None else theirs(value) for value in values]
    source = PrimitiveType(name)
    assert str(result.type) == {"date": "date32[day]", "int": "int32"}[Transform(part).result_type(source).name]


def test_identity_and_void() -> None:
    values = pa.chunked_array([["a"], [None, "b"]])
    assert Transform("identity").apply(values).to_pylist() == ["a", None, "b"]
    assert Transform("void").apply(values).to_pylist() == [None] * 3


@pytest.mark.parametrize("text", ["zorder", "bucket[0]", "bucket", "truncate[-1]", "bucket[99999999999]"])
def test_unknown_transforms(text: str) -> None:
    assert not Transform(text).is_known
    with pytest.raises(TerminalError, match="cannot be computed"):
        Transform(text).apply(pa.array([1]))


# ---------------------------------------------------------------- specs

SCHEMA = new_schema(
    pa.schema([("id", pa.int64()), ("at", pa.timestamp("us")), ("name", pa.string()), ("f", pa.float64())]), 3
)


def test_a_spec_and_its_values() -> None:
    wanted = [("id", "bucket[16]"), ("at", "day"), ("name", "truncate[2]"), ("name", "identity")]
    spec = new_partition_spec(SCHEMA, wanted)
    assert [(p.field_id, p.name) for p in spec.fields] == [
        (1000, "id_bucket"),
        (1001, "at_day"),
        (1002, "name_trunc"),
        (1003, "name"),
    ]
    assert parse_partition_spec(spec.to_json()) == spec
    rows = pa.table([[34, None], [0, 86400000000], ["abc", None], [1.0, 2.0]], schema=SCHEMA.arrow_schema())
    assert {number: values_of_array(values) for number, values in spec.apply(rows, SCHEMA).items()} == {
        1000: [3, None],
        1001: [0, 1],
        1002: ["ab", None],
        1003: ["abc", None],
    }
    assert {number: str(kind) for number, kind in spec.result_types(SCHEMA).items()} == {
        1000: "int",
        1001: "date",
        1002: "string",
        1003: "string",
    }


def test_an_equivalent_field_has_the_id_that_it_had() -> None:
    first = new_partition_spec(SCHEMA, [("id", "bucket[16]"), ("at", "day")])
    second = new_partition_spec(
        SCHEMA, [("at", "day"), ("at", "hour")], spec_id=1, last_partition_id=1001, known_specs=[first]
    )
    assert [p.field_id for p in second.fields] == [1001, 1002]


@pytest.mark.parametrize(
    ("wanted", "problem"),
    [
        ([("f", "bucket[4]")], r"column f of type double cannot partition an Iceberg table by bucket\[4\]"),
        ([("id", "day")], "column id of type long cannot"),
        ([("at", "year"), ("at", "year")], "partition field at_year would have the name"),
        ([("at", "identity"), ("at", "identity")], "by a column twice"),
    ],
)
def test_specs_that_are_refused(wanted: list[tuple[str, str]], problem: str) -> None:
    with pytest.raises(NotReadyError, match=problem):
        new_partition_spec(SCHEMA, wanted)


def test_specs_of_others() -> None:
    value = {
        "spec-id": 4,
        "fields": [
            {"source-ids": [1, 3], "field-id": 1000, "name": "b", "transform": "bucketV2[4]", "note": 1},
            {"source-id": 1, "field-id": 1001, "name": "z", "transform": "void"},
        ],
    }
    spec = parse_partition_spec(value)
    assert spec.to_json() == value and spec.is_partitioned
    with pytest.raises(TerminalError, match=r"partition field b .* has the transform bucketV2\[4\] of columns that"):
        spec.result_types(SCHEMA)
    assert not PartitionSpec(0, spec.fields[1:]).is_partitioned
    with pytest.raises(TerminalError, match="a partition spec of an Iceberg table is damaged: KeyError"):
        parse_partition_spec({"spec-id": 1, "fields": [{}]})
