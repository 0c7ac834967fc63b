"""Spark masters, clusters, servers and settings that a pipeline may use."""

from __future__ import annotations

import ipaddress
import re
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urlsplit

from airflow_provider_cdc.model.errors import NotReadyError
from airflow_provider_cdc.model.value_checks import invalid_value

#: Human-readable forms of a master.
MASTER_FORMS = "local, local[N], local[*], spark://host:port[,host:port...], yarn or k8s://https://host:port"

_LOCAL = re.compile(r"local(\[([1-9][0-9]{0,3}|\*)\])?")
_ADDRESS = r"(?:[A-Za-z0-9_.-]+|\[[0-9A-Fa-f:.]+\]):[0-9]{1,5}"
_STANDALONE = re.compile(rf"spark://({_ADDRESS}(?:,{_ADDRESS})*)")
_KUBERNETES = re.compile(r"k8s://(https?://)?[A-Za-z0-9_.\[\]:-]+(/(?!/)[A-Za-z0-9_./~%-]*)?")
_LOOPBACK = re.compile(r"localhost|127(\.[0-9]{1,3}){3}|\[::1\]")
_LOOPBACK_API = re.compile(rf"k8s://http://({_LOOPBACK.pattern})(:[0-9]+)?(/.*)?")

_KEY = re.compile(r"spark\.[A-Za-z0-9_.\-]+")
# All settings are on the command line of the JVM, which all users of the host can read.
_SECRET = re.compile(
    r"secret|passw|passphrase|pwd|token|\bsas\b|(access|account|private|api)[._-]?key|encryption[._-]?key\b",
    re.IGNORECASE,
)
_JAVA_PROPERTY = re.compile(r"-D([^\s=]+)=")
_ADDRESS_WITH_PASSWORD = re.compile(r"://[^/\s@]*:[^/\s@]*@")

#: Remedy for secrets in ``spark.conf``.
SECRET_REMEDY = (
    "Put it into the spark-defaults.conf of a folder that SPARK_CONF_DIR names and that only the driver's user can "
    "read; for drivers in pods, mount it from a Secret in the pod template, and set SPARK_CONF_DIR there"
)

#: Settings that the project manages, with what to use instead.
MANAGED_SETTINGS: Mapping[str, str] = {
    "spark.app.name": "It follows from the name of the pipeline",
    "spark.master": "Use the key spark.master of the pipeline, or spark.conn_id",
    "spark.submit.deployMode": "Use the extra deploy-mode of the connection that spark.conn_id names",
    "spark.remote": "Name the Spark Connect server in a connection of type spark_connect (spark.conn_id)",
    "spark.api.mode": "Name the Spark Connect server in a connection of type spark_connect (spark.conn_id)",
    "spark.driver.extraJavaOptions": "Use spark.driver.defaultJavaOptions",
    "spark.ui.enabled": "Spark's page is switched on where a task shows its address",
    "spark.ui.showConsoleProgress": "Leave it out",
    "spark.sql.session.timeZone": "It is always UTC: values must not depend on where they are read",
    "spark.speculation": "It is always off: a chunk that is read twice at the same time would be wasted work",
    "spark.sql.streaming.numRecentProgressUpdates": "Leave it out",
}


#: Extra of a connection with the address of YARN's ResourceManager.
RESOURCE_MANAGER = "yarn_resourcemanager_webapp_address"
#: What Spark itself says of a Python driver in a cluster of these kinds, in the order of :data:`MASTER_FORMS`.
_NO_CLUSTER_MODE = {
    "local": "Spark has no cluster mode with a local master",
    "spark": "cluster deploy mode is currently not supported for python applications on standalone clusters",
}


@dataclass(frozen=True)
class YarnCluster:
    """A YARN cluster that runs the drivers.

    :param resource_manager: address of the web application of its ResourceManager, without a slash at the end; those of
        several ResourceManagers are separated by commas.
    """

    resource_manager: str


#: Extra of a connection with the id of another one, of type kubernetes, that says how the API server is accessed.
KUBERNETES_CONNECTION = "kubernetes_conn_id"


@dataclass(frozen=True)
class KubernetesCluster:
    """A Kubernetes cluster that runs the drivers, each in a separate pod.

    :param api_server: address of its API server.
    :param conn_id: connection of type kubernetes that says how it is accessed; ``None`` for the service account of
        the pod in which the task runs, or else the default kubeconfig file.
    """

    api_server: str
    conn_id: str | None = None


