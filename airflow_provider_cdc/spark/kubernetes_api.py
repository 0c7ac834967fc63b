"""Access to the API server of a Kubernetes cluster."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import yaml

from airflow_provider_cdc.model.errors import NotReadyError, TransientError

if TYPE_CHECKING:
    from airflow_provider_cdc.config.connections import ResolvedConnection
    from airflow_provider_cdc.config.spark_conf import KubernetesCluster

#: What the user of the tasks must be allowed to do, in the namespace of the drivers: verb, resource, subresource.
REQUIRED_RIGHTS = (
    *((verb, "pods", "") for verb in ("create", "get", "list", "delete")),
    ("get", "pods", "log"),
    ("get", "pods", "exec"),
    ("create", "pods", "exec"),
)
_POLICY_REMEDY = (
    "Change the pod template so that the policies of the namespace (pod security, limits, quota, webhooks) accept it"
)
_ACCESS_REMEDY = (
    "Try again; if it lasts, renew the token of the connection that kubernetes_conn_id names (without one, of the "
    "service account, or of the kubeconfig file)"
)
RIGHTS_REMEDY = (
    "Give the user of the tasks a role in that namespace with the verbs create, get, list and delete of pods, get of "
    "pods/log, and create and get of pods/exec, as the role of Airflow's Helm chart has them"
)
#: Extras that give access, of which a connection has one.
_ACCESS = ("in_cluster", "kube_config", "kube_config_path")
_EXTRA = (*_ACCESS, "cluster_context", "namespace", "disable_verify_ssl")
_LACKS_RIGHT = re.compile(r"cannot \w+ resource|^Forbidden \(")
_HANDSHAKE = re.compile(r"Handshake status (?P<status>\d+) (?P<reason>.*?)(?: -\+-\+-|$)")
#: Those of Airflow's own operators.
_IGNORED = ("disable_tcp_keepalive",)


def make_configuration(cluster: KubernetesCluster, conn: ResolvedConnection | None) -> Any:
    """Return the configuration of a client of the API server.

    :param conn: connection of type kubernetes, read as the hook of Airflow's provider does; ``None`` for the service
        account of this pod, or else the default kubeconfig file.
    :returns: a ``kubernetes.client.Configuration``.
    :raises NotReadyError: if the client is not installed, or there is no access.
    """
    try:
        from kubernetes import client, config
    except ImportError:
        raise NotReadyError(
            "drivers run in Kubernetes, and its Python client is not installed",
            'Run on every worker of Airflow: pip install "airflow-provider-cdc[kubernetes]"',
        ) from None
    what, extra = "the service account of this pod, or the default kubeconfig file", dict[str, Any]()
    if conn is not None:
        what, extra = f"connection {conn.conn_id}", _known_extra(conn)
    loaded = client.Configuration()
    try:
        _load(config, loaded, extra)
    except Exception as error:  # its text may quote the file
        remedy = "Run Airflow in the cluster with a service account, or "
        if conn is None:
            remedy += "name a connection of type kubernetes in the extra kubernetes_conn_id of the Spark connection"
        elif named := [name for name in (*_ACCESS, "cluster_context") if name in extra]:
            remedy = f"Correct its extra {' and '.join(named)}"
        else:
            remedy += "add the extra kube_config or kube_config_path"
        raise NotReadyError(f"{what} gives no access to Kubernetes ({type(error).__name__})", remedy) from None
    loaded.retries = 0  # the callers repeat what is worth it
    loaded.host = cluster.api_server.rstrip("/")
    if extra.get("disable_verify_ssl") in (True, "true", "True"):
        loaded.verify_ssl = False
    _renew_only_the_token(loaded, client.Configuration(), what)
    return loaded


def _renew_only_the_token(configuration: Any, scratch: Any, what: str) -> None:
    """Let the client read the token again before each request, and nothing else.

    The client's own function sets the address and the verification of the kubeconfig file or of this pod's cluster
    again, too, and itself as the function of what it is given: it gets another configuration.

    :param scratch: an empty configuration.
    :param what: what gives access, for messages.
    """
    read_again = configuration.refresh_api_key_hook
    if read_again is None:
        return

    def renew(used: Any) -> None:
        try:
            read_again(scratch)
        except Exception as error:  # its text may quote a file
            raise TransientError(
                f"{what} gave no new token for Kubernetes ({type(error).__name__})",
                "Try again; if it lasts, check how its token is renewed",
            ) from None
        used.api_key.update(scratch.api_key)

    configuration.refresh_api_key_hook = renew


def _known_extra(conn: ResolvedConnection) -> dict[str, Any]:
    if conn.conn_type != "kubernetes":
        raise NotReadyError(f"connection {conn.conn_id} is of type {conn.conn_type}", "It must be of type kubernetes")
    names = {key: key.removeprefix("extra__kubernetes__") for key in conn.extra}
    extra = {names[key]: value for key, value in conn.extra.items() if value not in (None, "", False)}
    unknown = sorted(key for key in extra.keys() - {*_EXTRA, *_IGNORED} if not key.startswith("xcom_sidecar"))
    if unknown:
        raise NotReadyError(f"connection {conn.conn_id}: extra {unknown[0]!r} is not known", f"Use {', '.join(_EXTRA)}")
    if len(named := [name for name in _ACCESS if name in extra]) > 1:
        raise NotReadyError(
            f"connection {conn.conn_id}: its extras {' and '.join(named)} contradict each other",
            "Leave out all but one",
        )
    return extra


def _load(config: Any, into: Any, extra: dict[str, Any]) -> None:
    context = extra.get("cluster_context")
    if text := extra.get("kube_config"):
        value = text if isinstance(text, dict) else yaml.safe_load(text)
        config.load_kube_config_from_dict(value, context, into, persist_config=False)
    elif path := extra.get("kube_config_path"):
        config.load_kube_config(path, context, into, persist_config=False)
    elif extra.get("in_cluster"):
        config.load_incluster_config(into)
    else:
        try:
            config.load_incluster_config(into)
        except config.ConfigException:
            config.load_kube_config(None, context, into, persist_config=False)


@contextmanager
def translate_api_errors(what: str, *, may_be_gone: bool = False) -> Iterator[None]:
    """Convert errors of the client of the API server into this project's errors.

    :param what: what is asked for, for messages.
    :param may_be_gone: whether a pod that is asked for something was there a moment ago: that it is not any more, or
        has ended, is no fault of its template.
    """
    from kubernetes.client import ApiException
    from urllib3.exceptions import HTTPError

    try:
        yield
    except ApiException as error:
        raise _to_cdc_error(what, error, may_be_gone=may_be_gone) from None
    except (HTTPError, OSError) as error:
        reason = getattr(error, "reason", None) or error
        raise TransientError(
            f"Kubernetes did not {what}: its API server does not answer: {reason}", "Check that it can be reached"
        ) from None


def _to_cdc_error(what: str, error: Any, *, may_be_gone: bool = False) -> NotReadyError | TransientError:
    status, reason = _status_and_reason(error)
    text = f"Kubernetes did not {what}: {reason}"
    if "exceeded quota" in reason:
        return TransientError(text, "Wait until other pods of the namespace have ended, or raise its quota")
    if status == 401:  # a token has expired, or what checks it does not answer
        return TransientError(text, _ACCESS_REMEDY)
    if status == 403 and _LACKS_RIGHT.search(reason):
        return NotReadyError(text, RIGHTS_REMEDY)
    if status == 403:
        return NotReadyError(text, _POLICY_REMEDY)
    if status in (400, 404, 422) and not may_be_gone:
        return NotReadyError(text, "Check the pod template, the image, the namespace, and spark.conf")
    return TransientError(text, "Try again; if it lasts, see the log of the API server")


def answer_field(error: Any, name: str) -> Any:
    """Return a field of the answer of the API server; ``None`` if the answer does not have it.

    :param error: a ``kubernetes.client.ApiException``.
    """
    with suppress(TypeError, ValueError, LookupError):
        return json.loads(error.body)[name]
    return None


def _status_and_reason(error: Any) -> tuple[int, str]:
    """Return the status of an answer, and what the API server says in one line."""
    status, message = error.status, error.reason
    if handshake := _HANDSHAKE.match(str(error.reason)):  # the answer to a request to run a command
        status, message = int(handshake["status"]), handshake["reason"]
    message = answer_field(error, "message") or message
    return status, f"{' '.join(str(message or 'no reason given').split())[:500]} ({status})"
