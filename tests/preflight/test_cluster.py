"""What a driver in a cluster needs, besides the cluster; tests/driver/test_yarn.py asks a real one."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from airflow_provider_cdc.config.spark_conf import CLUSTER_SUBSTITUTES
from airflow_provider_cdc.driver.spark_session import lazy_session
from airflow_provider_cdc.model.errors import NotReadyError
from airflow_provider_cdc.preflight.check_result import run_check
from airflow_provider_cdc.preflight.cluster import check_cluster
from airflow_provider_cdc.sinks.storage import disk
from tests import ROOT
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


@pytest.mark.parametrize(
    ("command", "substitute"),
    [
        (("snapshot",), "its task snapshot reads"),
        (("run",), "Run the DAG"),
        (("stream",), "its task stream"),
        (("resnapshot", "--table", "d.t"), "CdcResnapshotOperator"),
        (("verify",), "CdcVerifyOperator"),
        (("verify", "--repair"), "CdcVerifyOperator"),
    ],
)
def test_commands_that_start_spark_refuse(cli: Cli, command: tuple[str, ...], substitute: str) -> None:
    """With what does the same work in a cluster, and before they read anything."""
    result = cli.call(*command)
    assert result.code == 2 and f"airflow-cdc {command[0]} runs Spark on this host" in result.problem
    assert substitute in result.problem


def test_maintenance_refuses_when_there_is_something_to_compact(cli: Cli) -> None:
    with (
        pytest.raises(NotReadyError, match="airflow-cdc maintain runs Spark") as refused,
        lazy_session(cli.context) as it,
    ):
        it()
    assert "CdcMaintainOperator" in refused.value.remedy


def test_every_refused_command_is_told_with_its_substitute() -> None:
    """The table of docs/cli.md has the commands that the code refuses, and the operators that it names."""
    section = (ROOT / "docs" / "cli.md").read_text().partition("## With drivers in a cluster")[2].partition("\n## ")[0]
    rows = dict(re.findall(r"^\| (.*?) \| (.*) \|$", section, re.M))
    told = {name: text for cell, text in rows.items() for name in re.findall(r"`([a-z]+)`", cell)}
    assert told.keys() == CLUSTER_SUBSTITUTES.keys()
    for name, substitute in CLUSTER_SUBSTITUTES.items():
        assert set(re.findall(r"Cdc\w+", substitute)) <= set(re.findall(r"Cdc\w+", told[name])), name


def test_folders_that_other_hosts_see(tmp_path: Path) -> None:
    assert not disk.is_on_network(tmp_path / "not" / "there") and not disk.is_on_network("/proc")
    assert all(disk._NETWORK_TYPES.fullmatch(kind) for kind in ("nfs4", "cifs", "fuse.s3fs", "ceph", "virtiofs"))
    assert not any(disk._NETWORK_TYPES.fullmatch(kind) for kind in ("ext4", "xfs", "overlay", "tmpfs", ""))
