"""Drivers as pods of a real Kubernetes, as the user of Airflow's Helm chart: ``make test-kubernetes``."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from airflow.exceptions import AirflowFailException

from airflow_provider_cdc.model.errors import CdcError, TransientError, UnexpectedError
from airflow_provider_cdc.preflight.check_result import run_check
from airflow_provider_cdc.preflight.cluster import check_cluster
from airflow_provider_cdc.spark.pod_status import pod_name
from airflow_provider_cdc.verify.run import verify_tables
from tests.support.cli import Cli
from tests.support.cluster_tasks import (
    ROWS,
    Canary,
    die_at,
    follow,
    make_table,
    read,
    snapshot_operator,
    stream_operator,
    task_context,
    wait_for_running_group,
)
from tests.support.kubernetes import Kubernetes
from tests.support.postgres import Postgres
from tests.support.processes import wait_for
from tests.support.servers import MySQLServer

pytestmark = [pytest.mark.spark, pytest.mark.kubernetes]


def spark_connection(kubernetes: Kubernetes, **extra: str) -> str:
    values = {"deploy-mode": "cluster", "namespace": kubernetes.namespace, "kubernetes_conn_id": "kube", **extra}
    return json.dumps({"conn_type": "spark", "host": f"k8s://{kubernetes.address}", "extra": values})


@pytest.fixture
def cli(
    mysql_server: MySQLServer,
    cdc_user: dict[str, str],
    database: str,
    tmp_path: Path,
    kubernetes: Kubernetes,
    state_server: Postgres,
    monkeypatch: pytest.MonkeyPatch,
) -> Cli:
    """A pipeline whose drivers run in pods."""
    make_table(mysql_server, database)
    state_server.execute("DROP OWNED BY CURRENT_USER", database="bookkeeping")
    kubernetes.delete_pods()
    write_template(tmp_path, kubernetes.pod_template(tmp_path))
    cli = Cli(
        tmp_path,
        mysql_server,
        f"{database}.t",
        user=cdc_user,
        snapshot={"chunk_rows": 10, "group_rows": 30},
        state={"conn_id": "books"},
        spark={
            "conn_id": "spark_kube",
            "conf": {
                "spark.kubernetes.driver.podTemplateFile": str(tmp_path / "pod.yaml"),
                "spark.pyspark.python": sys.executable,
                "spark.driver.memory": "512m",
            },
        },
    )
    cli.env |= {
        "AIRFLOW_CONN_BOOKS": state_server.uri("bookkeeping"),
        "AIRFLOW_CONN_SPARK_KUBE": spark_connection(kubernetes),
        "AIRFLOW_CONN_KUBE": kubernetes.connection(),
    }
    for name, value in cli.env.items():
        monkeypatch.setenv(name, value)
    return cli


def write_template(folder: Path, pod: dict[str, Any]) -> None:
    (folder / "pod.yaml").write_text(yaml.safe_dump(pod))


def running_pods(kubernetes: Kubernetes) -> list[Any]:
    return [pod for pod in kubernetes.pods() if pod.status.phase in ("Pending", "Running")]


def test_a_snapshot(
    cli: Cli,
    kubernetes: Kubernetes,
    cdc_user: dict[str, str],
    state_server: Postgres,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It is read in a pod, and is equal. Passwords are in no process, no file and no object of the cluster."""
    passwords = cdc_user["password"], state_server.passwords["bookkeeping"]
    canary, seen = Canary(*passwords), []

    def look() -> bool:
        pods = kubernetes.client().list_namespaced_pod(kubernetes.namespace, _preload_content=False).data.decode()
        secrets = kubernetes.client().list_secret_for_all_namespaces(_preload_content=False).data.decode()
        seen.append(pods + secrets)
        return '"phase":"Running"' in pods

    with canary, ThreadPoolExecutor(1) as pool:
        running = pool.submit(read, cli.file)
        wait_for("the pod runs", look, 120)
        while not running.done():
            look()
        result = running.result()
    assert result["rows"] == ROWS and [group["outcome"] for group in result["groups"]] == ["published"] * 2
    with cli.opened() as (_, store):
        assert store.live_drivers("p") == []
    assert all(verdict.is_equal for verdict in verify_tables(cli.context))
    assert not canary.found
    assert not canary.files(kubernetes.folder, cli.sink / "_cdc"), "a password is in a file"
    assert any('"airflow-cdc/work"' in text for text in seen)
    assert not any(password in text for password in passwords for text in seen)
    said = "".join(capsys.readouterr())
    assert not any(password in said for password in passwords)
    assert "the end of the driver's log, kubectl -n cdc logs airflow-cdc-" in said and "group 1 published" in said
    wait_for("its pod is removed", lambda: not kubernetes.pods(), 60)


