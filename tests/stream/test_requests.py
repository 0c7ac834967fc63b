"""What people want of a stream through the bookkeeping: tables are suspended and read again, and it is paused."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_cdc.config.sections import Alerts
from airflow_provider_cdc.model.errors import REQUESTED, TableSuspendedError
from airflow_provider_cdc.observe.alerts import SUSPENDED, find_alert_changes
from airflow_provider_cdc.observe.status import read_status
from airflow_provider_cdc.resnapshot import worker as rereading
from airflow_provider_cdc.runtime.liveness import Heartbeat
from airflow_provider_cdc.runtime.request_inbox import RequestInbox
from airflow_provider_cdc.state import ControlRequestRow, EpochRow, StateDatabase
from airflow_provider_cdc.stream.epoch import Epoch
from airflow_provider_cdc.stream.run import begin_epoch
from tests.support.cli import Cli, read_only
from tests.support.epochs import run_epoch_in_process
from tests.support.oracle import compare_database
from tests.support.processes import wait_for
from tests.support.servers import MySQLServer
from tests.support.three_tables import TABLES, run, suspending_copy, three_tables_database

pytestmark = pytest.mark.one_of("server")
database = three_tables_database


@pytest.fixture
def cli(server: MySQLServer, database: str, tmp_path: Path) -> Cli:
    """A pipeline that reads tables again by itself, but none of any size."""
    return suspending_copy(server, tmp_path, stream={"reread": "auto", "reread_max_bytes": 0})


@pytest.fixture
def books(cli: Cli) -> Iterator[StateDatabase]:
    """The bookkeeping, as the page has it."""
    with cli.opened() as (_, store):
        yield store


def is_equal(server: MySQLServer, cli: Cli, *tables: str) -> bool:
    return compare_database(server, "d", cli.sink, tables) == []


def suspended(cli: Cli) -> dict[str, str]:
    plan = cli.context.plans.require()
    return {plan.tables[step.table].name: step.kind for step in plan.suspensions}


def request(books: StateDatabase, number: int) -> ControlRequestRow:
    row = books.request("p", number)
    assert row is not None
    return row


def stream(books: StateDatabase) -> EpochRow:
    row = books.newest_epoch("p")
    assert row is not None
    return row


def ended(books: StateDatabase, number: int) -> tuple[str, str]:
    wait_for("the end of the request", lambda: request(books, number).finished_at is not None)
    row = request(books, number)
    return row.state, row.outcome or ""


def told(books: StateDatabase, *kinds: str) -> list[tuple[str, str | None, str | None]]:
    return [(event.kind, event.table, event.by) for event in reversed(books.last_events("p", 100, kinds))]


def behind_the_binlog(server: MySQLServer, *statements: str) -> None:
    run(server, "SET SESSION sql_log_bin = 0", *statements)


def test_a_table_is_suspended_and_resumed(server: MySQLServer, cli: Cli, books: StateDatabase) -> None:
    """It stands still until somebody asks for it, however often the stream begins again, and is no failure."""
    with cli.streaming():
        asked = books.add_request("p", "suspend", "d.keyed", "ann")
        state, said = ended(books, asked)
        assert state == "done" and "d.keyed is suspended at " in said and "ann asked for it" in said
        run(server, "UPDATE keyed SET v = 'not seen'", "UPDATE plain SET v = 'seen'", "DELETE FROM quiet WHERE id = 3")
        wait_for("the others to go on", lambda: is_equal(server, cli, "plain", "quiet"))
        again = books.add_request("p", "suspend", "d.keyed", "bob")
        assert ended(books, again)[0] == "done", "that is how it stands"
    assert stream(books).state == "stopped" and stream(books).error is None
    cli.value["stream"]["reread_max_bytes"] = 1 << 30  # it is not its size that keeps it from being read
    cli.write()
    run(server, "ALTER TABLE keyed ADD COLUMN w INT NOT NULL DEFAULT 7", "INSERT INTO quiet VALUES (77, 'x')")
    cli.catch_up()
    cli.catch_up()
    assert suspended(cli) == {"keyed": REQUESTED} and not is_equal(server, cli, "keyed")
    assert {row["v"] for row in cli.rows("d", "keyed").to_pylist()} >= {"before", "keyed 3"}
    assert is_equal(server, cli, "plain", "quiet")
    (found,) = read_status(cli.context)["suspended"]
    assert found["message"] == "ann asked for it" and found["remedy"].endswith("airflow-cdc resume --table d.keyed")
    (row,) = [row for row in books.table_states("p") if row.name == "keyed"]
    assert (row.state, row.kind, row.reason) == ("suspended", REQUESTED, "ann asked for it")
    assert find_alert_changes(books, "p", Alerts(), [SUSPENDED]) == [], "nobody has to be told of what somebody wants"

    # Without a stream the by_request waits for the next one.
    asked = books.add_request("p", "reread", "d.keyed", "bob")
    time.sleep(1.5)
    assert request(books, asked).state == "open"
    cli.catch_up()
    state, said = ended(books, asked)
    assert state == "done" and "d.keyed was re-snapshotted and is part of the stream from " in said
    assert suspended(cli) == {} and is_equal(server, cli, *TABLES)
    assert told(books, "table_suspended", "table_rejoined") == [
        ("table_suspended", "d.keyed", "ann"),
        ("table_rejoined", "d.keyed", "bob"),
    ]


@pytest.mark.parametrize("small", [True, False])
def test_a_table_is_read_again(
    server: MySQLServer, cli: Cli, books: StateDatabase, small: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a whole and in part, while it is part of the stream; others are where they would be without that."""
    monkeypatch.setattr(rereading, "_SMALL_BYTES", 1 << 30 if small else -1)
    behind_the_binlog(server, "UPDATE keyed SET v = 'lost' WHERE id IN (3, 23)", "DELETE FROM plain WHERE n = 4")
    with cli.streaming():
        part = books.add_request("p", "reread", "d.keyed", "ann", "id >= 20 AND id < 30")
        whole = books.add_request("p", "reread", "d.plain", "bob")
        run(server, "UPDATE keyed SET v = 'new' WHERE id IN (1, 24)", "INSERT INTO plain VALUES (31, 'more')")
        state, said = ended(books, part)
        assert state == "done" and "d.keyed was re-snapshotted in part" in said
        assert ended(books, whole)[0] == "done"
        wait_for("all of plain", lambda: is_equal(server, cli, "plain"))
        held = {row["id"]: row["v"] for row in cli.rows("d", "keyed").to_pylist()}
        assert held[23] == "lost" and held[3] == "keyed 3", "in the range, and outside of it"
        rest = books.add_request("p", "reread", "d.keyed", "ann")
        assert ended(books, rest)[0] == "done"
        run(server, "UPDATE keyed SET v = 'late' WHERE id = 5")
        wait_for("all", lambda: is_equal(server, cli, *TABLES))
    assert told(books, "part_reread", "table_rejoined") == [
        ("part_reread", "d.keyed", "ann"),
        ("table_rejoined", "d.plain", "bob"),
        ("table_rejoined", "d.keyed", "ann"),
    ]


