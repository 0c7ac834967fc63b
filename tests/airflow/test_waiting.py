"""Tasks that wait, without Airflow's processes: what they make of a bookkeeping that is away, or seen by one side."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import time
from collections.abc import Callable
from contextlib import closing, nullcontext, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from airflow.sdk.exceptions import AirflowFailException, AirflowSensorTimeout, AirflowSkipException, TaskDeferred

from airflow_provider_cdc import CdcSnapshotSensor, CdcStopOperator, CdcStreamOperator
from airflow_provider_cdc.airflow.operators.base import task_label
from airflow_provider_cdc.airflow.operators.stream_driver import _wait_for_epoch
from airflow_provider_cdc.airflow.operators.stream_epoch import RestartNeeded, decide_after_epoch
from airflow_provider_cdc.airflow.triggers import cdc
from airflow_provider_cdc.airflow.triggers.cdc import CdcSnapshotTrigger, CdcStreamTrigger
from airflow_provider_cdc.model.errors import NotReadyError, StreamStoppedError, TransientError, embed_error
from airflow_provider_cdc.runtime.liveness import Heartbeat, process_identity
from airflow_provider_cdc.state import EpochRow, StateDatabase
from tests.support.cli import Cli
from tests.support.servers import MySQLServer

UNSEEN = {
    "unseen": embed_error(NotReadyError("the triggerer on far has looked in vain", "Name a database in state.conn_id"))
}
TI = SimpleNamespace(dag_id="d" * 250, run_id="r" * 250, task_id="t" * 250, map_index=-1, try_number=1, max_tries=0)
CONTEXT: Any = {"ti": TI}


@pytest.fixture
def cli(tmp_path: Path, mysql_server: MySQLServer, database: str, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """A pipeline whose snapshot is planned; its bookkeeping is a connection."""
    mysql_server.execute(f"CREATE TABLE {database}.t (id INT PRIMARY KEY)")
    mysql_server.execute(f"INSERT INTO {database}.t VALUES (1)")
    cli = Cli(tmp_path, mysql_server, f"{database}.t", state={"conn_id": "books"})
    cli.env["AIRFLOW_CONN_BOOKS"] = f"sqlite:///{tmp_path}/books.db"
    for name, value in cli.env.items():
        monkeypatch.setenv(name, value)
    with cli.opened() as (context, store):
        context.plans.ensure(store)
    return cli


def away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_BOOKS", "mysql://u:p@127.0.0.1:1/books")


def sensor(cli: Cli, **kwargs: Any) -> CdcSnapshotSensor:
    return CdcSnapshotSensor(task_id="sensor", pipeline=cli.value, assets=False, **kwargs)


def deferred(call: Callable[..., Any], *args: Any) -> TaskDeferred:
    with pytest.raises(TaskDeferred) as found:
        call(*args)
    return found.value


@pytest.mark.parametrize("how", [{"deferrable": True}, {"deferrable": False}], ids=str)
def test_a_sensor_that_may_not_fail_does_not_fail_at_first(cli: Cli, how: dict[str, bool]) -> None:
    cli.value["sink"]["path"] += "-elsewhere"  # where nothing is planned
    with pytest.raises(AirflowFailException, match="has no snapshot"):
        sensor(cli, **how).execute(CONTEXT)
    for may_not in ({"soft_fail": True}, {"never_fail": True}):
        with pytest.raises(AirflowSkipException):
            sensor(cli, **may_not, **how).execute(CONTEXT)


def test_a_sensor_goes_on_when_the_bookkeeping_is_away(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    away(monkeypatch)
    assert not sensor(cli, deferrable=False).poke(CONTEXT)
    deferred(sensor(cli).execute, CONTEXT)
    with pytest.raises(AirflowSensorTimeout):
        sensor(cli, deferrable=False, timeout=0.2, poke_interval=0.1).execute(CONTEXT)


def test_the_timeout_of_a_sensor_counts_from_its_first_look(cli: Cli) -> None:
    one = sensor(cli, timeout=100, soft_fail=True)
    first = deferred(one.execute, CONTEXT)
    time.sleep(0.5)
    then = deferred(one.resume_execution, "resume", {**(first.kwargs or {}), "event": {"complete": False}}, CONTEXT)
    assert then.timeout is not None and then.timeout.total_seconds() < 99.6
    with pytest.raises(AirflowSkipException):
        one.resume_execution("resume", {"event": {"complete": False}, "deadline": time.time() - 1}, CONTEXT)
    with pytest.raises(AirflowSensorTimeout, match="not complete within 100 s"):
        sensor(cli, timeout=100).resume(CONTEXT, {"complete": False}, time.time() - 1)


def test_a_snapshot_that_only_the_worker_sees(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    event = {"complete": False, **UNSEEN}
    with pytest.raises(AirflowFailException, match=r"the triggerer on far .* Name a database in state.conn_id"):
        sensor(cli).resume(CONTEXT, event)
    (cli.folder / "books.db").unlink()  # lost for all: it is made again, and waited for
    deferred(sensor(cli).resume, CONTEXT, event)
    away(monkeypatch)
    deferred(sensor(cli).resume, CONTEXT, event)
    monkeypatch.undo()
    for name, value in cli.env.items():
        monkeypatch.setenv(name, value)
    cli.snapshot()
    assert sensor(cli).resume(CONTEXT, event)["groups"] == 1


def test_a_stream_that_only_the_worker_sees(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """The task fails, and leaves no stream behind that nobody looks after."""
    stream = CdcStreamOperator(task_id="stream", pipeline=cli.value)
    with cli.opened() as (_, store):
        store.register_pipeline("p", "server")
        epoch = store.begin_epoch("p", 0, "elsewhere", 1, 1.0)
        event = {"epoch": epoch, "found": False, **UNSEEN}
        with pytest.raises(AirflowFailException, match="the triggerer on far"):
            stream.resume(CONTEXT, event, [])
        run = store.newest_epoch("p")
        assert run is not None and run.desired_state == "stop" and TI.dag_id in (run.stop_by or "")
        # One that is over by now has ended as it has ended.
        store.end_epoch("p", epoch, "caught_up")
        assert stream.resume(CONTEXT, event, [])["state"] == "caught_up"
    away(monkeypatch)
    monkeypatch.setenv("AIRFLOW__CDC__REPORT_SECONDS", "7")
    again = deferred(stream.resume, CONTEXT, event, [])
    assert again.kwargs is not None and again.kwargs["losses"] == []
    assert again.trigger.serialize()[1]["report_seconds"] == 7


def test_a_trigger_that_never_sees_the_bookkeeping(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its host has no such file, or another one at the same place."""
    monkeypatch.setattr(cdc, "_SETTLE_SECONDS", 0.0)
    monkeypatch.setattr(cdc, "_FIRST_ANSWER_SECONDS", 1.0)
    missing, other = tmp_path / "missing.db", tmp_path / "other.db"
    StateDatabase.open(f"sqlite:///{other}", migrate=True).close()

    async def first(trigger: CdcSnapshotTrigger | CdcStreamTrigger) -> Any:
        async for event in trigger.run():
            return event.payload

    async def main(path: Path) -> list[Any]:
        where = {"pipeline": "p", "state_conn_id": None, "state_path": str(path), "poll_seconds": 0.1}
        snapshot = CdcSnapshotTrigger(generation=1, **where)  # type: ignore[arg-type]
        stream = CdcStreamTrigger(epoch=1, found=False, supervisor="a task", **where)  # type: ignore[arg-type]
        return [await asyncio.wait_for(first(one), 30) for one in (snapshot, stream)]

    for path, whys in (
        (missing, [f"there is no state database file {missing}"] * 2),
        (other, ["has no snapshot 1 of p", "has no epoch 1 of the stream of p"]),
    ):
        for event, why in zip(asyncio.run(main(path)), whys, strict=True):
            assert why in event["unseen"] and "state.conn_id" in event["unseen"]
            assert "has not found" in event["unseen"]


