"""Limits of a snapshot: the arithmetic, without a clock."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_cdc.config.load_limits import LoadLimits, RateLimiter

#: (seconds of idleness before a use, how long it takes, units)
USES = st.lists(
    st.tuples(st.floats(0, 100), st.floats(0, 10), st.integers(0, 10_000)),
    min_size=1,
    max_size=40,
)


def begun(pace: RateLimiter, uses: list[tuple[float, float, int]]) -> list[tuple[float, int]]:
    """(beginning, units) of uses that wait as they are told to; the clock is a number."""
    now, found = 0.0, []
    for idle, takes, units in uses:
        now += idle
        now += pace.seconds_to_wait(now)
        found.append((now, units))
        pace.record_use(now, units)
        now += takes
    return found


@given(USES, st.floats(0.5, 5000))
def test_never_more_than_the_rate_and_one_use(uses: list[tuple[float, float, int]], rate: float) -> None:
    found = begun(RateLimiter(rate), uses)
    largest = max(units for _, units in found)
    for first, (start, _) in enumerate(found):
        total = 0
        for moment, units in found[first:]:
            total += units
            assert total <= rate * (moment - start) * (1 + 1e-9) + largest + 1e-6


@given(st.lists(st.integers(1, 10_000), min_size=2, max_size=30), st.floats(0.5, 5000))
def test_as_fast_as_the_rate_allows(units: list[int], rate: float) -> None:
    """A reader that is fast enough waits for nothing but the rate."""
    found = begun(RateLimiter(rate), [(0, 0, n) for n in units])
    for (start, used), (following, _) in pairwise(found):
        assert following - start == pytest.approx(used / rate)


@given(USES)
def test_without_a_rate_nothing_waits(uses: list[tuple[float, float, int]]) -> None:
    pace = RateLimiter(None)
    assert all(moment >= 0 for moment, _ in begun(pace, uses)) and pace.seconds_to_wait(0) == 0


@given(st.integers(1, 64), st.integers(1, 10**9), st.integers(1, 10**12))
def test_readers_together_stay_within_the_limits(readers: int, rows: int, size: int) -> None:
    share = LoadLimits(rows, size, 50, 10).per_reader(readers)
    assert share.rows_per_second and share.bytes_per_second
    assert readers * share.rows_per_second == pytest.approx(rows)
    assert readers * share.bytes_per_second == pytest.approx(size)
    assert (share.threads_running, share.replica_lag_seconds) == (50, 10)
    assert LoadLimits().per_reader(readers) == LoadLimits()


@pytest.mark.parametrize(
    ("limits", "seen", "why"),
    [
        (LoadLimits(), (10_000, 10_000, True), None),
        (LoadLimits(threads_running=25), (25, None, False), None),
        (LoadLimits(threads_running=25), (26, None, False), "Threads_running is 26, the limit is 25"),
        (LoadLimits(replica_lag_seconds=10), (None, 10, True), None),
        (LoadLimits(replica_lag_seconds=10), (None, 11, True), "11 s behind its source, the limit is 10 s"),
        (LoadLimits(replica_lag_seconds=10), (None, None, True), "replication is not running"),
        (LoadLimits(replica_lag_seconds=10), (None, None, False), None),
    ],
)
def test_why_a_reader_waits(limits: LoadLimits, seen: tuple[int | None, int | None, bool], why: str | None) -> None:
    found = limits.exceeded_reason(*seen)
    assert found is None if why is None else why in (found or "")