def test_what_is_refused(server: MySQLServer, cli: Cli, books: StateDatabase) -> None:
    """With a reason and a remedy; and neither the stream nor a table suffers from it."""
    run(server, "ALTER TABLE plain ADD COLUMN w INT NOT NULL DEFAULT 7")
    with pytest.raises(TableSuspendedError):
        cli.catch_up()
    cases = [
        books.add_request("p", "suspend", "d.other", "ann"),
        books.add_request("p", "reread", "d.other", "ann"),
        books.add_request("p", "suspend", "d.plain", "ann"),
        books.add_request("p", "reread", "d.keyed", "ann", "v = 'x'"),
        books.add_request("p", "reread", "d.keyed", "ann", "1 = 1; DROP TABLE keyed"),
        books.add_request("p", "reread", "d.plain", "ann", "n = 1"),
    ]
    with pytest.raises(TableSuspendedError):
        cli.catch_up()
    said = [ended(books, case) for case in cases]
    assert {state for state, _ in said} == {"refused"}
    for words, (_, outcome) in zip(
        [
            ("copies no table d.other", "It copies d.keyed, d.plain"),
            ("copies no table d.other", "It copies"),
            ("d.plain is suspended already", "Re-snapshot it: airflow-cdc resume --table d.plain"),
            ("the condition on the key of d.keyed", "Write it as a range of the key (id)"),
            ("the condition on the key of d.keyed", "Write it as a range of the key (id)"),
            ("d.plain is suspended", "Re-snapshot the whole table"),
        ],
        said,
        strict=True,
    ):
        assert all(word in outcome for word in words), outcome
    run(server, "DROP TABLE quiet", "UPDATE keyed SET v = 'on' WHERE id = 9")
    gone = books.add_request("p", "reread", "d.quiet", "ann")
    with pytest.raises(TableSuspendedError):
        cli.catch_up()
    assert ended(books, gone)[0] == "refused" and "no longer exists" in (request(books, gone).outcome or "")
    assert is_equal(server, cli, "keyed")


