"""The example DAGs in a real Airflow: its own processes, real Spark, a live server."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder

from airflow_provider_cdc import Pipeline, Sink, Source, Stream
from airflow_provider_cdc.sinks.files.layout import LocalFiles
from airflow_provider_cdc.state import StateDatabase
from tests import ROOT
from tests.in_airflow.site import Site
from tests.support.oracle import check_ledger, compare, open_copy
from tests.support.transforms import HASH_KEY, hmac_sql, make_view, mask_sql, null_sql

pytestmark = [pytest.mark.airflow, pytest.mark.spark, pytest.mark.timeout(3600)]


def test_every_example_is_run() -> None:
    """A new example needs a test below."""
    dags = {
        found for file in (ROOT / "dags").glob("*.py") for found in re.findall(r'DAG\(\s*f?"(\w+)', file.read_text())
    }
    tests = "".join(file.read_text() for file in Path(__file__).parent.glob("test_*.py"))
    assert dags and [dag for dag in dags if f'"{dag}' not in tests] == []


def begun(site: Site, dag: str) -> str:
    """A run of a DAG: that of its schedule, which begins when it is unpaused, or one that is triggered."""
    if dag not in ("cdc_catch_up", "cdc_shard_0", "cdc_shard_1"):
        return site.client.trigger(dag)
    site.client.wait_for_dag(dag)
    site.client.unpause(dag)
    (run,) = site.wait(f"a run of {dag}", lambda: site.client.runs(dag))
    return str(run)


@pytest.fixture(scope="module")
def runs(site: Site) -> dict[str, str]:
    """Runs of all examples but the whole database, which has the same tables: two at a time, by the id of the DAG.

    Those that end have ended: nobody writes to their tables any more.
    """
    found: dict[str, str] = {}
    site.client.wait_for_dag("cdc_history")
    site.client.unpause("cdc_history")
    with site.written("orders", "customer_address"):
        for ending, other in (("cdc_operators", "cdc_ledger_snapshot"), ("cdc_catch_up", "cdc_one_table")):
            found |= {dag: begun(site, dag) for dag in (ending, other)}
            site.client.wait_run(ending, found[ending])
        found |= {dag: begun(site, dag) for dag in ("cdc_shard_0", "cdc_shard_1")}
        for dag in ("cdc_ledger_snapshot", "cdc_shard_0", "cdc_shard_1"):
            site.client.wait_run(dag, found[dag])
    return found


def test_the_operators_spelled_out(site: Site, runs: dict[str, str]) -> None:
    dag, client = "cdc_operators", site.client
    run = runs[dag]
    planned = client.xcom(dag, run, "plan_chunks")
    assert len(planned) > 1 and planned[0]["label"] == "0-1: shop.orders"
    shown = [g for i in range(len(planned)) for g in client.xcom(dag, run, "snapshot", map_index=i)["groups"]]
    assert [g["group"] for g in shown] == [number for task in planned for number in task["groups"]]
    assert {g["outcome"] for g in shown} == {"published"} and all(g["min_lw"][1] > 0 for g in shown)
    seed, stream = client.xcom(dag, run, "snapshot_complete")["min_lw"], client.xcom(dag, run, "stream")
    assert seed <= min(g["min_lw"] for g in shown)
    assert stream["state"] == "caught_up"
    assert [stream["start"]["file"], stream["start"]["position"]] == seed, "it begins at the smallest low watermark"
    assert all(t["equal"] for t in client.xcom(dag, run, "verify"))
    assert [t["table"] for t in client.xcom(dag, run, "maintain")["tables"]] == ["shop.orders"]
    assert "shop.orders: " in client.log(dag, run, "maintain")
    mapped = client.task_instances(dag, run, "snapshot")
    assert [t.rendered_map_index for t in mapped] == [task["label"] for task in planned]
    log = client.log(dag, run, "snapshot", map_index=0)
    assert re.search(r"shop.orders: \d+/\d+ chunks", log), "progress is in the task's log"
    assert site.server.uri() not in log

    # Another run has nothing to read, and starts no task to find that out; it is the same when it is cleared. In a run
    # that has mapped tasks clearing the planner changes nothing.
    again = client.trigger(dag)
    client.wait_run(dag, again)
    for one, listed in ((again, []), (run, planned)):
        client.clear(dag, one, "plan_chunks")
        client.wait_state(dag, one, "plan_chunks", min_try=2)
        assert client.xcom(dag, one, "plan_chunks") == listed
    assert [task.state for task in client.task_instances(dag, again, "snapshot")] == ["skipped"]
    assert all(t["equal"] for t in client.xcom(dag, again, "verify"))


def test_a_scheduled_catch_up(site: Site, runs: dict[str, str]) -> None:
    dag, client = "cdc_catch_up", site.client
    run = runs[dag]
    client.pause_between_runs(dag)
    assert client.xcom(dag, run, "addresses.stream")["state"] == "caught_up"
    assert all(t["equal"] for t in client.xcom(dag, run, "addresses.verify"))


def test_the_history_of_a_table(site: Site, runs: dict[str, str]) -> None:
    """Each event of the catch-up's asset has begun a run; the last one has brought the history up to its end."""
    copy, history = (site.lake / name / "customer_address" for name in ("shop", "history"))

    def versions() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = pa.table(DeltaTable(str(history)).to_pyarrow_table()).to_pylist()
        return found

    site.wait(
        "the history",
        lambda: (
            DeltaTable.is_deltatable(str(history))
            and DeltaTable(str(history)).transaction_version("history") == DeltaTable(str(copy)).version()
        ),
    )
    now = {one["ca_address_id"]: one for one in versions() if one["valid_to"] is None}
    rows = [row for row in DeltaTable(str(copy)).to_pyarrow_table().to_pylist() if not row["_cdc_deleted"]]
    assert len(rows) == len(now) < len(versions())
    for row in rows:
        version = now[row["ca_address_id"]]
        assert {name: row[name] for name in row if not name.startswith("_cdc_")}.items() <= version.items()
        assert row["_cdc_ts"] == version["valid_from"]
    lives = defaultdict[str, list[dict[str, Any]]](list)
    for one in sorted(versions(), key=lambda one: one["valid_from"]):
        lives[one["ca_address_id"]].append(one)
    for life in lives.values():
        assert all(before["valid_to"] <= after["valid_from"] for before, after in pairwise(life))


