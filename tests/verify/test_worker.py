"""Comparisons and repairs that somebody wants of a running stream."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, event

from airflow_provider_cdc.model.errors import TransientError
from airflow_provider_cdc.state import ControlRequestRow, StateDatabase
from airflow_provider_cdc.verify import repair, worker
from airflow_provider_cdc.verify.repair import compare_and_repair
from airflow_provider_cdc.verify.task import RowCollector, SinkScan, run_scans_in_threads
from tests.support.cli import Cli, read_only
from tests.support.processes import wait_for
from tests.support.servers import MySQLServer
from tests.support.three_tables import run, streamed_copy, three_tables_database

pytestmark = pytest.mark.one_of("server")
database = three_tables_database
_ALL = "d.keyed", "d.plain", "d.quiet"


@pytest.fixture
def cli(server: MySQLServer, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    monkeypatch.setattr(worker, "_RETRY_SECONDS", 0.5)
    return streamed_copy(server, tmp_path)


@pytest.fixture
def books(cli: Cli) -> Iterator[StateDatabase]:
    with cli.opened() as (_, store):
        yield store


def request(books: StateDatabase, number: int) -> ControlRequestRow:
    row = books.request("p", number)
    assert row is not None
    return row


def ended(books: StateDatabase, number: int) -> tuple[str, str]:
    wait_for("the end of the request", lambda: request(books, number).finished_at is not None)
    row = request(books, number)
    return row.state, row.outcome or ""


def verified(books: StateDatabase) -> dict[str, Any]:
    """Whether each table was equal when it was last compared."""
    return {
        f"{row.database}.{row.name}": row.last_verified["equal"]
        for row in books.table_states("p")
        if row.last_verified is not None
    }


def events(books: StateDatabase) -> list[tuple[str, str | None]]:
    kinds = ("verified", "verify_differs", "verify_incomplete")
    return [(event.kind, event.by) for event in reversed(books.last_events("p", 100, kinds))]


def damage(server: MySQLServer, *statements: str) -> None:
    """Behind the binlog."""
    run(server, "SET SESSION sql_log_bin = 0", *statements)


@contextlib.contextmanager
def every_database_read_only() -> Iterator[None]:
    """Also those that are opened meanwhile."""

    def refuse(connection: Connection) -> None:
        connection.exec_driver_sql("PRAGMA query_only = ON")

    event.listen(Engine, "begin", refuse)
    try:
        yield
    finally:
        event.remove(Engine, "begin", refuse)


def test_compared_and_repaired(server: MySQLServer, cli: Cli, books: StateDatabase) -> None:
    """All tables or one, while the stream goes on; what differs is said, and recorded, and repaired on request."""
    with cli.streaming() as epoch:
        state, said = ended(books, books.add_request("p", "verify", "", "ann"))
        assert state == "done" and said.startswith("all 3 tables are equal as of "), said
        assert verified(books) == dict.fromkeys(_ALL, True)

        damage(server, "UPDATE keyed SET v = 'lost' WHERE id IN (3, 23)", "DELETE FROM quiet WHERE id = 9")
        one = books.add_request("p", "verify", "d.quiet", "bob")
        state, said = ended(books, one)
        assert state == "done" and said.startswith("1 of 1 tables differ (d.quiet: "), said
        assert "Request a repair of these tables" in said and "keyed" not in said
        assert verified(books) == {"d.keyed": True, "d.plain": True, "d.quiet": False}

        batches = epoch.batches
        state, said = ended(books, books.add_request("p", "repair", "d.keyed", "bob"))
        assert state == "done" and said.startswith("all 1 tables are equal"), said
        assert verified(books) == {"d.keyed": True, "d.plain": True, "d.quiet": False}, "the others are left alone"
        assert {row["v"] for row in cli.rows("d", "keyed").to_pylist() if row["id"] in (3, 23)} == {"lost"}
        run(server, "UPDATE plain SET v = 'on'")
        wait_for("the stream to go on", lambda: epoch.batches > batches)
        state, said = ended(books, books.add_request("p", "repair", "", "eve"))
        assert state == "done" and said.startswith("all 3 tables are equal"), said
        assert verified(books) == dict.fromkeys(_ALL, True)
    assert events(books) == [("verified", "ann"), ("verify_differs", "bob"), ("verified", "bob"), ("verified", "eve")]
    row = books.newest_epoch("p")
    assert row is not None and row.state == "stopped" and row.error is None


def test_what_cannot_be_repaired(server: MySQLServer, cli: Cli, books: StateDatabase) -> None:
    """The outcome says what to do about a table without a key."""
    damage(server, "DELETE FROM plain WHERE n = 4")
    with cli.streaming():
        state, said = ended(books, books.add_request("p", "repair", "", "ann"))
    assert state == "done" and "1 of 3 tables differ (d.plain: " in said, said
    assert "airflow-cdc resnapshot" in said
    assert verified(books) == {"d.keyed": True, "d.plain": False, "d.quiet": True}


def test_refused_waiting_and_withdrawn(server: MySQLServer, cli: Cli, books: StateDatabase) -> None:
    """Without a stream a request waits; what was taken back is not done; a paused stream compares nothing."""
    withdrawn = books.add_request("p", "verify", "d.keyed", "ann")
    waiting, unknown = books.add_request("p", "verify", "", "ann"), books.add_request("p", "verify", "d.other", "ann")
    assert books.withdraw_request("p", withdrawn, "bob")
    time.sleep(1.5)
    assert request(books, waiting).state == "open"
    cli.catch_up()  # which ends only after it
    assert request(books, withdrawn).state == "withdrawn"
    assert request(books, waiting).state == "done" and request(books, unknown).state == "refused"
    assert "copies no table d.other. It copies d.keyed" in (request(books, unknown).outcome or "")
    assert events(books) == [("verified", "ann")]

    with cli.streaming() as epoch:
        wait_for("the stream", lambda: books.pause_stream("p", "ann"))
        wait_for("the pause", lambda: epoch.inbox.paused)
        paused = books.add_request("p", "verify", "", "ann")
        time.sleep(2)
        assert request(books, paused).state == "open"
        books.resume_stream("p", "ann")
        assert ended(books, paused)[0] == "done"


def test_a_catch_up_compares_at_its_end(server: MySQLServer, cli: Cli, books: StateDatabase) -> None:
    """Not the copy that lacks all that it is about to apply."""
    run(server, *(f"UPDATE keyed SET v = 'new {n}' WHERE id = {n}" for n in range(1, 31)))
    asked = books.add_request("p", "verify", "d.keyed", "ann")
    with cli.epoch(batch_bytes=500) as epoch:
        target = epoch.target
    assert target is not None
    cli.catch_up()
    state, said = request(books, asked).state, request(books, asked).outcome or ""
    assert state == "done", said
    file, _, position = said.rpartition(" as of ")[2].rpartition(":")
    assert (file, int(position)) >= (target.file, target.position), said


def test_a_comparison_that_dies_is_taken_up_again(
    server: MySQLServer, cli: Cli, books: StateDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stream ends at once, in the middle of it; the next one does it, and nobody is told a half."""
    began, runs = threading.Event(), []

    def hang(context: Any, *args: Any, **kwargs: Any) -> Any:
        runs.append(context)
        if len(runs) > 1:
            return compare_and_repair(context, *args, **kwargs)
        began.set()
        while True:
            context.check_interrupted()
            time.sleep(0.05)

    monkeypatch.setattr(repair, "compare_and_repair", hang)
    with cli.streaming():
        asked = books.add_request("p", "verify", "", "ann")
        assert began.wait(30)
        assert request(books, asked).state == "taken"
        ends = time.monotonic()
    assert time.monotonic() - ends < 20, "it waited for the comparison"
    assert request(books, asked).state == "taken" and verified(books) == {}
    cli.catch_up()
    assert request(books, asked).state == "done" and verified(books) == dict.fromkeys(_ALL, True)
    assert events(books) == [("verified", "ann")]


