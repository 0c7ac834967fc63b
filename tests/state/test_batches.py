"""The history of batches: what is kept, what is removed, and what is still known then."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import URL, create_engine, event, insert, text, update

from airflow_provider_cdc.state import BatchTotals, StateDatabase, pruning, streams, utc_now
from airflow_provider_cdc.state.models import BatchRow, EpochRow
from tests.state.conftest import server_url

P = "shop"
#: Three names as long as Airflow takes them.
TASK = f"{'d' * 250}.{'t' * 250}, run {'r' * 250}, try"
LABEL = f"{TASK} 1"


@pytest.fixture(params=["sqlite", "postgres", "mysql"])
def books(request: pytest.FixtureRequest, tmp_path: Path) -> URL:
    """Each kind of database, without tables."""
    if request.param == "sqlite":
        return URL.create("sqlite", database=f"{tmp_path}/books.db")
    return server_url(request, request.param)


def batch(store: StateDatabase, epoch: int, number: int, changes: int = 2) -> None:
    at = {"file": "f", "position": number}
    store.record_batch(
        P,
        epoch,
        number,
        start_offset=at,
        end_offset=at | {"end": 1},
        changes=changes,
        bytes=10,
        seconds=0.5,
        lag_max_ms=number,
    )


def test_old_batches_go_and_the_totals_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pruning, "KEPT_BATCHES", 30)
    monkeypatch.setattr(streams, "_PRUNE_EVERY", 10)
    with closing(StateDatabase.open(f"sqlite:///{tmp_path}/books.db", migrate=True)) as store:
        for name in (P, "other"):
            store.register_pipeline(name, "server")
        for epoch, count in ((1, 45), (2, 3), (3, 101)):
            assert store.begin_epoch(P, 0, "host", 1, 1.0) == epoch
            for number in range(count):
                batch(store, epoch, number)
        kept = [(row.epoch, row.batch_id) for row in store.last_batches(P, 1000)]
        assert kept == [(3, number) for number in range(100, 70, -1)]
        assert store.batch_totals(P) == BatchTotals(149, 298)
        start, end = ({"file": "f", "position": number} for number in (0, 44))
        run = store.epoch_row(P, 1)
        assert run is not None and (run.batches, run.changes, run.start_offset) == (45, 90, start)
        assert run.end_offset == end | {"end": 1}
        assert store.batch_totals("other") == BatchTotals(0, 0)


def test_no_more_is_looked_at_than_the_index_says(tmp_path: Path) -> None:
    with closing(StateDatabase.open(f"sqlite:///{tmp_path}/books.db", migrate=True)) as store:
        store.register_pipeline(P, "server")
        store.begin_epoch(P, 0, "host", 1, 1.0)
        with asked(store) as statements:
            batch(store, 1, 0)
            store.last_batches(P, 10)
            store.batch_totals(P)
            store.epoch_row(P, 1)
        assert any(found.startswith("INSERT INTO batches") for found, _ in statements)
        with store._engine.connect() as connection:
            for statement, values in statements:
                plan = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", values).fetchall()
                assert not [row for row in plan if "SCAN" in row[3] or "TEMP" in row[3]], (statement, plan)


@contextmanager
def asked(store: StateDatabase) -> Iterator[list[tuple[str, Any]]]:
    found: list[tuple[str, Any]] = []

    def note(_c: object, _u: object, statement: str, values: Any, *_: object) -> None:
        if not statement.startswith(("BEGIN", "PRAGMA")):
            found.append((statement, values))

    event.listen(store._engine, "before_cursor_execute", note)
    yield found
    event.remove(store._engine, "before_cursor_execute", note)


def test_tasks_may_have_long_names(books: URL) -> None:
    with closing(StateDatabase.open(books, migrate=True)) as store:
        store.register_pipeline(P, "server")
        assert store.begin_epoch(P, 1, "host", 1, 1.0) == 2
        run = store.record_supervision(P, 2, LABEL)
        assert run is not None and run.supervisor == LABEL
        assert store.request_stop(P, 2, by=LABEL) == 2
        run = store.newest_epoch(P)
        assert run is not None and run.stop_by == LABEL
        group = {"group_no": 0, "tables": [["db", "t"]]}
        assert store.write_plan(P, 1, [], [group], [])
        attempt = store.claim_group(P, 1, 0, holder=LABEL)
        assert store.finish_group(P, 1, 0, attempt, 1)
        assert store.group(P, 1, 0).holder == LABEL
        store.end_epoch(P, 2, "failed", "x", "A" * 80)


@pytest.mark.long
def test_a_million_batches(books: URL) -> None:
    """However many there are, they go by and by, and are in nobody's way."""
    with closing(StateDatabase.open(books, migrate=True)) as store:
        store.register_pipeline(P, "server")
        store.begin_epoch(P, 0, "host", 1, 1.0)
        row = {"pipeline": P, "epoch": 1, "changes": 5, "bytes": 7, "seconds": 0.5, "committed_at": utc_now()}
        with store._write_engine.begin() as connection:
            for start in range(0, 1_000_000, 20_000):
                connection.execute(insert(BatchRow), [row | {"batch_id": start + n} for n in range(20_000)])
        began = time.monotonic()
        for number in range(1_000_000, 1_000_300):
            batch(store, 1, number)
        store.last_batches(P, 1000)
        store.batch_totals(P)
        print(f"{books.get_backend_name()}: {(time.monotonic() - began) / 300 * 1000:.1f} ms a batch")
        with store._read_session() as session:
            assert session.execute(text("SELECT COUNT(*) FROM batches")).scalar() == 1_000_300 - 3_000


