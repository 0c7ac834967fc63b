"""Rows that are told apart by all their values, and counted."""

from __future__ import annotations

import struct
from collections import Counter
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_cdc.model.multiset import change_weights, net_change, number_images, row_images
from airflow_provider_cdc.model.schema import OP_COLUMN, SEQ_COLUMN

#: Values of each type of which no two are the same.
DIFFERENT: list[tuple[pa.DataType, list[Any]]] = [
    (pa.int8(), [None, 0, 1]),
    (pa.string(), [None, "", "a", "A", "a ", "á", "a\0"]),
    (pa.binary(), [None, b"", b"a", b"a\0"]),
    (pa.float32(), [None, 0.0, -0.0, 1.5]),
    (pa.float64(), [None, 0.0, -0.0, 5e-324]),
    (pa.decimal128(20, 3), [None, Decimal("1.000"), Decimal("-1.000")]),
    (pa.list_(pa.float32()), [None, [], [0.0], [-0.0], [0.0, 0.0]]),
    (pa.timestamp("us", tz="UTC"), [None, 0, 1]),
]


@pytest.mark.parametrize(("kind", "values"), DIFFERENT, ids=lambda v: str(v) if isinstance(v, pa.DataType) else "")
def test_what_is_equal(kind: pa.DataType, values: list[Any]) -> None:
    column = pa.chunked_array([pa.array([None, *values], kind).slice(1), pa.array(values[::-1], kind)])
    found = number_images(row_images(pa.table({"x.y": column}), ["x.y"])).tolist()
    assert len(set(found)) == len(values)
    assert found[: len(values)] == found[len(values) :][::-1]


def test_many_columns_and_none() -> None:
    """Two rows that differ in the last of 600 columns."""
    rows = pa.table({f"c{i}": pa.array([1, 1, 1], pa.int32()) for i in range(599)} | {"last": ["a", "b", "a"]})
    first, second, third = number_images(row_images(rows, rows.column_names))
    assert first == third != second
    assert number_images(row_images(rows.slice(0, 0), rows.column_names)).tolist() == []


def test_the_borders_of_columns_count() -> None:
    rows = pa.table({"a": ["x", "xy", None, ""], "b": ["yz", "z", "", None]})
    assert len(set(number_images(row_images(rows, ["a", "b"])).tolist())) == 4


def changes(listed: list[tuple[float | None, str]]) -> pa.Table:
    values, ops = [v for v, _ in listed], [op for _, op in listed]
    return pa.table(
        {
            "v": pa.array(values, pa.float64()),
            SEQ_COLUMN: pa.array(range(len(listed)), pa.int64()),
            OP_COLUMN: pa.array(ops),
        }
    )


def bits(value: float | None) -> bytes | None:
    return None if value is None else struct.pack("d", value)


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from([None, 0.0, -0.0, 1.0]), st.sampled_from("cud")), max_size=30))
def test_what_changes_come_to(listed: list[tuple[float | None, str]]) -> None:
    table = changes(listed)
    sums: Counter[bytes | None] = Counter()
    for value, op in listed:
        sums[bits(value)] += -1 if op == "d" else 1
    found = net_change(table, ["v"])
    added = Counter(bits(v) for v in found.added["v"].to_pylist())
    removed = {bits(v): n for v, n in zip(found.removed["v"].to_pylist(), found.removed_counts.tolist(), strict=True)}
    assert added == Counter({k: n for k, n in sums.items() if n > 0})
    assert removed == {k: -n for k, n in sums.items() if n < 0}
    assert bool(found) == any(sums.values())
    assert change_weights(table).sum() == sum(sums.values())
    # Of equal ones the newest: a TRUNCATE looks at the number.
    for image, count in added.items():
        newest = [i for i, (v, op) in enumerate(listed) if bits(v) == image and op != "d"][-count:]
        pairs = zip(found.added["v"].to_pylist(), found.added[SEQ_COLUMN].to_pylist(), strict=True)
        assert [seq for v, seq in pairs if bits(v) == image] == newest
