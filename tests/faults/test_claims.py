"""A task that reads a chunk group, while the place of its files does not answer."""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from airflow_provider_cdc.chunk_groups.task import SnapshotJob, run_in_threads
from airflow_provider_cdc.snapshot.run import run_group
from tests.support.phases import World
from tests.support.processes import wait_for
from tests.support.proxy import Proxy
from tests.support.s3 import S3
from tests.support.servers import MySQLServer


@pytest.mark.parametrize("network", ["cut", "half-open"])
def test_its_heart_beats_on(mysql_server: MySQLServer, database: str, s3: S3, tmp_path: Path, network: str) -> None:
    """Else another task would take the group over: it has only failed to show how far it is."""
    lake, port = s3.under("lake"), urlsplit(s3.endpoint).port
    assert port
    with ExitStack() as stack:
        proxy = stack.enter_context(Proxy(port))
        way = lake.at(s3.endpoint.replace(f":{port}", f":{proxy.port}")).connection()
        env = {"AIRFLOW_CONN_LAKE": way, "AIRFLOW_CDC_STATE_DIR": str(tmp_path / "state")}
        world = World(mysql_server, database, tmp_path / "p", env, lake, sink={"path": lake.uri(), "conn_id": "lake"})
        context, store = stack.enter_context(world.cli.opened())
        plan = context.plans.ensure(store)

        def run(job: SnapshotJob) -> list[dict[str, Any]]:
            def beat() -> object:
                return store.group(plan.pipeline, plan.generation, job.group).heartbeat_at

            (proxy.down if network == "cut" else proxy.swallow)()
            try:
                for _ in range(3):
                    before = beat()
                    wait_for("another heartbeat", lambda at=before: beat() != at, 3)  # type: ignore[misc]
                time.sleep(1)  # in which its progress is asked for
                before = beat()
                wait_for("another heartbeat", lambda: beat() != before, 3)
            finally:
                (proxy.up if network == "cut" else proxy.heal)()
            names = {thread.name for thread in threading.enumerate()}
            assert {"group-claim", "group-progress"} <= names
            return run_in_threads(job)

        assert run_group(context, store, plan, 0, run, holder="me").outcome == "published"
        assert (found := store.group_progress(plan.pipeline, plan.generation)[0]).done == found.chunks