@pytest.mark.parametrize("number", [0, 1])
def test_shards_of_one_template(site: Site, runs: dict[str, str], number: int) -> None:
    dag, client = f"cdc_shard_{number}", site.client
    client.pause_between_runs(dag)
    assert client.xcom(dag, runs[dag], f"shard_{number}.stream")["state"] == "caught_up"
    source, lake = Source("cdc_source", ("shop.customer_address",)), site.lake / "shards" / str(number)
    site.catch_up(Pipeline(name=f"shard_{number}", source=source, sink=Sink(str(lake))))
    site.equal("customer_address", lake=lake)


def test_taking_over_by_a_gtid_set(site: Site) -> None:
    """The copy has what was written behind the GTIDs that another tool has delivered, and nothing else."""

    def keys() -> set[Any]:
        return set(site.server.execute("SELECT writer, n FROM shop.ledger"))

    dag, client = "cdc_takeover", site.client
    ((delivered,),) = site.server.execute("SELECT @@GLOBAL.gtid_executed")
    client.request("POST", "/variables", {"key": "cdc_gtid_set", "value": delivered})
    before = keys()
    lake, start = str(site.lake / "taken_over"), {"gtid_set": delivered}
    with site.written("ledger"):
        run = client.trigger(dag)
        client.wait_state(dag, run, "taken_over.stream", "deferred")
        file = LocalFiles.for_pipeline(lake, "taken_over").state_database
        with contextlib.closing(StateDatabase.open(f"sqlite:///{file}", migrate=False)) as store:
            site.wait("a batch", lambda: (now := store.newest_epoch("taken_over")) and now.changes)
            assert store.request_stop("taken_over")
    client.wait_run(dag, run)
    site.catch_up(
        Pipeline(
            name="taken_over",
            source=Source("cdc_source", ("shop.ledger",)),
            stream=Stream(start=start),
            sink=Sink(lake),
        )
    )
    ledger = QueryBuilder().register("ledger", DeltaTable(f"{lake}/shop/ledger"))
    held = pa.table(ledger.execute("SELECT writer, n FROM ledger").read_all()).to_pylist()
    assert {(row["writer"], row["n"]) for row in held} == keys() - before != set()