@pytest.mark.parametrize("repairs", [False, True])
def test_the_end_of_a_stream_interrupts_a_real_one(
    server: MySQLServer, cli: Cli, books: StateDatabase, repairs: bool
) -> None:
    """It reads a row a second, or waits for a stream to publish what it has read."""
    if not repairs:
        run(server, *(f"INSERT INTO keyed SELECT id + {n}, v FROM keyed WHERE id <= 30" for n in range(100, 500, 100)))
        cli.catch_up()
    damage(server, "UPDATE keyed SET v = 'lost' WHERE id = 3")
    if not repairs:
        cli.value["snapshot"]["max_rows_per_second"] = 1
        cli.write()
    with cli.streaming() as epoch:
        asked = books.add_request("p", "repair" if repairs else "verify", "d.keyed", "ann")
        if repairs:
            epoch.publish_pending = lambda: epoch.handle_requests()  # type: ignore[method-assign]
        wait_for("the request", lambda: request(books, asked).state == "taken")
        time.sleep(3)
        ends = time.monotonic()
    assert time.monotonic() - ends < 20
    assert request(books, asked).state == "taken"
    cli.value["snapshot"].pop("max_rows_per_second", None)
    cli.write()
    cli.catch_up()
    state, said = ended(books, asked)
    assert state == "done" and ("all 1 tables are equal" in said) == repairs, said


