"""Chunk groups that fail, are cleared and run again; runs at the same time, backfills; errors and secrets."""

from __future__ import annotations

import contextlib
import json
import re
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest

from airflow_provider_cdc import Pipeline, Sink, Source, State
from airflow_provider_cdc.config.connections import _parse_uri, database_url
from airflow_provider_cdc.model.errors import CdcError
from airflow_provider_cdc.sinks.files.layout import Layout
from airflow_provider_cdc.system.processes import kill_session
from airflow_provider_cdc.ui.state_databases import database_key
from tests.in_airflow.site import Site
from tests.support.airflow_client import PATIENCE
from tests.support.oracle import compare_database

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(3600)]


#: Outcomes of a group that was read again.
NEXT_SNAPSHOT = {"replaced", "staged"}


def reader(site: Site, name: str, group: int, attempt: int) -> int:
    """The driver that reads a group, as soon as one does. It may do so for less than a second: look often."""
    deadline = time.monotonic() + PATIENCE
    while True:
        with contextlib.suppress(CdcError), contextlib.closing(site.store(name)) as store:  # planned a little later
            while time.monotonic() < deadline:
                row = store.group(name, 1, group)
                found = re.search(r" (\d+) \d+\]$", row.holder or "")
                if found and row.state == "running" and row.attempt == attempt:
                    return int(found[1])
                assert row.attempt <= attempt and (row.attempt < attempt or row.state != "done"), vars(row)
                time.sleep(0.02)
        assert time.monotonic() < deadline, f"nobody reads group {group} of {name} in attempt {attempt}"
        time.sleep(0.1)


def kill_reader(site: Site, name: str, group: int, attempt: int) -> None:
    """Kill the driver that reads a group, with everything that it has started."""
    kill_session(reader(site, name, group, attempt))


def kill_when_published(site: Site, name: str, group: int) -> None:
    """Kill the driver of a group as soon as it has published it: what then ends Spark takes it longer."""
    pid = reader(site, name, group, attempt=1)
    folder, deadline = Path(f"{site.lake}-{name}") / Layout(name).group_folder(1, group), time.monotonic() + 400
    while not [*folder.glob("tasks/*.json")]:
        assert time.monotonic() < deadline
        time.sleep(0.005)
    kill_session(pid)


def first_error(log: str) -> str:
    """The first line of level ERROR, with the lines of its exception, which are indented."""
    return re.search(r"^.* ERROR .*(?:\n  .*)*", log, re.MULTILINE)[0]  # type: ignore[index]


