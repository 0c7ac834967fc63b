"""What the page reads: on each kind of database, the same answers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import URL, event

from airflow_provider_cdc.model.errors import REQUESTED
from airflow_provider_cdc.state import TableStatus, utc_now
from airflow_provider_cdc.state.chunk_reader import CHUNK_STATES
from airflow_provider_cdc.state.reader import StateDatabaseReader, UnfinishedGroup
from airflow_provider_cdc.state.table_reader import TableQuery
from airflow_provider_cdc.ui.snapshot_progress import SnapshotProgress
from tests.ui import books


@pytest.fixture(params=["sqlite", "postgres", "mysql"])
def reader(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StateDatabaseReader]:
    from tests.state.conftest import server_url

    url: URL | str = f"sqlite:///{tmp_path}/b.db"
    if request.param != "sqlite":
        url = server_url(request, request.param)
    with closing(StateDatabaseReader.open(url, migrate=True)) as reader:
        yield reader


def test_the_map_of_chunks(reader: StateDatabaseReader) -> None:
    """It is drawn from what has changed since the last look, and only what readers hold now is being read."""
    books.plan(reader, "p", tables={"a": 10, "b": 5}, per_group=5)
    progress = SnapshotProgress("p", 1)

    def drawn(lost: tuple[int, ...] = (), table: str | None = None, cells: int = 100) -> str:
        progress._due_at = float("-inf")
        progress.refresh(reader)
        chunks = None if table is None else progress.table_range(("shop", table))
        view = progress.draw_map(lost, chunks, cells)
        assert sum(view["counts"].values()) == view["chunks"] <= view["per_cell"] * len(view["cells"])
        return "".join(CHUNK_STATES[int(code)][:3] + " " for code in view["cells"])

    assert drawn() == "wai " * 15
    assert progress.table_range(("shop", "b")) == (10, 5)
    books.read(reader, "p", 0, corrected=2)
    attempt = reader.claim_group("p", 1, 1, holder="somebody", readers=2)
    reader.record_read_chunks("p", 1, [(6, attempt, [], [], 1, 1, 0, 0.1)])
    assert drawn() == "cor cor pub pub pub rea rea rea wai wai wai wai wai wai wai "
    assert progress.count_reading(()) == 2
    assert progress.totals == (15, 6, 5001, 250_001, 2)
    assert progress.table_totals(("shop", "a")) == (10, 6, 5001, 250_001, 2)
    assert drawn(cells=5) == "cor rea rea wai wai "
    assert drawn(table="b") == "wai " * 5
    assert drawn(lost=(1,)) == "cor cor pub pub pub fai rea fai fai fai wai wai wai wai wai "
    assert progress.count_reading((1,)) == 0
    reader.reset_unpublished_chunks("p", 1, 1)
    books.read(reader, "p", 1)
    assert drawn(table="a") == "cor cor pub pub pub ret ret ret ret ret "
    assert progress.table_groups(("shop", "a")) == [0, 1]


def test_a_look_reads_only_what_has_changed(reader: StateDatabaseReader) -> None:
    books.plan(reader, "p", tables={"a": 40}, per_group=4)
    for group in range(8):
        books.read(reader, "p", group)
    reader.claim_group("p", 1, 8, holder="somebody", readers=2)
    progress = SnapshotProgress("p", 1)
    progress.refresh(reader)
    asked: list[tuple[int, ...]] = []
    totals = reader.chunk_totals
    reader.chunk_totals = lambda p, g, groups: asked.append(tuple(groups)) or totals(p, g, groups)  # type: ignore
    progress.refresh(reader)
    assert asked == []  # a moment later
    progress._due_at = float("-inf")
    progress.refresh(reader)
    assert asked == [(8,)]


def test_pages_of_tables(reader: StateDatabaseReader) -> None:
    names = [f"table_{number:02}" for number in range(20)]
    books.plan(reader, "p", tables=dict.fromkeys(names, 1), per_group=5)

    def found(all_recorded: bool = True, **query: Any) -> tuple[list[str], int]:
        rows, matching = reader.find_tables("p", 1, TableQuery(**query), all_recorded=all_recorded)
        return [row.name for row in rows], matching

    assert found(all_recorded=False, limit=3) == (names[:3], 20)  # no driver has recorded any
    planned: Any = reader.find_table("p", 1, "shop", "table_07")
    assert (planned.state, planned.rows_estimate, planned.files) == ("waiting", 1000, None)
    states = [TableStatus("shop", name, "streaming") for name in names]
    states[3] = states[3]._replace(state="suspended", kind="SchemaError", reason="why")
    states[4] = states[4]._replace(state="suspended", kind=REQUESTED)
    states[5] = states[5]._replace(state="rereading")
    sizes = {("shop", name): {"bytes": 100 - number} for number, name in enumerate(names) if number < 15}
    reader.write_table_states("p", states, sizes=sizes)
    reader.record_verification("p", {("shop", "table_09"): {"equal": False}, ("shop", "table_10"): {"equal": True}})
    for all_recorded in (True, False):
        assert found(all_recorded, limit=2, offset=18) == (names[18:], 20)
        assert found(all_recorded, limit=2, descending=True) == (names[:-3:-1], 20)
        assert found(all_recorded, text="P.TABLE_1", limit=1) == (["table_10"], 10)
        assert found(all_recorded, text="%") == ([], 0)
        assert found(all_recorded, states=["suspended"]) == (["table_03", "table_04"], 2)
        assert found(all_recorded, only_troubled=True) == (["table_03", "table_09"], 2)
        assert found(all_recorded, sort="trouble", limit=4)[0] == ["table_03", "table_09", "table_04", "table_05"]
        assert found(all_recorded, sort="bytes", limit=2)[0] == ["table_14", "table_13"]
        assert found(all_recorded, sort="bytes", descending=True, limit=2)[0] == ["table_00", "table_01"]
    compared: Any = reader.find_table("p", 1, "shop", "table_09")
    assert compared.verified_equal is False
    assert reader.find_table("p", 1, "other", "table_09") is None


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
    reader.add_event("c", "table_refused", "three", table="d.x")
    reader.add_event("c", "restart", "four")

    for lag in (3.0, 1.5):
        reader.record_sample("c", first, lag_seconds=lag, lag_bytes=7, purge_hours=None)
    tables = [
        TableStatus("d", name, state) for name, state in (("x", "streaming"), ("y", "suspended"), ("z", "streaming"))
    ]
    reader.write_table_states("c", tables)

    a, b, c = reader.read_overview()
    assert (a.name, a.snapshot, a.tables, a.chunk_groups, a.newest_epoch) == ("a", None, 0, None, None)
    assert b.snapshot is not None
    assert (b.snapshot.generation, b.snapshot.state) == (1, "running")
    assert b.chunk_groups == (2, 1, (UnfinishedGroup(1, "running", 1, None),), {"done": 1, "running": 1})
    assert c.snapshot is not None
    assert c.snapshot.state == "done"
    assert c.tables == 1
    assert c.newest_epoch is not None
    assert c.newest_epoch.epoch == first
    assert c.throughput is not None
    assert 50 < c.throughput.changes_per_second <= 300
    assert c.throughput.lag_p95_ms == 800
    assert c.last_sample is not None
    assert c.last_sample.lag_seconds == 1.5
    assert (a.last_sample, a.table_state_counts, c.table_state_counts) == (None, {}, {"streaming": 2, "suspended": 1})
    assert (a.open_events, b.open_events) == ((), ())
    assert {(one.newest.kind, one.events, one.newest.detail) for one in c.open_events} == {
        ("restart", 2, "four"),
        ("table_refused", 1, "three"),
    }
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
