"""Triggers: what Airflow asks of them must not be lost."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path

import pytest
from sqlalchemy.exc import SQLAlchemyError

from airflow_provider_cdc.airflow.triggers import cdc, state_database
from airflow_provider_cdc.airflow.triggers.cdc import CdcSnapshotTrigger, CdcStreamTrigger
from airflow_provider_cdc.airflow.triggers.state_database import SharedStateDatabase, run_in_thread
from airflow_provider_cdc.model.errors import CdcError, TransientError
from airflow_provider_cdc.model.supervision import EpochWatch
from airflow_provider_cdc.state import StateDatabase
from tests.support.postgres import Postgres


def test_a_cancellation_is_never_lost(tmp_path: Path) -> None:
    """Somebody marks the task at the moment when an answer has come: the trigger would watch on for ever."""
    path = tmp_path / "bookkeeping.db"
    with closing(StateDatabase.open(f"sqlite:///{path}", migrate=True)):
        pass

    async def watch() -> None:
        books = SharedStateDatabase(None, str(path))
        try:
            while True:
                await books.query_or_none(lambda _: time.sleep(0.002))
        finally:
            if books._store is not None:
                books._store.close()

    async def main() -> list[tuple[str, ...]]:
        found = []
        for _ in range(30):
            task = asyncio.create_task(watch())
            await asyncio.sleep(0.05)
            time.sleep(0.02)  # a loop that is busy: the answer comes meanwhile
            task.cancel("by a user")
            await asyncio.wait({task}, timeout=1)
            try:
                task.result()
            except asyncio.CancelledError as error:
                found.append(error.args)
            except asyncio.InvalidStateError:
                while not task.done():
                    task.cancel()
                    await asyncio.wait({task}, timeout=0.05)
        return found

    assert asyncio.run(main()) == [("by a user",)] * 30


def test_a_cancellation_keeps_its_message() -> None:
    """Airflow tells by it that a person has marked or cleared the task: without it, the stream is not asked to stop."""

    async def main() -> tuple[str, ...]:
        task = asyncio.create_task(run_in_thread(time.sleep, 0.5))
        await asyncio.sleep(0.1)  # the thread is at it
        task.cancel("by a user")
        try:
            await task
        except asyncio.CancelledError as error:
            return error.args
        raise AssertionError("it was not cancelled")

    assert asyncio.run(main()) == ("by a user",)


def test_no_event_right_after_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Airflow takes a task that is resumed while its worker still ends for one that has ended in a wrong state."""
    monkeypatch.setattr("airflow_provider_cdc.airflow.triggers.cdc._SETTLE_SECONDS", 2.0)
    path = tmp_path / "bookkeeping.db"
    with closing(StateDatabase.open(f"sqlite:///{path}", migrate=True)) as store:
        store.write_plan("p", 1, [], [], [])
        store.finish_snapshot("p", 1)
    began = time.monotonic()
    assert asyncio.run(first_event(snapshot_trigger(path))) == {"complete": True}
    assert time.monotonic() - began >= 2.0


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    with Postgres(["bookkeeping"]) as server:
        yield server


@pytest.fixture
def books(postgres: Postgres, monkeypatch: pytest.MonkeyPatch) -> Iterator[StateDatabase]:
    """A bookkeeping in PostgreSQL, known to Airflow as ``books``, with a stream that is running."""
    monkeypatch.setenv("AIRFLOW_CONN_BOOKS", postgres.uri())
    with closing(StateDatabase.open(postgres.sqlalchemy_url("bookkeeping"), migrate=True)) as store:
        store.register_pipeline("p", "server")
        store.begin_epoch("p", 0, "elsewhere", 1, 1.0)
        yield store


def stream_trigger(store: StateDatabase) -> CdcStreamTrigger:
    run = store.newest_epoch("p")
    assert run is not None
    return CdcStreamTrigger(
        pipeline="p",
        epoch=run.epoch,
        found=False,
        state_conn_id="books",
        state_path="",
        supervisor="a task",
        poll_seconds=0.1,
    )


def snapshot_trigger(path: Path) -> CdcSnapshotTrigger:
    return CdcSnapshotTrigger(pipeline="p", generation=1, state_conn_id=None, state_path=str(path), poll_seconds=0.1)


async def first_event(trigger: CdcStreamTrigger | CdcSnapshotTrigger) -> object:
    async for event in trigger.run():
        return event.payload
    return None


def test_questions_that_fail_together(tmp_path: Path) -> None:
    """A task is marked while a look at the bookkeeping fails: neither may end the trigger."""
    path = tmp_path / "bookkeeping.db"
    with closing(StateDatabase.open(f"sqlite:///{path}", migrate=True)):
        pass
    both = threading.Barrier(2)

    def fail(after: float, _: StateDatabase) -> None:
        both.wait(10)
        time.sleep(after)
        raise TransientError("away")

    async def main() -> list[object]:
        books = SharedStateDatabase(None, str(path))
        await books.query(lambda _: None)
        asked = [books.query(partial(fail, after)) for after in (0.0, 0.3)]
        return await asyncio.gather(*asked, return_exceptions=True)

    assert {str(found) for found in asyncio.run(main())} == {"away"}


