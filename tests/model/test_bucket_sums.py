"""Sums of hashes: the same for the same rows in any order, others for all others."""

from __future__ import annotations

import random

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_cdc.model.bucket_sums import BucketSums

Rows = list[tuple[int, int, int]]
ROWS = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1)), max_size=30)


def summed(rows: Rows, weight: int | None = None, into: BucketSums | None = None) -> BucketSums:
    found = BucketSums() if into is None else into
    buckets, first, second = (np.array([row[i] for row in rows], kind) for i, kind in enumerate(("u2", "u8", "u8")))
    found.add(buckets, first, second, None if weight is None else np.full(len(rows), weight))
    return found


@given(ROWS, ROWS, st.randoms())
@settings(deadline=None)
def test_order_and_portions_do_not_matter(some: Rows, more: Rows, chance: random.Random) -> None:
    every = [*some, *more]
    chance.shuffle(every)
    whole, parts = summed(every), summed(some)
    parts.merge(summed(more))
    assert not len(whole.differing_buckets(parts))
    taken = summed(more, -1, summed(every))
    assert not len(taken.differing_buckets(summed(some)))


@given(ROWS, st.tuples(st.integers(0, 5), st.integers(1, 2**64 - 1), st.integers(0, 2**64 - 1)))
@settings(deadline=None)
def test_one_row_more_or_twice_or_another(rows: Rows, row: tuple[int, int, int]) -> None:
    whole = summed([*rows, row])
    for other in ([*rows], [*rows, row, row], [*rows, (row[0], row[1] ^ 1, row[2])], [*rows, (*row[:2], row[2] ^ 1)]):
        assert whole.differing_buckets(summed(other)).tolist() == [row[0]]