def test_what_a_driver_needs_is_checked(cli: Cli, kubernetes: Kubernetes) -> None:
    def check() -> list[str]:
        return [*map(str, run_check(lambda: check_cluster(cli.context)))]

    found = check()
    assert any("drivers run in pods (Kubernetes v1.34" in line and "namespace cdc" in line for line in found), found
    found = [line for line in found if "do not reach" not in line]  # the servers of the tests are on loopback
    assert any("seems to be on a disk of this host" in line for line in found) and len(found) == 2
    with kubernetes.forbid("pods/exec"):
        assert any("may not get pods/exec, create pods/exec in namespace cdc" in line for line in check())
    write_template(cli.folder, {**kubernetes.pod_template(), "metadata": {"labels": {"a": "not/a/label"}}})
    assert any("did not accept a pod of a driver" in line and "pod template" in line for line in check())
    assert not kubernetes.pods()


@pytest.mark.parametrize("right", ["pods", "pods/exec"])
def test_a_right_that_lacks(cli: Cli, kubernetes: Kubernetes, right: str) -> None:
    with kubernetes.forbid(right), pytest.raises(AirflowFailException, match="[Ff]orbidden.*role in that namespace"):
        read(cli.file)
    with cli.opened() as (_, store):
        assert store.live_drivers("p") == []
    wait_for("nothing is left", lambda: not running_pods(kubernetes), 60)
    assert read(cli.file, try_number=2)["rows"] == ROWS


