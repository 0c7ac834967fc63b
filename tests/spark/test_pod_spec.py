"""The pod of a driver: what of the user's template and settings is in it, and what is refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, cast

import pytest
import yaml

from airflow_provider_cdc.config import Pipeline
from airflow_provider_cdc.config.connections import ResolvedConnection, spark_cluster
from airflow_provider_cdc.config.spark_conf import KubernetesCluster, driver_pod_master
from airflow_provider_cdc.driver.launchers.kubernetes import PodDriver
from airflow_provider_cdc.driver.launchers.sealed_request import DriverSecret
from airflow_provider_cdc.driver.pod_main import open_pipe, wait_for_secret
from airflow_provider_cdc.model.errors import CdcError, NotReadyError, TransientError
from airflow_provider_cdc.runtime.run_context import RunContext
from airflow_provider_cdc.spark.kubernetes_api import _to_cdc_error, make_configuration
from airflow_provider_cdc.spark.kubernetes_pods import PodManager
from airflow_provider_cdc.spark.pod_spec import make_pod, namespace_of, pipeline_label
from airflow_provider_cdc.spark.pod_status import Pod, to_pod
from airflow_provider_cdc.state.models import DriverRow
from tests import ROOT

IMAGE = {"spark.kubernetes.container.image": "registry.test/cdc:1"}
TEMPLATE: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"labels": {"team": "data"}, "annotations": {"karpenter.sh/do-not-disrupt": "false"}},
    "spec": {
        "serviceAccountName": "cdc",
        "volumes": [{"name": "certificates", "secret": {"secretName": "ca"}}],
        "containers": [
            {"name": "proxy", "image": "proxy:1"},
            {
                "name": "main",
                "image": "own:2",
                "args": ["--no"],
                "env": [{"name": "TZ", "value": "UTC"}],
                "resources": {"limits": {"memory": "8Gi"}},
                "volumeMounts": [{"name": "certificates", "mountPath": "/certificates"}],
            },
        ],
    },
}


def make(**conf: str) -> dict[str, Any]:
    settings = {name.replace("__", "."): value for name, value in conf.items()}
    return make_pod("shop-", "0123", "chunk groups abc", settings)


def template(folder: Path, value: Any) -> dict[str, str]:
    path = folder / "pod.yaml"
    path.write_text(value if isinstance(value, str) else yaml.safe_dump(value))
    return {"spark.kubernetes.driver.podTemplateFile": str(path)}


def test_without_a_template() -> None:
    pod = make(**IMAGE)
    (container,) = pod["spec"]["containers"]
    assert pod["metadata"]["name"] == "airflow-cdc-0123" and pod["metadata"]["namespace"] == "default"
    assert (
        pod["metadata"]["labels"]
        == {"airflow-cdc/pipeline": "shop"}
        == {"airflow-cdc/pipeline": pipeline_label("shop-")}
    )
    assert pod["spec"]["restartPolicy"] == "Never" and pod["spec"]["automountServiceAccountToken"] is False
    request = {"name": "airflow-cdc-request", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}}
    assert pod["spec"]["volumes"] == [request] and container["image"] == "registry.test/cdc:1"
    assert container["command"] == ["python3", "-P", "-m", "airflow_provider_cdc.driver.pod_main"]
    assert container["resources"] == {"requests": {"cpu": "2", "memory": "2048Mi"}}
    assert container["env"] == [{"name": "CDC_DRIVER_POD", "value": "default/airflow-cdc-0123/driver"}]
    more = {"spark.driver.memory": "3g", "spark.driver.memoryOverhead": "512m", "spark.driver.cores": "4"}
    (container,) = make(**IMAGE, **more)["spec"]["containers"]
    assert container["resources"] == {"requests": {"cpu": "4", "memory": "3584Mi"}}


def test_what_a_template_says_stays(tmp_path: Path) -> None:
    conf = template(tmp_path, TEMPLATE) | {
        "spark.kubernetes.driver.podTemplateContainerName": "main",
        "spark.kubernetes.namespace": "lake",
        "spark.pyspark.python": "/env/bin/python",
    }
    pod = make(**conf)
    proxy, main = pod["spec"]["containers"]
    assert proxy == TEMPLATE["spec"]["containers"][0] and pod["spec"]["serviceAccountName"] == "cdc"
    assert main["image"] == "own:2" and main["command"][0] == "/env/bin/python" and "args" not in main
    assert main["resources"] == {"limits": {"memory": "8Gi"}}
    assert [volume["name"] for volume in pod["spec"]["volumes"]] == ["certificates", "airflow-cdc-request"]
    assert [mount["name"] for mount in main["volumeMounts"]] == ["certificates", "airflow-cdc-request"]
    assert [one["name"] for one in main["env"]] == ["TZ", "CDC_DRIVER_POD"]
    assert pod["metadata"]["labels"]["team"] == "data" and pod["metadata"]["namespace"] == "lake"
    annotations = pod["metadata"]["annotations"]
    assert annotations["karpenter.sh/do-not-disrupt"] == "false" and annotations["airflow-cdc/container"] == "main"
    assert make(**conf, **IMAGE)["spec"]["containers"][1]["image"] == "registry.test/cdc:1"


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"kind": "Job"}, "is not a pod"),
        ("a: [", "is not YAML .line 1."),
        ("- 1", "is not a pod"),
        ({"spec": []}, "must be mappings"),
        ({"spec": {"containers": {}}}, "no list of containers"),
        ({"spec": {"containers": [{"name": "a"}]}}, "have no image"),
        ({"metadata": {"namespace": "other"}}, "is for namespace other, and the pods are created in default"),
    ],
)
def test_templates_that_are_refused(tmp_path: Path, value: Any, words: str) -> None:
    with pytest.raises(NotReadyError, match=words) as error:
        make(**template(tmp_path, value))
    assert "\n" not in str(error.value)


def test_settings_that_are_refused(tmp_path: Path) -> None:
    name = {"spark.kubernetes.driver.podTemplateContainerName": "none"}
    for conf, words in (
        ({**template(tmp_path, TEMPLATE), **name}, "has no container none"),
        ({"spark.kubernetes.driver.podTemplateFile": "pod.yaml"}, "is not an absolute path"),
        ({"spark.kubernetes.driver.podTemplateFile": "/nowhere/pod.yaml"}, "cannot be read: No such file"),
        ({**IMAGE, "spark.driver.memory": "much"}, "spark.driver.memory"),
    ):
        with pytest.raises(NotReadyError, match=words):
            make(**conf)
    for key, words in (
        ("spark.kubernetes.executor.limit.cores", "has no effect on the pod"),
        ("spark.executor.instances", "there are no executors"),
        ("spark.executor.memory", "there are no executors"),
        ("spark.cores.max", "there are no executors"),
        ("spark.dynamicAllocation.enabled", "there are no executors"),
        ("spark.driver.memoryOverheadFactor", r"no effect on the pod.*Use spark\.driver\.memoryOverhead$"),
        ("spark.yarn.queue", "spark.yarn.queue has no effect on Kubernetes"),
        ("spark.pyspark.driver.python", r"no effect on the pod.*Use spark\.pyspark\.python$"),
    ):
        with pytest.raises(NotReadyError, match=words):
            driver_pod_master({key: "1"})
    for key in ("spark.executorEnv.TZ", "spark.executor.pyspark.memory", "spark.executor.heartbeatInterval"):
        assert driver_pod_master({key: "1"}) == "local[2]"  # the driver, which is its own executor, follows it
    with pytest.raises(NotReadyError, match=r"spark\.driver\.cores"):
        driver_pod_master({"spark.driver.cores": "0"})
    assert (driver_pod_master({}), driver_pod_master({"spark.driver.cores": "8"})) == ("local[2]", "local[8]")


def test_the_connection() -> None:
    def cluster(host: str, **extra: str) -> Any:
        return spark_cluster(ResolvedConnection("k", "spark", host, extra={"deploy-mode": "cluster", **extra}))

    assert cluster("k8s://https://api.test:6443") == KubernetesCluster("https://api.test:6443")
    assert cluster("k8s://api.test:6443", kubernetes_conn_id="c") == KubernetesCluster("https://api.test:6443", "c")
    address = KubernetesCluster("https://api.test:6443/")
    config = {
        "current-context": "a",
        "contexts": [{"name": "a", "context": {"cluster": "b", "user": "c"}}],
        "clusters": [{"name": "b", "cluster": {"server": "https://other.test"}}],
        "users": [{"name": "c", "user": {"token": "hunter2"}}],
    }
    access = ResolvedConnection("c", "kubernetes", extra={"kube_config": json.dumps(config), "namespace": "x"})
    found = make_configuration(address, access)
    assert "hunter2" in str(found.api_key) and found.verify_ssl
    unverified = make_configuration(
        address, ResolvedConnection("c", "kubernetes", extra={**access.extra, "disable_verify_ssl": True})
    )
    assert not unverified.verify_ssl
    for configuration in (found, unverified):
        for _ in range(3):  # before each request, the client reads the token again
            assert configuration.host == "https://api.test:6443"
            configuration.auth_settings()
    assert found.verify_ssl and not unverified.verify_ssl
    as_yaml = ResolvedConnection("c", "kubernetes", extra={"kube_config": yaml.safe_dump(config)})
    assert make_configuration(address, as_yaml).api_key == found.api_key
    for conn, words in (
        (ResolvedConnection("c", "mysql"), "must be of type kubernetes"),
        (ResolvedConnection("c", "kubernetes", extra={"kubeconfig": "x"}), "'kubeconfig' is not known"),
        (ResolvedConnection("c", "kubernetes", extra={"kube_config": "hunter2"}), "connection c gives no access"),
        (
            ResolvedConnection("c", "kubernetes", extra={"kube_config": "hunter2: ["}),
            r"\)\. Correct its extra kube_config$",
        ),
        (ResolvedConnection("c", "kubernetes", extra={"kube_config_path": "/nowhere"}), "its extra kube_config_path$"),
        (ResolvedConnection("c", "kubernetes", extra={"in_cluster": True}), "Correct its extra in_cluster$"),
        (
            ResolvedConnection("c", "kubernetes", extra={**access.extra, "cluster_context": "x"}),
            "Correct its extra kube_config and cluster_context$",
        ),
        (
            ResolvedConnection("c", "kubernetes", extra={"in_cluster": True, "kube_config_path": "/nowhere"}),
            "extras in_cluster and kube_config_path contradict each other. Leave out all but one",
        ),
    ):
        with pytest.raises(NotReadyError, match=words) as error:
            make_configuration(address, conn)
        assert "hunter2" not in str(error.value)


def test_the_service_account_of_this_pod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each request gets the newest token, and goes to the API server of the Spark connection; verified or not."""
    from kubernetes.config import incluster_config

    token, authority = tmp_path / "token", tmp_path / "ca.crt"
    authority.write_text("a certificate")
    monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(token))
    monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME", str(authority))
    at_once = property(lambda _: timedelta(0), lambda *_: None)  # the client reads the file once in a minute
    monkeypatch.setattr(incluster_config.InClusterConfigLoader, "_token_refresh_period", at_once, raising=False)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    address = KubernetesCluster("https://api.test:6443")
    unverified = {"in_cluster": True, "disable_verify_ssl": True}
    for conn in (None, ResolvedConnection("c", "kubernetes", extra=unverified)):
        token.write_text("first")
        found = make_configuration(address, conn)
        for word in ("second", "third", "fourth"):
            token.write_text(word)
            assert found.auth_settings()["BearerToken"]["value"] == f"bearer {word}"
            assert found.host == "https://api.test:6443" and found.verify_ssl is (conn is None)
            assert found.ssl_ca_cert == str(authority)
        token.write_text("")
        with pytest.raises(TransientError, match="gave no new token for Kubernetes .ConfigException.*is renewed$"):
            found.auth_settings()