def test_one_table(site: Site, runs: dict[str, str]) -> None:
    dag, task, client = "cdc_one_table", "customers.stream", site.client
    run = runs[dag]
    client.wait_state(dag, run, task, "deferred")
    with site.written("customer"):
        site.wait_batch("customers", 1)
    # The Spark UI listens on a loopback address, which a browser on another host cannot open.
    assert client.extra_links(dag, run, task)["Spark UI"] is None and site.stream("customers").ui is None
    site.stop("customers")
    client.wait_run(dag, run)
    one_table = Source("cdc_source", ("shop.customer",))
    site.catch_up(Pipeline(name="customers", source=one_table, sink=Sink(str(site.lake))))
    site.equal("customer")


def test_masked_customers(site: Site) -> None:
    """The copy is what the server itself computes; a second run takes what the first one was too early for."""
    dag, client = "cdc_masked", site.client
    with site.written("customer"):
        run = client.trigger(dag)
        client.wait_run(dag, run)
    again = client.trigger(dag)
    client.wait_run(dag, again)
    assert all(t["equal"] for one in (run, again) for t in client.xcom(dag, one, "masked.verify"))
    columns = [name for (name,) in site.server.execute("SELECT column_name FROM information_schema.columns WHERE "
               "table_schema = 'shop' AND table_name = 'customer' ORDER BY ordinal_position")]  # fmt: skip
    changed = {
        "c_last_name": mask_sql("c_last_name"),
        "c_birth_country": mask_sql("c_birth_country", 2),
        "c_first_name": "LEFT(c_first_name, 1)",
        "c_birth_day": null_sql("c_birth_day"),
        "c_birth_month": null_sql("c_birth_month"),
    }
    expressions = {name: changed.get(name, name) for name in columns if name != "c_login"}
    email = {"c_email_address": ("c_email_hash", hmac_sql("c_email_address"))}
    expressions = dict(email.get(name, (name, said)) for name, said in expressions.items())
    condition = "CAST(c_preferred_cust_flag AS BINARY) = CAST('Y' AS BINARY) AND c_birth_year < 1990"
    make_view(site.server, "shop", "masked_customer", "customer", condition, **expressions)
    try:
        with contextlib.closing(site.server.connect(database="shop")) as connection:
            copy, view = site.lake / "masked" / "shop" / "customer", ("masked_customer", ["c_customer_sk"])
            assert compare(connection, "shop", "customer", copy, view=view) is None
    finally:
        site.server.execute("DROP VIEW shop.masked_customer")
    assert HASH_KEY not in client.log(dag, run, "masked.stream") + client.log(dag, run, "masked.snapshot", map_index=0)