def test_groups(site: Site) -> None:
    dag, name, client = "groups", "groups", site.client
    snapshot, stream = "groups.snapshot", "groups.stream"

    def tries(run: str) -> list[int]:
        return [task.try_number for task in client.task_instances(dag, run, snapshot)]

    def outcome(run: str, index: int) -> str:
        (group,) = client.xcom(dag, run, snapshot, map_index=index)["groups"]
        return str(group["outcome"])

    def cleared(run: str, index: int) -> str:
        """Clear a task, and what its next try comes to."""
        before = client.task_instance(dag, run, snapshot, index).try_number
        client.clear(dag, run, snapshot, index)
        client.wait_state(dag, run, snapshot, map_index=index, min_try=before + 1)
        return outcome(run, index)

    with site.written("orders"), ThreadPoolExecutor(1) as pool:
        # A driver that dies behind its commit: the next try is a retry, and has nothing left to read.
        killed = pool.submit(kill_when_published, site, name, 0)
        run = client.trigger(dag)
        # One that is lost is a matter for a retry; when there is none left the group fails, and only the group.
        kill_reader(site, name, 2, attempt=1)
        client.wait_state(dag, run, snapshot, ("up_for_retry", "queued", "running"), map_index=2)
        kill_reader(site, name, 2, attempt=2)
        client.wait_state(dag, run, snapshot, "failed", map_index=2)
        assert "Run it again" in first_error(client.log(dag, run, snapshot, map_index=2))
        killed.result()
        for index in (0, 1):
            client.wait_state(dag, run, snapshot, map_index=index)
        client.wait_state(dag, run, "groups.snapshot_complete", "deferred")
        assert tries(run)[:3] == [2, 1, 2] and [outcome(run, 0), outcome(run, 1)] == ["adopted", "published"]

        # Clearing a group that was read already reads that group again and no other.
        assert cleared(run, 0) == "replaced"
        assert tries(run)[:3] == [3, 1, 2] and {*tries(run)[3:]} <= {1}

        # Clearing the one that failed completes the snapshot; sensor and stream go on by themselves.
        assert cleared(run, 2) == "published"
        client.wait_state(dag, run, stream, "deferred")
        seed = client.xcom(dag, run, "groups.snapshot_complete")["min_lw"]
        site.wait_batch(name, 1)

        # A second run, while the first streams: it reads nothing, and looks after the same stream.
        begun = site.stream(name).epoch
        second, groups = client.trigger(dag), range(len(tries(run)))
        client.wait_state(dag, second, stream, "deferred")
        for index in groups:  # the sensor did not wait for them
            client.wait_state(dag, second, snapshot, map_index=index)
        assert {outcome(second, index) for index in groups} == {"adopted"}
        assert client.task_instance(dag, run, stream).state == "deferred"

        # Beside the stream a group is staged, and published by the stream between two batches. It matters neither that
        # another run has adopted the group since, nor that the task had only adopted it.
        assert cleared(run, 1) in NEXT_SNAPSHOT
        assert cleared(second, 0) in NEXT_SNAPSHOT
        assert tries(run)[:3] == [3, 2, 3] and {*tries(run)[3:]} <= {1}
        site.wait("the groups", lambda: {site.group(name, i).state for i in (0, 1)} == {"done"})
        assert site.stream(name).epoch == begun
        site.stop(name)
        for one in (run, second):
            client.wait_state(dag, one, stream)
        assert client.xcom(dag, run, stream)["start"]["position"] >= seed[1]
        client.wait_run(dag, second)

        # The whole old run once more: its groups are read again, and the next epoch takes them in.
        before = tries(run)
        for task in ("groups.preflight", "groups.plan_chunks", snapshot, "groups.snapshot_complete", stream):
            client.clear(dag, run, task)
        site.wait_epoch(name, begun)
        for index, tried in enumerate(before):
            client.wait_state(dag, run, snapshot, map_index=index, min_try=tried + 1)
        assert {outcome(run, index) for index in groups} <= NEXT_SNAPSHOT
        site.wait("the groups", lambda: all(site.group(name, i).state == "done" for i in groups))
        site.wait_batch(name, begun + 1)
    site.stop(name)
    client.wait_state(dag, run, stream)
    lake = Path(f"{site.lake}-groups")
    site.catch_up(
        Pipeline(
            name=name,
            source=Source("cdc_source", ("shop.orders",)),
            sink=Sink(str(lake)),
            state=State("cdc_state"),
        )
    )
    site.equal("orders", lake=lake)


def act_on_page(site: Site, name: str, act: str, **about: object) -> httpx.Response:
    """Do something with a pipeline whose bookkeeping is the shared one, as the page does."""
    headers = {"Authorization": f"Bearer {site.client.token}", "X-CDC-Page": "1", "Origin": site.airflow.url}
    key = database_key(database_url(_parse_uri("cdc_state", site.books.uri())))
    url = f"{site.airflow.url}/cdc/api/pipelines/{key}/{name}/acts/{act}"
    return httpx.post(url, headers=headers, json=about, timeout=60)


