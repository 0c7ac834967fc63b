"""A real Kubernetes of one node for the tests: API server, scheduler, controllers, kubelet and containerd.

``python -m tests.support.kubernetes`` builds and fetches what it needs (nine minutes of CPU time, once). It needs root:
containers have namespaces and control groups.
"""

from __future__ import annotations

import json
import ssl
import urllib.request
from pathlib import Path
from typing import Any, cast

from tests.support.kubernetes_host import NodeHost
from tests.support.kubernetes_parts import PAUSE_IMAGE, kubernetes_programs, system_programs, write_images
from tests.support.kubernetes_pod import host_pod
from tests.support.kubernetes_users import KubernetesUsers
from tests.support.processes import Session, StartedProcesses, free_port, tail, wait_for
from tests.support.rogue import Certificate, certify

NODE = "node"
_CONTROLLERS = (
    "namespace-controller",
    "node-lifecycle-controller",
    "taint-eviction-controller",
    "pod-garbage-collector-controller",
    "garbage-collector-controller",
    "serviceaccount-controller",
    "root-ca-certificate-publisher-controller",
)
#: Seconds: how long a node's word that it lives is good for, and how long it is waited for.
_LEASE, _LOST = 8, 20


class Kubernetes(KubernetesUsers, StartedProcesses):
    """A cluster whose user ``airflow`` has in namespace ``cdc`` what Airflow's Helm chart gives it, and nothing else.

    Pods use the network of this host; images are only those of ``kubernetes_parts``.
    """

    def __init__(self) -> None:
        super().__init__()
        self._host = NodeHost()
        self._sessions: list[Session] = []
        self._kubelet: Session | None = None
        self._certificate: Certificate | None = None

    def _begin(self) -> None:
        programs, system = kubernetes_programs(), system_programs()
        self._host.begin()
        self._certificate = certify(self.folder / "certificates", self._host.address)
        self.authority = self._certificate.ca
        etcd = self._start_etcd(system)
        containerd = self._start_containerd(system)
        self._start_api_server(programs, etcd)
        for part in ("kube-controller-manager", "kube-scheduler"):
            self._start_controllers(programs, part)
        self._import_images(system, containerd)
        self._write_kubelet_config(containerd)
        self.start_kubelet()
        self.wait_until_ready()

    def close(self) -> None:
        """End the cluster and all containers, and give back what they took from this host."""
        self._host.end_containers()
        for session in (self._kubelet, *reversed(self._sessions)):
            if session is not None:
                session.kill_all()
        self._kubelet, self._sessions = None, []
        self._host.end()

    # ------------------------------------------------------------ the parts

    @property
    def folder(self) -> Path:
        """Folder with everything that the cluster writes; the output of each part is in ``<part>.log``."""
        return self._host.folder

    @property
    def cgroup(self) -> str:
        """Name of the control group, in each hierarchy, that has those of all pods."""
        return self._host.cgroup

    def _run(
        self, name: str, command: list[str | Path], env: dict[str, str] | None = None, inside: bool = False
    ) -> None:
        self._sessions.append(self._host.run(name, command, env, inside=inside))

    def _start_etcd(self, system: Path) -> str:
        client, peer = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
        options = {
            "data-dir": self.folder / "etcd",
            "listen-client-urls": client,
            "advertise-client-urls": client,
            "listen-peer-urls": peer,
            "initial-advertise-peer-urls": peer,
            "initial-cluster": f"default={peer}",
            "unsafe-no-fsync": "true",
        }
        self._run("etcd", [system / "usr/bin/etcd", *_flags(options)])
        return client

    def _start_containerd(self, system: Path) -> Path:
        folder = self.folder / "containerd"
        (folder / "cni").mkdir(parents=True)
        network = {"cniVersion": "0.3.1", "name": "none", "plugins": [{"type": "loopback"}]}
        (folder / "cni" / "loopback.conflist").write_text(json.dumps(network))
        config = f"""version = 2
root = "{folder}/root"
state = "{folder}/state"
[grpc]
  address = "{folder}/socket"
[plugins."io.containerd.internal.v1.opt"]
  path = "{folder}/opt"
[plugins."io.containerd.grpc.v1.cri"]
  restrict_oom_score_adj = true  # containers of a CI runner may not lower it
  sandbox_image = "{PAUSE_IMAGE}"
  stream_server_address = "127.0.0.1"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "native"  # works wherever this folder is; the images are empty
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        BinaryName = "{system}/usr/sbin/runc"
        SystemdCgroup = false
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{system}/usr/lib/cni"
    conf_dir = "{folder}/cni"
"""
        (folder / "config.toml").write_text(config)
        path = f"{system}/usr/bin:{system}/usr/sbin:/usr/sbin:/usr/bin:/sbin:/bin"
        command: list[str | Path] = [system / "usr/bin/containerd", "-c", folder / "config.toml"]
        self._run("containerd", command, {"PATH": path}, inside=True)
        return folder / "socket"

    def _start_api_server(self, programs: Path, etcd: str) -> None:
        certificate, port = self._certificate, free_port()
        assert certificate is not None
        self.address = f"https://{self._host.address}:{port}"
        groups = {"admin": "system:masters", "airflow": "airflow"}
        tokens = self.folder / "tokens.csv"
        tokens.touch(mode=0o600)
        tokens.write_text("".join(f"{token},{user},{user},{groups[user]}\n" for user, token in self.tokens.items()))
        options = {
            "etcd-servers": etcd,
            "bind-address": self._host.address,
            "advertise-address": self._host.address,
            "secure-port": port,
            "tls-cert-file": certificate.cert,
            "tls-private-key-file": certificate.key,
            "kubelet-preferred-address-types": "InternalIP",
            "kubelet-certificate-authority": certificate.ca,
            "kubelet-client-certificate": certificate.cert,
            "kubelet-client-key": certificate.key,
            "service-account-key-file": certificate.key,
            "service-account-signing-key-file": certificate.key,
            "service-account-issuer": "https://cdc.test",
            "token-auth-file": tokens,
            "authorization-mode": "RBAC",
            "service-cluster-ip-range": "10.96.0.0/24",
            "endpoint-reconciler-type": "none",
        }
        self._run("kube-apiserver", [programs / "kube-apiserver", *_flags(options)])
        (self.folder / "admin.conf").touch(mode=0o600)
        (self.folder / "admin.conf").write_text(json.dumps(self.kubeconfig("admin")))
        self._wait("API server", self._api_server_ready)
        self.make_namespace()

    def _api_server_ready(self) -> bool:
        request = urllib.request.Request(f"{self.address}/readyz")
        request.add_header("Authorization", f"Bearer {self.tokens['admin']}")
        context = ssl.create_default_context(cafile=self.authority)
        try:
            with urllib.request.urlopen(request, timeout=5, context=context) as answer:
                return cast(int, answer.status) == 200
        except OSError:
            return False

    def _start_controllers(self, programs: Path, part: str) -> None:
        options: dict[str, object] = {
            "kubeconfig": self.folder / "admin.conf",
            "bind-address": "127.0.0.1",
            "secure-port": free_port(),
            "cert-dir": self.folder / part,
            "leader-elect": "false",
        }
        if part == "kube-controller-manager":
            assert self._certificate is not None
            options |= {
                "controllers": ",".join(_CONTROLLERS),
                "root-ca-file": self._certificate.ca,
                "service-account-private-key-file": self._certificate.key,
                "node-monitor-grace-period": f"{_LOST}s",
                "node-monitor-period": "1s",
            }
        self._run(part, [programs / part, *_flags(options)])

    def _import_images(self, system: Path, containerd: Path) -> None:
        self._wait("containerd", containerd.exists)
        for image in write_images(self.folder):
            command: list[str | Path] = [system / "usr/bin/ctr", "-a", containerd, "-n", "k8s.io", "images", "import"]
            session = self._host.run(f"import-{image.stem}", [*command, "--snapshotter", "native", image], inside=True)
            wait_for(f"import of {image.name}", lambda session=session: not session.alive, 60)  # type: ignore[misc]
            assert session.exit_code == 0, tail(session.log)
            session.kill_all()

    def _write_kubelet_config(self, containerd: Path) -> None:
        certificate = self._certificate
        assert certificate is not None
        config = {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": self._host.address,
            "port": free_port(),
            "readOnlyPort": 0,
            "healthzPort": 0,
            "tlsCertFile": str(certificate.cert),
            "tlsPrivateKeyFile": str(certificate.key),
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": False},
                "x509": {"clientCAFile": str(certificate.ca)},
            },
            "authorization": {"mode": "AlwaysAllow"},
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{self.cgroup}",
            "failSwapOn": False,
            "makeIPTablesUtilChains": False,
            "containerRuntimeEndpoint": f"unix://{containerd}",
            "evictionHard": {"memory.available": "10Mi", "nodefs.available": "0%", "imagefs.available": "0%"},
            "localStorageCapacityIsolation": False,
            "imageGCHighThresholdPercent": 100,
            "imageGCLowThresholdPercent": 99,
            "nodeStatusUpdateFrequency": "2s",
            "nodeLeaseDurationSeconds": _LEASE,
            "podLogsDir": str(self.folder / "pod-logs"),
            "volumePluginDir": str(self.folder / "volume-plugins"),
            "resolvConf": "",
        }
        (self.folder / "kubelet.json").write_text(json.dumps(config))

    def start_kubelet(self) -> None:
        """Start the kubelet; it finds the containers that run."""
        options = {
            "kubeconfig": self.folder / "admin.conf",
            "config": self.folder / "kubelet.json",
            "root-dir": self.folder / "kubelet",
            "cert-dir": self.folder / "kubelet-certificates",
            "hostname-override": NODE,
            "node-ip": self._host.address,
        }
        self._kubelet = self._host.run("kubelet", [kubernetes_programs() / "kubelet", *_flags(options)], inside=True)

    def stop_kubelet(self) -> None:
        """End the kubelet, as if the node were lost: containers run on, and nothing is said of them.

        After some 20 seconds the node is no longer ready, nor are its pods. They are not deleted: Kubernetes does not
        where no node at all is left.
        """
        assert self._kubelet is not None
        self._kubelet.kill_all()
        self._kubelet = None

    def wait_until_ready(self) -> None:
        """Wait until pods are started in the namespace."""

        def ready() -> bool:
            core = self.client()
            nodes = core.list_node().items
            accounts = core.list_namespaced_service_account(self.namespace).items
            return bool(accounts) and any(
                not node.spec.taints and any(c.type == "Ready" and c.status == "True" for c in node.status.conditions)
                for node in nodes
            )

        self._wait("node", ready)

    def _wait(self, what: str, condition: Any) -> None:
        def met() -> bool:
            for session in (*self._sessions, *([self._kubelet] if self._kubelet else [])):
                assert session.alive, f"{session.log.stem} has ended:\n{tail(session.log, 40)}"
            return bool(condition())

        wait_for(what, met, 120)

    def pod_template(self, *writable: Path, memory: str = "3Gi", cpu: str = "100m") -> dict[str, Any]:
        """Return a pod in which this environment runs; see :func:`host_pod`."""
        return host_pod(*writable, memory=memory, cpu=cpu)


def _flags(options: dict[str, Any]) -> list[str]:
    return [f"--{name}={value}" for name, value in options.items()]


if __name__ == "__main__":
    kubernetes_programs()
    system_programs()