def test_one_after_the_other(server: MySQLServer, cli: Cli, books: StateDatabase) -> None:
    """What is wanted of one table is done in that order; all of it before a catch-up ends."""
    behind_the_binlog(server, "UPDATE keyed SET v = 'lost' WHERE id = 3")
    asked = [
        books.add_request("p", "suspend", "d.keyed", "ann"),
        books.add_request("p", "reread", "d.keyed", "ann"),
        books.add_request("p", "suspend", "d.plain", "ann"),
        books.add_request("p", "reread", "d.keyed", "ann", "id = 3"),
    ]
    cli.catch_up()
    assert [request(books, number).state for number in asked] == ["done"] * 4
    asked = [books.add_request("p", "reread", "d.keyed", "bob"), books.add_request("p", "suspend", "d.keyed", "bob")]
    cli.catch_up()
    assert [request(books, number).state for number in asked] == ["done"] * 2
    assert suspended(cli) == {"keyed": REQUESTED, "plain": REQUESTED} and is_equal(server, cli, *TABLES)


def test_all_tables_may_be_suspended(server: MySQLServer, cli: Cli, books: StateDatabase) -> None:
    """The stream waits until somebody wants one of them again."""
    with cli.streaming():
        for table in TABLES:
            books.add_request("p", "suspend", f"d.{table}", "ann")
        wait_for("no table to be left", lambda: len(suspended(cli)) == 3)
        run(server, "UPDATE keyed SET v = 'behind'")
        time.sleep(2)
        assert stream(books).state == "running"
        assert ended(books, books.add_request("p", "reread", "d.keyed", "ann"))[0] == "done"
        run(server, "UPDATE keyed SET v = 'on'")
        wait_for("the table to go on", lambda: is_equal(server, cli, "keyed"))
        books.add_request("p", "suspend", "d.keyed", "ann")
        wait_for("no table to be left", lambda: len(suspended(cli)) == 3)
    assert (stream(books).state, stream(books).error) == ("stopped", None)
    cli.catch_up()
    assert (stream(books).state, stream(books).error) == ("caught_up", None)


@contextlib.contextmanager
def going(cli: Cli, *, catch_up: bool = False) -> Iterator[tuple[Epoch, threading.Thread]]:
    """The stream runs in a thread; it is stopped at the end, if it has not ended by itself."""
    with cli.opened() as (context, store):
        store.allow_stream(context.pipeline.name)
        epoch = begin_epoch(context, store, catch_up=catch_up)
        thread = threading.Thread(target=run_epoch_in_process, args=(epoch,))
        thread.start()
        try:
            yield epoch, thread
        finally:
            epoch.stop.set()
            thread.join(60)
        assert not thread.is_alive()


