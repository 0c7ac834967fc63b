"""Airflow's tasks in pods of a real Kubernetes (KubernetesExecutor), and drivers in pods of their own."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from airflow_provider_cdc.model.errors import CdcError
from airflow_provider_cdc.spark.pod_status import pod_name
from airflow_provider_cdc.state import ChunkGroupRow, StateDatabase
from tests.driver.test_kubernetes import spark_connection
from tests.support.airflow_processes import Airflow
from tests.support.kubernetes import Kubernetes
from tests.support.oracle import compare_database
from tests.support.postgres import Postgres
from tests.support.processes import wait_for
from tests.support.servers import MySQLServer

pytestmark = [pytest.mark.airflow, pytest.mark.spark, pytest.mark.kubernetes, pytest.mark.timeout(3600)]

ROWS = 200
#: Settings of Airflow that a worker must not have, or has otherwise than the scheduler.
_NOT_FOR_WORKERS = ("AIRFLOW__DATABASE__", "AIRFLOW__API_AUTH__", "AIRFLOW__KUBERNETES_EXECUTOR__")
_ENVIRONMENT = re.compile(r"AIRFLOW_|CDC_|PYTHON")


@dataclass
class Pods:
    """An Airflow whose tasks run in pods, and what they write.

    :param store: state database of the pipeline.
    :param lake: folder of the copy.
    """

    airflow: Airflow
    kubernetes: Kubernetes
    server: MySQLServer
    store: StateDatabase
    database: str
    lake: Path

    def live(self) -> list[Any]:
        """Return the pods that have not ended: Airflow keeps those that have failed."""
        return [pod for pod in self.kubernetes.pods() if pod.status.phase not in ("Succeeded", "Failed")]

    def workers(self, task: str = "") -> list[Any]:
        """Return the live pods of tasks, or those of one task."""
        found = [pod for pod in self.live() if "dag_id" in pod.metadata.labels]
        return [pod for pod in found if pod.metadata.annotations["task_id"] == task or not task]

    def drivers(self) -> list[str]:
        """Return the names of the live pods of drivers."""
        return [pod.metadata.name for pod in self.live() if pod.metadata.name.startswith("airflow-cdc-")]

    def wait(self, what: str, condition: Any, seconds: float = 120) -> None:
        try:
            wait_for(what, condition, seconds, 0.3)
        except TimeoutError as error:
            raise AssertionError(f"{error}\n{self.airflow.client.stories()}") from None

    def worker(self, task: str, index: int) -> Any:
        """Return the pod of a mapped task."""
        (pod,) = [pod for pod in self.workers(task) if pod.metadata.annotations["map_index"] == str(index)]
        return pod

    def change(self, epoch: int, changes: int, *statements: str) -> None:
        """Change rows, and wait until an epoch of the stream has applied that many changes in all."""
        self.server.session(self.database, *statements)
        self.wait("a change", lambda: (row := self.store.epoch_row("pods", epoch)) and row.changes == changes)

    def assert_equal(self) -> None:
        found = [str(d) for d in compare_database(self.server, self.database, self.lake, ["t"])]
        assert not found, found


@pytest.fixture
def pods(mysql_server: MySQLServer, database: str, kubernetes: Kubernetes, tmp_path: Path) -> Iterator[Pods]:
    # Its password is in the template of the workers' pods, and so in etcd. Other tests look for theirs there.
    cdc_user = mysql_server.create_cdc_user("cdc_in_pods")
    rows = ", ".join(f"({number}, 'name {number}')" for number in range(ROWS))
    mysql_server.session(
        database, "CREATE TABLE t (id INT PRIMARY KEY, name VARCHAR(20))", f"INSERT INTO t VALUES {rows}"
    )
    files = {name: tmp_path / name for name in ("driver.yaml", "worker.yaml", "kube.json", "lake")}
    files["driver.yaml"].write_text(yaml.safe_dump(kubernetes.pod_template(tmp_path, memory="2Gi", cpu="300m")))
    files["kube.json"].write_text(json.dumps(kubernetes.kubeconfig("airflow")))
    with contextlib.ExitStack() as stack:
        metadata, books = (stack.enter_context(Postgres([name])) for name in ("airflow", "bookkeeping"))
        airflow = Airflow(
            Path(__file__).parent / "dags_kubernetes",
            database_url=metadata.sqlalchemy_url(),
            connections={
                "cdc_source": mysql_server.uri(**cdc_user),
                "cdc_state": books.uri(),
                "spark_kube": spark_connection(kubernetes),
                "kube": kubernetes.connection("airflow"),
            },
            env={
                "CDC_TABLE": f"{database}.t",
                "CDC_LAKE": str(files["lake"]),
                "CDC_POD_TEMPLATE": str(files["driver.yaml"]),
                "CDC_PYTHON": sys.executable,
            },
            config={
                "core": {"executor": "KubernetesExecutor"},
                "scheduler": {"task_instance_heartbeat_timeout": 30},  # tries the task of a worker that is lost again
                "kubernetes_executor": {
                    "namespace": kubernetes.namespace,
                    "in_cluster": False,
                    "config_file": files["kube.json"],
                    "pod_template_file": files["worker.yaml"],
                },
            },
        )
        stack.callback(kubernetes.delete_pods)
        stack.enter_context(airflow)
        files["worker.yaml"].write_text(yaml.safe_dump(worker_pod(kubernetes, airflow, tmp_path)))
        store = stack.enter_context(
            contextlib.closing(StateDatabase.open(books.sqlalchemy_url("bookkeeping"), migrate=True))
        )
        yield Pods(airflow, kubernetes, mysql_server, store, database, files["lake"])


def worker_pod(kubernetes: Kubernetes, airflow: Airflow, folder: Path) -> dict[str, Any]:
    """Return the template of a worker's pod."""
    logs = airflow.home / "logs"
    logs.mkdir(exist_ok=True)
    pod = kubernetes.pod_template(folder, logs, memory="1Gi", cpu="300m")
    environment = {
        name: value
        for name, value in airflow.env.items()
        if _ENVIRONMENT.match(name) and not name.startswith(_NOT_FOR_WORKERS)
    }
    environment |= {"AIRFLOW__CORE__EXECUTOR": "LocalExecutor"}  # as in the Helm chart: a worker starts no others
    pod["spec"]["containers"][0]["env"] += [{"name": name, "value": value} for name, value in environment.items()]
    return pod


