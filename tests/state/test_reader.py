"""What the page reads: on each kind of database, the same answers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import URL, event

from airflow_provider_cdc.state import TableStatus, utc_now
from airflow_provider_cdc.state.reader import CHUNK_STATES, StateDatabaseReader, UnfinishedGroup
from tests.ui import books


@pytest.fixture(params=["sqlite", "postgres", "mysql"])
def reader(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StateDatabaseReader]:
    from tests.state.conftest import server_url

    url: URL | str = f"sqlite:///{tmp_path}/b.db"
    if request.param != "sqlite":
        url = server_url(request, request.param)
    with closing(StateDatabaseReader.open(url, migrate=True)) as reader:
        yield reader


def states(reader: StateDatabaseReader, *groups: int, lost: tuple[int, ...] = ()) -> list[tuple[int, int, str]]:
    runs = reader.chunk_state_runs("p", 1, groups or None, lost)
    return [(first, count, CHUNK_STATES[code]) for first, count, code in runs]


def test_runs_of_chunks(reader: StateDatabaseReader) -> None:
    books.plan(reader, "p", tables={"a": 10, "b": 5}, per_group=5)
    assert states(reader) == [(0, 15, "waiting")]
    assert reader.chunk_ranges_by_table("p", 1) == [("shop", "a", 0, 10), ("shop", "b", 10, 5)]

    books.read(reader, "p", 0, corrected=2)
    attempt = reader.claim_group("p", 1, 1, holder="somebody")
    reader.record_read_chunks("p", 1, [(6, attempt, [], [], 1, 1, 0, 0.1)])
    assert states(reader) == [
        (0, 2, "corrected"),
        (2, 3, "published"),
        (5, 1, "reading"),
        (6, 1, "read"),
        (7, 3, "reading"),
        (10, 5, "waiting"),
    ]
    assert states(reader, 1) == [(5, 1, "reading"), (6, 1, "read"), (7, 3, "reading")]

    assert states(reader, 1, lost=(1,)) == [(5, 1, "failed"), (6, 1, "read"), (7, 3, "failed")]
    reader.reset_unpublished_chunks("p", 1, 1)
    books.read(reader, "p", 1)
    assert states(reader, 1) == [(5, 5, "retried")]


def test_overview(reader: StateDatabaseReader) -> None:
    reader.register_pipeline("a", "server")
    for name in ("b", "c"):
        books.plan(reader, name, tables={"t": 4}, per_group=2)
    books.read(reader, "b", 0)
    reader.claim_group("b", 1, 1)  # nobody's heartbeat
    books.read(reader, "c", 0)
    books.read(reader, "c", 1)
    reader.finish_snapshot("c", 1)
    first = books.stream(reader, "c", batches=3)
    reader.add_event("c", "failover", "one")
    reader.add_event("c", "restart", "two")

    for lag in (3.0, 1.5):
        reader.record_sample("c", first, lag_seconds=lag, lag_bytes=7, purge_hours=None)
    tables = [
        TableStatus("d", name, state) for name, state in (("x", "streaming"), ("y", "suspended"), ("z", "streaming"))
    ]
    reader.write_table_states("c", tables)

    a, b, c = reader.read_overview()
    assert (a.name, a.snapshot, a.tables, a.chunk_groups, a.newest_epoch, a.last_event) == (
        "a",
        None,
        0,
        None,
        None,
        None,
    )
    assert b.snapshot is not None
    assert (b.snapshot.generation, b.snapshot.state) == (1, "running")
    assert b.chunk_groups == (2, 1, (UnfinishedGroup(1, "running", 1, None),))
    assert c.snapshot is not None
    assert c.snapshot.state == "done"
    assert c.tables == 1
    assert c.newest_epoch is not None
    assert c.last_event is not None
    assert (c.newest_epoch.epoch, c.last_event.detail) == (first, "two")
    assert c.throughput is not None
    assert 50 < c.throughput.changes_per_second <= 300
    assert c.throughput.lag_p95_ms == 800
    assert c.last_sample is not None
    assert c.last_sample.lag_seconds == 1.5
    assert (a.last_sample, a.table_state_counts, c.table_state_counts) == (None, {}, {"streaming": 2, "suspended": 1})
    reader.end_epoch("c", first, "failed", "broken")
    second = books.stream(reader, "c", batches=1)
    assert [run.epoch for run in reader.newest_epochs("c", 5)] == [second, first]
    newest = reader.read_overview()[2].newest_epoch
    assert newest is not None
    assert newest.epoch == second


def test_batches_of_a_time(reader: StateDatabaseReader) -> None:
    reader.register_pipeline("p", "s")
    books.stream(reader, "p", batches=30)
    since = utc_now() - timedelta(seconds=10)
    found = reader.batches_since("p", since, 100)
    assert 5 <= len(found) <= 11
    assert [row.batch_id for row in found] == sorted(row.batch_id for row in found)
    assert found[-1].batch_id == 29


def test_many_pipelines_cost_no_more_queries(tmp_path: Path) -> None:
    counts = []
    for number in (2, 40):
        with closing(StateDatabaseReader.open(f"sqlite:///{tmp_path}/{number}.db", migrate=True)) as reader:
            for one in range(number):
                books.plan(reader, f"p{one}", tables={"t": 2}, per_group=1)
                books.stream(reader, f"p{one}", batches=2)
            asked: list[str] = []
            event.listen(reader._engine, "before_cursor_execute", lambda *a, asked=asked: asked.append(a[2]))
            assert len(reader.read_overview()) == number
            counts.append(len(asked))
    assert counts[0] == counts[1]
