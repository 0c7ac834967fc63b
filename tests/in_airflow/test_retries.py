"""Chunk groups that fail, are cleared and run again; runs at the same time, backfills; errors and secrets."""

from __future__ import annotations

import contextlib
import re
from datetime import UTC, datetime
from pathlib import Path

import pytest

from airflow_provider_cdc import Pipeline, Sink, Source, State
from airflow_provider_cdc.exceptions import CdcError
from airflow_provider_cdc.processes import kill_session
from tests.in_airflow.site import Site

pytestmark = [pytest.mark.airflow, pytest.mark.spark, pytest.mark.timeout(2400)]


def kill_reader(site: Site, name: str, group: int, attempt: int) -> None:
    """Kill the driver that reads a group, with everything that it has started."""

    def reader() -> int:
        with contextlib.suppress(CdcError):  # planned a little later
            row = site.group(name, group)
            found = re.search(r" (\d+) \d+\]$", row.holder or "")
            return int(found[1]) if found and row.state == "running" and row.attempt == attempt else 0
        return 0

    kill_session(site.wait(f"attempt {attempt} at group {group}", reader))


def first_error(log: str) -> str:
    return next(line for line in log.splitlines() if " ERROR " in line)


def test_groups(site: Site) -> None:
    dag, name, client = "groups", "groups", site.client
    snapshot, stream = "groups.snapshot", "groups.stream"

    def tries(run: str) -> list[int]:
        return [task.try_number for task in client.task_instances(dag, run, snapshot)]

    with site.written("orders"):
        run = client.trigger(dag)
        # A driver that is lost is a matter for a retry; when there is none left the group fails, and only the group.
        kill_reader(site, name, 2, attempt=1)
        client.wait_state(dag, run, snapshot, ("up_for_retry", "queued", "running"), map_index=2)
        kill_reader(site, name, 2, attempt=2)
        client.wait_state(dag, run, snapshot, "failed", map_index=2)
        assert "Run it again" in first_error(client.log(dag, run, snapshot, map_index=2))
        for index in (0, 1):
            client.wait_state(dag, run, snapshot, map_index=index)
        client.wait_state(dag, run, "groups.snapshot_complete", "deferred")

        # Clearing a group that was read already reads that group again and no other.
        client.clear(dag, run, snapshot, 0)
        client.wait_state(dag, run, snapshot, map_index=0, min_try=2)
        assert client.xcom(dag, run, snapshot, map_index=0)["outcome"] == "replaced"
        assert tries(run)[:3] == [2, 1, 2] and {*tries(run)[3:]} <= {1}

        # Clearing the one that failed completes the snapshot; sensor and stream go on by themselves.
        client.clear(dag, run, snapshot, 2)
        client.wait_state(dag, run, snapshot, map_index=2, min_try=3)
        client.wait_state(dag, run, stream, "deferred")
        assert client.xcom(dag, run, snapshot, map_index=2)["outcome"] == "published"
        seed = client.xcom(dag, run, "groups.snapshot_complete")["min_lw"]
        site.wait_batch(name, 1)

        # Beside the stream a group is staged, and published by the stream between two batches.
        client.clear(dag, run, snapshot, 1)
        client.wait_state(dag, run, snapshot, map_index=1, min_try=2)
        assert client.xcom(dag, run, snapshot, map_index=1)["outcome"] in ("staged", "replaced")
        assert tries(run)[:3] == [2, 2, 3] and {*tries(run)[3:]} <= {1}
        site.wait("the group", lambda: site.group(name, 1).state == "done")
        assert site.stream(name).epoch == 1

        # A second run, while the first streams: it reads nothing, and looks after the same stream.
        second, groups = client.trigger(dag), range(len(tries(run)))
        client.wait_state(dag, second, stream, "deferred")
        for index in groups:  # the sensor did not wait for them
            client.wait_state(dag, second, snapshot, map_index=index)
        assert {client.xcom(dag, second, snapshot, map_index=i)["outcome"] for i in groups} == {"adopted"}
        assert client.task_instance(dag, run, stream).state == "deferred" and site.stream(name).epoch == 1
        site.stop(name)
        for one in (run, second):
            client.wait_state(dag, one, stream)
        assert client.xcom(dag, run, stream)["start"]["position"] >= seed[1]
        client.wait_run(dag, second)

        # The whole old run once more: its groups are read again, and the next epoch takes them in.
        before = tries(run)
        for task in ("groups.preflight", "groups.plan_chunks", snapshot, "groups.snapshot_complete", stream):
            client.clear(dag, run, task)
        site.wait("epoch 2", lambda: site.stream(name).epoch == 2)
        for index, tried in enumerate(before):
            client.wait_state(dag, run, snapshot, map_index=index, min_try=tried + 1)
        site.wait("the groups", lambda: all(site.group(name, i).state == "done" for i in groups))
        site.wait_batch(name, 2)
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


def test_a_backfill_and_its_run_again(site: Site) -> None:
    """A run of a backfill beside the scheduled run, both from nothing; then the backfill once more."""
    dag, client = "nightly", site.client
    client.wait_for_dag(dag)
    client.unpause(dag)
    first = datetime(2026, 2, 1, tzinfo=UTC)
    with site.written("customer_address"):
        backfill = client.create_backfill(dag, first, first)
        runs = site.wait("all runs", lambda: found if len(found := client.runs(dag)) == 2 else None)
        for run in runs:
            client.wait_run(dag, run, seconds=500)
        site.wait("the backfill", lambda: client.backfill_completed(backfill))
        outcomes = [client.xcom(dag, run, "nightly.snapshot", map_index=0)["outcome"] for run in runs]
        assert sorted(outcomes) == ["adopted", "published"]
        again = client.create_backfill(dag, first, first, reprocess="completed")
        site.wait("the second backfill", lambda: client.backfill_completed(again), 400)
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
        outcomes.append({client.xcom(dag, run, "purged.snapshot", map_index=i)["outcome"] for i in (0, 1)})

    done()
    site.server.execute("DELETE FROM shop.customer_address LIMIT 5")
    site.server.purge()
    done()
    site.server.execute("DELETE FROM shop.customer_address LIMIT 5")
    done()
    assert outcomes == [{"published"}, {"published"}, {"adopted"}]


def test_errors_say_what_to_do(site: Site) -> None:
    """Those that need a person fail at once, in spite of retries; the others are tried again. No one is silent."""
    dag, client = "broken", site.client
    run = client.trigger(dag)
    client.wait_run(dag, run, "failed")
    tried = {task.task_id: task.try_number for task in client.task_instances(dag, run)}
    assert tried == {"cdc_nobody": 1, "cdc_away": 2, "cdc_missing": 1}
    assert "Check user, password and grants" in first_error(client.log(dag, run, "cdc_nobody"))
    assert "Check host, port" in first_error(client.log(dag, run, "cdc_away"))
    assert "AIRFLOW_CONN_CDC_MISSING" in first_error(client.log(dag, run, "cdc_missing"))
    assert not Path(f"{site.lake}-broken").exists()


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
