"""The bookkeeping on real SQLite files, from several processes at once."""

from __future__ import annotations

import multiprocessing
import sqlite3
import time
from datetime import UTC, datetime
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import URL, create_engine

from airflow_provider_cdc.model.errors import NotReadyError, TransientError
from airflow_provider_cdc.state import (
    BatchTotals,
    GroupProgress,
    StateDatabase,
    TableProgress,
)
from airflow_provider_cdc.state.database import NEWEST_REVISION, VERSION_TABLE
from airflow_provider_cdc.state.migrate import list_revisions
from airflow_provider_cdc.state.models import Base
from airflow_provider_cdc.state.reader import StateDatabaseReader
from airflow_provider_cdc.state.table_reader import TableQuery

P, G = "shop", 1
LW = {"file": "binlog.000001", "position": 4, "gtid_set": "a:1-5"}
HW = {"file": "binlog.000001", "position": 900, "gtid_set": "a:1-9"}
_spawn = multiprocessing.get_context("spawn")


def url(path: Path) -> URL:
    return URL.create("sqlite", database=str(path))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a folder" / "state.db"


@pytest.fixture
def store(path: Path) -> StateDatabase:
    return StateDatabase.open(url(path), migrate=True)


def plan(groups: int = 2, chunks: int = 3) -> dict[str, Any]:
    """Arguments of ``write_plan``: every group reads ``chunks`` chunks of a table of its own."""
    return {
        "tables": [{"database": "db", "name": f"t{g}", "rows_estimate": 10} for g in range(groups)],
        "groups": [{"group_no": g, "tables": [["db", f"t{g}"]]} for g in range(groups)],
        "chunks": (
            {"chunk_no": g * chunks + c, "group_no": g, "database": "db", "table_name": f"t{g}"}
            for g in range(groups)
            for c in range(chunks)
        ),
    }


def test_migrations_build_what_the_models_describe(store: StateDatabase, path: Path) -> None:
    with create_engine(url(path)).connect() as connection:
        context = MigrationContext.configure(
            connection, opts={"version_table": VERSION_TABLE, "compare_type": True, "compare_server_default": True}
        )
        assert compare_metadata(context, Base.metadata) == []
        assert context.get_current_revision() == NEWEST_REVISION == list_revisions()[0]


def test_opening_again_changes_nothing(store: StateDatabase, path: Path) -> None:
    store.register_pipeline(P, "uuid")
    for migrate in (True, False):
        again = StateDatabase.open(url(path), migrate=migrate)
        assert again.pipeline_names() == [P]
        again.close()
    assert sqlite3.connect(path).execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_nothing_is_created_without_migrate(path: Path) -> None:
    with pytest.raises(NotReadyError, match="no state database file"):
        StateDatabase.open(url(path), migrate=False)
    assert not path.parent.exists()
    path.parent.mkdir()
    sqlite3.connect(path).execute("CREATE TABLE other (x)")
    with pytest.raises(NotReadyError, match="not set up"):
        StateDatabase.open(url(path), migrate=False)


def test_unusable_files_are_refused_by_name(store: StateDatabase, path: Path, tmp_path: Path) -> None:
    other = tmp_path / "text.db"
    other.write_text("this is not a database " * 100)
    with pytest.raises(NotReadyError, match=r"text\.db is not usable: file is not a database"):
        StateDatabase.open(url(other), migrate=True)
    with pytest.raises(NotReadyError, match=r"folder of the state database file .*x\.db"):
        StateDatabase.open(url(other / "x.db"), migrate=True)
    with pytest.raises(NotReadyError, match="not an absolute path"):
        StateDatabase.open("sqlite:///state.db", migrate=True)
    with sqlite3.connect(path) as connection:
        connection.execute(f"UPDATE {VERSION_TABLE} SET version_num = '9999'")
    with pytest.raises(NotReadyError, match=r"newer version \(9999\)"):
        StateDatabase.open(url(path), migrate=True)


