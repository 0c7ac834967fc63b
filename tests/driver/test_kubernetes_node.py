"""What the tests on Kubernetes stand on: a real cluster, with its refusals, and nothing of it is left on this host."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from kubernetes.client import ApiException
from kubernetes.stream import stream

from tests import ROOT
from tests.support.kubernetes_host import left_cgroups, left_processes
from tests.support.processes import wait_for

if TYPE_CHECKING:
    from tests.support.kubernetes import Kubernetes

pytestmark = [pytest.mark.kubernetes]

#: Writes what it reads from a FIFO in memory, as a driver that waits for its request does. Its end would kill the
#: command that writes into the FIFO.
READER = """import os, time
os.mkfifo("/run/cdc/request", 0o600)
print("waits", flush=True)
print(open("/run/cdc/request").read(), flush=True)
time.sleep(1)"""
SLEEPER = """import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(print("asked to end", flush=True)))
print("runs", flush=True)
time.sleep(600)"""


@pytest.fixture(autouse=True)
def _no_pods(kubernetes: Kubernetes) -> Iterator[None]:
    yield
    kubernetes.delete_pods()


def create(cluster: Kubernetes, name: str, code: str, *writable: Path, image: str = "", **template: Any) -> None:
    """Create a pod that runs Python code, as user ``airflow``."""
    pod = cluster.pod_template(*writable, **template)
    pod["metadata"] = {"name": name}
    (container,) = pod["spec"]["containers"]
    pod["spec"]["volumes"].append({"name": "memory", "emptyDir": {"medium": "Memory"}})
    container["volumeMounts"].append({"name": "memory", "mountPath": "/run/cdc"})
    container["command"] = [sys.executable, "-P", "-c", code]
    if image:
        container |= {"image": image, "imagePullPolicy": "IfNotPresent"}
    cluster.client("airflow").create_namespaced_pod(cluster.namespace, pod)


def status(cluster: Kubernetes, name: str) -> Any:
    return cluster.client("airflow").read_namespaced_pod(name, cluster.namespace).status


def wait_for_phase(cluster: Kubernetes, name: str, phase: str) -> None:
    wait_for(f"{name} is {phase}", lambda: status(cluster, name).phase == phase, 60)


def log(cluster: Kubernetes, name: str) -> str:
    answer = cluster.client("airflow").read_namespaced_pod_log(name, cluster.namespace, _preload_content=False)
    return str(answer.data.decode())


def waiting_reason(cluster: Kubernetes, name: str) -> str | None:
    """Why the container of a pod waits."""
    (container,) = status(cluster, name).container_statuses or [None]
    return container.state.waiting.reason if container and container.state.waiting else None


def ready_condition(cluster: Kubernetes, name: str) -> str | None:
    return next((c.status for c in status(cluster, name).conditions or [] if c.type == "Ready"), None)


def test_a_pod_runs_this_environment_and_reaches_this_host(kubernetes: Kubernetes, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(60)
        code = f"""import os, socket, subprocess
