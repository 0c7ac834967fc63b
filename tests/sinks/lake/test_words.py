"""What rows are looked up by: equal keys have equal words, different ones different words."""

from __future__ import annotations

import datetime
import decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_cdc.model.errors import TerminalError
from airflow_provider_cdc.model.multiset import row_images
from airflow_provider_cdc.sinks import row_hashes as module
from airflow_provider_cdc.sinks.lake.merge.key_hashes import KeyHasher, concat_hashes

VALUES: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.int8(): st.integers(-128, 127),
    pa.bool_(): st.booleans(),
    pa.float64(): st.sampled_from([0.0, -0.0, 1.0, float("inf"), 5e-324]),
    pa.string(): st.text(st.sampled_from("ab\0é"), max_size=17),
    pa.binary(): st.binary(max_size=17),
    pa.decimal128(38, 2): st.decimals(-(10**36) + 1, 10**36 - 1, places=2),
    pa.date32(): st.dates(),
    pa.timestamp("us"): st.datetimes(datetime.datetime(1000, 1, 1)),
}
OF_A_COLUMN = st.sampled_from(list(VALUES)).flatmap(
    lambda kind: st.tuples(st.just(kind), st.lists(st.none() | VALUES[kind], min_size=5, max_size=5))
)


@given(st.lists(OF_A_COLUMN, min_size=1, max_size=3), st.integers(0, 4))
@settings(deadline=None)
def test_equal_rows_have_equal_words(columns: list[tuple[pa.DataType, list[Any]]], at: int) -> None:
    table = pa.table({f"c{n}": pa.array(values, kind) for n, (kind, values) in enumerate(columns)})
    worder = KeyHasher(table.column_names, pa.schema([pa.field(f"c{n}", pa.string()) for n in range(len(columns))]))
    found = worder(table)
    told = [tuple(str(v) for v in row.values()) for row in row_images(table, table.column_names).to_pylist()]
    for a in range(5):
        for b in range(5):
            assert ((found.first[a], found.second[a]) == (found.first[b], found.second[b])) == (told[a] == told[b])
    # A part of a table, whose arrays begin elsewhere, in chunks.
    part = worder(pa.concat_tables([table.slice(at), table.slice(0, at)]))
    whole = concat_hashes([found.select(slice(at, None)), found.select(slice(0, at))])
    assert np.array_equal(part.first, whole.first) and np.array_equal(part.second, whole.second)


@pytest.mark.parametrize(
    "columns",
    [
        {"a": ["x", "xy"], "b": ["yz", "z"]},
        {"a": ["", None], "b": ["", ""]},
        {"a": [None, ""], "b": ["", None]},
        {"a": ["a", "a\0"], "b": ["", ""]},
        {"a": ["12345678", "1234567"], "b": ["", "8"]},
        {"a": [0, None], "b": [0, 0]},
        {"a": [decimal.Decimal(1), decimal.Decimal(1 + (1 << 64))], "b": [0, 0]},
    ],
)
def test_different_rows_have_different_words(columns: dict[str, list[Any]]) -> None:
    table = pa.table(columns)
    found = KeyHasher(["a", "b"], table.schema)(table)
    assert len(set(zip(found.first, found.second, strict=True))) == 2


@pytest.mark.parametrize("kind", [pa.int8(), pa.int64(), pa.uint64(), pa.uint32()])
def test_an_integer_is_its_own_word(kind: pa.DataType) -> None:
    """Exact, and in the order of the keys: so the rows of a snapshot need not be sorted."""
    signed = pa.types.is_signed_integer(kind)
    high = (1 << (kind.bit_width - signed)) - 1
    keys = [-high - 1, -1, 0, 1, high] if signed else [0, 1, high]
    table = pa.table({"id": pa.array(keys, kind)})
    found = KeyHasher(["id"], table.schema)(table)
    assert found.second is None
    assert list(found.first) == sorted({int(word) for word in found.first}) and len(found) == len(keys)


def test_hashes_have_a_secret() -> None:
    """Else somebody could choose keys whose hashes meet."""
    table = pa.table({"a": ["x"]})
    one, other = KeyHasher(["a"], table.schema)(table), KeyHasher(["a"], table.schema)(table)
    assert (one.first[0], one.second[0]) != (other.first[0], other.second[0])


def test_many_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_ROWS_PER_PORTION", 3)
    table = pa.table({"a": [str(n % 7) for n in range(20)]})
    found = KeyHasher(["a"], table.schema)(table)
    assert len(found) == 20 and len(set(found.first.tolist())) == 7
    assert found.first[0] == found.first[7] and found.second[1] == found.second[15]
    assert len(KeyHasher(["a"], table.schema)(table.slice(0, 0))) == 0


def test_bits_of_a_hash_are_even() -> None:
    """Each bit is set in about half of the hashes, whatever the keys have in common."""
    table = pa.table({"a": pa.array(range(20_000)), "b": pa.array(["same"] * 20_000)})
    found = KeyHasher(["a", "b"], table.schema)(table)
    for word in (found.first, found.second):
        for bit in range(64):
            assert 9_400 < int(((word >> np.uint64(bit)) & np.uint64(1)).sum()) < 10_600


def test_null_is_no_key() -> None:
    with pytest.raises(TerminalError, match="NULL"):
        KeyHasher(["id"], pa.schema([("id", pa.int64())]))(pa.table({"id": pa.array([1, None])}))
