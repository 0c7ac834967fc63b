"""The pods of drivers, through the API server of a Kubernetes cluster."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Self

from airflow_provider_cdc.model.errors import CdcError, NotReadyError, TransientError
from airflow_provider_cdc.spark.kubernetes_api import (
    REQUIRED_RIGHTS,
    RIGHTS_REMEDY,
    answer_field,
    make_configuration,
    translate_api_errors,
)
from airflow_provider_cdc.spark.pod_status import Pod, pod_name, to_pod

if TYPE_CHECKING:
    from airflow_provider_cdc.config.connections import ResolvedConnection
    from airflow_provider_cdc.config.spark_conf import KubernetesCluster
    from airflow_provider_cdc.state.models import DriverRow

#: Label of a driver's pod with the name of the pipeline, as far as a label can have it.
PIPELINE_LABEL = "airflow-cdc/pipeline"
#: Seconds for an answer. Airflow kills a task 5 s after it has asked it to end.
_TIMEOUT = 5.0
#: Seconds to connect, and to create a pod: each webhook that must admit it may take 10 s by default, and up to 30 s.
_CREATE_TIMEOUT = (_TIMEOUT, 45.0)
_EXEC_SECONDS = 30.0
#: Seconds that the driver of a stream that has stopped may take to end.
_ENDING_SECONDS = 15.0
#: Seconds for the removal of old pods, which delays a new driver.
_CLEANING_SECONDS = 20.0
#: How long a pod that has failed stays, so that people can look at it.
_KEEP_FINISHED = timedelta(hours=1)
#: How long a pod stays that has not begun and whose row is gone: it may belong to another state database, where its row
#: would be gone by now, too.
_KEEP_UNKNOWN = timedelta(days=8)
_LOG = re.compile(r"kubectl -n (?P<namespace>\S+) logs (?P<pod>\S+) -c (?P<container>\S+)")


class PodManager:
    """Creates, watches and ends the pods of drivers.

    :param configuration: a ``kubernetes.client.Configuration``.
    :param namespace: namespace of the pods.
    """

    name = "Kubernetes"
    #: The API server knows all pods: one that it does not know was deleted.
    unknown_seconds = 0.0

    def __init__(self, configuration: Any, namespace: str) -> None:
        from kubernetes.client import ApiClient, CoreV1Api

        self._configuration, self._namespace = configuration, namespace
        self._api = CoreV1Api(ApiClient(configuration))

    @classmethod
    def connect(cls, cluster: KubernetesCluster, conn: ResolvedConnection | None, namespace: str) -> Self:
        """Return the manager for a cluster.

        :param conn: how it is accessed; ``None`` for the default.
        :raises NotReadyError: if there is no access.
        """
        return cls(make_configuration(cluster, conn), namespace)

    @property
    def address(self) -> str:
        """Address of the API server."""
        return str(self._configuration.host)

    def check(self, pod: Mapping[str, Any]) -> str:
        """Check that drivers can run there: rights, and whether the API server would accept a pod.

        :param pod: a pod.
        :returns: version of Kubernetes.
        :raises CdcError: if not.
        """
        from kubernetes.client import ApiClient, VersionApi

        with translate_api_errors("say its version"):
            version = VersionApi(ApiClient(self._configuration)).get_code(_request_timeout=_TIMEOUT)
        if lacking := [right for right in REQUIRED_RIGHTS if not self._is_allowed(*right)]:
            named = ", ".join(f"{verb} {'/'.join(filter(None, what))}" for verb, *what in lacking)
            raise NotReadyError(f"the user of the tasks may not {named} in namespace {self._namespace}", RIGHTS_REMEDY)
        with translate_api_errors("accept a pod of a driver"):
            self._api.create_namespaced_pod(self._namespace, pod, dry_run="All", _request_timeout=_CREATE_TIMEOUT)
        return str(version.git_version)

    def _is_allowed(self, verb: str, resource: str, subresource: str) -> bool:
        from kubernetes.client import ApiClient, AuthorizationV1Api

        attributes = {"namespace": self._namespace, "verb": verb, "resource": resource, "subresource": subresource}
        review = {"spec": {"resourceAttributes": attributes}}
        with translate_api_errors("say what the user of the tasks may do"):
            api = AuthorizationV1Api(ApiClient(self._configuration))
            answer = api.create_self_subject_access_review(review, _request_timeout=_TIMEOUT)
        return bool(answer.status.allowed)

    def create(self, pod: Mapping[str, Any]) -> None:
        """Create a pod. One of this name can only be the same: the name is random.

        :raises CdcError: if it is not accepted.
        """
        with translate_api_errors("create the pod of the driver"):
            self._request_unless(
                "AlreadyExists",
                lambda: self._api.create_namespaced_pod(self._namespace, pod, _request_timeout=_CREATE_TIMEOUT),
            )

    def find_job(self, driver: str) -> Pod | None:
        """Return the pod of a driver, or ``None``."""
        return self._read(self._namespace, pod_name(driver))

    def _read(self, namespace: str, name: str) -> Pod | None:
        with translate_api_errors(f"say how pod {namespace}/{name} is"):
            pod = self._request_unless(
                "NotFound", lambda: self._api.read_namespaced_pod(name, namespace, _request_timeout=_TIMEOUT)
            )
        return None if pod is None else to_pod(pod.to_dict())

    @staticmethod
    def _request_unless(reason: str, request: Callable[[], Any]) -> Any | None:
        """Return the answer to a request, or ``None`` if it fails for a reason.

        The status is not enough: it is 409, too, when a quota was changed at the same moment.
        """
        from kubernetes.client import ApiException

        try:
            return request()
        except ApiException as error:
            if answer_field(error, "reason") != reason:
                raise
            return None

    def kill(self, job: str) -> None:
        """Delete a pod. Its driver gets SIGTERM, and some time to end."""
        namespace, _, name = job.partition("/")
        with translate_api_errors(f"delete pod {job}"):
            self._request_unless(
                "NotFound", lambda: self._api.delete_namespaced_pod(name, namespace, _request_timeout=_TIMEOUT)
            )

    def clean_up(self, job: str) -> None:
        """Delete a pod that has succeeded."""
        self.kill(job)

    def clean_up_by_log(self, log: str | None) -> None:
        """Delete the pod that has a log when its driver has ended; if that takes long, a later driver does it."""
        match = _LOG.fullmatch(log or "")
        deadline = time.monotonic() + _ENDING_SECONDS
        with suppress(CdcError):
            while match is not None and (pod := self._read(match["namespace"], match["pod"])) is not None:
                if pod.is_over:
                    self.kill(pod.id)
                if pod.is_over or time.monotonic() > deadline:
                    return
                time.sleep(0.5)

    def delete_finished(self, pipeline: str, find_row: Callable[[str], DriverRow | None]) -> list[CdcError]:
        """Delete the pods of drivers of a pipeline that have ended some time ago, or that nobody waits for.

        :param find_row: returns the row of a driver, or ``None``.
        :returns: why pods could not be deleted. A later driver tries it again.
        """
        selector, errors = f"{PIPELINE_LABEL}={pipeline}", list[CdcError]()
        deadline = time.monotonic() + _CLEANING_SECONDS
        try:
            with translate_api_errors("list the pods of drivers"):
                pods = self._api.list_namespaced_pod(
                    self._namespace, label_selector=selector, _request_timeout=_CLEANING_SECONDS
                )
        except CdcError as error:
            return [error]
        for pod in (to_pod(found.to_dict()) for found in pods.items):
            if time.monotonic() > deadline:
                break
            if _is_left_over(pod, find_row):
                try:
                    self.kill(pod.id)
                except CdcError as error:
                    errors.append(error)
        return errors

    def hand_over(self, pod: Pod, command: list[str], line: str) -> None:
        """Run a command in a pod that reads one line from its standard input.

        :param line: the line, with its end.
        :raises CdcError: if that fails. It may be tried again.
        """
        import websocket
        from kubernetes.client import ApiClient, CoreV1Api
        from kubernetes.stream import stream

        # A separate client: while it is used, it cannot make ordinary requests.
        api = CoreV1Api(ApiClient(self._configuration))
        with translate_api_errors("run a command in the pod of the driver", may_be_gone=True):
            default = websocket.getdefaulttimeout()
            websocket.setdefaulttimeout(_EXEC_SECONDS)  # the client itself sets none
            try:
                channel = stream(
                    api.connect_get_namespaced_pod_exec,
                    pod.name,
                    pod.namespace,
                    container=pod.container,
                    command=command,
                    stdin=True,
                    stdout=True,
                    stderr=True,
                    _preload_content=False,
                    _request_timeout=_EXEC_SECONDS,
                )
            except AttributeError as error:  # some versions of the client expect a body in each refusal
                raise error.__context__ or error from None
            finally:
                websocket.setdefaulttimeout(default)
            try:
                channel.write_stdin(line)
                channel.run_forever(timeout=_EXEC_SECONDS)
                code = channel.returncode
            except (websocket.WebSocketException, LookupError, TypeError, ValueError) as error:
                # The client cannot read an exit code from a connection that has ended without one.
                raise TransientError(
                    f"the connection to pod {pod.id} was lost while the request was handed over "
                    f"({type(error).__name__})",
                    "Try again",
                ) from None
            finally:
                channel.close()
        if code != 0:
            raise TransientError(
                f"the request could not be handed over to pod {pod.id} (exit code {code})", "See the pod's log"
            )

    def tail_log(self, log: str | None, lines: int) -> list[str]:
        """Return the last lines of the log of a pod; empty if it cannot be read."""
        match = _LOG.fullmatch(log or "")
        if match is None:
            return []
        with suppress(CdcError), translate_api_errors("show the log of the driver"):
            # Decoded here: some versions of the client return the text of a bytes object.
            answer = self._api.read_namespaced_pod_log(
                match["pod"],
                match["namespace"],
                container=match["container"],
                tail_lines=lines,
                _preload_content=False,
                _request_timeout=_TIMEOUT,
            )
            return [line for line in answer.data.decode(errors="replace").splitlines() if line.strip()]
        return []

    def kill_by_log(self, log: str | None) -> bool:
        """Delete the pod that has a log. One that is over stays: its log says why.

        :returns: whether Kubernetes has accepted this.
        """
        match = _LOG.fullmatch(log or "")
        if match is None:
            return False
        try:
            pod = self._read(match["namespace"], match["pod"])
            if pod is not None and not pod.is_over:
                self.kill(pod.id)
        except CdcError:
            return False
        return True

    def describe_by_log(self, log: str | None) -> str:
        """Return what Kubernetes says about the pod that has a log; empty if it does not say anything."""
        match = _LOG.fullmatch(log or "")
        if match is None:
            return ""
        try:
            pod = self._read(match["namespace"], match["pod"])
        except CdcError:
            return ""
        if pod is None:
            return f"pod {match['namespace']}/{match['pod']} was deleted"
        return str(pod)


def _is_left_over(pod: Pod, find_row: Callable[[str], DriverRow | None]) -> bool:
    now = datetime.now(UTC)
    if pod.ended_at is not None:
        return now - pod.ended_at > _KEEP_FINISHED
    row = find_row(pod.name.removeprefix(pod_name("")))
    if row is None:
        return pod.phase == "Pending" and pod.created_at is not None and now - pod.created_at > _KEEP_UNKNOWN
    # One whose submission was not confirmed cannot begin: its task had given up before the API server answered. One
    # that works sees the end of its row, and a stream ends at a transaction boundary.
    cannot_begin = pod.phase == "Pending" or row.handle is None
    return row.state == "ended" and (cannot_begin or now - row.heartbeat_at > pod.grace)