@pytest.mark.parametrize(
    ("spark", "kube", "conf", "namespace"),
    [
        ({}, {}, {}, "default"),
        ({"namespace": "a"}, {}, {}, "a"),
        ({}, {"namespace": "b"}, {}, "b"),
        ({}, {"extra__kubernetes__namespace": "b"}, {}, "b"),
        ({"namespace": "a"}, {"namespace": "a"}, {}, "a"),
        ({"namespace": "a"}, {"namespace": ""}, {}, "a"),
        ({"namespace": "a"}, {"namespace": "b"}, {}, None),
        ({}, {"namespace": "b"}, {"spark.kubernetes.namespace": "a"}, None),
    ],
)
def test_the_namespace(spark: Any, kube: Any, conf: Any, namespace: str | None) -> None:
    """It is that of the Spark connection, or else that of the connection of type kubernetes."""
    extra = {"deploy-mode": "cluster", "kubernetes_conn_id": "kube", **spark}
    known = {
        "source": ResolvedConnection("source", "mysql", "db.test"),
        "spark": ResolvedConnection("spark", "spark", "k8s://api.test:6443", extra=extra),
        "kube": ResolvedConnection("kube", "kubernetes", extra=kube),
    }
    pipeline = Pipeline.from_dict(
        {
            "name": "p",
            "source": {"conn_id": "source", "tables": ["d.t"]},
            "sink": {"path": "/lake"},
            "spark": {"conn_id": "spark", "conf": {**IMAGE, **conf}},
        }
    )
    if namespace is None:
        with pytest.raises(NotReadyError, match=r"names the namespace a, and connection kube the namespace b\. Leave"):
            RunContext.for_pipeline(pipeline, find_connection=known.__getitem__)
        return
    settings = RunContext.for_pipeline(pipeline, find_connection=known.__getitem__).spark_config[1]
    assert make_pod("p", "0", "check", settings)["metadata"]["namespace"] == namespace == namespace_of(settings)


