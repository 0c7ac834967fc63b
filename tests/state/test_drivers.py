"""Drivers of a cluster in the state database: which one may begin, and whose end counts."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import timedelta

import pytest
from sqlalchemy import URL, update

from airflow_provider_cdc.state import StateDatabase
from airflow_provider_cdc.state.models import DriverRow, storable_text, utc_now


@pytest.fixture
def store(url: URL) -> Iterator[StateDatabase]:
    with closing(StateDatabase.open(url, migrate=True)) as store:
        store.create_driver("d", "p", what="stream", requester="t", sealed="sealed")
        yield store


def row(store: StateDatabase) -> DriverRow:
    found = store.driver("d")
    assert found is not None
    return found


def test_a_driver_begins_once_its_task_has_confirmed_the_submission(store: StateDatabase) -> None:
    assert [found.id for found in store.live_drivers("p")] == ["d"] and store.live_drivers("q") == []
    assert store.take_driver("d", None) is None and row(store).state == "wanted"
    store.record_submission("d", "application_1", "http://page", "http://log")
    assert (row(store).state, row(store).handle, row(store).log) == ("submitted", "application_1", "http://log")
    assert store.take_driver("d", "http://own") == "sealed"
    assert (row(store).state, row(store).sealed, row(store).log) == ("running", None, "http://own")
    store.record_submission("d", "application_1", "http://page", "http://log")  # a retry has found it
    assert (row(store).state, row(store).log) == ("running", "http://own")


def test_only_one_of_those_that_come_at_once_begins(store: StateDatabase) -> None:
    store.record_submission("d", "application_1")
    with ThreadPoolExecutor(8) as pool:
        taken = [*pool.map(lambda _: store.take_driver("d", None), range(8))]
    assert sorted(taken, key=str) == [None] * 7 + ["sealed"]


@pytest.mark.parametrize("submitted", [False, True])
def test_one_that_comes_late_does_not_begin(store: StateDatabase, submitted: bool) -> None:
    """Its row was ended meanwhile, and has no request any more."""
    if submitted:
        store.record_submission("d", "application_1")
    assert store.end_driver("d", {"error": {"kind": "TransientError", "message": "given up", "remedy": ""}})
    store.record_submission("d", "application_1")
    assert row(store).state == "ended" and row(store).sealed is None
    assert store.take_driver("d", None) is None and store.record_driver_heartbeat("d") is False
    assert store.live_drivers("p") == []


def test_only_the_first_end_counts(store: StateDatabase) -> None:
    store.record_submission("d", "application_1")
    store.take_driver("d", None)
    before = row(store).heartbeat_at
    assert store.record_driver_heartbeat("d", "reading \0") is True and row(store).heartbeat_at >= before
    assert row(store).last_line == storable_text("reading \0")
    assert store.end_driver("d", {"outcome": {"groups": [1]}})
    assert not store.end_driver("d", {"error": {"kind": "", "message": "lost", "remedy": ""}})
    assert row(store).outcome == {"outcome": {"groups": [1]}}
    assert store.record_driver_heartbeat("d") is False and store.record_driver_heartbeat("other") is None


def test_old_rows_are_removed(store: StateDatabase) -> None:
    store.end_driver("d", {"outcome": {}})
    store.create_driver("e", "p", what="stream", requester="t", sealed="s")
    assert store.driver("d") is not None
    store._update(update(DriverRow).values(heartbeat_at=utc_now() - timedelta(days=8)))
    store.create_driver("f", "p", what="stream", requester="t", sealed="s")
    assert store.driver("d") is None and [found.id for found in store.live_drivers("p")] == ["f"]
