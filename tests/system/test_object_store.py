"""The whole in an object store: nothing of the sink is in a folder that hosts share."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest

from tests import ROOT
from tests.support.cli import Cli, Result, tree
from tests.support.s3 import S3
from tests.support.servers import MySQLServer
from tests.support.store_proxy import StoreProxy


def in_store(folder: Path, server: MySQLServer, s3: S3, *tables: str) -> Cli:
    """A pipeline whose sink is a prefix in a bucket, and whose state of this host is in a folder of its own."""
    cli = Cli(folder, server, *tables, sink={"path": s3.uri("lake"), "conn_id": "lake"})
    cli.env |= {"AIRFLOW_CONN_LAKE": s3.connection(), "AIRFLOW_CDC_STATE_DIR": str(folder / "state")}
    return cli


def parquet(s3: S3, prefix: str) -> list[str]:
    return [key for key in s3.keys(f"{prefix}/") if key.endswith(".parquet") and "_delta_log" not in key]


@pytest.fixture
def proxy(s3: S3) -> Iterator[StoreProxy]:
    with StoreProxy(s3) as found:
        yield found


@pytest.mark.spark
def test_snapshot_and_stream(
    mysql_server: MySQLServer, database: str, s3: S3, proxy: StoreProxy, tmp_path: Path
) -> None:
    for statement in (
        f"CREATE TABLE {database}.t (id INT PRIMARY KEY, v VARCHAR(20))",
        f"CREATE TABLE {database}.log (v VARCHAR(20))",
        f"INSERT INTO {database}.t VALUES (1, 'a'), (2, 'b'), (3, 'c')",
        f"INSERT INTO {database}.log VALUES ('a'), ('a')",
    ):
        mysql_server.execute(statement)
    cli = in_store(tmp_path / "one", mysql_server, s3, f"{database}[.].*")
    checked = cli.call("check")
    assert checked.code == 0, checked
    assert f"sink {s3.uri('lake')} is writable" in checked.out and not s3.keys()
    run = cli.run("run", "--catch-up", timeout=500)
    assert run.code == 0, run
    for statement in (
        f"UPDATE {database}.t SET v = 'B' WHERE id = 2",
        f"DELETE FROM {database}.t WHERE id = 3",
        f"INSERT INTO {database}.t VALUES (4, 'd')",
        f"DELETE FROM {database}.log LIMIT 1",
    ):
        mysql_server.execute(statement)
    # Another host goes on: it has nothing but the store.
    other = in_store(tmp_path / "other", mysql_server, proxy.place, f"{database}[.].*")
    other.catch_up()
    mysql_server.execute(f"INSERT INTO {database}.t VALUES (100, 'x')")
    other.catch_up()
    files = len(parquet(s3, f"lake/{database}/t"))
    code = (
        "import airflow_provider_cdc.sinks.lake.compaction as c, airflow_provider_cdc.cli as l; c.FANOUT = 2; l.main()"
    )
    command = [sys.executable, "-c", code, "maintain", "-f", str(other.file)]
    environment = {**os.environ, **other.env, "PYTHONPATH": str(ROOT)}
    maintained = subprocess.run(command, env=environment, cwd=other.folder, capture_output=True, text=True)
    assert maintained.returncode == 0, maintained
    assert len(parquet(s3, f"lake/{database}/t")) == files + 1, maintained  # old ones stay for readers
    mysql_server.execute(f"DELETE FROM {database}.t WHERE id = 100")
    streamed: list[Result] = []
    asked = proxy.record(lambda: streamed.append(other.run("stream", "--catch-up", timeout=500)))
    assert streamed[0].code == 0, streamed
    verified = other.call("verify")
    assert verified.code == 0, verified
    found = pl.read_delta(s3.uri(f"lake/{database}/t"), storage_options=s3.options)
    assert sorted(found.select("id", "v").rows()) == [(1, "a"), (2, "B"), (4, "d")]
    status = other.call("status", "--json")
    traffic = json.loads(status.out)["stream"]["traffic"]
    # The command tries the store before the run of the stream does, and counts: whether it can be used.
    puts = [r.key for r in asked if r.what in ("put", "create")]
    before = next(key for key in puts if "/check/" in key)
    puts = [key for key in puts if key != before]
    assert [key for key in puts if "/changes/" in key], "by tasks, in processes of their own"
    assert traffic["run"]["put"] == len(puts), puts
    assert 0 < traffic["last_batch"]["put"] < traffic["run"]["put"], "the fences are not part of a batch"
    assert not (tmp_path / "one" / "lake").exists() and s3.secret.encode() not in b"".join(
        data for data in tree(tmp_path).values() if data
    )