def test_an_image_that_is_not_there(cli: Cli, kubernetes: Kubernetes, monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver ends after some attempts, and the error says what to change."""
    monkeypatch.setattr("airflow_provider_cdc.driver.launchers.kubernetes._BLOCKED_SECONDS", 5.0)
    cli.value["spark"]["conf"]["spark.kubernetes.container.image"] = "nowhere.test/none:1"
    cli.write()
    pod = kubernetes.pod_template(cli.folder)
    for policy, reason, kind in (
        ("Never", "ErrImageNeverPull", AirflowFailException),
        ("Always", "(ErrImagePull|ImagePullBackOff)", TransientError),  # its registry may be away
    ):
        pod["spec"]["containers"][0]["imagePullPolicy"] = policy
        write_template(cli.folder, pod)
        with pytest.raises(kind, match=rf"cannot start: pod cdc/\S+ is Pending: {reason}.*Check the image"):
            read(cli.file)
        wait_for("nothing is left", lambda: not running_pods(kubernetes), 60)


def test_a_pod_that_fits_nowhere(cli: Cli, kubernetes: Kubernetes, capsys: pytest.CaptureFixture[str]) -> None:
    """The driver waits, the task's log says why, and nothing is left when the task is killed."""
    write_template(cli.folder, kubernetes.pod_template(cli.folder, memory="9Ti"))
    operator = snapshot_operator(cli.file)
    said = ""

    def says_why() -> bool:
        nonlocal said
        said += capsys.readouterr().out
        return "Unschedulable" in said

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(operator.execute, task_context("read"))
        wait_for("the reason", says_why, 60)
        operator.on_kill()
        assert isinstance(running.exception(60), TransientError)
    assert re.search(r"waiting. pod cdc/\S+ is Pending: Unschedulable: .*Insufficient memory", said), said
    wait_for("nothing is left", lambda: not kubernetes.pods(), 60)


def test_memory_that_is_too_small(cli: Cli, kubernetes: Kubernetes) -> None:
    write_template(cli.folder, kubernetes.pod_template(cli.folder, memory="150Mi"))
    with pytest.raises((UnexpectedError, TransientError), match="OOMKilled|ran out of memory|was killed"):
        read(cli.file)
    write_template(cli.folder, kubernetes.pod_template(cli.folder))
    assert read(cli.file, try_number=2)["rows"] == ROWS


@pytest.mark.parametrize("failpoint", ["driver.row_written", "driver.submitted", "driver.handed_over"])
def test_a_retry_of_a_try_that_was_killed(cli: Cli, kubernetes: Kubernetes, failpoint: str) -> None:
    """A driver that works is adopted; one that waits for its request is ended, and another one begins."""
    pod = kubernetes.pod_template(cli.folder)
    pod["spec"]["terminationGracePeriodSeconds"] = 300  # a container that ignores SIGTERM is still there in the end
    write_template(cli.folder, pod)
    die_at(cli, failpoint)
    with cli.opened() as (_, store):
        (left,) = store.live_drivers("p")
        if failpoint == "driver.handed_over":
            wait_for("it works", lambda: store.driver(left.id).state == "running", 60)  # type: ignore[union-attr]
        result = read(cli.file, try_number=2)
        now = store.driver(left.id)
        assert result["rows"] == ROWS and now is not None and now.outcome is not None
        assert ("outcome" in now.outcome) is (failpoint == "driver.handed_over")
        assert store.live_drivers("p") == []
    wait_for("nothing is left", lambda: not running_pods(kubernetes), 60)


@pytest.mark.parametrize("how", ["deleted", "evicted", "its Java", "SIGKILL", "the task"])
def test_a_driver_that_is_ended(cli: Cli, kubernetes: Kubernetes, how: str) -> None:
    """A retry reads what is missing, and the copy is equal."""
    cli.value["snapshot"]["max_rows_per_second"] = 2
    cli.write()
    operator = snapshot_operator(cli.file)
    with cli.opened() as (_, store), ThreadPoolExecutor(1) as pool:
        running = pool.submit(operator.execute, task_context("read"))
        wait_for_running_group(store)
        name = pod_name(store.live_drivers("p")[0].id)
        if how == "deleted":
            kubernetes.client("airflow").delete_namespaced_pod(name, kubernetes.namespace)
        elif how == "evicted":
            body = {"metadata": {"name": name, "namespace": kubernetes.namespace}}
            kubernetes.client().create_namespaced_pod_eviction(name, kubernetes.namespace, body)
        elif how == "the task":
            operator.on_kill()
        else:
            kill_in_pod(kubernetes, name, "/bin/java" if how == "its Java" else "pod_main")
        error = running.exception(120)
        assert isinstance(error, TransientError), error
        words = {"SIGKILL": "exit code 137", "the task": "ended with its task", "its Java": ""}
        assert re.search(words.get(how, "deleted, evicted"), str(error)), error
        assert store.live_drivers("p") == []
        wait_for("its pod ends", lambda: not running_pods(kubernetes), 60)
    cli.value["snapshot"]["max_rows_per_second"] = None
    cli.write()
    assert read(cli.file, try_number=2)["rows"] <= ROWS
    assert all(verdict.is_equal for verdict in verify_tables(cli.context))


def kill_in_pod(kubernetes: Kubernetes, pod: str, words: str) -> None:
    """Send SIGKILL to a process of a pod, from outside: its first process cannot be killed from inside."""
    found: list[int] = []

    def look() -> bool:
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                with suppress(OSError):
                    command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                    environment = (entry / "environ").read_bytes().decode(errors="replace")
                    if words in command and f"CDC_DRIVER_POD={kubernetes.namespace}/{pod}/" in environment:
                        found.append(int(entry.name))
        return bool(found)

    wait_for(f"a process of {pod} with {words} in its command line", look, 60)
    os.kill(min(found), signal.SIGKILL)


def test_an_error_in_a_pod(cli: Cli, kubernetes: Kubernetes) -> None:
    """Nobody has to end the driver, and its pod stays for a while, with its log."""
    cli.value["spark"]["conf"]["spark.driver.defaultJavaOptions"] = "-javaagent:/nowhere.jar"
    cli.write()
    with pytest.raises((CdcError, AirflowFailException)):
        read(cli.file)
    wait_for("it ends", lambda: not running_pods(kubernetes), 60)
    (pod,) = kubernetes.pods()
    assert pod.status.phase == "Failed" and pod.metadata.deletion_timestamp is None
    log = kubernetes.client().read_namespaced_pod_log(pod.metadata.name, kubernetes.namespace)
    assert "ended by an error" in log


def test_settings_from_a_secret(cli: Cli, kubernetes: Kubernetes) -> None:
    """What may not be in ``spark.conf`` is in a file that the template mounts: a driver that cannot use it says so."""
    template = kubernetes.pod_template(cli.folder)
    (container,) = template["spec"]["containers"]
    container["volumeMounts"].append({"name": "conf", "mountPath": "/conf", "readOnly": True})
    container["env"].append({"name": "SPARK_CONF_DIR", "value": "/conf"})
    template["spec"]["volumes"].append({"name": "conf", "secret": {"secretName": "conf"}})
    write_template(cli.folder, template)
    settings = "spark.eventLog.enabled true\nspark.eventLog.dir file:/named-in-a-secret\n"
    secret = {"metadata": {"name": "conf"}, "stringData": {"spark-defaults.conf": settings}}
    kubernetes.client().create_namespaced_secret(kubernetes.namespace, secret)
    try:
        with pytest.raises((CdcError, AirflowFailException), match="named-in-a-secret"):
            read(cli.file)
    finally:
        kubernetes.client().delete_namespaced_secret("conf", kubernetes.namespace)


def test_a_node_that_is_gone(cli: Cli, kubernetes: Kubernetes) -> None:
    """Its pods are deleted after a while, and no kubelet says that they have ended: their drivers are lost."""
    cli.value["snapshot"]["max_rows_per_second"] = 2
    cli.write()
    with ThreadPoolExecutor(1) as pool, cli.opened() as (_, store):
        running = pool.submit(read, cli.file)
        wait_for_running_group(store)
        name = pod_name(store.live_drivers("p")[0].id)
        kubernetes.stop_kubelet()
        try:
            kill_in_pod(kubernetes, name, "pod_main")
            # As Kubernetes itself does after five minutes, unless it has lost all of its nodes at once.
            kubernetes.client().delete_namespaced_pod(name, kubernetes.namespace, grace_period_seconds=1)
            error = running.exception(300)
        finally:
            kubernetes.start_kubelet()
            kubernetes.wait_until_ready()
        assert isinstance(error, TransientError) and "its node does not say that it has ended" in str(error), error
        assert store.live_drivers("p") == []
    wait_for("nothing is left", lambda: not running_pods(kubernetes), 120)
    assert read(cli.file, try_number=2)["rows"] <= ROWS
    assert all(verdict.is_equal for verdict in verify_tables(cli.context))


def test_a_node_that_is_lost(cli: Cli, kubernetes: Kubernetes) -> None:
    """Nobody ends the driver, so it goes on; the task does not care who says nothing, as long as the driver does."""
    cli.value["snapshot"]["max_rows_per_second"] = 2
    cli.write()
    with ThreadPoolExecutor(1) as pool, cli.opened() as (_, store):
        running = pool.submit(read, cli.file)
        wait_for_running_group(store)
        kubernetes.stop_kubelet()
        try:
            assert running.result(300)["rows"] == ROWS
        finally:
            kubernetes.start_kubelet()
            kubernetes.wait_until_ready()
    assert all(verdict.is_equal for verdict in verify_tables(cli.context))
    wait_for("nothing is left", lambda: not running_pods(kubernetes), 120)


def test_a_stream(
    cli: Cli,
    kubernetes: Kubernetes,
    mysql_server: MySQLServer,
    database: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Its task defers, another finds it, it ends at a transaction boundary with its pod, and when it is asked to."""
    monkeypatch.setenv("AIRFLOW_IS_K8S_EXECUTOR_POD", "True")  # it outlives the pods of its tasks
    cli.snapshot()
    first = follow(cli)
    assert first.epoch == 1 and not first.found

    def wait_until_applied(epoch: int) -> None:
        with cli.opened() as (_, store):
            wait_for("a change", lambda: (run := store.epoch_row("p", epoch)) is not None and run.changes == 1, 120)

    mysql_server.execute(f"INSERT INTO {database}.t VALUES (1000, 'a')")
    wait_until_applied(1)
    again = follow(cli)
    assert again.found and again.epoch == 1 and len(running_pods(kubernetes)) == 1
    with cli.opened() as (context, store):
        (driver,) = store.live_drivers("p")
        kubernetes.client("airflow").delete_namespaced_pod(pod_name(driver.id), kubernetes.namespace)
        wait_for("the stream ends", lambda: store.newest_epoch("p").state == "stopped", 60)  # type: ignore[union-attr]
        mysql_server.execute(f"INSERT INTO {database}.t VALUES (1001, 'b')")
        second = follow(cli, {"epoch": 1, "found": False, "verdict": "stopped"})
        assert second.epoch == 2 and not second.found
        words = r"epoch 1 on .* was lost.*pod cdc/\S+ (was|is Running: it is being) deleted"
        assert re.search(words, capsys.readouterr().out)
        wait_until_applied(2)
        (driver,) = store.live_drivers("p")
        kill_in_pod(kubernetes, pod_name(driver.id), "pod_main")
        assert context.liveness.wait_until_known(store, "p")[1] is False
        third = follow(cli, {"epoch": 2, "found": False, "verdict": "lost"})
        assert third.epoch == 3
        last_driver = next(row.id for row in store.live_drivers("p") if row.state == "running")
        assert re.search("epoch 2 on .* was lost.*exit code 137", capsys.readouterr().out)
        store.request_stop("p")
        wait_for("the stream ends", lambda: store.newest_epoch("p").state == "stopped", 120)  # type: ignore[union-attr]
        operator = stream_operator(cli.file)
        result = operator.resume(task_context("stream"), {"epoch": 3, "found": False, "verdict": "stopped"})
        assert result["state"] == "stopped"
        names = [pod.metadata.name for pod in kubernetes.pods() if pod.metadata.deletion_timestamp is None]
        assert pod_name(last_driver) not in names
    assert all(verdict.is_equal for verdict in verify_tables(cli.context))