@pytest.mark.parametrize(
    ("status", "reason", "message", "kind", "words"),
    [
        (403, "Forbidden", 'User "a" cannot create resource "pods"', NotReadyError, "resource .* .403.*Helm chart"),
        (403, "Forbidden", 'violates PodSecurity "restricted"', NotReadyError, "policies of the namespace"),
        (403, "Forbidden", "forbidden: exceeded quota: q", TransientError, "raise its quota"),
        (422, "Unprocessable", "spec.x: Invalid value", NotReadyError, "pod template"),
        (401, "Unauthorized", "Unauthorized", TransientError, "Unauthorized .401.*Try again; if it lasts, renew"),
        (503, "Unavailable", None, TransientError, "Unavailable .503"),
        (0, "Handshake status 403 Forbidden -+-+- {'a': 1} -+-+- b''", None, NotReadyError, "Forbidden .403.*role"),
    ],
)
def test_errors_of_the_api_server(
    status: int, reason: str, message: str | None, kind: type[CdcError], words: str
) -> None:
    from kubernetes.client import ApiException

    error = ApiException(status=status, reason=reason)
    error.body = message and json.dumps({"message": message})
    found = _to_cdc_error("create a pod", error)
    assert type(found) is kind
    with pytest.raises(kind, match=words):
        raise found