#: Setting with the namespace of the pods.
NAMESPACE = "spark.kubernetes.namespace"
#: Spark settings that decide about the pod of a driver; all others that begin with ``spark.kubernetes.`` are refused.
POD_SETTINGS = (
    NAMESPACE,
    "spark.kubernetes.container.image",
    "spark.kubernetes.driver.podTemplateFile",
    "spark.kubernetes.driver.podTemplateContainerName",
)
_DEFAULT_CORES = 2
#: Settings of executors that a driver follows which is its own executor.
_OWN_EXECUTOR_SETTINGS = ("spark.executor.heartbeatInterval", "spark.executor.pyspark.memory")


def driver_pod_master(conf: Mapping[str, str]) -> str:
    """Return the master with which Spark runs in the pod of a driver: the pod does all the work itself.

    :raises NotReadyError: if a setting would have no effect there.
    """
    for key in conf:
        if key.startswith("spark.kubernetes.") and key not in POD_SETTINGS:
            raise NotReadyError(
                f"spark.conf: {key} has no effect on the pod of a driver",
                "Leave it out. What the pod needs belongs into the file that spark.kubernetes.driver.podTemplateFile "
                "names",
            )
        if key.startswith("spark.yarn."):
            raise NotReadyError(f"spark.conf: {key} has no effect on Kubernetes", "Leave it out")
        if key == "spark.pyspark.driver.python":
            raise NotReadyError(f"spark.conf: {key} has no effect on the pod of a driver", "Use spark.pyspark.python")
        if key == "spark.driver.memoryOverheadFactor":
            raise NotReadyError(
                f"spark.conf: {key} has no effect on the pod of a driver", "Use spark.driver.memoryOverhead"
            )
        if key == "spark.cores.max" or (
            key.startswith(("spark.executor.", "spark.dynamicAllocation.")) and key not in _OWN_EXECUTOR_SETTINGS
        ):
            raise NotReadyError(
                f"spark.conf: {key}: with deploy-mode cluster on Kubernetes there are no executors",
                "Leave it out: the pod of a driver does the work itself, with spark.driver.cores and "
                "spark.driver.memory; chunk groups are read by several pods at a time",
            )
    cores = conf.get("spark.driver.cores", str(_DEFAULT_CORES))
    if not re.fullmatch("[1-9][0-9]{0,2}", cores):
        raise invalid_value("spark.conf: spark.driver.cores", cores, "a whole number from 1 to 999")
    return f"local[{cores}]"


def parse_deploy_mode(what: str, master: str, extra: Mapping[str, Any]) -> YarnCluster | KubernetesCluster | None:
    """Return the cluster that runs the drivers; ``None`` if they run on the host of the task (client mode).

    :param what: name of the connection in messages.
    :param extra: its extras.
    :raises NotReadyError: if the mode is unknown, Spark does not support it, or an address is missing.
    """
    mode = extra.get("deploy-mode", "client")
    if mode not in ("client", "cluster"):
        raise invalid_value(f"{what}: extra 'deploy-mode'", mode, "client or cluster")
    for name, is_its_master, master_text in (
        (KUBERNETES_CONNECTION, master.startswith("k8s://"), "a k8s:// master"),
        (RESOURCE_MANAGER, master == "yarn", "the master yarn"),
    ):
        if name in extra and (mode == "client" or not is_its_master):
            raise NotReadyError(
                f"{what}: extra {name!r} has no effect",
                f"Leave it out: it is for deploy-mode cluster with {master_text}",
            )
    if mode == "client":
        return None
    if master.startswith("k8s://"):
        address = master.removeprefix("k8s://")
        api_server = address if "://" in address else f"https://{address}"
        return KubernetesCluster(api_server, extra.get(KUBERNETES_CONNECTION))
    if master != "yarn":
        reason = _NO_CLUSTER_MODE[re.split(r"\W", master)[0]]
        raise NotReadyError(f"{what}: deploy-mode is cluster, and its master is {master}: {reason}", _USE_CLIENT)
    manager = extra.get(RESOURCE_MANAGER)
    if not manager:
        raise NotReadyError(
            f"{what}: deploy-mode is cluster, and the extra {RESOURCE_MANAGER} is missing",
            "Add the address of the ResourceManager's web application, such as http://rm.example:8088",
        )
    return YarnCluster(",".join(_manager_address(what, address.strip()) for address in str(manager).split(",")))