def test_a_bookkeeping_that_hangs(postgres: Postgres, books: StateDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    """Streams that get no answer hold up nobody else in the triggerer."""
    monkeypatch.setattr(state_database, "_TIMEOUT_SECONDS", 1.0)
    monkeypatch.setattr("airflow_provider_cdc.state.engine.SILENCE_SECONDS", 120.0)  # for as long as the pause

    def asking() -> int:
        return sum("bookkeeping" in thread.name for thread in threading.enumerate())

    async def main() -> object:
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(4))
        tasks = [asyncio.create_task(first_event(stream_trigger(books))) for _ in range(6)]
        await asyncio.sleep(1)
        await loop.run_in_executor(None, postgres.pause)
        try:
            await asyncio.sleep(6)  # each has asked more than once by now
            await asyncio.wait_for(asyncio.to_thread(time.sleep, 0.01), 20)
            assert asking() <= state_database._THREADS
        finally:
            postgres.resume()
        await loop.run_in_executor(None, books.end_epoch, "p", 1, "stopped")
        return await asyncio.wait_for(asyncio.gather(*tasks), 60)

    monkeypatch.setattr(cdc, "_SETTLE_SECONDS", 0.0)
    found = asyncio.run(main())
    assert found == [{"epoch": 1, "found": False, "verdict": "stopped"}] * 6


def test_a_task_of_which_airflow_says_nothing_for_a_while(
    books: StateDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody marks the task while Airflow's API is restarting: the stream is asked to stop all the same."""
    monkeypatch.setattr(cdc, "_RETRY_SECONDS", 0.01)
    answers: Iterator[Exception | str] = iter([OSError("away"), OSError("away"), "failed"])

    def state(_: object) -> str:
        found = next(answers)
        if isinstance(found, Exception):
            raise found
        return found

    monkeypatch.setattr(cdc, "read_task_state", state)
    trigger = stream_trigger(books)
    asyncio.run(trigger.on_kill())
    run = books.newest_epoch("p")
    assert run is not None and (run.desired_state, run.stop_by) == ("stop", "a task")


def test_a_request_to_stop_is_not_cancelled_by_the_next_one(
    books: StateDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Airflow cancels a trigger each second until it has ended: on a busy machine, before anything could be asked."""

    def state(_: object) -> str:
        time.sleep(1.5)
        return "failed"

    async def main(trigger: CdcStreamTrigger) -> None:
        killing = asyncio.create_task(asyncio.wait_for(trigger.on_kill(), 30))
        for _ in range(10):
            await asyncio.sleep(0.1)
            killing.cancel("by a user")
        with suppress(asyncio.CancelledError):
            await killing
        await asyncio.sleep(2)  # before Python 3.12, wait_for() does not wait for what goes on

    monkeypatch.setattr(cdc, "read_task_state", state)
    asyncio.run(main(stream_trigger(books)))
    run = books.newest_epoch("p")
    assert run is not None and (run.desired_state, run.stop_by) == ("stop", "a task")


def test_a_request_to_stop_outlives_its_trigger(
    books: StateDatabase, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Airflow gives up before it answers, and the log says so; the stream is asked to stop as soon as it has."""

    def state(_: object) -> str:
        time.sleep(5)
        return "success"

    async def main() -> None:
        await asyncio.wait_for(stream_trigger(books).on_kill(), 4)
        assert "could not be asked to stop" in capsys.readouterr().out
        run = books.newest_epoch("p")
        assert run is not None and run.desired_state == "run"
        await asyncio.sleep(4)

    monkeypatch.setattr(cdc, "read_task_state", state)
    monkeypatch.setenv("AIRFLOW__TRIGGERER__ON_KILL_TIMEOUT", "4")
    asyncio.run(main())
    run = books.newest_epoch("p")
    assert run is not None and (run.desired_state, run.stop_by) == ("stop", "a task")


@contextmanager
def read_only(postgres: Postgres) -> Iterator[None]:
    """As after a failover to a standby: questions are answered, and nothing can be written."""
    name = '"bookkeeping"'
    postgres.execute(f"ALTER ROLE {name} SET default_transaction_read_only = on")
    leave = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'bookkeeping'"
    postgres.execute(leave)
    try:
        yield
    finally:
        postgres.execute(f"ALTER ROLE {name} RESET default_transaction_read_only")
        postgres.execute(leave)


def test_a_bookkeeping_that_takes_no_writes(
    postgres: Postgres, books: StateDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stream that cannot write its heartbeats lives on: they prove nothing then."""
    monkeypatch.setattr(cdc, "_SETTLE_SECONDS", 0.0)
    monkeypatch.setattr(cdc, "EpochWatch", partial(EpochWatch, patience=2.0))
    over = threading.Event()

    def beat() -> None:
        while not over.wait(0.2):
            with suppress(CdcError, SQLAlchemyError):
                books.record_heartbeat("p", epoch, progress=True)

    async def main() -> object:
        loop = asyncio.get_running_loop()
        watching = asyncio.create_task(first_event(trigger))
        await asyncio.sleep(3)
        with read_only(postgres):
            await asyncio.wait({watching}, timeout=6)
        await asyncio.wait({watching}, timeout=3)
        assert not watching.done(), watching.result()
        await loop.run_in_executor(None, books.end_epoch, "p", epoch, "stopped")
        return await asyncio.wait_for(watching, 60)

    trigger = stream_trigger(books)
    epoch = trigger.serialize()[1]["epoch"]
    beating = threading.Thread(target=beat)
    beating.start()
    try:
        assert asyncio.run(main()) == {"epoch": epoch, "found": False, "verdict": "stopped"}
    finally:
        over.set()
        beating.join()