CONFLICT = {
    "kind": "Status",
    "status": "Failure",
    "message": 'Operation cannot be fulfilled on resourcequotas "q": the object has been modified',
    "reason": "Conflict",
    "code": 409,
}
EXISTS = {**CONFLICT, "message": 'pods "airflow-cdc-1" already exists', "reason": "AlreadyExists"}
MISSING = {**CONFLICT, "message": 'pods "airflow-cdc-1" not found', "reason": "NotFound", "code": 404}


@contextmanager
def answers(
    answer: dict[str, Any] | str,
    requests: list[str] | None = None,
    others: dict[str, dict[str, Any]] | None = None,
    seconds: float = 0.0,
) -> Iterator[PodManager]:
    """A manager whose API server gives one recorded answer, and notes what it is asked.

    :param others: other answers, by request.
    :param seconds: how long each takes.
    """
    from kubernetes.client import Configuration

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            request = f"{self.command} {self.path.partition('?')[0].rpartition('/')[2]}"
            if requests is not None:
                requests.append(request)
            time.sleep(seconds)
            found = (others or {}).get(request, answer)
            body = (found if isinstance(found, str) else json.dumps(found)).encode()
            with suppress(ConnectionError):  # the client may have stopped waiting
                self.send_response(404 if isinstance(found, str) else found["code"])
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        do_POST = do_DELETE = do_GET

        def log_message(self, *_: object) -> None:
            pass

    configuration = Configuration(host="")
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            configuration.host = f"http://127.0.0.1:{server.server_port}"
            yield PodManager(configuration, "n")
        finally:
            server.shutdown()
            thread.join()