def test_a_folder_may_have_a_percent_sign_and_a_query_in_its_name(tmp_path: Path) -> None:
    store = StateDatabase.open(url(tmp_path / "50%20 off?x=1" / "state.db"), migrate=True)
    store.register_pipeline(P, "uuid")
    assert (tmp_path / "50%20 off?x=1" / "state.db").exists()


def test_a_server_that_is_away_is_transient_and_its_password_unseen() -> None:
    address = URL.create("mysql+pymysql", "user", "s3cret/%pass", "127.0.0.1", 1, "state")
    with pytest.raises(TransientError) as error:
        StateDatabase.open(address, migrate=True)
    assert "user:***@127.0.0.1:1/state: MySQL error 2003: Can't connect to MySQL server on" in str(error.value)
    assert "s3cret" not in str(error.value)
    assert error.value.__suppress_context__


def test_errors_of_a_running_database_are_transient(store: StateDatabase, path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("DROP TABLE events")
    with pytest.raises(TransientError, match="no such table"):
        store.add_event(P, "verify", "detail")


def test_a_pipeline_keeps_the_server_it_was_registered_with(store: StateDatabase, path: Path) -> None:
    for name, server in ((P, "one"), (P, "two"), ("Shop", "three")):
        store.register_pipeline(name, server)
    reader = StateDatabaseReader.open(url(path), migrate=False)
    assert {(one.name, one.server) for one in reader.read_overview()} == {(P, "one"), ("Shop", "three")}


def test_a_plan_is_written_once(store: StateDatabase, path: Path) -> None:
    assert store.snapshot(P) is None
    assert store.write_plan(P, G, **plan())
    assert not store.write_plan(P, G, **plan(groups=5))
    assert [(g.group_no, g.tables, g.state, g.attempt) for g in store.groups(P, G)] == [
        (0, [["db", "t0"]], "pending", 0),
        (1, [["db", "t1"]], "pending", 0),
    ]
    reader = StateDatabaseReader.open(url(path), migrate=False)
    rows, _ = reader.find_tables(P, G, TableQuery(), all_recorded=False)
    assert [(row.database, row.name, row.rows_estimate) for row in rows] == [("db", "t0", 10), ("db", "t1", 10)]
    assert [(one.table, one.first, one.chunks) for one in reader.chunk_totals(P, G)] == [("t0", 0, 3), ("t1", 3, 3)]
    assert store.write_plan(P, 2, **plan())
    newest = store.snapshot(P)
    assert newest is not None
    assert (newest.generation, newest.state) == (2, "running")
    assert store.write_plan("other", G, **plan())


def test_a_plan_that_is_at_odds_leaves_nothing(store: StateDatabase) -> None:
    bad = plan()
    bad["groups"] = bad["groups"][:1]
    with pytest.raises(ValueError, match=r"not planned: \[1\]"):
        store.write_plan(P, G, **bad)
    twice = plan()
    twice["chunks"] = [c | {"chunk_no": 0} for c in twice["chunks"]]
    with pytest.raises(Exception, match="UNIQUE"):
        store.write_plan(P, G, **twice)
    assert store.snapshot(P, G) is None
    assert store.groups(P, G) == []


def test_the_life_of_a_group(store: StateDatabase) -> None:
    store.write_plan(P, G, **plan())
    assert store.claim_group(P, G, 0) == 1
    assert store.claim_group(P, G, 0) == 2  # the first one was killed, or seems to have been
    assert not store.finish_group(P, G, 0, 1, 30)
    assert store.groups(P, G)[0].state == "running"
    assert store.finish_group(P, G, 0, 2, 30)
    group = store.groups(P, G)[0]
    assert (group.state, group.attempt, group.rows) == ("done", 2, 30)
    assert store.claim_group(P, G, 0) == 0
    assert not store.finish_snapshot(P, G)
    assert store.claim_group(P, G, 1, expected_attempt=7) == 0
    assert store.claim_group(P, G, 1, expected_attempt=0) == 1
    assert store.finish_group(P, G, 1, 1, 0)
    assert store.finish_snapshot(P, G)
    assert store.finish_snapshot(P, G)
    done = store.snapshot(P, G)
    assert done is not None
    assert done.state == "done"
    assert done.finished_at is not None
    assert abs((datetime.now(UTC) - done.finished_at).total_seconds()) < 60
    with pytest.raises(NotReadyError, match="group 9"):
        store.claim_group(P, G, 9)
    assert not store.finish_snapshot(P, 9)


def test_the_claim_of_a_group_shows_who_holds_it(store: StateDatabase) -> None:
    store.write_plan(P, G, **plan())
    assert store.claim_group(P, G, 0, holder="one") == 1
    first = store.group(P, G, 0)
    assert first.holder == "one" and first.heartbeat_at is not None
    time.sleep(0.01)
    assert store.record_group_heartbeat(P, G, 0, 1)
    second = store.group(P, G, 0).heartbeat_at
    assert second is not None and second > first.heartbeat_at
    assert store.claim_group(P, G, 0, expected_attempt=1, holder="two") == 2
    assert not store.record_group_heartbeat(P, G, 0, 1)  # it has been taken over
    store.release_group(P, G, 0, 1)
    assert store.group(P, G, 0).heartbeat_at is not None
    store.release_group(P, G, 0, 2)
    assert store.group(P, G, 0).heartbeat_at is None
    assert store.record_group_heartbeat(P, G, 1, 7) and store.record_group_heartbeat(
        "lost", G, 0, 1
    )  # they are lost, not taken
    assert store.finish_group(P, G, 0, 2, 30)
    done = store.group(P, G, 0)
    assert (done.state, done.heartbeat_at) == ("done", None)
    with pytest.raises(NotReadyError, match="group 9"):
        store.group(P, G, 9)


def test_a_group_that_is_read_again_stays_published(store: StateDatabase) -> None:
    store.write_plan(P, G, **plan())
    for number in (0, 1):
        store.claim_group(P, G, number)
        assert store.finish_group(P, G, number, 1, 30)
    assert store.claim_group(P, G, 0, holder="a task", state="rereading") == 2
    assert store.finish_snapshot(P, G)
    # The stream publishes it, and somebody else finds it in the sink: it is still to be finished by its reader.
    assert store.record_published_group(P, G, 0, 2, 2, 31)
    row = store.group(P, G, 0)
    assert (row.state, row.rows) == ("rereading", 31)
    assert not store.record_published_group(P, G, 0, 1, 1, 99)  # it was read before that
    assert store.finish_group(P, G, 0, 2, 31)
    assert store.group(P, G, 0).state == "done"


def test_a_group_that_was_found_in_the_sink(store: StateDatabase) -> None:
    store.write_plan(P, G, **plan())
    assert store.record_published_group(P, G, 0, 0, 3, 30)
    row = store.group(P, G, 0)
    assert (row.state, row.attempt, row.rows) == ("done", 3, 30)
    assert store.record_published_group(P, G, 0, 3, 3, 30)
    assert store.claim_group(P, G, 0) == 0


def test_progress_counts_chunks_and_the_newer_attempt_stays(store: StateDatabase, path: Path) -> None:
    store.write_plan(P, G, **plan())
    store.record_published_chunks(P, G, [(0, 2, LW, HW, 10, 100, 1, 0.5), (1, 2, LW, LW, 5, 50, 0, 0.25)])
    store.record_published_chunks(P, G, [(0, 1, HW, HW, 99, 999, 9, 9.0)])  # from an attempt that was given up
    store.record_published_chunks(P, G, [])
    assert store.table_progress(P, G) == [
        TableProgress("db", "t0", 3, 2, 15, 150, 1, 0.75),
        TableProgress("db", "t1", 3, 0, 0, 0, 0, 0.0),
    ]
    found = StateDatabaseReader.open(url(path), migrate=False).chunk_with_group(P, G, 0)
    assert found is not None
    first, _ = found
    assert (first.state, first.attempt, first.lw, first.hw, first.rows) == ("done", 2, LW, HW, 10)
    assert store.table_progress(P, 9) == []


def test_progress_of_groups_tells_what_the_newest_attempt_has_read(store: StateDatabase) -> None:
    """Files that are finished count before they are published: a guard has to know the rate while a group is read."""
    store.write_plan(P, G, **plan())
    assert (store.claim_group(P, G, 0), store.claim_group(P, G, 0)) == (1, 2)
    store.record_read_chunks(P, G, [(0, 1, LW, HW, 10, 100, 1, 0.5), (1, 2, LW, LW, 5, 50, 2, 0.25)])
    assert store.group_progress(P, G) == [GroupProgress(0, 3, 2, 15, 3, 1, 5), GroupProgress(1, 3, 0, 0, 0, 0, 0)]
    store.record_published_chunks(P, G, [(2, 2, LW, LW, 7, 50, 0, 0.25)])
    assert store.group_progress(P, G)[0] == GroupProgress(0, 3, 3, 22, 3, 2, 12)
    assert store.group_progress(P, 9) == []


def desired(store: StateDatabase, epoch: int, progress: bool = True) -> str | None:
    beat = store.record_heartbeat(P, epoch, progress)
    return beat.epoch_row.desired_state if beat else None


def test_epochs_only_rise_and_end_older_runs(store: StateDatabase) -> None:
    with pytest.raises(NotReadyError, match="not in the state database"):
        store.begin_epoch(P, 0, "host", 1, 1.5)
    store.register_pipeline(P, "uuid")
    assert store.newest_epoch(P) is None
    assert store.request_stop(P) is None
    assert store.begin_epoch(P, 0, "host", 10, 1.5) == 1
    assert store.begin_epoch(P, 41, "host", 11, 2.5) == 42
    assert store.begin_epoch(P, 3, "host", 12, 3.5) == 43
    assert desired(store, 1) == "stop"  # it has been overtaken
    assert desired(store, 43, progress=False) == "run"
    run = store.newest_epoch(P)
    assert run is not None
    assert (run.epoch, run.pid, run.pid_started, run.state, run.progress_at) == (43, 12, 3.5, "running", None)
    assert run.heartbeat_at.tzinfo is UTC
    assert store.request_stop(P) == 43
    assert desired(store, 43) == "stop"
    store.end_epoch(P, 43, "failed", "bad \udcff name\0")
    run = store.newest_epoch(P)
    assert run is not None
    assert run.progress_at is not None
    assert (run.state, run.error) == ("failed", "bad ? name")
    assert store.request_stop(P) is None
    assert store.record_heartbeat("lost", 1, progress=True) is None


def test_a_later_try_stays_the_supervisor(store: StateDatabase) -> None:
    """The trigger of a task that was cleared goes on for moments beside the next try, and has to find it then."""
    store.register_pipeline(P, "server")
    store.begin_epoch(P, 0, "host", 1, 1.0)
    task = "shop.stream, run manual, try"
    for by, supervisor in ((1, 1), (2, 2), (1, 2), (10, 10), (9, 10)):
        run = store.record_supervision(P, 1, f"{task} {by}")
        assert run is not None and run.supervisor == f"{task} {supervisor}"
    run = store.record_supervision(P, 1, "shop.stream, run other, try 1")  # another run is no earlier try
    assert run is not None and run.supervisor == "shop.stream, run other, try 1"


def test_batches(store: StateDatabase) -> None:
    assert store.batch_totals(P) == BatchTotals(0, 0)
    store.register_pipeline(P, "uuid")
    assert [store.begin_epoch(P, 0, "host", 1, 1.0) for _ in range(2)] == [1, 2]
    for epoch, batch, changes in ((1, 0, 5), (1, 1, 7), (1, 1, 8), (2, 0, 1)):
        store.record_batch(
            P,
            epoch,
            batch,
            start_offset=[LW, batch],
            end_offset=[HW, batch],
            changes=changes,
            bytes=100,
            seconds=0.5,
            lag_max_ms=changes,
            index_bytes_used=(changes, 2**40) if epoch == 1 else None,
        )
    runs = [store.epoch_row(P, epoch) for epoch in (1, 2)]
    assert [(r.index_bytes, r.index_disk_bytes) for r in runs if r] == [(8, 2**40), (None, None)]
    assert store.batch_totals(P) == BatchTotals(3, 14)
    assert [(b.epoch, b.batch_id, b.changes) for b in store.last_batches(P, 2)] == [(2, 0, 1), (1, 1, 8)]
    assert store.last_batches(P, 1)[0].end_offset == [HW, 0]
    run = store.epoch_row(P, 1)
    assert run is not None
    assert (run.batches, run.changes, run.start_offset, run.end_offset) == (2, 13, [LW, 0], [HW, 1])
    assert store.epoch_row(P, 3) is None


def test_events(store: StateDatabase) -> None:
    store.add_event(P, "verify", "one")
    store.add_event(P, "repair", "two")
    assert [(e.kind, e.detail) for e in store.last_events(P, 5)] == [("repair", "two"), ("verify", "one")]


def _claim(path: Path, start: Barrier, groups: int) -> list[int]:
    store = StateDatabase.open(url(path), migrate=False)
    won = []
    for group in range(groups):
        start.wait()
        if store.claim_group(P, G, group, expected_attempt=0):
            won.append(group)
    return won


def _open_and_plan(path: Path, start: Barrier, tag: int) -> list[bool]:
    start.wait()
    store = StateDatabase.open(url(path), migrate=True)
    store.register_pipeline(P, f"uuid {tag}")
    start.wait()
    return [store.write_plan(P, G, **plan(groups=20, chunks=20))]


def _count_epochs(path: Path, start: Barrier, times: int) -> list[int]:
    store = StateDatabase.open(url(path), migrate=False)
    start.wait()
    return [store.begin_epoch(P, 0, "host", 1, 1.0) for _ in range(times)]


def _run(queue: Any, work: Any, *args: Any) -> None:
    try:
        queue.put(work(*args))
    except BaseException as error:
        queue.put(repr(error))
        raise


def together(work: Any, *arguments: tuple[Any, ...]) -> list[Any]:
    """Run ``work`` in one process for each tuple of arguments; their results in any order."""
    queue = _spawn.Queue()
    processes = [_spawn.Process(target=_run, args=(queue, work, *args)) for args in arguments]
    for process in processes:
        process.start()
    results = [queue.get(timeout=120) for _ in processes]
    for process in processes:
        process.join(60)
        assert process.exitcode == 0, results
    return results


def test_of_two_processes_that_claim_the_same_group_exactly_one_wins(store: StateDatabase, path: Path) -> None:
    groups = 40
    store.write_plan(P, G, **plan(groups=groups))
    start = _spawn.Barrier(2)
    one, two = together(_claim, (path, start, groups), (path, start, groups))
    assert sorted(one + two) == list(range(groups))
    assert {g.attempt for g in store.groups(P, G)} == {1}


def test_processes_may_set_up_and_plan_at_the_same_time(path: Path) -> None:
    start = _spawn.Barrier(4)
    wrote = together(_open_and_plan, *((path, start, tag) for tag in range(4)))
    assert sorted(wrote) == [[False], [False], [False], [True]]
    store = StateDatabase.open(url(path), migrate=False)
    assert len(store.groups(P, G)) == 20
    assert [p.chunks for p in store.table_progress(P, G)] == [20] * 20


def test_no_epoch_is_given_out_twice(store: StateDatabase, path: Path) -> None:
    store.register_pipeline(P, "uuid")
    start = _spawn.Barrier(2)
    one, two = together(_count_epochs, (path, start, 25), (path, start, 25))
    assert sorted(one + two) == list(range(1, 51))


def test_a_hundred_thousand_chunks_cost_what_ten_times_fewer_cost_each(store: StateDatabase) -> None:
    def cost(generation: int, groups: int) -> float:
        begin = time.monotonic()
        store.write_plan(P, generation, **plan(groups=groups, chunks=500))
        for group in range(groups):
            numbers = range(group * 500, (group + 1) * 500)
            store.record_published_chunks(P, generation, [(no, 1, LW, HW, 8096, 100, 0, 0.1) for no in numbers])
        assert sum(p.done for p in store.table_progress(P, generation)) == groups * 500
        return (time.monotonic() - begin) / groups

    small, large = cost(1, 20), cost(2, 200)
    assert large < 4 * small, f"{small:.4f} s a group of 500 chunks became {large:.4f} s"