def test_a_pause(server: MySQLServer, cli: Cli, books: StateDatabase) -> None:
    """It lives and reads nothing, until somebody resumes it."""
    with going(cli) as (epoch, _):
        assert books.pause_stream("p", "ann")
        wait_for("the pause", lambda: epoch.inbox.paused)
        time.sleep(0.5)
        at, beat = epoch.applier.offset, stream(books).heartbeat_at
        run(server, "UPDATE keyed SET v = 'later'", "UPDATE quiet SET v = 'later' WHERE id = 2")
        behind_the_binlog(server, "UPDATE plain SET v = 'lost' WHERE n = 2")
        read = books.add_request("p", "reread", "d.plain", "bob")
        # What needs no reading is done.
        assert ended(books, books.add_request("p", "suspend", "d.quiet", "bob"))[0] == "done"
        time.sleep(2)
        assert epoch.applier.offset == at and not is_equal(server, cli, "keyed")
        assert request(books, read).state == "open", "it would read"
        now = stream(books)
        assert (now.state, now.paused_by) == ("running", "ann") and now.heartbeat_at > beat
        assert now.progress_at is not None and now.progress_at > beat, "nobody takes it for one that hangs"
        assert read_status(cli.context)["stream"]["paused_by"] == "ann"
        assert books.resume_stream("p", "bob")
        wait_for("what was written meanwhile", lambda: is_equal(server, cli, "keyed"))
        assert ended(books, read)[0] == "done" and is_equal(server, cli, "plain")
        # Again and again, also faster than anybody looks.
        for _ in range(4):
            assert books.pause_stream("p", "ann")
            time.sleep(1.2)
            assert books.resume_stream("p", "ann")
            run(server, "UPDATE keyed SET v = CONCAT(v, '!')")
        wait_for("all", lambda: is_equal(server, cli, "keyed", "plain"))
    assert stream(books).error is None and suspended(cli) == {"quiet": REQUESTED}


