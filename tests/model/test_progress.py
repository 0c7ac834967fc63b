"""Rates, time left and intervals, without a clock."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_cdc.model.progress import ChunkProgress, active_seconds

WHOLE = st.integers(0, 1000)


def test_a_rate_counts_only_what_was_read_in_its_time() -> None:
    found = ChunkProgress("t", 60, 100, 60_000, 7, fresh_chunks=20, fresh_rows=20_000, seconds=10)
    assert found.rows_per_second == 2000
    assert found.eta_seconds == 20  # 40 chunks at 2 a second
    assert str(found) == "60/100 chunks, 60,000 rows, 2,000 rows/s, 7 corrected, 20 s left"
    assert found.to_json() == {
        "chunks_done": 60,
        "chunks_total": 100,
        "rows": 60_000,
        "corrected": 7,
        "rows_per_second": 2000,
        "eta_seconds": 20.0,
        "paused": None,
    }


def test_chunks_that_may_have_been_read() -> None:
    found = ChunkProgress("t", 60, 100, 60_000, 7, fresh_chunks=20, fresh_rows=20_000, seconds=10).projected(20)
    assert found.chunks_done == 80 and found.eta_seconds == 5  # 20 chunks at 4 a second


def test_nothing_is_said_before_anything_is_known() -> None:
    found = ChunkProgress("t", 60, 100, 60_000, paused="too much to do")
    assert (found.rows_per_second, found.eta_seconds) == (None, None)
    assert str(found) == "60/100 chunks, 60,000 rows, 0 corrected; paused: too much to do"
    assert ChunkProgress("t", 5, 5, 9).eta_seconds == 0


@given(WHOLE, WHOLE, WHOLE, st.floats(0, 1e6))
def test_the_time_left_is_never_negative(done: int, total: int, fresh: int, seconds: float) -> None:
    eta = ChunkProgress("t", done, total, 0, 0, fresh, fresh, seconds).eta_seconds
    assert eta is None or eta >= 0
    if fresh and done < total and seconds > 1e-3:
        assert eta is not None and eta * fresh == pytest.approx((total - done) * seconds)


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), max_size=12))
def test_seconds_in_which_something_was_going_on(pairs: list[tuple[int, int]]) -> None:
    intervals = [(min(p), max(p)) for p in pairs]
    seconds = {s for begin, end in intervals for s in range(begin, end)}
    assert active_seconds(intervals) == len(seconds)
