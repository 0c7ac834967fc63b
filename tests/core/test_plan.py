"""The arithmetic of chunk plans; bounds against a real server are in tests/mysql/test_planner.py."""

from __future__ import annotations

import math

from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_cdc.core.offset import Lineage, Offset, Position
from airflow_provider_cdc.core.plan import (
    CHUNKS_PER_FILE,
    FACTOR_HIGH,
    FACTOR_LOW,
    MAX_GROUPS,
    Chunk,
    Plan,
    chunks_of,
    even_bounds,
    even_step,
    number_and_group,
    slices,
)
from airflow_provider_cdc.core.schema import Column, TableSchema

keys = st.integers(-(2**63), 2**64 - 1)


@settings(deadline=None)
@given(keys, st.integers(0, 10_000), st.integers(1, 20_000), st.integers(1, 500))
def test_an_even_split_covers_each_key_once(low: int, span: int, rows: int, chunk_rows: int) -> None:
    high = low + span
    step = even_step(low, high, rows, chunk_rows)
    factor = (span + 1) / rows
    assert (step is None) == (not FACTOR_LOW <= factor <= FACTOR_HIGH)
    if step is None:
        return
    chunks = chunks_of(0, even_bounds(low, high, step), (high,))
    assert chunks[0].lower == (low,) and chunks[-1].upper == (high,) and chunks[-1].last
    assert all(a.upper == b.lower and not a.last for a, b in zip(chunks, chunks[1:], strict=False))
    assert all(int(c.lower[0]) <= high for c in chunks)
    assert len(chunks) == math.ceil((span + 1) / step)


def test_without_statistics_there_is_no_even_split() -> None:
    assert even_step(1, 100, 0, 10) is None


def test_one_key() -> None:
    (chunk,) = chunks_of(3, [("61",)], ("61",))
    assert (chunk.table, chunk.lower, chunk.upper, chunk.last) == (3, ("61",), ("61",), True)
    assert chunks_of(3, [], ("61",)) == []


def chunks(tables: list[int]) -> list[Chunk]:
    return [Chunk(0, t, 0, (i,), (i + 1,), i + 1 == n) for t, n in enumerate(tables) for i in range(n)]


@settings(deadline=None)
@given(st.lists(st.integers(0, 60), max_size=40), st.integers(1, 10_000), st.integers(1, 1000))
def test_groups_and_slices_keep_every_chunk_in_order(tables: list[int], group_rows: int, chunk_rows: int) -> None:
    given_chunks = chunks(tables)
    found = number_and_group(given_chunks, group_rows, chunk_rows)
    assert [c.no for c in found] == list(range(len(given_chunks)))
    assert [(c.table, c.lower) for c in found] == [(c.table, c.lower) for c in given_chunks]
    groups = [c.group for c in found]
    assert groups == sorted(groups) and set(groups) == set(range(max(groups, default=-1) + 1))
    assert len(set(groups)) <= MAX_GROUPS
    for group in set(groups):
        inside = [c for c in found if c.group == group]
        runs = slices(inside)
        assert [c for run in runs for c in run] == inside
        assert all(len({c.table for c in run}) == 1 and len(run) <= CHUNKS_PER_FILE for run in runs)


def test_many_chunks_stay_below_the_limit_of_mapped_tasks() -> None:
    found = number_and_group(chunks([25_000]), 1, 1)
    assert max(c.group for c in found) + 1 == MAX_GROUPS


def test_a_plan_survives_json() -> None:
    column = Column("k", "varchar", "varchar(9)", False, 9, 36, "utf8mb4", "utf8mb4_bin", members=("a", "b"))
    table = TableSchema("d`b", "t.t", (column,), ("k",))
    offset = Offset("server", Position("binlog.000003", 77), "u:1-5", ("X'61',X'',1",))
    plan = Plan(
        pipeline="p",
        generation=2,
        p0=offset,
        lineage=Lineage("server", "binlog.000003"),
        tables=(table,),
        chunks=(Chunk(0, 0, 0, ("61",), ("7a",), True),),
        patterns=((r"d.*",), ("x",)),
    )
    assert Plan.from_json(plan.to_json()) == plan
    assert plan.p0_seq == plan.lineage.seq(offset.at)
    assert plan.groups_of(0) == {0} and plan.groups_of(1) == set()
