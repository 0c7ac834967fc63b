"""The life of a stream: whatever happens to Airflow, to the task, to the driver or the bookkeeping, one stream runs."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

import httpx
import pytest

from airflow_provider_cdc.state import StateDatabase
from airflow_provider_cdc.system.processes import kill_session, session_members
from tests.in_airflow.site import Site
from tests.support.statsd import Statsd

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(3600)]


def test_the_life_of_a_stream(site: Site) -> None:
    """Processes of Airflow and drivers are killed, the task is cleared and marked."""
    dag, task, name, client = "life", "life.stream", "life", site.client
    with site.written("customer"):
        run = client.trigger(dag)
        client.wait_state(dag, run, task, "deferred")
        first = site.stream(name)
        site.wait_batch(name, 1)
        site.wait_numbers(name)  # by the triggerer
        for of, slots, tries in (("preflight", 1, 1), ("snapshot", 2, 4), ("stream", 2, 1)):  # snapshot_args and so on
            found = client.task_instance(dag, run, f"life.{of}", 0 if of == "snapshot" else -1).raw
            assert (found["pool_slots"], found["max_tries"]) == (slots, tries)

        # While the task is deferred, its XCom and its log say how far the stream is, and what the driver says.
        def known() -> bool:
            found = client.xcom(dag, run, task, "lag")
            return bool(found) and found["lag_seconds"] is not None and found["batches"] > 0

        site.wait("the lag", known)
        assert client.task_instance(dag, run, task).state == "deferred"
        assert client.xcom(dag, run, task, "lag")["epoch"] == first.epoch
        said = client.log(dag, run, task)
        assert "bytes behind the source" in said and f"the driver's log {first.log}:" in said
        site.wait("what the driver says", lambda: "rows/s in the last" in client.log(dag, run, task))
        assert "batch to binlog." not in client.log(dag, run, task)  # that is for DEBUG

        # Airflow's processes may die: the stream does not notice, and is looked after again when they are back.
        for part in ("scheduler", "dag-processor", "api-server", "triggerer"):
            site.airflow.process(part).kill_all()
            site.airflow.process(part).restart()
        site.airflow.wait_ready()
        site.wait_supervised(name)
        assert (site.stream(name).epoch, site.stream(name).pid) == (first.epoch, first.pid)

        # The driver may die: it is started again, without a new try.
        kill_session(first.pid)
        site.wait_epoch(name, first.epoch)
        client.wait_state(dag, run, task, "deferred")
        assert client.task_instance(dag, run, task).try_number == 1
        site.wait_batch(name, first.epoch + 1)

        # Cleared: the epoch ends at a transaction boundary, the new try starts the next one.
        site.wait_supervised(name)
        before = site.stream(name).epoch
        client.clear(dag, run, task)
        client.wait_state(dag, run, task, "deferred", min_try=2)
        site.wait_epoch(name, before)
        # Not the deferral before, which waited for the end of that epoch: nobody would be told of the mark below.
        client.wait_state(dag, run, task, "deferred", min_try=2)

        # Marked failed: the stream stops.
        site.wait_supervised(name)
        client.mark(dag, run, task, "failed")
        site.wait("the end of the epoch", lambda: site.stream(name).state == "stopped")
        assert site.stream(name).stop_by
        client.wait_run(dag, run, "failed")  # what is cleared while the scheduler ends its run would never run

        # A driver that gets SIGTERM (its host shuts down) was not asked to stop: it is started again.
        client.clear(dag, run, task)
        client.wait_state(dag, run, task, "deferred", min_try=3)
        asked = site.stream(name)
        os.kill(asked.pid, signal.SIGTERM)
        site.wait_epoch(name, asked.epoch)
        client.wait_state(dag, run, task, "deferred", min_try=3)
        site.wait_batch(name, asked.epoch + 1)
        site.wait_supervised(name)
    client.mark(dag, run, task, "success")
    site.wait("the end of the last epoch", lambda: site.stream(name).state == "stopped")
    site.wait("the end of the driver", lambda: not session_members(site.stream(name).pid))


@pytest.mark.long
def test_what_stands_still(site: Site) -> None:
    """A triggerer that hangs while another works, which sends its stats by statsd; and a bookkeeping that does not
    answer for a while.
    """
    dag, task, name, client = "shared", "shared.stream", "shared", site.client

    def triggerer() -> int | None:
        return (client.task_instance(dag, run, task).raw["triggerer_job"] or {}).get("id")

    with site.written("customer"), Statsd() as statsd:
        run = client.trigger(dag)
        client.wait_state(dag, run, task, "deferred")
        stream = site.stream(name)
        site.wait_batch(name, 1)

        # A triggerer hangs for so long that another one takes its triggers over. When it goes on it finds out, and
        # Airflow tells its triggers to end; the stream does not.
        hanging, holder = site.airflow.process("triggerer"), site.wait("a triggerer", triggerer)
        second = site.airflow.start_triggerer(statsd.environment)
        site.airflow.wait_ready()
        hanging.stop()
        try:
            site.wait("the other triggerer", lambda: triggerer() not in (None, holder))
            numbers = site.wait("its numbers", lambda: statsd.of(pipeline=name))
            assert numbers["airflow.cdc.running"] == 1 and numbers["airflow.cdc.changes"] > 0
            assert statsd.of(pipeline=name, table="shop.customer")["airflow.cdc.table_rows"] > 0
        finally:
            hanging.cont()
        site.wait_batch(name, 1)
        time.sleep(10)  # the triggers that the first one has lost are ended in this time
        second.session.end()
        assert client.task_instance(dag, run, task).state == "deferred"
        now = site.stream(name)
        assert (now.epoch, now.pid, now.state, now.desired_state) == (stream.epoch, stream.pid, "running", "run")

        # The bookkeeping is away: neither the stream nor its task takes that for a loss.
        site.books.pause()
        try:
            time.sleep(45)  # three times as long as a stream that says nothing is believed in
            assert session_members(stream.pid) and client.task_instance(dag, run, task).state == "deferred"
        finally:
            site.books.resume()
        site.wait_batch(name, 1)
        now = site.stream(name)
        assert (now.epoch, now.pid, now.state, now.desired_state) == (stream.epoch, stream.pid, "running", "run")
        assert client.task_instance(dag, run, task).try_number == 1
    site.stop(name)
    client.wait_run(dag, run)


def test_a_stream_that_keeps_its_worker(site: Site) -> None:
    """Without a triggerer: the task itself looks after the stream, and so does its next try."""
    dag, task, name, client = "in_worker", "stream", "in_worker", site.client
    with site.written("ledger"):
        run = client.trigger(dag)
        site.wait("the stream", lambda: client.task_instance(dag, run, task).state == "running", 400)
        site.wait("its batch", lambda: site.store(name).last_batches(name, 1))
        first = site.stream(name)
        kill_session(first.pid)
        second = site.wait_epoch(name, first.epoch)
        site.wait_batch(name, second.epoch)
        assert client.task_instance(dag, run, task).try_number == 1
        site.wait_numbers(name)  # by the task
        assert client.xcom(dag, run, task, "lag")["epoch"] == second.epoch
        assert f"the driver's log {second.log}:" in client.log(dag, run, task)
        client.mark(dag, run, task, "failed")
        site.wait("the end of that epoch", lambda: site.stream(name).state == "stopped")
        client.wait_run(dag, run, "failed")
        last = site.stream(name).epoch
        client.clear(dag, run, task)
        site.wait_epoch(name, last)
        site.wait_batch(name, last + 1)
    site.stop(name)
    client.wait_run(dag, run)
    assert client.xcom(dag, run, task)["state"] == "stopped"


@pytest.mark.long
def test_a_triggerer_that_does_not_see_the_bookkeeping(site: Site) -> None:
    """It is on another host than the SQLite file: the sensor succeeds a little late, the stream says why it cannot."""
    dag, client, books = "elsewhere", site.client, Path(f"{site.lake}-file.db")
    site.airflow.process("triggerer").session.end()
    elsewhere = site.airflow.start_triggerer({"AIRFLOW_CONN_CDC_FILE": "sqlite:////nowhere/books.db"})
    try:
        site.airflow.wait_ready()
        run = client.trigger(dag)
        client.wait_run(dag, run, "failed")
        assert client.task_instance(dag, run, "elsewhere.snapshot_complete").state == "success"
        assert client.task_instance(dag, run, "elsewhere.stream").try_number == 1
        log = client.log(dag, run, "elsewhere.stream")
        assert "there is no state database file /nowhere/books.db. " in log and "set state.conn_id" in log
        with contextlib.closing(StateDatabase.open(f"sqlite:///{books}", migrate=False)) as store:
            site.wait("the end of the stream", lambda: (r := store.newest_epoch(dag)) and r.state == "stopped")
    finally:
        elsewhere.session.end()
        site.airflow.process("triggerer").restart()
        site.airflow.wait_ready()


@pytest.mark.long
def test_a_paused_dag(site: Site) -> None:
    """The stream goes on. When its driver dies, it is not started again before the DAG is unpaused."""
    dag, task, name, client = "shared", "shared.stream", "shared", site.client

    def troubles() -> list[str]:
        lines = httpx.get(f"{site.airflow.url}/cdc/api/pipelines", timeout=60).json()["pipelines"]
        [line] = [line for line in lines if line["name"] == name]
        return [one["text"] for one in line["troubles"]]

    with site.written("customer"):
        run = client.trigger(dag)
        client.wait_state(dag, run, task, "deferred")
        site.wait("a stream", lambda: site.stream(name).state == "running")
        epoch = site.stream(name).epoch
        site.wait_batch(name, epoch)
        client.pause(dag)
        paused = f"DAG {dag} is paused"
        site.wait("the page", lambda: any(text.startswith(f"{paused}: its stream continues") for text in troubles()))
        site.wait_batch(name, epoch)
        kill_session(site.stream(name).pid)
        site.wait("the page", lambda: f"{paused}: no task of it begins" in troubles())
        time.sleep(20)
        assert site.stream(name).epoch == epoch
        assert client.task_instance(dag, run, task).state == "scheduled"
        client.unpause(dag)
        site.wait_epoch(name, epoch)
        site.wait("the page", lambda: not any(text.startswith(paused) for text in troubles()))
    client.wait_state(dag, run, task, "deferred")
    site.stop(name)
    client.wait_run(dag, run)
