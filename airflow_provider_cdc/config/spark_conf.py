"""Spark masters and settings that a pipeline may use."""

from __future__ import annotations

import ipaddress
import re
import reprlib
from collections.abc import Mapping
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
    "spark.submit.deployMode": "The driver always runs in client mode",
    "spark.remote": "Spark Connect is not supported",
    "spark.api.mode": "Spark Connect is not supported",
    "spark.driver.extraJavaOptions": "Use spark.driver.defaultJavaOptions",
    "spark.ui.enabled": "Spark's page is switched on where a task shows its address",
    "spark.ui.showConsoleProgress": "Leave it out",
    "spark.sql.session.timeZone": "It is always UTC: values must not depend on where they are read",
    "spark.speculation": "It is always off: a chunk that is read twice at the same time would be wasted work",
    "spark.sql.streaming.numRecentProgressUpdates": "Leave it out",
}


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