def test_several_groups_per_task(site: Site) -> None:
    """A group fails, and the others of its task are published; a clear, or the page, then reads that group alone."""
    dag = name = "several"
    client, task = site.client, "several.snapshot"
    lake = Path(f"{site.lake}-{name}")
    site.server.execute(f"CREATE DATABASE {name}")
    site.server.session(
        name,
        "CREATE TABLE t (id INT PRIMARY KEY, d DATE)",
        f"INSERT INTO t VALUES {', '.join(f'({number}, NULL)' for number in range(50))}",
        "SET sql_log_bin = 0, sql_mode = ''",  # in group 1 of the first task, and group 2 of the second one
        "UPDATE t SET d = '2020-00-10' WHERE id IN (12, 25)",
    )

    def mend(key: int) -> None:
        site.server.session(name, "SET sql_log_bin = 0", f"UPDATE t SET d = '2020-01-10' WHERE id = {key}")

    def outcomes(run: str, index: int) -> list[str]:
        return [str(group["outcome"]) for group in client.xcom(dag, run, task, map_index=index)["groups"]]

    try:
        run = client.trigger(dag)
        for index, state in enumerate(("failed", "failed", "success")):
            client.wait_state(dag, run, task, state, map_index=index)
        labels = [one.rendered_map_index for one in client.task_instances(dag, run, task)]
        assert labels == ["0-1: several.t", "2-3: several.t", "4: several.t"]
        for index, group in enumerate((1, 2)):
            told = first_error(client.log(dag, run, task, map_index=index))
            assert f"1 of 2 chunk groups failed: group {group}: " in told and "Then clear this task" in told
        states = {number: site.group(name, number).state for number in range(5)}
        assert states == {0: "done", 1: "running", 2: "running", 3: "done", 4: "done"}

        mend(12)
        client.clear(dag, run, task, 0)
        client.wait_state(dag, run, task, map_index=0, min_try=2)
        assert outcomes(run, 0) == ["adopted", "published"] and site.group(name, 0).attempt == 1

        site.wait("the page", lambda: act_on_page(site, name, "retry", dry_run=True, group=3).status_code == 200)
        refused = act_on_page(site, name, "retry", dry_run=True, group=3)
        assert "Group 3 is published" in refused.json()["why_not"]
        says = act_on_page(site, name, "retry", dry_run=True, group=2).json()["says"]
        assert f"Task {task}[1] of DAG {dag}, run {run}, is cleared, and no other task. " in says
        assert says.endswith(
            "It reads what is missing in group 2. Its other groups (3) are published and are not read again"
        )
        mend(25)
        assert act_on_page(site, name, "retry", group=2).json() == {"done": True}
        client.wait_state(dag, run, task, map_index=1, min_try=2)
        assert outcomes(run, 1) == ["published", "adopted"] and site.group(name, 3).attempt == 1
        client.wait_run(dag, run)  # what is cleared while the scheduler ends its run would never run

        # After it has succeeded, a clear means its groups, and those of no other task.
        client.clear(dag, run, task, 0)
        client.wait_state(dag, run, task, map_index=0, min_try=3)
        assert outcomes(run, 0) == ["replaced", "replaced"]
        assert [site.group(name, number).attempt for number in range(5)] == [2, 3, 2, 1, 1]
        again = client.trigger(dag)  # nothing is mapped: all is published
        client.wait_run(dag, again)
        assert not [str(found) for found in compare_database(site.server, name, lake, ["t"])]
    finally:
        site.server.execute(f"DROP DATABASE {name}")


@pytest.mark.long
def test_a_backfill_and_its_run_again(site: Site) -> None:
    """A run of a backfill beside the scheduled run, both from nothing; then the backfill once more."""
    dag, client = "nightly", site.client
    client.wait_for_dag(dag)
    client.unpause(dag)
    first = datetime(2026, 2, 1, tzinfo=UTC)

    def outcome(run: str) -> str:
        mapped = client.task_instances(dag, run, "nightly.snapshot")
        if [task.state for task in mapped] == ["skipped"]:
            return "skipped"
        return str(client.xcom(dag, run, "nightly.snapshot", map_index=0)["groups"][0]["outcome"])

    with site.written("customer_address"):
        backfill = client.create_backfill(dag, first, first)
        runs = site.wait("all runs", lambda: found if len(found := client.runs(dag)) == 2 else None)
        for run in runs:
            client.wait_run(dag, run)
        site.wait("the backfill", lambda: client.backfill_completed(backfill))
        assert sorted(map(outcome, runs)) in (["adopted", "published"], ["published", "skipped"])
        (older,) = (run for run in runs if run.startswith("backfill"))
        had = outcome(older)
        again = client.create_backfill(dag, first, first, reprocess="completed")
        site.wait("the second backfill", lambda: client.backfill_completed(again), 400)
        # To process a run again is to clear it.
        assert outcome(older) in ({"skipped"} if had == "skipped" else NEXT_SNAPSHOT)
    client.pause(dag)
    assert set(client.runs(dag).values()) == {"success"}
    for run in runs:
        assert all(table["equal"] for table in client.xcom(dag, run, "nightly.verify"))