import airflow_provider_cdc, pyspark
socket.create_connection(("127.0.0.1", {server.getsockname()[1]})).sendall(b"from the pod")
open({str(tmp_path / "file")!r}, "w").write("shared")
print(subprocess.run([os.environ["JAVA_HOME"] + "/bin/java", "-version"], stderr=subprocess.PIPE).stderr.decode())
print(airflow_provider_cdc.__file__, os.path.exists({str(tmp_path.parent / "other")!r}))
try: open({str(ROOT / "file")!r}, "w")
except OSError as error: print(error)
"""
        (tmp_path.parent / "other").touch()
        create(kubernetes, "pod", code, tmp_path)
        connection, _ = server.accept()
        with connection:
            assert connection.recv(100) == b"from the pod"
    wait_for_phase(kubernetes, "pod", "Succeeded")
    written = log(kubernetes, "pod")
    assert 'version "17.' in written
    assert f"{ROOT}/airflow_provider_cdc/__init__.py False" in written, "of the temp folder, only what is named"
    assert "Read-only file system" in written
    assert (tmp_path / "file").read_text() == "shared"


def test_the_connection_is_that_of_airflows_hook(kubernetes: Kubernetes, monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow.providers.cncf.kubernetes.hooks.kubernetes import KubernetesHook

    monkeypatch.setenv("AIRFLOW_CONN_CLUSTER", kubernetes.connection())
    hook = KubernetesHook("cluster")
    assert hook.get_namespace() == kubernetes.namespace
    create(kubernetes, "pod", "pass")
    assert hook.get_pod("pod", kubernetes.namespace).metadata.name == "pod"
    with pytest.raises(ApiException) as refused:
        hook.core_v1_client.list_node()
    assert refused.value.status == 403


def test_exec_hands_over_a_line(kubernetes: Kubernetes) -> None:
    create(kubernetes, "pod", READER)
    wait_for_phase(kubernetes, "pod", "Running")
    wait_for("the FIFO", lambda: "waits" in log(kubernetes, "pod"))
    command = ["/bin/sh", "-c", "head -n 1 > /run/cdc/request"]
    client = kubernetes.client("airflow")
    session = stream(
        client.connect_get_namespaced_pod_exec,
        *("pod", kubernetes.namespace),
        command=command,
        stdin=True,
        stdout=True,
        stderr=True,
        _preload_content=False,
    )
    session.write_stdin("a secret line\n")
    session.run_forever(30)
    assert session.returncode == 0
    wait_for_phase(kubernetes, "pod", "Succeeded")
    assert "a secret line" in log(kubernetes, "pod")
    (pod,) = kubernetes.pods()
    assert "a secret line" not in str(pod)


def test_a_container_without_memory_is_killed(kubernetes: Kubernetes) -> None:
    create(kubernetes, "pod", "print('begins', flush=True); bytearray(b'x') * (300 << 20)", memory="64Mi")
    wait_for_phase(kubernetes, "pod", "Failed")
    (container,) = status(kubernetes, "pod").container_statuses
    assert (container.state.terminated.reason, container.state.terminated.exit_code) == ("OOMKilled", 137)
    assert "begins" in log(kubernetes, "pod")


def test_an_image_that_is_not_there(kubernetes: Kubernetes) -> None:
    create(kubernetes, "pod", "pass", image="localhost:1/absent:1")
    wait_for("reason", lambda: waiting_reason(kubernetes, "pod") in ("ErrImagePull", "ImagePullBackOff"))
    assert status(kubernetes, "pod").phase == "Pending"


def test_a_pod_that_is_too_large_is_not_scheduled(kubernetes: Kubernetes) -> None:
    create(kubernetes, "pod", "pass", cpu="1000")

    def condition() -> Any:
        return next((c for c in status(kubernetes, "pod").conditions or [] if c.type == "PodScheduled"), None)

    wait_for("the scheduler's answer", condition)
    assert (condition().status, condition().reason) == ("False", "Unschedulable")
    assert "Insufficient cpu" in condition().message


def test_rights_are_those_of_airflows_chart(kubernetes: Kubernetes) -> None:
    create(kubernetes, "pod", SLEEPER)
    wait_for("log", lambda: status(kubernetes, "pod").phase == "Running" and "runs" in log(kubernetes, "pod"))
    client = kubernetes.client("airflow")

    def refused(call: Any, *args: Any, **options: Any) -> bool:
        try:
            call(*args, **options)
        except ApiException as error:
            assert error.status == 403, error
            return True
        return False

    def exec_refused() -> bool:
        call = kubernetes.client("airflow").connect_get_namespaced_pod_exec
        try:
            stream(call, "pod", kubernetes.namespace, command=["/bin/true"], stdout=True)
        except AttributeError as error:  # a fault of the client, which looks into a body that is not there
            assert isinstance(error.__context__, ApiException)
            assert "403 Forbidden" in error.__context__.reason
            return True
        return False

    assert refused(client.create_namespaced_secret, kubernetes.namespace, {"metadata": {"name": "s"}})
    assert refused(client.list_namespaced_config_map, kubernetes.namespace)
    assert refused(client.list_namespaced_pod, "default")
    assert not exec_refused()
    with kubernetes.forbid("pods/exec"):
        assert exec_refused()
        assert not refused(client.list_namespaced_pod, kubernetes.namespace)
    assert not exec_refused()
    with kubernetes.forbid("pods", "delete"):
        assert refused(client.delete_namespaced_pod, "pod", kubernetes.namespace)
    with kubernetes.allow("configmaps", "list"):
        assert not refused(client.list_namespaced_config_map, kubernetes.namespace)
    assert refused(client.list_namespaced_config_map, kubernetes.namespace)


def test_an_evicted_pod_is_asked_to_end(kubernetes: Kubernetes) -> None:
    create(kubernetes, "pod", SLEEPER)
    wait_for("log", lambda: status(kubernetes, "pod").phase == "Running" and "runs" in log(kubernetes, "pod"))
    follow = kubernetes.client("airflow").read_namespaced_pod_log
    lines = follow("pod", kubernetes.namespace, follow=True, _preload_content=False)
    kubernetes.client().create_namespaced_pod_eviction("pod", kubernetes.namespace, {"metadata": {"name": "pod"}})
    assert b"asked to end" in lines.read()
    wait_for("the pod is gone", lambda: not kubernetes.pods())


def test_a_lost_node_comes_back(kubernetes: Kubernetes) -> None:
    create(kubernetes, "pod", SLEEPER)
    wait_for_phase(kubernetes, "pod", "Running")
    assert ready_condition(kubernetes, "pod") == "True"
    kubernetes.stop_kubelet()
    try:
        wait_for("the node is lost", lambda: ready_condition(kubernetes, "pod") == "False", 90)
        ready = {c.type: c for c in kubernetes.client().read_node("node").status.conditions}["Ready"]
        assert (ready.status, ready.reason) == ("Unknown", "NodeStatusUnknown")
        assert status(kubernetes, "pod").phase == "Running"
    finally:
        kubernetes.start_kubelet()
    kubernetes.wait_until_ready()
    wait_for("the pod is ready", lambda: ready_condition(kubernetes, "pod") == "True", 60)
    (container,) = status(kubernetes, "pod").container_statuses
    assert container.restart_count == 0


class TestNothingIsLeft:
    @pytest.fixture
    def start(self) -> Iterator[subprocess.Popen[str]]:
        """A process with a cluster of its own, in which a pod runs; it ends when its input ends."""
        code = """import sys