def test_answers_that_count_as_success() -> None:
    """A pod that is there, or gone, as wanted; but not a conflict, and not what something in between answers."""
    with answers(EXISTS) as pods:
        pods.create({})
    with answers(MISSING) as pods:
        pods.kill("n/airflow-cdc-1")
        assert pods.find_job("1") is None
    with answers(CONFLICT) as pods, pytest.raises(TransientError, match=r"object has been modified .409.*Try again"):
        pods.create({})
    with answers("no such page") as pods, pytest.raises(CdcError, match="did not say how pod n/airflow-cdc-1 is"):
        pods.find_job("1")


def test_a_pod_that_webhooks_admit_slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    """If nobody waited for the answer, the pod would be created, and nobody would know."""
    monkeypatch.setattr("airflow_provider_cdc.spark.kubernetes_pods._TIMEOUT", 0.2)
    with answers({**EXISTS, "code": 409}, seconds=1) as pods:
        pods.create({})
        with pytest.raises(TransientError, match="does not answer"):
            pods.find_job("1")


def test_a_pod_that_is_gone_when_a_command_is_to_run_in_it() -> None:
    """It was evicted a moment ago, which is no fault of its template: the next look sees that."""
    for answer in (
        MISSING,
        {**MISSING, "code": 400, "message": "container main is not running", "reason": "BadRequest"},
    ):
        with answers(answer) as pods, pytest.raises(TransientError, match=rf"run a command.* .{answer['code']}"):
            pods.hand_over(Pod("n", "p", "main", "Running"), ["cat"], "a line\n")


def api_pod(name: str, phase: str, age: timedelta, **status: Any) -> dict[str, Any]:
    """A pod as the API server answers, of a driver that may take five minutes to end."""
    created = (datetime.now(UTC) - age).isoformat().replace("+00:00", "Z")
    metadata = {
        "name": f"airflow-cdc-{name}",
        "namespace": "n",
        "creationTimestamp": created,
        "annotations": {"airflow-cdc/container": "main"},
    }
    spec = {"containers": [], "terminationGracePeriodSeconds": 300}
    return {"metadata": metadata, "spec": spec, "status": {"phase": phase, **status}, "code": 200}


def test_a_pod_that_has_failed_stays() -> None:
    """Its log says why the stream was lost: that task, and the one that starts the next driver, leave it."""
    log, minute = "kubectl -n n logs airflow-cdc-1 -c main", timedelta(minutes=1)
    for pod, deleted in (
        (api_pod("1", "Failed", minute), []),
        (api_pod("1", "Running", minute), ["DELETE airflow-cdc-1"]),
        (MISSING, []),
    ):
        requests: list[str] = []
        with answers(pod, requests) as pods:
            assert pods.kill_by_log(log)
        assert requests == ["GET airflow-cdc-1", *deleted]