def test_errors(server: MySQLServer, cli: Cli, books: StateDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that pass are tried again; the others are the outcome. The stream goes on, and so does the next request."""
    errors: list[Exception] = [TransientError("the source is away", "Wait"), ZeroDivisionError("by chance")]
    compared = []

    def fail(*args: Any, **kwargs: Any) -> Any:
        if errors:
            raise errors.pop(0)
        compared.append(args[1].tables)
        return compare_and_repair(*args, **kwargs)

    monkeypatch.setattr(repair, "compare_and_repair", fail)
    with cli.streaming() as epoch:
        state, said = ended(books, books.add_request("p", "verify", "", "ann"))
        assert state == "refused" and said.startswith("unexpected ZeroDivisionError: by chance"), said
        run(server, "SET SESSION sql_log_bin = 0", "ALTER TABLE quiet ADD COLUMN w INT")
        asked = books.add_request("p", "verify", "", "ann")
        wait_for("another try", lambda: len(compared) > 1)
        assert compared[:2] == [(), ("d\\.quiet",)], "what was equal is not read again"
        assert request(books, asked).state == "taken"
        run(server, "SET SESSION sql_log_bin = 0", "ALTER TABLE quiet DROP COLUMN w")
        state, said = ended(books, asked)
        assert state == "done" and said.startswith("all 3 tables are equal"), said
        assert not epoch.stop.is_set()


def test_an_outage_of_the_bookkeeping(server: MySQLServer, cli: Cli, books: StateDatabase) -> None:
    """The result is recorded, and the request ends, when it takes writes again."""
    began, goes_on = threading.Event(), threading.Event()

    def scan_later(scans: Sequence[SinkScan]) -> Sequence[RowCollector]:
        began.set()
        assert goes_on.wait(60)
        return run_scans_in_threads(scans)

    with cli.streaming() as epoch:
        epoch.verify_worker.runner = scan_later
        asked = books.add_request("p", "verify", "", "ann")
        assert began.wait(30)
        with read_only(epoch.store), every_database_read_only():
            goes_on.set()
            time.sleep(4)
            assert request(books, asked).state == "taken"
        state, said = ended(books, asked)
        assert state == "done" and "all 3 tables are equal" in said
    assert verified(books) == dict.fromkeys(_ALL, True)
    assert events(books) == [("verified", "ann")]