def _manager_address(what: str, address: str) -> str:
    url = address.rstrip("/") if "://" in address else f"http://{address.rstrip('/')}"
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc or parts.query:
        raise NotReadyError(
            f"{what}: extra {RESOURCE_MANAGER} is not an address",
            "Write http://rm.example:8088, or the addresses of several ResourceManagers with commas in between",
        )
    return url


#: Of each command that starts Spark, what does the same work in a cluster. docs/cli.md has the same list.
CLUSTER_SUBSTITUTES = {
    "snapshot": "Run the DAG: its task snapshot reads the chunk groups",
    "stream": "Run the DAG: its task stream starts the stream",
    "run": "Run the DAG, which has all phases",
    "resnapshot": "Use CdcResnapshotOperator, or Re-snapshot on the page; or airflow-cdc resume --table TABLE, which "
    "asks the stream to re-snapshot the whole table",
    "verify": "Use CdcVerifyOperator, or Verify now on the page",
    "maintain": "Use CdcMaintainOperator",
}


def cluster_mode_refused(command: str) -> NotReadyError:
    """Make the error of a command that would start Spark, while the connection runs drivers in a cluster."""
    return NotReadyError(
        f"the Spark connection has deploy-mode cluster, and airflow-cdc {command} runs Spark on this host",
        f"{CLUSTER_SUBSTITUTES[command]}; or use a pipeline whose connection has deploy-mode client",
    )


_USE_CLIENT = "Set deploy-mode to client: the driver then runs on the host of the task"


def is_local_master(master: str) -> bool:
    """Return whether driver and executors are one process."""
    return _LOCAL.fullmatch(master) is not None


def is_loopback_master(master: str) -> bool:
    """Return whether all traffic between driver and executors stays on the host."""
    if is_local_master(master):
        return True
    match = _STANDALONE.fullmatch(master)
    return match is not None and all(_LOOPBACK.fullmatch(a.rpartition(":")[0]) for a in match[1].split(","))


def reachable_url(url: str | None) -> str | None:
    """Return the address of a Spark UI if a browser on another host may reach it, otherwise ``None``.

    The name of the local host, a loopback address, and a name without a dot, such as the id of a container, mean
    nothing elsewhere.
    """
    if url is None or not url.startswith(("http://", "https://")):
        return None
    try:
        host = urlsplit(url).hostname or ""
        address = ipaddress.ip_address(host)
    except ValueError:
        return url if "." in host.strip(".") and not host.endswith((".localhost", ".localdomain")) else None
    return None if address.is_loopback or address.is_unspecified or address.is_link_local else url


def check_master(what: str, master: object) -> str:
    """Return a master if it has a supported form.

    :param what: its name in messages.
    :raises NotReadyError: if it has not.
    """
    if isinstance(master, str):
        if master.startswith("k8s://http://") and "@" not in master and not _LOOPBACK_API.fullmatch(master):
            raise NotReadyError(
                f"{what} is {master!r}: what the API server is sent, passwords too, would travel in clear text",
                "Write k8s://https://host:port",
            )
        if master == "yarn" or any(form.fullmatch(master) for form in (_LOCAL, _STANDALONE, _KUBERNETES)):
            return master
        if "@" in master:  # may be a password: not shown
            raise NotReadyError(f"{what} is not the address of a Spark master", f"It must be {MASTER_FORMS}")
    raise invalid_value(what, master, MASTER_FORMS)


def check_conf(what: str, conf: object) -> dict[str, str]:
    """Return Spark settings as text, with numbers and booleans in Spark's notation.

    :param what: their name in messages.
    :raises NotReadyError: for something that is not a setting, would contain a secret, or is managed by the project.
    """
    if not isinstance(conf, Mapping):
        raise invalid_value(what, conf, "a mapping such as {spark.executor.memory: 4g}")
    return {_check_key(what, key): _check_value(f"{what}: {key}", value) for key, value in conf.items()}


def _check_key(what: str, key: object) -> str:
    if not isinstance(key, str) or not _KEY.fullmatch(key):
        raise NotReadyError(
            f"{what}: {reprlib.repr(key)} is not the name of a Spark setting", "It must begin with spark."
        )
    if key in MANAGED_SETTINGS:
        raise NotReadyError(f"{what}: {key} cannot be set", MANAGED_SETTINGS[key])
    if _SECRET.search(key):  # the value is not shown
        raise NotReadyError(
            f"{what}: {key} would carry a secret, and everyone on the host can read settings",
            SECRET_REMEDY,
        )
    return key


