"""Changes a second of a table, from what a driver has counted."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from airflow_provider_cdc.ui.state_databases import SILENT_SECONDS, WRITE_SECONDS, ChangeRate

AT = datetime(2026, 3, 1, tzinfo=UTC)


def test_two_looks_make_a_rate() -> None:
    rate = ChangeRate()
    assert rate.update(AT, (10, 0, 5), 0.0) is None
    assert rate.update(AT, (10, 0, 5), 2.0) is None
    assert rate.update(AT + timedelta(seconds=60), (70, 30, 5), 61.0) == (1.0, 0.5, 0.0)
    assert rate.update(AT + timedelta(seconds=60), (70, 30, 5), 90.0) == (1.0, 0.5, 0.0)


def test_a_table_that_was_idle() -> None:
    """Nothing is written while nothing changes: that is a rate of zero, and does not thin out what comes after it."""
    rate = ChangeRate()
    rate.update(AT, (10,), 0.0)
    assert rate.update(AT, (10,), SILENT_SECONDS + 1) == (0.0,)
    assert rate.update(AT + timedelta(hours=1), (130,), 3600.0) == (120 / WRITE_SECONDS,)


def test_counts_that_begin_anew() -> None:
    """The bookkeeping was removed, and made again; or the clock of the driver's host was set back."""
    rate = ChangeRate()
    rate.update(AT, (1000,), 0.0)
    assert rate.update(AT + timedelta(seconds=60), (6,), 60.0) == (0.0,)
    assert rate.update(AT - timedelta(hours=1), (7,), 120.0) == (0.0,)
