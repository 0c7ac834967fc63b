"""Spark masters and settings that a pipeline may use."""

from __future__ import annotations

import ipaddress
import re
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from airflow_provider_cdc.model.errors import NotReadyError
from airflow_provider_cdc.model.value_checks import invalid_value

#: Human-readable forms of a master.
MASTER_FORMS = "local, local[N], local[*], spark://host:port[,host:port...], yarn or k8s://https://host:port"

_LOCAL = re.compile(r"local(\[([1-9][0-9]{0,3}|\*)\])?")
_ADDRESS = r"(?:[A-Za-z0-9_.-]+|\[[0-9A-Fa-f:.]+\]):[0-9]{1,5}"
_STANDALONE = re.compile(rf"spark://({_ADDRESS}(?:,{_ADDRESS})*)")
_KUBERNETES = re.compile(r"k8s://(https?://)?[A-Za-z0-9_.\[\]:-]+(/[A-Za-z0-9_./~%-]*)?")
_LOOPBACK = re.compile(r"localhost|127(\.[0-9]{1,3}){3}|\[::1\]")

_KEY = re.compile(r"spark\.[A-Za-z0-9_.\-]+")
# All settings are on the command line of the JVM, which all users of the host can read.
_SECRET = re.compile(r"secret|passw|passphrase|token|(access|account|private|api)[._-]?key", re.IGNORECASE)

#: Remedy for secrets in ``spark.conf``.
SECRET_REMEDY = (
    "Put it into the spark-defaults.conf of a folder that SPARK_CONF_DIR names and that only the driver's user can read"
)

#: Settings that the project manages, with what to use instead.
MANAGED_SETTINGS: Mapping[str, str] = {
    "spark.app.name": "It follows from the name of the pipeline",
    "spark.master": "Use the key spark.master of the pipeline, or spark.conn_id",
    "spark.submit.deployMode": "Use the extra deploy-mode of the connection that spark.conn_id names",
    "spark.remote": "Spark Connect is not supported",
    "spark.api.mode": "Spark Connect is not supported",
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
    "k8s": "cluster mode on Kubernetes is not supported yet",
}


@dataclass(frozen=True)
class YarnCluster:
    """A YARN cluster that runs the drivers.

    :param resource_manager: address of the web application of its ResourceManager, without a slash at the end.
    """

    resource_manager: str


def parse_deploy_mode(what: str, master: str, extra: Mapping[str, Any]) -> YarnCluster | None:
    """Return the cluster that runs the drivers; ``None`` if they run on the host of the task (client mode).

    :param what: name of the connection in messages.
    :param extra: its extras.
    :raises NotReadyError: if the mode is unknown, Spark does not support it, or an address is missing.
    """
    mode = extra.get("deploy-mode", "client")
    if mode not in ("client", "cluster"):
        raise invalid_value(f"{what}: extra 'deploy-mode'", mode, "client or cluster")
    if mode == "client":
        return None
    if master != "yarn":
        reason = _NO_CLUSTER_MODE[re.split(r"\W", master)[0]]
        raise NotReadyError(f"{what}: deploy-mode is cluster, and its master is {master}: {reason}", _USE_CLIENT)
    address = extra.get(RESOURCE_MANAGER)
    if not address:
        raise NotReadyError(
            f"{what}: deploy-mode is cluster, and the extra {RESOURCE_MANAGER} is missing",
            "Add the address of the ResourceManager's web application, such as http://rm.example:8088",
        )
    url = str(address).rstrip("/") if "://" in str(address) else f"http://{str(address).rstrip('/')}"
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc or parts.query:
        raise NotReadyError(f"{what}: extra {RESOURCE_MANAGER} is not an address", "Write http://rm.example:8088")
    return YarnCluster(url)


#: Why commands refuse a connection with cluster mode, and what to do.
CLUSTER_MODE_REFUSED = (
    "the Spark connection has deploy-mode cluster, and commands run Spark themselves",
    "Run the DAG in Airflow, or use a pipeline whose connection has deploy-mode client",
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
        return value
    if isinstance(value, int | float):
        return str(value)
    raise invalid_value(what, value, "a text, a number, true or false")