def test_pods_that_cannot_be_deleted() -> None:
    """No new driver fails because an old pod stays, or because there is no list of them."""
    items = [api_pod(name, "Failed", timedelta(days=1)) for name in ("1", "2", "3")]
    pods_found = {"kind": "PodList", "code": 200, "items": items}
    refused = {**CONFLICT, "code": 403, "message": "a policy keeps it", "reason": "Forbidden"}
    requests: list[str] = []
    with answers(pods_found, requests, {"DELETE airflow-cdc-1": refused, "DELETE airflow-cdc-2": MISSING}) as pods:
        (error,) = pods.delete_finished("p", dict[str, DriverRow]().get)
    assert "did not delete pod n/airflow-cdc-1: a policy keeps it (403)" in str(error)
    assert requests == ["GET pods", *(f"DELETE airflow-cdc-{name}" for name in "123")]
    with answers(refused) as pods:
        (error,) = pods.delete_finished("p", dict[str, DriverRow]().get)
    assert "did not list the pods of drivers" in str(error)


def test_pods_that_nobody_waits_for() -> None:
    """A pod that has not begun is deleted if its row has ended, or is gone long enough to be gone everywhere.

    One that runs is deleted if its row has ended and it cannot begin, or had the time to end.
    """
    hour, month, now, pod = timedelta(hours=1), timedelta(days=30), datetime.now(UTC), api_pod
    items = [pod("ended", "Pending", hour), pod("wanted", "Pending", month), pod("works", "Running", month)]
    items += [pod("unknown", "Pending", hour), pod("forgotten", "Pending", month)]
    rows = {name: DriverRow(state=state) for name, state in (("ended", "ended"), ("wanted", "submitted"))}
    # It notices that itself, and ends at a transaction boundary.
    rows["works"] = DriverRow(state="ended", handle="n/works", heartbeat_at=now - timedelta(minutes=2))
    items += [
        pod("hangs", "Running", month),
        pod("late", "Running", hour),
        pod("failed", "Running", hour, **ended(now)),
    ]
    rows["hangs"] = DriverRow(state="ended", handle="n/hangs", heartbeat_at=now - hour)
    rows["late"] = DriverRow(state="ended", heartbeat_at=now)  # it was created when its task had given up
    rows["failed"] = rows["hangs"]  # only what is beside the driver still runs
    requests: list[str] = []
    with answers({"kind": "PodList", "code": 200, "items": items}, requests) as pods:
        assert pods.delete_finished("p", rows.get) == []
    deleted = [request.removeprefix("DELETE airflow-cdc-") for request in requests[1:]]
    assert deleted == ["ended", "forgotten", "hangs", "late"]


def ended(at: datetime) -> dict[str, Any]:
    terminated = {"exitCode": 1, "finishedAt": at.isoformat()}
    status = {"name": "main", "state": {"terminated": terminated}, "image": "", "imageID": "", "ready": False}
    return {"containerStatuses": [{**status, "restartCount": 0}]}


def pod_status(state: dict[str, Any] | None, phase: str = "Pending", **status: Any) -> Any:
    statuses = [{"name": "sidecar", "state": {"running": {"a": 1}}}]
    if state is not None:
        statuses.append({"name": "main", "state": state})
    metadata = {"namespace": "n", "name": "p", "annotations": {"airflow-cdc/container": "main"}}
    return to_pod({"metadata": metadata, "status": {"phase": phase, "container_statuses": statuses, **status}})


