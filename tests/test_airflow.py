"""The example DAGs, and the life of a stream, in a real Airflow: its own processes, real Spark, a live server."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_cdc import Pipeline, Sink, Source
from airflow_provider_cdc.processes import kill_session, members
from airflow_provider_cdc.sinks.layout import Layout
from airflow_provider_cdc.store import Store, StreamRow
from tests.airflow_client import Client
from tests.airflow_processes import Airflow
from tests.oracle import check_ledger, compare_all
from tests.servers import MySQLServer
from tests.workload import Writers
from tests.workload_tables import make_shop

pytestmark = [pytest.mark.airflow, pytest.mark.spark]
ROOT = Path(__file__).resolve().parent.parent


@dataclasses.dataclass
class Site:
    """An Airflow, a shop that is written to, and a lake."""

    airflow: Airflow
    server: MySQLServer
    lake: Path

    @property
    def client(self) -> Client:
        return self.airflow.client

    def store(self, name: str) -> Store:
        return Store.open(f"sqlite:///{Layout(self.lake, name).bookkeeping}", migrate=False)

    def stream(self, name: str) -> StreamRow:
        with contextlib.closing(self.store(name)) as store:
            found = store.current_stream(name)
            assert found is not None
            return found

    def wait(self, what: str, condition: Callable[[], Any], seconds: float = 120) -> Any:
        deadline = time.monotonic() + seconds
        while not (found := condition()):
            assert time.monotonic() < deadline, f"{what}: not within {seconds:g} s"
            time.sleep(0.5)
        return found

    def wait_batch(self, name: str, epoch: int) -> None:
        """Until a stream has applied a batch with changes."""

        def applied() -> bool:
            with contextlib.closing(self.store(name)) as store:
                return any(b.epoch == epoch and b.changes for b in store.recent_batches(name, 20))

        self.wait(f"a batch of epoch {epoch} of {name}", applied)

    def stop(self, name: str) -> None:
        """As `airflow-cdc stop` does."""
        with contextlib.closing(self.store(name)) as store:
            assert store.request_stop(name)

    def equal(self, *tables: str) -> None:
        """Whether the tables, that nobody writes to now, are the same in the lake."""
        with contextlib.closing(self.server.connect()) as connection:
            assert [str(d) for d in compare_all(connection, "shop", self.lake, tables)] == []


@pytest.fixture(scope="module")
def site(
    mysql_server: MySQLServer, cdc_user: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("site")
    lake = folder / "lake"
    with contextlib.closing(mysql_server.connect()) as connection:
        make_shop(connection, customers=20_000, addresses=3_000, orders=12_000)
    try:
        with Airflow(
            ROOT / "dags",
            connections={"cdc_source": mysql_server.uri(**cdc_user)},
            env={"CDC_LAKE": str(lake), "PYTHONPATH": str(ROOT)},
            config={"core": {"parallelism": 2}},  # a Spark driver needs a core to start in reasonable time
        ) as airflow:
            yield Site(airflow, mysql_server, lake)
    finally:
        for private in (lake / "_cdc").glob("*"):  # streams outlive the tasks that started them
            with (
                contextlib.suppress(Exception),
                contextlib.closing(Store.open(f"sqlite:///{private / 'bookkeeping.db'}", migrate=False)) as store,
            ):
                run = store.current_stream(private.name)
                if run is not None and members(run.pid):
                    kill_session(run.pid)
        mysql_server.execute("DROP DATABASE IF EXISTS shop")


@contextlib.contextmanager
def written(site: Site, *only: str) -> Iterator[None]:
    with Writers(site.server.connect_args(), rate=40, only=only):
        yield


def test_every_example_is_run() -> None:
    """A new example needs a test below."""
    dags = {
        found for file in (ROOT / "dags").glob("*.py") for found in re.findall(r'DAG\(\s*"(\w+)"', file.read_text())
    }
    tests = Path(__file__).read_text()
    assert dags and all(f'"{dag}"' in tests for dag in dags)


def test_the_operators_spelled_out(site: Site) -> None:
    dag, client = "cdc_operators", site.client
    with written(site, "orders"):
        run = client.trigger(dag)
        client.wait_run(dag, run, seconds=400)
    groups = client.xcom(dag, run, "plan_chunks")
    assert len(groups) == 3 and groups[0]["label"] == "0: shop.orders"
    shown = [client.xcom(dag, run, "snapshot", map_index=i) for i in range(3)]
    assert {g["outcome"] for g in shown} == {"published"} and all(g["min_lw"][1] > 0 for g in shown)
    seed, stream = client.xcom(dag, run, "snapshot_complete")["min_lw"], client.xcom(dag, run, "stream")
    assert seed <= min(g["min_lw"] for g in shown)
    assert stream["state"] == "caught_up"
    assert [stream["start"]["file"], stream["start"]["position"]] == seed, "it begins at the smallest low watermark"
    assert all(t["equal"] for t in client.xcom(dag, run, "verify"))
    mapped = client.task_instances(dag, run, "snapshot")
    assert [t.rendered_map_index for t in mapped] == [g["label"] for g in groups]
    log = client.log(dag, run, "snapshot", map_index=0)
    assert re.search(r"shop.orders: \d+/\d+ chunks", log), "progress is in the task's log"
    assert site.server.uri() not in log

    # Another run adopts what is published and reads nothing; clearing the planner changes nothing.
    again = client.trigger(dag)
    client.wait_run(dag, again, seconds=400)
    assert {client.xcom(dag, again, "snapshot", map_index=i)["outcome"] for i in range(3)} == {"adopted"}
    client.clear(dag, run, "plan_chunks")
    client.wait_state(dag, run, "plan_chunks", min_try=2)
    assert client.xcom(dag, run, "plan_chunks") == groups


def test_a_scheduled_catch_up(site: Site) -> None:
    dag, client = "cdc_catch_up", site.client
    with written(site, "customer_address"):
        run = client.trigger(dag)
        client.wait_run(dag, run, seconds=400)
    client.pause(dag)
    assert client.xcom(dag, run, "addresses.stream")["state"] == "caught_up"
    assert all(t["equal"] for t in client.xcom(dag, run, "addresses.verify"))


def test_snapshot_and_stream_in_two_dags(site: Site) -> None:
    client = site.client
    with written(site, "ledger"):
        run = client.trigger("cdc_ledger_snapshot")
        client.wait_run("cdc_ledger_snapshot", run, seconds=400)
        client.wait_for_dag("cdc_ledger_stream")
        client.unpause("cdc_ledger_stream")
        site.wait("a run of the stream's DAG", lambda: client.runs("cdc_ledger_stream"))
        (first,) = client.runs("cdc_ledger_stream")
        client.wait_state("cdc_ledger_stream", first, "stream", "deferred", seconds=120)
        site.wait_batch("ledger", 1)
    # The run ends when the stream is stopped, and the next one begins by itself.
    site.stop("ledger")
    client.wait_run("cdc_ledger_stream", first, seconds=120)
    second = site.wait("the next run", lambda: [r for r in client.runs("cdc_ledger_stream") if r != first])[0]
    client.wait_state("cdc_ledger_stream", second, "stream", "deferred", seconds=120)
    assert site.stream("ledger").epoch == 2
    client.pause("cdc_ledger_stream")
    site.stop("ledger")
    client.wait_run("cdc_ledger_stream", second, seconds=120)
    site.equal("ledger")
    assert check_ledger(site.lake) == []


def test_a_whole_database(site: Site) -> None:
    dag, client, lake = "cdc_whole_database", site.client, site.lake
    with contextlib.suppress(FileNotFoundError):
        os.rename(lake, lake.with_name("lake-before"))  # its tables belong to the pipelines of the other examples
    with written(site):
        run = client.trigger(dag)
        client.wait_state(dag, run, "shop.stream", "deferred", seconds=400)
        site.wait_batch("shop", 1)
    site.stop("shop")
    client.wait_run(dag, run, seconds=120)
    assert client.xcom(dag, run, "shop.stream")["state"] == "stopped"
    catch_up(site)
    site.equal("customer", "customer_address", "orders", "ledger")
    os.rename(lake, lake.with_name("lake-shop"))


def catch_up(site: Site) -> None:
    """What was written after the stop."""
    from airflow_provider_cdc.phases.context import Context
    from airflow_provider_cdc.phases.stream import begin, run_in_process

    pipeline = Pipeline(
        name="shop", source=Source("cdc_source", ("shop..*",), ("shop.tmp_.*",)), sink=Sink(str(site.lake))
    )
    context = Context(pipeline, {**_args(site.server)})
    with contextlib.closing(context.store()) as store:
        run_in_process(begin(context, store, catch_up=True))


def _args(server: MySQLServer) -> dict[str, Any]:
    from airflow_provider_cdc.connections import _from_uri, mysql_args

    return mysql_args(_from_uri("cdc_source", server.uri()))


def test_the_life_of_a_stream(site: Site) -> None:
    """One table, one stream: whatever happens to Airflow's processes, to the task or to the driver, one stream runs."""
    dag, task, client = "cdc_one_table", "customers.stream", site.client
    with written(site, "customer"):
        run = client.trigger(dag)
        client.wait_state(dag, run, task, "deferred", seconds=400)
        first = site.stream("customers")
        site.wait_batch("customers", 1)
        assert client.extra_links(dag, run, task)["Spark UI"] == first.ui

        # Airflow's processes may die: the stream does not notice, and is looked after again when they are back.
        for name in ("scheduler", "dag-processor", "api-server", "triggerer"):
            site.airflow.process(name).kill_all()
            site.airflow.process(name).restart()
        site.airflow.wait_ready()
        killed_at = time.time()
        site.wait(
            "somebody who looks after the stream",
            lambda: (at := site.stream("customers").supervised_at) and at.timestamp() > killed_at,
        )
        assert (site.stream("customers").epoch, site.stream("customers").pid) == (1, first.pid)

        # The driver may die: it is started again, without a new try.
        kill_session(first.pid)
        site.wait("epoch 2", lambda: site.stream("customers").epoch == 2)
        client.wait_state(dag, run, task, "deferred", seconds=60)
        assert client.task_instance(dag, run, task).try_number == 1
        site.wait_batch("customers", 2)

        # Cleared: the epoch ends at a transaction boundary, the new try starts the next one.
        client.clear(dag, run, task)
        client.wait_state(dag, run, task, "deferred", min_try=2, seconds=120)
        site.wait("epoch 3", lambda: site.stream("customers").epoch == 3)

        # Marked failed: the stream stops.
        client.mark(dag, run, task, "failed")
        site.wait("the end of epoch 3", lambda: site.stream("customers").state == "stopped")
        assert site.stream("customers").stop_by

        # A driver that gets SIGTERM (its host shuts down) was not asked to stop: it is started again.
        client.clear(dag, run, task)
        client.wait_state(dag, run, task, "deferred", min_try=3, seconds=120)
        fourth = site.stream("customers")
        os.kill(fourth.pid, signal.SIGTERM)
        site.wait("epoch 5", lambda: site.stream("customers").epoch == 5)
        client.wait_state(dag, run, task, "deferred", min_try=3, seconds=60)
        site.wait_batch("customers", 5)
    client.mark(dag, run, task, "success")
    site.wait("the end of epoch 5", lambda: site.stream("customers").state == "stopped")
    site.wait("the end of the driver", lambda: not members(site.stream("customers").pid))
