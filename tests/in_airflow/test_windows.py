"""News of tables begin other DAGs: windows of a stream, whatever becomes of the triggerer, and whole partitions."""

from __future__ import annotations

from contextlib import closing
from importlib import metadata
from typing import Any

import pytest
from packaging.version import Version

from airflow_provider_cdc.observe.asset_windows import WATCHER
from tests.in_airflow.site import Site

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(3600)]
airflow_version = Version(metadata.version("apache-airflow"))


def test_windows_join_though_the_triggerer_is_killed(site: Site) -> None:
    name, client = "watched_table", site.client
    site.server.execute(f"CREATE DATABASE {name}")
    site.server.session(name, "CREATE TABLE t (id INT AUTO_INCREMENT PRIMARY KEY)", "INSERT INTO t VALUES (), (), ()")

    def heard() -> list[dict[str, Any]]:
        runs = [run for run, state in client.runs(f"{name}_heard").items() if state == "success"]
        return [new for run in runs for new in client.xcom(f"{name}_heard", run, "hear")]

    def told() -> int:
        """Rows in windows, of which one that was told twice counts once."""
        windows = {new["start"]: new for new in heard() if new["kind"] == "changes"}
        start, rows = None, 0
        while start in windows:
            rows, start = rows + windows[start]["inserts"], windows[start]["end"]
        assert start is None or len({new["end"] for new in windows.values()}) == len(windows), "each has one behind it"
        return rows

    def noted() -> int:
        """Rows up to which it is noted that they were told: in the asset's own store, before 3.3 in the bookkeeping."""
        if airflow_version < Version("3.3"):
            with closing(site.store(name)) as store:
                return int((store.window_end(name, WATCHER, (name, "t")) or {"inserts": 0})["inserts"])
        (asset,) = client.get("/assets", uri_pattern=f"file://{site.lake}-{name}/{name}/t")["assets"]
        kept = client.get(f"/assets/{asset['id']}/state-store")["asset_state_store"]
        return sum(one["value"]["inserts"] for one in kept if one["key"] == "cdc_told")

    def insert(total: int, outage: bool) -> None:
        if outage:  # what is applied meanwhile is told when it is back
            site.airflow.process("triggerer").kill_all()
        site.server.session(name, "INSERT INTO t VALUES (), ()")
        if outage:
            site.wait("the changes", lambda: site.stream(name).changes == total)
            site.airflow.process("triggerer").start()
        site.wait(f"news of {total} rows", lambda: told() == total)
        site.wait("the note of them", lambda: noted() == total)

    try:
        client.watch(f"{name}_heard")
        run = client.trigger(name)
        client.wait_state(name, run, f"{name}.stream", "deferred")
        for number, outage in enumerate((False, True, False), 1):
            insert(2 * number, outage)
        snapshots = [new for new in heard() if new["kind"] == "snapshot"]
        assert [(new["table"], new["rows"]) for new in snapshots] == [(f"{name}.t", 3)]
        assert len([new for new in heard() if new["kind"] == "changes"]) == 3, "and nothing was told twice"

        site.stop(name)
        client.wait_run(name, run)
        again = client.trigger(name)  # another run finds the snapshot complete: that is no news
        client.wait_state(name, again, f"{name}.stream", "deferred")
        site.stop(name)
        client.wait_run(name, again)
        assert [new["kind"] for new in heard()].count("snapshot") == 1
    finally:
        client.pause(f"{name}_heard")
        site.server.execute(f"DROP DATABASE {name}")


@pytest.mark.skipif(airflow_version < Version("3.2"), reason="this Airflow has no partitions of assets")
def test_a_catch_up_completes_a_partition_for_all_its_tables(site: Site) -> None:
    """Also for a table in which nothing has happened: who waits for both goes on."""
    name, client = "partitions", site.client
    site.server.execute(f"CREATE DATABASE {name}")
    for table in ("busy", "quiet"):
        site.server.session(name, f"CREATE TABLE {table} (id INT AUTO_INCREMENT PRIMARY KEY)")
    try:
        for dag in (f"{name}_heard", name):
            client.wait_for_dag(dag)
            client.unpause(dag)

        def keys() -> set[str]:
            runs = [run for run, state in client.runs(f"{name}_heard").items() if state == "success"]
            return {client.xcom(f"{name}_heard", run, "name") for run in runs}

        site.wait("a partition", lambda: keys())
        done = len(keys())
        site.server.session(name, "INSERT INTO busy VALUES ()")
        site.wait("the next partition", lambda: len(keys()) > done)
        run = {row["partition_key"] for row in client.get(f"/dags/{name}/dagRuns", limit=100)["dag_runs"]}
        assert keys() <= run
    finally:
        for dag in (f"{name}_heard", name):
            client.pause(dag)
        for run_id, state in client.runs(name).items():
            if state in ("queued", "running"):
                client.mark_run(name, run_id, "failed")
        site.server.execute(f"DROP DATABASE {name}")
