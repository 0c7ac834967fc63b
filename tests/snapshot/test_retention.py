"""Whether the binlog outlives the snapshot: the arithmetic, without a clock."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_cdc.snapshot.retention import (
    ASSUMED_ROWS_PER_SECOND,
    Retention,
    assess_retention,
    estimate_seconds,
    retention_text,
)

SECONDS = st.floats(0, 1e9)


@pytest.mark.parametrize(
    ("purge_in", "needed", "expected"),
    [
        (None, 1e9, "fine"),
        (10, None, "fine"),
        (100, 50, "fine"),
        (100, 51, "tight"),
        (100, 100, "tight"),
        (100, 101, "lost"),
        (0, 1, "lost"),
        (0, 0, "fine"),
    ],
)
def test_verdict(purge_in: float | None, needed: float | None, expected: str) -> None:
    assert assess_retention(purge_in, needed) == expected


def test_a_file_is_kept_from_its_end_on() -> None:
    retention = Retention(3600)
    assert retention.seconds_to_purge(1000, None) == 3600, "the file in use is never removed"
    assert retention.seconds_to_purge(1000, 900) == 3500
    assert retention.seconds_to_purge(10_000, 900) == 0
    assert Retention(None).seconds_to_purge(10_000, 900) is None


@given(SECONDS, SECONDS, st.one_of(st.none(), SECONDS))
def test_files_that_go_before_their_time(now: float, began: float, expire: float | None) -> None:
    """What is seen can only shorten what the settings say, and only if a file was younger than those allow."""
    seen = Retention(expire).with_observed_purge(now, began)
    assert seen.expire_seconds == expire
    age = max(0.0, now - began)
    if expire is not None and age >= expire:
        assert seen.observed_seconds is None and seen.keep_seconds == expire
    else:
        assert seen.keep_seconds == seen.observed_seconds == age
        assert expire is None or seen.keep_seconds < expire


def test_an_estimate_keeps_to_the_limits() -> None:
    assert estimate_seconds(10 * ASSUMED_ROWS_PER_SECOND, 0, 2) == 5
    assert estimate_seconds(10 * ASSUMED_ROWS_PER_SECOND, 0, 2, rows_per_second=ASSUMED_ROWS_PER_SECOND) == 10
    assert estimate_seconds(0, 1000, 2, bytes_per_second=10) == 100
    assert estimate_seconds(10 * ASSUMED_ROWS_PER_SECOND, 1000, 2, rows_per_second=1e12, bytes_per_second=10) == 100
    assert estimate_seconds(0, 0, 1) == 0


def test_for_people() -> None:
    assert [retention_text(s) for s in (None, 30, 600, 36_000, 30 * 86_400)] == [
        "for ever",
        "for 30 s",
        "for 10 min",
        "for 10.0 h",
        "for 30 d",
    ]