def test_shards_into_one(site: Site) -> None:
    """A second database has the same table, with some of the same keys."""
    dag, client = "cdc_shards_into_one", site.client
    site.server.execute("CREATE DATABASE shop_2")
    try:
        site.server.execute("CREATE TABLE shop_2.customer LIKE shop.customer")
        site.server.execute("INSERT INTO shop_2.customer SELECT * FROM shop.customer LIMIT 50")
        runs = []
        with site.written("customer"):
            runs.append(client.trigger(dag))
            client.wait_run(dag, runs[0])
        site.server.execute("DELETE FROM shop_2.customer LIMIT 5")
        runs.append(client.trigger(dag))
        client.wait_run(dag, runs[1])
        assert all(t["equal"] for run in runs for t in client.xcom(dag, run, "shards_into_one.verify"))
        view = "SELECT *, '{0}.customer' AS `source` FROM {0}.customer"
        site.server.execute(
            f"CREATE VIEW shop.all_customers AS {view.format('shop')} UNION ALL {view.format('shop_2')}"
        )
        copy = open_copy(site.lake / "shards" / "all" / "customer")
        assert copy is not None
        held = Counter(tuple(row.values()) for row in copy.read(["_cdc_source", "c_customer_sk"]).to_pylist())
        assert held == Counter(site.server.execute("SELECT source, c_customer_sk FROM shop.all_customers"))
    finally:
        site.server.execute("DROP VIEW IF EXISTS shop.all_customers")
        site.server.execute("DROP DATABASE shop_2")


def test_snapshot_and_stream_in_two_dags(site: Site, runs: dict[str, str]) -> None:
    client = site.client
    with site.written("ledger"):
        client.wait_for_dag("cdc_ledger_stream")
        client.unpause("cdc_ledger_stream")
        site.wait("a run of the stream's DAG", lambda: client.runs("cdc_ledger_stream"))
        (first,) = client.runs("cdc_ledger_stream")
        client.wait_state("cdc_ledger_stream", first, "stream", "deferred")
        site.wait_batch("ledger", 1)
    # The run ends when the stream is stopped, and the next one begins by itself.
    before = site.stream("ledger").epoch
    site.stop("ledger")
    client.wait_run("cdc_ledger_stream", first)
    second = site.wait("the next run", lambda: [r for r in client.runs("cdc_ledger_stream") if r != first])[0]
    client.wait_state("cdc_ledger_stream", second, "stream", "deferred")
    site.wait_epoch("ledger", before)
    # Paused, so that no third run begins. The second is not resumed then either, but it can be marked.
    site.wait_supervised("ledger")
    client.pause("cdc_ledger_stream")
    client.mark("cdc_ledger_stream", second, "stream", "success")
    site.wait("the end of that epoch", lambda: site.stream("ledger").state == "stopped")
    site.catch_up(Pipeline(name="ledger", source=Source("cdc_source", ("shop.ledger",)), sink=Sink(str(site.lake))))
    site.equal("ledger")
    assert check_ledger(site.lake) == []


def news(site: Site) -> list[dict[str, Any]]:
    """What the DAG that waits for the orders has heard of the whole database, in order: others copy them as well."""
    runs = site.client.runs("cdc_downstream")
    ended = [run for run, state in runs.items() if state == "success"]
    heard = [new for run in ended for new in site.client.xcom("cdc_downstream", run, "look")]
    return [new for new in heard if new["pipeline"] == "shop"]


def scheduled(site: Site, dag: str) -> str:
    """The first run of a DAG by its schedule. It has to be paused in the end."""
    site.client.wait_for_dag(dag)
    site.client.unpause(dag)
    site.wait(f"a run of {dag}", lambda: site.client.runs(dag))
    return next(iter(site.client.runs(dag)))


@pytest.fixture
def invoices(site: Site) -> Iterator[None]:
    for table in ("invoices", "refunds"):
        site.server.execute(f"CREATE TABLE shop.{table} (id INT PRIMARY KEY, total VARCHAR(20))")
        site.server.execute(f"INSERT INTO shop.{table} VALUES (1, '10'), (2, '20')")
    yield
    site.server.execute("DROP TABLE shop.invoices, shop.refunds")