def test_a_trigger_whose_bookkeeping_is_lost_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sensor's task writes it again, from the sink."""
    monkeypatch.setattr(cdc, "_SETTLE_SECONDS", 0.0)
    path = tmp_path / "books.db"

    async def main() -> Any:
        trigger = CdcSnapshotTrigger(
            pipeline="p", generation=1, state_conn_id=None, state_path=str(path), poll_seconds=0.1
        )
        events = trigger.run()
        waiting = asyncio.ensure_future(anext(aiter(events)))
        await asyncio.sleep(1)
        assert not waiting.done()
        trigger._state_db._store.close()  # type: ignore[union-attr]
        for file in tmp_path.glob("books.db*"):
            file.unlink()
        StateDatabase.open(f"sqlite:///{path}", migrate=True).close()
        return (await asyncio.wait_for(waiting, 30)).payload

    with closing(StateDatabase.open(f"sqlite:///{path}", migrate=True)) as store:
        store.write_plan("p", 1, [], [], [])
    assert asyncio.run(main()) == {"complete": False}


def test_a_stream_that_was_in_the_way_and_has_ended(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two tasks start the stream at once. The driver of one refuses, and when its task looks, the other is done."""
    operator = CdcStreamOperator(task_id="stream", pipeline=cli.value)
    with cli.opened() as (context, store):
        number = store.begin_epoch("p", 0, *process_identity(), refuse_if_alive=lambda _: None)
        real = store.newest_epoch

        def current(name: str) -> EpochRow | None:
            if list(context.local_files.log_folder.glob("*.json")):
                store.end_epoch("p", number, "caught_up", None, None)
            return real(name)

        with Heartbeat(store, "p", number, {}, threading.Event(), lambda: False):
            monkeypatch.setattr(store, "newest_epoch", current)
            assert operator._start_stream(CONTEXT, context, store) is None
        (refused,) = context.local_files.log_folder.glob("*.json")
        assert json.loads(refused.read_text())["error"]["kind"] == "AlreadyRunningError"


@pytest.mark.parametrize("verdict", ["caught_up", "superseded"])
def test_a_catch_up_is_done_though_another_one_has_begun_since(cli: Cli, verdict: str) -> None:
    """Two tasks that each began another one when they saw the other's would never end."""
    cli.value["stream"] = {"mode": "catch_up"}
    operator = CdcStreamOperator(task_id="stream", pipeline=cli.value)
    with cli.opened() as (_, store):
        for number in (1, 2):
            assert store.begin_epoch("p", 0, *process_identity()) == number
            store.end_epoch("p", number, "caught_up")
    event = {"epoch": 1, "found": False, "verdict": verdict}
    assert operator.resume(CONTEXT, event)["epoch"] == 1


@pytest.mark.parametrize("end", ["failed", "lost"])
@pytest.mark.parametrize("by", ["a user", "a task"])
def test_a_stop_that_a_user_has_asked_for_is_final(cli: Cli, end: str, by: str) -> None:
    """Also if the driver fails before it has stopped. After a task's request, the next epoch begins."""
    operator = CdcStreamOperator(task_id="stream", pipeline=cli.value)
    with cli.opened() as (context, store):
        epoch = store.begin_epoch("p", 0, "elsewhere", 1, 1.0)
        assert store.stop_stream("p", by) if by == "a user" else store.request_stop("p", by=by)
        if end == "failed":
            store.end_epoch("p", epoch, "failed", "the source is away", "TransientError")
        event = {"epoch": epoch, "found": False, "verdict": end}
        if by == "a task":
            with pytest.raises(RestartNeeded):
                decide_after_epoch(context, store, event, operator.log)
            return
        ended = decide_after_epoch(context, store, event, operator.log)
        assert ended is not None and (ended["epoch"], ended["state"]) == (epoch, "failed")


@pytest.mark.parametrize("by", ["command", "task"])
@pytest.mark.parametrize("earlier", [None, "failed", "stopped"])
def test_a_stop_while_a_stream_is_started(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, by: str, earlier: str | None
) -> None:
    """Whether it is the first one, or the next after one that has failed or was stopped by a task."""
    with cli.opened() as (_, store):
        if earlier is not None:
            epoch = store.begin_epoch("p", 0, "elsewhere", 1, 1.0)
            store.request_stop("p", by="a task")
            store.end_epoch("p", epoch, earlier, "the source is away", "TransientError")
    operator = CdcStreamOperator(task_id="stream", pipeline=cli.value, retries=1)
    stop = CdcStopOperator(task_id="stop", pipeline=cli.value, deferrable=False)

    def start(*args: Any) -> None:
        if by == "task":
            assert stop.execute(CONTEXT)["epoch"] is None
        else:
            assert cli.call("stop").out == "no stream is running, and one that is starting will not begin\n"
        with cli.opened() as (_, late), pytest.raises(StreamStoppedError, match="has asked the stream of p to stop"):
            late.begin_epoch("p", 0, "elsewhere", 2, 1.0)

    monkeypatch.setattr(operator, "_start_stream", start)
    first = SimpleNamespace(**vars(TI) | {"max_tries": 1})
    result = operator.execute(cast(Any, {"ti": first}))
    assert (result["epoch"], result["state"], result["changes"]) == (None, "stopped", 0)


def test_who_may_start_a_stream_that_a_user_has_stopped(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new run of the DAG, or a clear; not a retry, and not what a task continues with after it was deferred."""
    started = []

    def start(*_: Any) -> None:
        started.append(True)
        raise NotReadyError("started", "")

    def run(**kwargs: Any) -> None:
        operator = CdcStreamOperator(task_id="stream", pipeline=cli.value, retries=1)
        monkeypatch.setattr(operator, "_start_stream", start)
        with cli.opened() as (_, store):
            store.stop_stream("p", "a user")
        with suppress(AirflowFailException):
            if "max_tries" in kwargs:
                operator.execute(cast(Any, {"ti": SimpleNamespace(**vars(TI) | kwargs)}))
            else:
                operator.resume(CONTEXT, {}, **kwargs)

    for kwargs, may_start in (
        ({"try_number": 1, "max_tries": 1}, True),
        ({"try_number": 2, "max_tries": 1}, False),
        ({"try_number": 2, "max_tries": 2}, True),  # after a clear
        ({"try_number": 3, "max_tries": 2}, False),
        ({"run_id": "next", "try_number": 2, "max_tries": 1}, True),  # its first try has never begun
        ({"run_id": "next", "try_number": 3, "max_tries": 1}, False),
        ({"allow": True}, True),  # the first try could not reach the state database yet
        ({}, False),
    ):
        run(**kwargs)
        assert bool(started) is may_start, kwargs
        started.clear()


def test_a_driver_that_waits_for_its_turn_is_ended_by_a_stop(cli: Cli) -> None:
    looks = iter([False] * 3)  # so that this ends if the driver is waited for
    driver: Any = SimpleNamespace(
        description="a driver", log=None, has_ended=lambda: next(looks), has_begun=lambda run: False
    )
    with cli.opened() as (context, store):
        store.stop_stream("p", "a user")
        assert _wait_for_epoch(driver, context, store, logging.getLogger(), lambda: False) is None


@pytest.mark.parametrize(("max_tries", "cleared"), [(1, True), (2, False)])
def test_the_first_try_after_a_clear_ends_the_epoch_of_the_try_before(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, max_tries: int, cleared: bool
) -> None:
    """Whether or not a trigger lives that could ask for it. A retry supervises the stream that runs."""
    operator = CdcStreamOperator(task_id="stream", pipeline=cli.value, retries=max_tries - int(cleared))
    first, second = (SimpleNamespace(**{**vars(TI), "try_number": number, "max_tries": max_tries}) for number in (1, 2))
    with cli.opened() as (context, store):
        number = store.begin_epoch("p", 0, *process_identity())
        store.record_supervision("p", number, task_label(cast("Any", {"ti": first})))
        waited = time.sleep

        def sleep(seconds: float) -> None:
            run = store.newest_epoch("p")
            operator._killed = run is not None and run.desired_state == "stop"
            waited(min(seconds, 0.1))

        monkeypatch.setattr("airflow_provider_cdc.airflow.operators.stream.time.sleep", sleep)
        with (
            Heartbeat(store, "p", number, {}, threading.Event(), lambda: False),
            pytest.raises(TransientError, match="the task was stopped") if cleared else nullcontext(),
        ):
            assert operator._find_or_start(cast("Any", {"ti": second}), context, store) == (number, True)
        run = store.newest_epoch("p")
        assert run is not None and run.desired_state == ("stop" if cleared else "run")
