"""Merging of changes: checked against plain dictionaries."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_cdc.model.changes import (
    apply_changes,
    changes_after,
    last_changes,
    mask_changed_keys,
    merge_in_binlog_order,
    select_upserts,
)
from airflow_provider_cdc.model.schema import OP_COLUMN, SEQ_COLUMN

KEY = ["count", "b.c"]  # names that a careless group_by or join trips over
SCHEMA = pa.schema(
    [("count", pa.string()), ("b.c", pa.int32()), ("v", pa.int32()), (SEQ_COLUMN, pa.int64()), (OP_COLUMN, pa.string())]
)

words = st.sampled_from(["a", "A", "á", "", "a "])
changes = st.lists(st.tuples(words, st.integers(0, 1), st.integers(0, 9), st.sampled_from("cud")), max_size=30)
rows = st.dictionaries(st.tuples(words, st.integers(0, 1)), st.integers(0, 9))


def table(listed: list[tuple[Any, ...]]) -> pa.Table:
    return pa.Table.from_pylist(
        [dict(zip(SCHEMA.names, (k, n, v, seq, op), strict=True)) for seq, (k, n, v, op) in enumerate(listed)],
        schema=SCHEMA,
    )


def contents(found: pa.Table) -> dict[tuple[str, int], int]:
    values = {(r["count"], r["b.c"]): r["v"] for r in found.to_pylist()}
    assert len(values) == found.num_rows, "a key is there twice"
    return values


@settings(deadline=None)
@given(rows, changes)
def test_apply_changes(start: dict[tuple[str, int], int], listed: list[tuple[str, int, int, str]]) -> None:
    expected = dict(start)
    for word, number, v, op in listed:
        if op == "d":
            expected.pop((word, number), None)
        else:
            expected[word, number] = v
    begun = table([(k, n, v, "r") for (k, n), v in start.items()])
    assert contents(apply_changes(begun, table(listed), KEY)) == expected


@settings(deadline=None)
@given(changes)
def test_last_change_of_each_key_in_order(listed: list[tuple[str, int, int, str]]) -> None:
    last = {(k, n): seq for seq, (k, n, _, _) in enumerate(listed)}
    assert last_changes(table(listed), KEY)[SEQ_COLUMN].to_pylist() == sorted(last.values())


@settings(deadline=None)
@given(changes, changes)
def test_matched_rows(some: list[tuple[str, int, int, str]], others: list[tuple[str, int, int, str]]) -> None:
    keys = {(k, n) for k, n, _, _ in others}
    found = mask_changed_keys(table(some), last_changes(table(others), KEY), KEY)
    assert found.to_pylist() == [(k, n) in keys for k, n, _, _ in some]
    found = mask_changed_keys(table(some), last_changes(table(others), KEY[:1]), KEY[:1])
    assert found.to_pylist() == [k in {k for k, _, _, _ in others} for k, _, _, _ in some]


@settings(deadline=None)
@given(changes, st.integers(-1, 31))
def test_after_and_upserts(listed: list[tuple[str, int, int, str]], seq: int) -> None:
    later = changes_after(table(listed), seq)
    assert later[SEQ_COLUMN].to_pylist() == [i for i in range(len(listed)) if i > seq]
    assert select_upserts(table(listed))[SEQ_COLUMN].to_pylist() == [i for i, c in enumerate(listed) if c[3] != "d"]


def test_in_order() -> None:
    """Batches of several readers, each in order; their changes lie between one another."""
    every = table([("a", 0, n, "c") for n in range(6)])
    (one,), (two,) = (every.take(rows).combine_chunks().to_batches() for rows in ([0, 3, 4], [1, 2, 5]))
    for batches in ([one, two], [two, one]):
        assert merge_in_binlog_order(batches)[SEQ_COLUMN].to_pylist() == list(range(6))
    assert merge_in_binlog_order([two])[SEQ_COLUMN].to_pylist() == [1, 2, 5]
    with pytest.raises(ValueError, match=f"{SEQ_COLUMN} 0 to 5"):
        merge_in_binlog_order([one, two.slice(1), every.slice(3, 1).combine_chunks().to_batches()[0]])


def test_nothing_matches_nothing() -> None:
    empty = table([])
    assert apply_changes(empty, empty, KEY).num_rows == 0
    for key in KEY, KEY[:1]:
        assert mask_changed_keys(empty, table([("a", 1, 1, "c")]), key).to_pylist() == []