def _check_value(what: str, value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str) and value and value.isprintable():
        _refuse_secret_in_value(what, value)
        return value
    if isinstance(value, int | float):
        return str(value)
    raise invalid_value(what, value, "a text, a number, true or false")


def _refuse_secret_in_value(what: str, value: str) -> None:
    if name := next(filter(_SECRET.search, _JAVA_PROPERTY.findall(value)), None):
        raise NotReadyError(
            f"{what}: -D{name} would carry a secret, and everyone on the host can read settings",
            "Put the options of Java into a file that only the driver's user can read, and write @/path/of/the/file",
        )
    if _ADDRESS_WITH_PASSWORD.search(value):
        raise NotReadyError(
            f"{what} would carry a password in an address, and everyone on the host can read settings", SECRET_REMEDY
        )


# ---------------------------------------------------------------- Spark Connect

#: Type of the connection, as Airflow's Spark provider calls it.
CONNECT_TYPE = "spark_connect"
_DEFAULT_PORT = 15002
_HOST = re.compile(r"[A-Za-z0-9_.-]+|\[[0-9A-Fa-f:.]+\]")
_TLS_REMEDY = (
    "Set the extra use_ssl to true. The server itself has no TLS: put a proxy in front of it that does, such as "
    "Envoy or nginx, with HTTP/2 to the server"
)

#: Why a stream cannot run on such a server, and what to do.
STREAM_REFUSED = (
    "the stream cannot run on a Spark Connect server: its batches are applied in one process, "
    "which must end before the next stream begins, and a server would move it into a worker that may outlive that",
    "Set spark.master as well, such as local[2]: the stream then runs there, and all other jobs on the server",
)


@dataclass(frozen=True)
class ConnectServer:
    """A Spark Connect server.

    :param host: name or address.
    :param port: its port.
    :param user: the user that the server sees; ``None`` for that of this process.
    :param token: what the server asks for, or a proxy in front of it; ``None`` for nothing.
    :param use_ssl: whether it is reached by TLS.
    """

    host: str
    port: int = _DEFAULT_PORT
    user: str | None = None
    token: str | None = field(default=None, repr=False)
    use_ssl: bool = False

    @property
    def address(self) -> str:
        """Address for messages, without the token."""
        return f"sc://{self.host}:{self.port}"

    @property
    def url(self) -> str:
        """Address for the client, with the token.

        The client sends a token without TLS to a host of this name only, whatever its address.
        """
        host = "localhost" if self.is_loopback and self.token and not self.use_ssl else self.host
        values = {"user_id": self.user, "token": self.token, "use_ssl": "true" if self.use_ssl else None}
        parameters = [f"{name}={quote(value, safe='')}" for name, value in values.items() if value]
        return f"sc://{host}:{self.port}/{''.join(f';{one}' for one in parameters)}"

    @property
    def is_loopback(self) -> bool:
        """Whether it is reached without leaving the host."""
        try:
            return ipaddress.ip_address(self.host.strip("[]")).is_loopback
        except ValueError:
            return self.host == "localhost"


def parse_connect_server(
    conn_id: str, host: str | None, port: int | None, login: str | None, password: str | None, extra: Mapping[str, Any]
) -> ConnectServer:
    """Return the server that a connection names, read as the hook of Airflow's Spark provider does.

    :param login: the user's name there.
    :param password: the token.
    :param extra: ``use_ssl``.
    :raises NotReadyError: if a value is not valid, or tasks with passwords would travel in clear text.
    """
    what = f"connection {conn_id}"
    name = (host or "").removeprefix("sc://")
    if not _HOST.fullmatch(name):
        raise NotReadyError(f"{what} names no host of a Spark Connect server", "Write host and port, without a path")
    if unknown := sorted(extra.keys() - {"use_ssl"}):
        raise NotReadyError(f"{what}: extra {unknown[0]!r} is not known", "Use only use_ssl")
    use_ssl = {True: True, False: False, "true": True, "false": False, "": False, None: False}.get(
        value.lower() if isinstance(value := extra.get("use_ssl"), str) else value
    )
    if use_ssl is None:
        raise invalid_value(f"{what}: extra 'use_ssl'", value, "true or false")
    server = ConnectServer(name, port or _DEFAULT_PORT, login or None, password or None, use_ssl)
    if not use_ssl and not server.is_loopback:
        raise NotReadyError(
            f"{what}: tasks, which contain passwords, would travel to {server.address} in clear text", _TLS_REMEDY
        )
    return server
