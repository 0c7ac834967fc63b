"""What a stream rides out, and when it must end with its task: outages, marks at bad moments, pods."""

from __future__ import annotations

import contextlib
import re
import time
from pathlib import Path

import pytest

from airflow_provider_cdc import Pipeline, Sink, Source, State
from airflow_provider_cdc.system.processes import session_members
from tests.in_airflow.site import Site

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(3600)]
NAME, TASK = "outages", "stream"


@pytest.fixture(scope="module")
def outages(site: Site) -> Site:
    """The site, with the snapshot of the pipeline."""
    site.client.wait_run("outages_snapshot", site.client.trigger("outages_snapshot"))
    return site


def started_driver(site: Site, dag: str, run: str) -> int:
    """Process of the driver that a task has started last, as soon as it says so."""

    site.client.wait_state(dag, run, TASK, "running")

    def told() -> int:
        found = re.findall(r"started the Spark driver, process (\d+)", site.client.log(dag, run, TASK))
        return int(found[-1]) if found else 0

    return int(site.wait("a driver", told))


def newest(site: Site) -> int:
    """The last epoch, 0 before the first."""
    with contextlib.closing(site.store(NAME)) as store:
        run = store.newest_epoch(NAME)
        return run.epoch if run else 0


def ended(site: Site, pid: int) -> None:
    site.wait("the end of the driver", lambda: not session_members(pid), 30)


def equal(site: Site) -> None:
    """Nobody writes, and no stream runs: the copy is exact."""
    lake = Path(f"{site.lake}-outages")
    source, state = Source("cdc_source_flaky", ("shop.customer",)), State("cdc_state")
    site.catch_up(Pipeline(name=NAME, source=source, sink=Sink(str(lake)), state=state))
    site.equal("customer", lake=lake)


def ride_out(site: Site, seconds: float) -> str:
    """A source that is away for so long, and a task without a retry.

    :returns: the run, whose stream goes on.
    """
    dag, client = "outages_deferred", site.client
    run = client.trigger(dag)
    client.wait_state(dag, run, TASK, "deferred")
    first = site.stream(NAME).epoch
    site.wait_batch(NAME, first)
    site.flaky.down()
    try:
        site.wait("the end of the epoch", lambda: site.stream(NAME).state == "failed")
        time.sleep(seconds)
    finally:
        site.flaky.up()
    site.wait("the next epoch", lambda: site.stream(NAME).epoch > first)
    client.wait_state(dag, run, TASK, "deferred")
    site.wait_batch(NAME, site.stream(NAME).epoch)
    assert client.task_instance(dag, run, TASK).try_number == 1
    return run


def test_a_source_that_is_away(outages: Site) -> None:
    """It is ridden out in one try; marked in the next outage, the task starts nothing any more."""
    dag, client = "outages_deferred", outages.client
    with outages.written("customer"):
        run = ride_out(outages, 30)
        last = outages.stream(NAME).epoch
        before = client.log(dag, run, TASK).count("stream restarts in 16 s")
        outages.flaky.down()
        try:
            # A wait that is spent in the triggerer.
            outages.wait("a wait", lambda: client.log(dag, run, TASK).count("stream restarts in 16 s") > before)
            client.wait_state(dag, run, TASK, "deferred")
            client.mark(dag, run, TASK, "failed")
        finally:
            outages.flaky.up()
        time.sleep(25)  # longer than that wait
        assert ((now := outages.stream(NAME)).epoch, now.state) == (last, "failed") and not session_members(now.pid)
        assert client.task_instance(dag, run, TASK).state == "failed"
    equal(outages)


@pytest.mark.long
def test_a_source_that_is_away_for_ten_minutes(outages: Site) -> None:
    with outages.written("customer"):
        run = ride_out(outages, 600)
    outages.stop(NAME)
    outages.client.wait_run("outages_deferred", run)
    equal(outages)


def test_marked_while_the_driver_starts(outages: Site) -> None:
    dag, client = "outages_deferred", outages.client
    epoch = newest(outages)
    run = client.trigger(dag)
    driver = started_driver(outages, dag, run)
    client.mark(dag, run, TASK, "failed")
    ended(outages, driver)
    assert newest(outages) in (epoch, epoch + 1)


def test_a_task_in_the_worker_asks_for_the_stop_when_its_time_is_up(outages: Site) -> None:
    """It looks at its stream once a minute: the stream ends at once all the same."""
    dag, client = "outages_timed", outages.client
    before, run = newest(outages), client.trigger(dag)
    outages.wait("the stream", lambda: newest(outages) > before)
    timed = outages.stream(NAME)
    client.wait_state(dag, run, TASK, "failed")
    ended(outages, timed.pid)
    assert (now := outages.stream(NAME)).epoch == timed.epoch and now.state == "stopped" and now.stop_by


def test_a_task_in_the_worker_asks_for_the_stop_when_it_is_marked(outages: Site) -> None:
    dag, client = "outages_in_worker", outages.client
    before, run = newest(outages), client.trigger(dag)
    outages.wait("the stream", lambda: newest(outages) > before and outages.stream(NAME).supervisor)
    marked = outages.stream(NAME)
    client.mark(dag, run, TASK, "success")
    ended(outages, marked.pid)
    assert (now := outages.stream(NAME)).epoch == marked.epoch and now.state == "stopped" and now.stop_by


def test_the_bookkeeping_is_away_when_the_task_is_marked(outages: Site) -> None:
    dag, client = "outages_deferred", outages.client
    run = client.trigger(dag)
    client.wait_state(dag, run, TASK, "deferred")
    outages.wait_supervised(NAME)
    stream = outages.stream(NAME)
    outages.books.pause()
    try:
        client.mark(dag, run, TASK, "failed")
        time.sleep(23)  # longer than one question may take, not as long as Airflow waits for the trigger
    finally:
        outages.books.resume()
    ended(outages, stream.pid)
    assert (now := outages.stream(NAME)).epoch == stream.epoch and now.state == "stopped" and now.stop_by


def test_a_lease_ends_a_stream_that_nobody_was_told_of(outages: Site) -> None:
    """The task is marked while the triggerer is away: Airflow tells nobody, neither then nor later."""
    dag, client, triggerer = "outages_leased", outages.client, outages.airflow.process("triggerer")
    run = client.trigger(dag)
    client.wait_state(dag, run, TASK, "deferred")
    outages.wait_supervised(NAME)
    stream = outages.stream(NAME)
    triggerer.kill_all()
    try:
        client.mark(dag, run, TASK, "failed")
        outages.wait("the end of the driver", lambda: not session_members(stream.pid), 120)
    finally:
        triggerer.restart()
        outages.airflow.wait_ready()
    assert (now := outages.stream(NAME)).epoch == stream.epoch and now.state == "stopped"
    assert (now.stop_by or "").startswith("its lease")


def test_in_a_pod_of_kubernetes_nothing_defers(outages: Site) -> None:
    """The pod would end with the deferral, and the driver with the pod."""
    dag, client = "outages_in_pod", outages.client
    before = newest(outages)
    run = client.trigger(dag)
    client.wait_state(dag, run, "refused", "failed")
    assert "deferrable" in client.log(dag, run, "refused")
    outages.wait("the stream", lambda: newest(outages) > before and outages.stream(NAME).supervisor)
    time.sleep(5)
    assert client.task_instance(dag, run, TASK).state == "running"
    outages.stop(NAME)
    client.wait_state(dag, run, TASK)