def test_a_suspended_table_waits_for_approval(site: Site, invoices: None) -> None:
    client, waiting = site.client, {"awaiting_input", "deferred"}  # before Airflow 3.3 the latter
    run = client.trigger("cdc_invoices")
    client.wait_state("cdc_invoices", run, "invoices.stream", "deferred")
    site.server.session(
        "shop",
        "INSERT INTO invoices VALUES (3, '30')",
        "ALTER TABLE invoices MODIFY total VARBINARY(20)",
        "INSERT INTO invoices VALUES (4, x'ff')",
        "INSERT INTO refunds VALUES (3, '30')",
    )

    def suspended() -> bool:
        with contextlib.closing(site.store("invoices")) as store:
            return any(event.kind == "table_suspended" for event in store.last_events("invoices", 100))

    site.wait("the suspension", suspended)
    # The next look asks, and nobody reads anything until there is an answer.
    dag = "cdc_approval"
    asked = scheduled(site, dag)
    path = f"/dags/{dag}/dagRuns/{asked}/taskInstances/decide.approve/0/hitlDetails"

    def is_asked() -> bool:
        return any(task.state in waiting for task in client.task_instances(dag, asked, "decide.approve"))

    site.wait("a question", is_asked)
    question = client.get(path)
    assert question["subject"] == "shop.invoices" and "invoices" in question["body"]
    assert [task.state for task in client.task_instances(dag, asked, "decide.read_again")] == [None]
    # Nobody answers at once: Airflow fails a task that continues before its scheduler knows that the first part ended.
    time.sleep(30)
    client.request("PATCH", path, {"chosen_options": ["Approve"], "params_input": {}})
    client.wait_run(dag, asked)
    client.pause_between_runs(dag)
    found = client.xcom(dag, asked, "decide.read_again", map_index=0)
    assert found == {"table": "shop.invoices", "outcome": "rejoined"}
    site.stop("invoices")
    client.wait_run("cdc_invoices", run)
    site.equal("invoices", "refunds")


def test_a_catch_up_that_is_late(site: Site) -> None:
    run = scheduled(site, "cdc_deadline")
    mail = site.wait("a mail", lambda: site.mailbox.mails)[0]
    assert (mail["To"], mail["Subject"]) == ("on-call@example.com", "The copy of shop.customer_address is late")
    site.client.wait_run("cdc_deadline", run)  # it goes on
    site.client.pause_between_runs("cdc_deadline")


def test_a_whole_database(site: Site) -> None:
    dag, client, lake = "cdc_whole_database", site.client, site.lake
    with contextlib.suppress(FileNotFoundError):
        os.rename(lake, lake.with_name("lake-before"))  # its tables belong to the pipelines of the other examples
    client.watch("cdc_downstream")
    with site.written():
        run = client.trigger(dag)
        client.wait_state(dag, run, "shop.stream", "deferred")
        site.wait_batch("shop", 1)
        # A comparison while the stream goes on; and all that happens to a table begins the DAG that waits for it.
        night = client.trigger("cdc_nightly_verify", {"share": "1/1"})
        client.wait_run("cdc_nightly_verify", night)
        assert all(t["equal"] for t in client.xcom("cdc_nightly_verify", night, "verify"))
        site.wait("news of each kind", lambda: {new["kind"] for new in news(site)} >= {"snapshot", "changes", "verify"})
    client.pause("cdc_nightly_verify")
    assert {new["table"] for new in news(site)} == {"shop.orders"}
    first, *others = [new for new in news(site) if new["kind"] == "changes"]
    assert first["start"] is None and first["inserts"] + first["updates"] + first["deletes"] > 0
    assert [new["start"] for new in others] == [new["end"] for new in [first, *others][:-1]], "windows join"
    site.stop("shop")
    client.wait_run(dag, run)
    assert client.xcom(dag, run, "shop.stream")["state"] == "stopped"
    shop = Source("cdc_source", ("shop..*",), ("shop.tmp_.*",))
    site.catch_up(Pipeline(name="shop", source=shop, sink=Sink(str(lake))))
    site.equal("customer", "customer_address", "orders", "ledger")
    os.rename(lake, lake.with_name("lake-shop"))