def test_how_far_it_is_behind_is_told_while_it_is_paused(
    server: MySQLServer, cli: Cli, books: StateDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So people are warned before the source purges what it needs."""
    monkeypatch.setattr("airflow_provider_cdc.observe.observer._INTERVAL_SECONDS", 1.0)
    monkeypatch.setattr("airflow_provider_cdc.observe.observer._FIRST_SAMPLE_SECONDS", 1.0)
    with going(cli) as (epoch, _):
        assert books.pause_stream("p", "ann")
        wait_for("the pause", lambda: epoch.inbox.paused)
        run(server, "UPDATE keyed SET v = 'later'")

        def behind() -> bool:
            last = books.last_sample("p")
            return last is not None and bool(last.lag_bytes) and (last.lag_seconds or 0) > 2

        wait_for("a sample", behind)


def test_a_catch_up_waits_and_a_stop_is_obeyed(server: MySQLServer, cli: Cli, books: StateDatabase) -> None:
    with going(cli, catch_up=True) as (_, thread):
        thread.join(30)
    assert stream(books).state == "caught_up"
    with going(cli) as (epoch, _):  # paused before the first batch of the next
        assert books.pause_stream("p", "ann")
        wait_for("the pause", lambda: epoch.inbox.paused)
    assert stream(books).paused_by == "ann", "it was not stopped by a person: nobody has resumed it"
    run(server, "UPDATE keyed SET v = 'later'")
    with going(cli, catch_up=True) as (epoch, thread):
        assert epoch.inbox.paused_by == "ann"
        at = epoch.applier.offset
        thread.join(3)
        assert thread.is_alive() and epoch.applier.offset == at, "it neither reads nor ends"
        assert books.resume_stream("p", "bob")
        thread.join(30)
        assert not thread.is_alive()
    assert stream(books).state == "caught_up" and is_equal(server, cli, *TABLES)
    with going(cli) as (epoch, thread):
        assert books.pause_stream("p", "ann")
        wait_for("the pause", lambda: epoch.inbox.paused)
        assert books.stop_stream("p", "bob")
        thread.join(30)
        assert not thread.is_alive()
    assert stream(books).state == "stopped"
    with going(cli) as (epoch, _):
        assert not epoch.inbox.paused, "whoever stops a stream has ended its pause"


def test_an_outage_of_the_bookkeeping(server: MySQLServer, cli: Cli, books: StateDatabase) -> None:
    """The stream goes on; what is wanted is done, and written down, when it is back."""
    with going(cli) as (epoch, _):
        asked = books.add_request("p", "suspend", "d.plain", "ann")
        assert ended(books, asked)[0] == "done"
        with read_only(epoch.store):
            asked = books.add_request("p", "suspend", "d.quiet", "ann")
            run(server, "UPDATE keyed SET v = 'on'")
            wait_for("a batch", lambda: is_equal(server, cli, "keyed"))
            time.sleep(1.5)
            assert request(books, asked).state == "open" and "quiet" not in suspended(cli)
        assert ended(books, asked)[0] == "done" and suspended(cli)["quiet"] == REQUESTED


def test_an_outcome_that_cannot_be_written_is_written_later(tmp_path: Path) -> None:
    with contextlib.closing(StateDatabase.open(f"sqlite:///{tmp_path}/books.db", migrate=True)) as store:
        store.register_pipeline("p", "server")
        epoch, asked = store.begin_epoch("p", 0, "here", 1, 1.0), store.add_request("p", "suspend", "d.t", "ann")
        inbox = RequestInbox(store, {})
        beat = store.record_heartbeat("p", epoch, False)
        assert beat is not None
        inbox.receive_reply(beat)
        assert [row.id for row in inbox.take_new_requests()] == [asked] and not inbox.has_new_requests
        with read_only(store):
            inbox.end_request(asked, "done", "it is suspended")
        assert request(store, asked).state == "taken"
        # It is not done a second time meanwhile, but by the next run, if this one dies.
        beat = store.record_heartbeat("p", epoch, False)
        assert beat is not None and [row.id for row in beat.requests] == [asked]
        other = RequestInbox(store, {})
        other.receive_reply(beat)
        assert [row.id for row in other.take_new_requests()] == [asked]
        inbox.receive_reply(beat)
        assert not inbox.has_new_requests and request(store, asked).outcome == "it is suspended"


def test_a_bookkeeping_that_is_lost_during_a_pause(tmp_path: Path) -> None:
    """The run is written down again as it is: paused."""
    details: dict[str, Any] = {"mode": "continuous"}
    with contextlib.closing(StateDatabase.open(f"sqlite:///{tmp_path}/books.db", migrate=True)) as store:
        store.register_pipeline("p", "server")
        number = store.begin_epoch("p", 0, "here", 1, 1.0)
        assert store.pause_stream("p", "ann")
        inbox = RequestInbox(store, details)
        beat = store.record_heartbeat("p", number, False)
        assert beat is not None
        inbox.receive_reply(beat)
    with contextlib.closing(StateDatabase.open(f"sqlite:///{tmp_path}/anew.db", migrate=True)) as store:
        store.register_pipeline("p", "server")
        inbox._state_database = store
        with Heartbeat(store, "p", number, details, threading.Event(), lambda: False, on_reply=inbox.receive_reply):
            wait_for("the run", lambda: store.newest_epoch("p") is not None)
            time.sleep(1.5)
            assert inbox.paused_by == stream(store).paused_by == "ann" and stream(store).desired_state == "pause"
            assert store.resume_stream("p", "bob")
            wait_for("the end of the pause", lambda: not inbox.paused)
        assert details == {"mode": "continuous", "desired_state": "run", "paused_by": None}


def test_where_the_stream_stands_before_a_ddl(server: MySQLServer, cli: Cli, books: StateDatabase) -> None:
    """The DDL is followed by the plan as it was when it was met; the table is suspended behind it."""
    run(server, "ALTER TABLE keyed ADD COLUMN w INT", "UPDATE keyed SET w = 1 WHERE id = 1")
    asked = books.add_request("p", "suspend", "d.keyed", "ann")
    with cli.opened() as (context, store):
        epoch = begin_epoch(context, store, catch_up=True)
        take = epoch.inbox.take_new_requests
        epoch.inbox.take_new_requests = lambda: take() if epoch.before_ddl else []  # type: ignore[method-assign]
        run_epoch_in_process(epoch)
    assert ended(books, asked)[0] == "done" and suspended(cli) == {"keyed": REQUESTED}
    assert "w" in cli.rows("d", "keyed").column_names
