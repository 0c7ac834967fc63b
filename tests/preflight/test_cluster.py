"""What a driver in a cluster needs, besides the cluster; tests/driver/test_yarn.py asks a real one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from airflow_provider_cdc.preflight.check_result import run_check
from airflow_provider_cdc.preflight.cluster import check_cluster
from airflow_provider_cdc.sinks.storage import disk
from tests.support.cli import Cli
from tests.support.processes import free_port
from tests.support.servers import MySQLServer


@pytest.fixture
def cli(mysql_server: MySQLServer, tmp_path: Path) -> Cli:
    cli = Cli(tmp_path, mysql_server, "d.t", spark={"conn_id": "spark_yarn"})
    extra = {"deploy-mode": "cluster", "yarn_resourcemanager_webapp_address": f"127.0.0.1:{free_port()}"}
    cli.env["AIRFLOW_CONN_SPARK_YARN"] = json.dumps({"conn_type": "spark", "host": "yarn", "extra": extra})
    return cli


def test_a_cluster_that_does_not_answer(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HADOOP_CONF_DIR", raising=False)
    monkeypatch.delenv("YARN_CONF_DIR", raising=False)
    found = [*map(str, run_check(lambda: check_cluster(cli.context)))]
    for words in ("HADOOP_CONF_DIR is not set", "the state database is a file on one host", "Connection refused"):
        assert any(words in line for line in found), found
    assert any("seems to be on a disk of this host" in line for line in found)


def test_commands_that_start_spark_refuse(cli: Cli) -> None:
    for command in ("snapshot", "run", "stream"):
        result = cli.call(command)
        assert result.code == 2 and "commands run Spark themselves" in result.problem


def test_folders_that_other_hosts_see(tmp_path: Path) -> None:
    assert not disk.is_on_network(tmp_path / "not" / "there") and not disk.is_on_network("/proc")
    assert all(disk._NETWORK_TYPES.fullmatch(kind) for kind in ("nfs4", "cifs", "fuse.s3fs", "ceph", "virtiofs"))
    assert not any(disk._NETWORK_TYPES.fullmatch(kind) for kind in ("ext4", "xfs", "overlay", "tmpfs", ""))
