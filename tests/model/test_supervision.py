"""What the names of supervisors say; how epochs are watched is tested with real streams."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest

from airflow_provider_cdc.model.supervision import (
    LOSS_WINDOW_SECONDS,
    LOST_AFTER_SECONDS,
    EpochWatch,
    HeartbeatMonitor,
    RestartHistory,
    WatchOutcome,
    is_superseded_by,
)

MINE = "shop.stream, run manual, try 1"


@pytest.mark.parametrize(
    ("newest", "followed"),
    [
        ("shop.stream, run manual, try 2", True),
        ("shop.stream, run manual, try 10", True),
        (MINE, False),  # the trigger moved to another triggerer
        ("shop.stream, run other, try 2", False),  # another run looks after the same stream
        ("shop.stream, run manual, try 1, try 2", False),  # a run with a strange name
        (None, False),
        ("shop.stream, run manual, try x", False),
    ],
)
def test_later_try(newest: str | None, followed: bool) -> None:
    assert is_superseded_by(MINE, newest) == followed


def test_a_pulse() -> None:
    """Beats are only told apart: by which clock they were written, and whether that goes backwards, does not matter."""
    pulse = HeartbeatMonitor(10)
    assert [pulse.observe("b", at) for at in (100, 105, 110)] == [None] * 3
    assert pulse.observe("b", 110.1) is False
    assert [pulse.observe("a", at) for at in (111, 121)] == [True, True]
    assert pulse.observe("a", 121.1) is False
    assert pulse.observe("b", 200) is True


@dataclass
class Row:
    epoch: int
    heartbeat_at: datetime
    state: str = "running"


def test_an_outage_of_the_bookkeeping_does_not_count() -> None:
    watch, long = EpochWatch(2), LOST_AFTER_SECONDS
    still, moved = (Row(2, datetime(2000, 1, 1, tzinfo=UTC) + timedelta(hours=h)) for h in (1, 0))
    assert watch.observe(still, 0) is None and watch.observe(still, long) is None
    assert watch.observe(None, long + 1) is None
    assert watch.observe(still, long + 2) is None and watch.observe(moved, 2 * long) is None
    assert watch.observe(moved, 3 * long) is None and watch.observe(moved, 3 * long + 1) is WatchOutcome.LOST
    assert watch.observe(Row(3, still.heartbeat_at), 3 * long) is WatchOutcome.SUPERSEDED


def test_restarts_wait_longer_each_time_and_anew_after_progress() -> None:
    restarts, delays = RestartHistory(), []
    for _ in range(9):
        restarts = restarts.with_failure(5, made_progress=False, lost=False)
        delays.append(restarts.delay)
        restarts = restarts.after_delay()
    assert delays == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert restarts.seconds == 9 * 5 + sum(delays)
    for renewed in (
        restarts.with_failure(5, made_progress=True, lost=False),
        restarts.with_failure(LOSS_WINDOW_SECONDS, made_progress=False, lost=False),
    ):
        assert (renewed.failures, renewed.seconds, renewed.delay) == (1, 0, 1)
    assert RestartHistory(10**6).delay == 60 and RestartHistory().delay == 0


def test_drivers_that_crash_are_counted_apart_from_outages() -> None:
    """A driver that dies again and again is not helped by waiting, even if it gets a batch further each time."""
    restarts = RestartHistory()
    for _ in range(5):
        assert not restarts.is_crash_looping
        restarts = restarts.with_failure(1, made_progress=False, lost=False).with_failure(
            60, made_progress=True, lost=True
        )
    assert restarts.is_crash_looping and len(restarts.losses) == 5
    assert not restarts.with_failure(LOSS_WINDOW_SECONDS, made_progress=True, lost=True).is_crash_looping