def kill_pod(uid: str) -> None:
    """Send SIGKILL to the first process of a pod, as when it has too little memory."""
    parents: dict[int, int] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if uid in (folder / "cgroup").read_text() and (folder / "exe").resolve().name.startswith("python"):
                parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
    (first,) = [pid for pid, parent in parents.items() if parent not in parents]
    os.kill(first, signal.SIGKILL)


def test_a_pipeline(pods: Pods) -> None:
    """Drivers run in pods that the pods of tasks create, and outlive them; what ends either of them is made good."""
    client, store = pods.airflow.client, pods.store
    run = client.trigger("pods")

    # While both chunk groups are read, the worker of one is deleted, and that of the other one is killed.
    pods.wait("both groups", lambda: [row.state for row in groups(store)] == ["running"] * 2)
    drivers = {row.requester.rpartition("/")[2]: row.id for row in store.live_drivers("pods")}
    assert sorted(pods.drivers()) == sorted(map(pod_name, drivers.values())) and sorted(drivers) == ["0", "1"]
    deleted, killed = (pods.worker("pods.snapshot", index).metadata for index in (0, 1))
    kill_pod(killed.uid)
    pods.kubernetes.client().delete_namespaced_pod(deleted.name, deleted.namespace)
    for index in (0, 1):
        client.wait_state("pods", run, "pods.snapshot", map_index=index, min_try=2)
    outcomes: dict[str, Any] = {index: vars(store.driver(driver))["outcome"] for index, driver in drivers.items()}
    assert outcomes["0"]["error"]["message"] == "the driver was ended with its task"
    assert "outcome" in outcomes["1"] and drivers["1"] in client.log("pods", run, "pods.snapshot", 2, 1), "not adopted"

    # The stream's task defers, and its pod is gone; the driver goes on in its own one.
    client.wait_state("pods", run, "pods.stream", "deferred")
    pods.wait("the pods of all tasks end", lambda: not pods.workers())
    (driver,) = pods.drivers()
    pods.change(1, 1, "INSERT INTO t VALUES (1000, 'late')")
    assert client.task_instance("pods", run, "pods.stream").state == "deferred"
    assert (pods.workers(), pods.drivers()) == ([], [driver])

    # It ends when its task is marked, and when it is asked to.
    client.mark("pods", run, "pods.stream", "success")
    pods.wait("the driver's pod ends", lambda: not pods.drivers())
    second = client.trigger("pods_stream")
    client.wait_state("pods_stream", second, "stream", "deferred")
    pods.change(2, 11, "DELETE FROM t WHERE id < 10", "UPDATE t SET name = 'new' WHERE id = 50")
    store.request_stop("pods")
    client.wait_state("pods_stream", second, "stream")
    assert client.xcom("pods_stream", second, "stream")["state"] == "stopped"

    client.wait_run("pods_verify", client.trigger("pods_verify"))
    pods.assert_equal()
    pods.wait("all pods end", lambda: not pods.live())


def groups(store: StateDatabase) -> list[ChunkGroupRow]:
    """Return the chunk groups; none before there is a plan."""
    with contextlib.suppress(CdcError):
        return store.groups("pods", 1)
    return []