def test_what_a_pod_says() -> None:
    """It is the driver's container that counts, not those beside it."""
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes"}
    waiting = pod_status(None, conditions=[condition])
    assert str(waiting) == "pod n/p is Pending: Unschedulable: 0/1 nodes"
    assert not (waiting.is_over or waiting.is_running or waiting.is_blocked) and waiting.is_active
    assert waiting.log == "kubectl -n n logs p -c main"
    running = pod_status({"running": {"started_at": 1}}, "Running")
    assert running.is_running and not running.is_over
    killed = pod_status(
        {"terminated": {"reason": "OOMKilled", "exit_code": 137, "finished_at": datetime.now(UTC)}}, "Running"
    )
    assert killed.is_over and killed.is_active and not killed.is_running and "OOMKilled: exit code 137" in str(killed)
    assert str(killed).endswith("or, if it has none there, spark.driver.memoryOverhead")
    evicted = pod_status(None, "Failed", reason="Evicted", message="low on memory")
    assert evicted.is_over and not evicted.is_active and "Evicted: low on memory" in str(evicted)
    metadata = {"namespace": "n", "name": "p", "annotations": None, "deletion_timestamp": datetime.now(UTC)}
    deleted = to_pod({"metadata": metadata, "status": {"phase": "Running"}})
    assert str(deleted) == "pod n/p is Running: it is being deleted" and not deleted.is_over
    first = pod_status(
        {"waiting": {"reason": "PodInitializing"}},
        init_container_statuses=[
            {"name": "first", "state": {"waiting": {"reason": "ErrImagePull", "message": "none"}}}
        ],
    )
    assert first.is_blocked and str(first) == "pod n/p is Pending: ErrImagePull: none"
    # Its node has had the time to end it, and more: the API server waits for the node to say that it has.
    metadata |= {"deletion_timestamp": datetime.now(UTC) - timedelta(minutes=1)}
    lost = to_pod({"metadata": metadata, "status": {"phase": "Running"}})
    assert lost.is_over and "its node does not say that it has ended" in str(lost)


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        ("ErrImagePull", TransientError),  # its registry may be away for longer than that
        ("ImagePullBackOff", TransientError),
        ("RegistryUnavailable", TransientError),
        ("InvalidImageName", NotReadyError),
        ("ErrImageNeverPull", NotReadyError),
        ("CreateContainerConfigError", NotReadyError),
    ],
)
def test_a_pod_that_cannot_start(reason: str, kind: type[CdcError], monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no log to look at: the error says why, and what to change, when there was time for another attempt."""
    pod = pod_status({"waiting": {"reason": reason, "message": 'secret "ca" not found'}})
    driver = PodDriver(cast("Any", None), cast("Any", None), "1")
    assert driver._find_blockage(pod) is None
    assert pod.is_blocked and not pod.is_over
    monkeypatch.setattr("airflow_provider_cdc.driver.launchers.kubernetes._BLOCKED_SECONDS", 0.0)
    error = driver._find_blockage(pod)
    assert type(error) is kind and f'{reason}: secret "ca" not found. Check the image' in str(error)


def test_a_request_that_comes_in_parts(tmp_path: Path) -> None:
    """A writer that was cut off does not end the wait; nobody else can open the pipe."""
    secret, pipe = DriverSecret("1", b"k" * 32, {"conn_id": "books"}, "0"), tmp_path / "request"
    line = secret.to_bytes() + b"\n"

    end = open_pipe(pipe)
    assert os.stat(pipe).st_mode & 0o777 == 0o600
    pipe.write_bytes(line[:10])
    rest = threading.Timer(0.5, pipe.write_bytes, [line[10:]])
    rest.start()
    assert wait_for_secret(pipe, end, 30) == secret
    rest.join()
    assert not pipe.exists()
    with pytest.raises(TransientError, match="no task has handed over"):
        wait_for_secret(pipe, open_pipe(pipe), 0.1)
    assert not pipe.exists()


def test_a_request_that_comes_before_it_is_read(tmp_path: Path) -> None:
    """It is kept, also if it comes twice: the driver opens the pipe first, and then imports for a while."""
    secret, pipe = DriverSecret("1", b"k" * 32, {"conn_id": "books"}, "0"), tmp_path / "request"
    end = open_pipe(pipe)
    for _ in range(2):
        pipe.write_bytes(secret.to_bytes() + b"\n")
    assert wait_for_secret(pipe, end, 30) == secret


def test_the_pipe_is_open_before_what_takes_seconds_to_import() -> None:
    """Where a pod has a small share of a core, the command that hands over would give up."""
    code = """
import sys
from airflow_provider_cdc.driver import pod_main
def open_pipe(pipe):
    print(str(pipe), "sqlalchemy" in sys.modules, "pyarrow" in sys.modules)
    sys.exit()
pod_main.open_pipe = open_pipe
pod_main.main()
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert run.stdout == "/run/airflow-cdc/request False False\n", run.stderr