@pytest.mark.long
def test_purged_binlogs(site: Site) -> None:
    """A run that finds that the server has removed what it needs reads the tables again; the next one does not."""
    dag, client = "purged", site.client
    lake, outcomes = Path(f"{site.lake}-purged"), []

    def done() -> None:
        run = client.trigger(dag)
        client.wait_run(dag, run)
        assert all(table["equal"] for table in client.xcom(dag, run, "purged.verify"))
        site.equal("customer_address", lake=lake)
        mapped = client.task_instances(dag, run, "purged.snapshot")
        outcomes.append([task.state for task in mapped])
        for index in range(len(mapped) if outcomes[-1] != ["skipped"] else 0):
            assert client.xcom(dag, run, "purged.snapshot", map_index=index)["groups"][0]["outcome"] == "published"

    done()
    site.server.execute("DELETE FROM shop.customer_address LIMIT 5")
    site.server.purge()
    done()
    site.server.execute("DELETE FROM shop.customer_address LIMIT 5")
    done()
    assert [{*states} for states in outcomes] == [{"success"}, {"success"}, {"skipped"}]


def test_errors_say_what_to_do(site: Site) -> None:
    """Those that need a person fail at once, in spite of retries; the others are tried again. No one is silent."""
    dag, client = "broken", site.client
    run = client.trigger(dag)
    client.wait_run(dag, run, "failed")
    tasks = {task.task_id: task for task in client.task_instances(dag, run)}
    tried = {name: task.try_number for name, task in tasks.items()}
    assert tried == {"cdc_nobody": 1, "cdc_away": 2, "cdc_missing": 1, "soft": 1}
    assert {name for name, task in tasks.items() if task.state == "skipped"} == {"soft"}
    assert "Check user, password and grants" in first_error(client.log(dag, run, "cdc_nobody"))
    assert "Check host, port" in first_error(client.log(dag, run, "cdc_away"))
    assert "AIRFLOW_CONN_CDC_MISSING" in first_error(client.log(dag, run, "cdc_missing"))
    assert not Path(f"{site.lake}-broken").exists()


def test_a_connection_of_the_form(site: Site, cdc_user: dict[str, str]) -> None:
    """One that Airflow keeps in its database, where workers ask for it; the others are in the environment."""
    dag, client, place = "in_form", site.client, site.server.connect_args()
    form = {
        "connection_id": "cdc_form",
        "conn_type": "cdc_mysql",
        "host": place["host"],
        "port": place["port"],
        "login": cdc_user["user"],
        "password": cdc_user["password"],
        "extra": json.dumps({"ssl_mode": "REQUIRED", "ssl_ca": "", "ssl_key_password": ""}),
    }
    tested = client.request("POST", "/connections/test", form)
    assert tested["status"] and tested["message"].startswith("Connected to MySQL"), tested
    refused = client.request("POST", "/connections/test", {**form, "password": "another-secret"})
    assert not refused["status"] and "another-secret" not in refused["message"]
    assert "Check user, password" in refused["message"]
    client.request("POST", "/connections", form)
    try:
        run = client.trigger(dag)
        client.wait_run(dag, run)
        assert cdc_user["password"] not in client.log(dag, run, "preflight")
    finally:
        client.request("DELETE", "/connections/cdc_form")


def test_nothing_holds_a_password(site: Site, cdc_user: dict[str, str]) -> None:
    """Neither Airflow's logs and tables nor lakes, drivers' logs and bookkeeping."""
    secrets = [cdc_user["password"], site.books.passwords["bookkeeping"]]
    files = [
        path
        for folder in (site.airflow.home, site.lake.parent)
        for path in folder.rglob("*")
        if path.is_file() and not path.is_symlink()
    ]
    assert any(path.name.endswith(".log") for path in files)
    holding = [str(path) for path in files if any(s.encode() in path.read_bytes() for s in secrets)]
    assert holding == []
    metadata = site.metadata
    tables = metadata.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'", database="airflow")
    assert ("rendered_task_instance_fields",) in tables and ("xcom",) in tables
    for (table,) in tables:
        for secret in secrets:
            found = metadata.execute(
                f'SELECT COUNT(*) FROM "{table}" AS t WHERE t::text LIKE %s', (f"%{secret}%",), database="airflow"
            )
            assert found == [(0,)], table