def test_an_earlier_try_waits_for_the_later_one(url: URL) -> None:
    """Two triggers look at the same moment: the one of the earlier try does not overwrite the other by what it read."""
    with (
        closing(StateDatabase.open(url, migrate=True)) as store,
        ThreadPoolExecutor(1) as pool,
        create_engine(url).connect() as later,
    ):
        store.register_pipeline(P, "server")
        store.begin_epoch(P, 0, "host", 1, 1.0)
        store.record_supervision(P, 1, f"{TASK} 1")
        later.execute(update(EpochRow).values(supervisor=f"{TASK} 2"))
        earlier = pool.submit(store.record_supervision, P, 1, f"{TASK} 1")
        with pytest.raises(TimeoutError):
            earlier.result(timeout=1)
        later.commit()
        run = earlier.result(timeout=60)
        assert run is not None and run.supervisor == f"{TASK} 2"


def test_old_runs_and_events_go_and_the_totals_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A portion of them with each run. Those of another pipeline do not count."""
    for name, kept in (("KEPT_RUNS", 5), ("KEPT_EVENTS", 8), ("KEPT_BATCHES", 10)):
        monkeypatch.setattr(pruning, name, kept)
    with closing(StateDatabase.open(f"sqlite:///{tmp_path}/books.db", migrate=True)) as store:
        for name in (P, "other"):
            store.register_pipeline(name, "server")
        for epoch in range(1, 31):
            assert store.begin_epoch(P, 0, "host", 1, 1.0) == epoch
            for number in range(epoch % 4):
                batch(store, epoch, number)
            for name in (P, "other"):
                store.add_event(name, "verify", str(epoch))
            store.end_epoch(P, epoch, "caught_up")
        batches = sum(epoch % 4 for epoch in range(1, 31))
        held = store.count_rows_by_table(P)
        assert held["streams"] == 5 and held["events"] == 9 and held["batches"] <= 10 + 3
        assert store.count_rows_by_table("other")["events"] == 30, "it has had no run"
        assert store.batch_totals(P) == BatchTotals(batches, 2 * batches)
        assert [row.detail for row in store.last_events(P, 3, ["verify"])] == ["30", "29", "28"]
        assert store.epoch_row(P, 26) is not None and store.epoch_row(P, 25) is None
        assert store.batch_totals("other") == BatchTotals(0, 0)


def test_what_has_grown_gets_smaller_step_by_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pruning, "KEPT_RUNS", 1000)
    with closing(StateDatabase.open(f"sqlite:///{tmp_path}/books.db", migrate=True)) as store:
        store.register_pipeline(P, "server")
        for epoch in range(40):
            store.begin_epoch(P, 0, "host", 1, 1.0)
            batch(store, epoch + 1, 0)
        for kept, most, expected in ((10, 12, 29), (10, 12, 18), (10, 12, 10), (10, 12, 10)):
            monkeypatch.setattr(pruning, "KEPT_RUNS", kept)
            monkeypatch.setattr(pruning, "MAX_DELETED_ROWS", most)
            store.begin_epoch(P, 0, "host", 1, 1.0)
            assert store.count_rows_by_table(P)["streams"] == expected
        assert store.batch_totals(P).batches == 40


def test_old_snapshots_go(tmp_path: Path) -> None:
    with closing(StateDatabase.open(f"sqlite:///{tmp_path}/books.db", migrate=True)) as store:
        store.register_pipeline(P, "server")
        table = {"database": "d", "name": "t", "rows_estimate": 1}
        chunk = {"chunk_no": 0, "group_no": 0, "database": "d", "table_name": "t"}
        for generation in range(1, 6):
            assert store.write_plan(P, generation, [table], [{"group_no": 0, "tables": [["d", "t"]]}], [chunk])
        found = {name: n for name, n in store.count_rows_by_table(P).items() if name != "pipelines"}
        assert found.pop("events") == 5  # each was planned
        assert found == {"snapshots": 2, "tables": 2, "chunk_groups": 2, "chunks": 2}
        newest = store.snapshot(P)
        assert newest is not None and newest.generation == 5