from tests.driver.test_kubernetes_node import SLEEPER, create, wait_for_phase
from tests.support.kubernetes import Kubernetes
with Kubernetes() as cluster:
    create(cluster, "pod", SLEEPER)
    wait_for_phase(cluster, "pod", "Running")
    print(cluster.cgroup, cluster.address, cluster.folder, flush=True)
    sys.stdin.read()
"""
        process = subprocess.Popen(
            [sys.executable, "-c", code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        yield process
        process.kill()
        process.wait()

    @staticmethod
    def left(words: str) -> list[str]:
        """What of a cluster is on this host."""
        cgroup, address, folder = words.split()
        host = address.removeprefix("https://").partition(":")[0]
        interfaces = subprocess.run(["ip", "address"], capture_output=True, text=True, check=True).stdout
        mounts = Path("/proc/self/mounts").read_text()
        found = {
            "processes": left_processes(cgroup),
            "cgroups": left_cgroups(cgroup),
            "address": host in interfaces,
            "mounts": folder in mounts or "kubelet" in mounts,
            "folder": Path(folder).exists(),
        }
        return [name for name, value in found.items() if value]

    def test_after_its_end(self, start: subprocess.Popen[str]) -> None:
        assert start.stdout is not None and start.stdin is not None
        words = start.stdout.readline()
        assert self.left(words) == ["processes", "cgroups", "address", "folder"]
        start.stdin.close()
        assert start.wait(60) == 0
        assert self.left(words) == []

    def test_after_its_process_was_killed(self, start: subprocess.Popen[str]) -> None:
        from tests.support.kubernetes import Kubernetes

        assert start.stdout is not None
        words = start.stdout.readline()
        os.kill(start.pid, signal.SIGKILL)
        start.wait()
        wait_for("processes end", lambda: "processes" not in self.left(words), 30)
        with Kubernetes():
            assert self.left(words) == []
