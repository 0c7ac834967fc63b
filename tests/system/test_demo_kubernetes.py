"""The demo in Kubernetes as a program: in a cluster that it is given, and in one that it starts."""

from __future__ import annotations

import json
import os
import re
import secrets
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml

from tests import ROOT
from tests.support.postgres import Postgres
from tests.support.processes import remove_folder, temporary_folder
from tests.support.s3 import s3_server
from tests.support.servers import MySQLServer

if TYPE_CHECKING:
    from tests.support.kubernetes import Kubernetes

#: What it says, in this order.
STORY = (
    r"two tasks read the tables, each in a pod",
    r"kubectl delete pod airflow-cdc-\w+ --grace-period=0 --force",
    r"\| task read_[01], try 1: .+ The next try begins",
    r"The snapshot is complete",
    r"The stream begins, in a pod",
    r"kubectl delete pod airflow-cdc-\w+ --grace-period=0 --force",
    r"Another pod has gone on: epoch \d+",
    r"ledger: all rows equal",
    r"Removing what was created",
    r"EQUAL: every sink table is its source, row by row",
)


def run_demo(folder: Path, settings: dict[str, str]) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("AIRFLOW", "CDC_TEST"))}
    return subprocess.run(
        [sys.executable, "-m", "bench.demo_kubernetes", "--customers", "3000", "--seconds", "2"],
        cwd=ROOT,
        env={**environment, "TMPDIR": str(folder), **settings},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def assert_story(run: subprocess.CompletedProcess[str]) -> None:
    assert run.returncode == 0, run.stdout
    at = 0
    for step in STORY:
        found = re.compile(step).search(run.stdout, at)
        assert found, f"{step!r} is not there, or not in this place:\n{run.stdout}"
        at = found.end()


@pytest.mark.kubernetes
@pytest.mark.spark
@pytest.mark.timeout(1800)
def test_in_a_cluster_that_it_is_given(kubernetes: Kubernetes, tmp_path: Path) -> None:
    """With the rights of Airflow's Helm chart. It removes all that it has created, and nothing else."""
    kubernetes.delete_pods()
    files = {"KUBECONFIG": kubernetes.kubeconfig("airflow"), "POD_TEMPLATE": kubernetes.pod_template(cpu="500m")}
    for name, value in files.items():
        (tmp_path / name).write_text(yaml.safe_dump(value))
    with MySQLServer() as server, Postgres(["bookkeeping"]) as books, s3_server() as lake:
        user = server.create_cdc_user(f"cdc_{secrets.token_hex(4)}")
        server.execute("GRANT ALL ON `cdc\\_demo\\_%%`.* TO %s@'%%'", (user["user"],))
        before = server.execute("SHOW DATABASES")
        run = run_demo(
            tmp_path,
            {
                **{name: str(tmp_path / name) for name in files},
                "CONTEXT": "airflow",
                "NAMESPACE": kubernetes.namespace,
                "POD_PYTHON": sys.executable,
                "AIRFLOW_CONN_CDC_SOURCE": server.uri(**user),
                "AIRFLOW_CONN_CDC_STATE": books.uri(),
                "AIRFLOW_CONN_CDC_LAKE": lake.connection(),
                "SINK": lake.uri("lake"),
            },
        )
        assert_story(run)
        assert server.execute("SHOW DATABASES") == before
        assert lake.keys() == []
        tables = books.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'", database="bookkeeping")
        counts = {t: books.execute(f"SELECT COUNT(*) FROM {t}", database="bookkeeping")[0][0] for (t,) in tables}
        assert not {name: rows for name, rows in counts.items() if rows and "alembic" not in name}
    assert not [pod for pod in kubernetes.pods() if pod.metadata.deletion_timestamp is None]
    secret = [user["password"], *books.passwords.values(), json.loads(lake.connection())["password"]]
    assert not any(word in run.stdout for word in secret)


@pytest.mark.kubernetes
@pytest.mark.spark
@pytest.mark.timeout(1800)
def test_in_a_cluster_that_it_starts() -> None:
    folder = temporary_folder("cdc-demo-")  # pytest's own is too long for the sockets of containerd
    folder.chmod(0o755)  # PostgreSQL runs as another user
    assert_story(run_demo(folder, {}))
    assert list(folder.iterdir()) == []
    remove_folder(folder)


def test_settings_that_lack(tmp_path: Path) -> None:
    """With some of them it does not start a cluster of its own."""
    run = run_demo(tmp_path, {"CONTEXT": "somewhere", "IMAGE": "registry.example/cdc:1"})
    assert run.returncode == 1
    needed = "AIRFLOW_CONN_CDC_SOURCE, AIRFLOW_CONN_CDC_STATE, SINK"
    assert f"FAILED: set {needed} in the environment, or none of them" in run.stdout and "Traceback" not in run.stdout
    assert list(tmp_path.iterdir()) == []
