"""What the API server of Kubernetes says of the pod of a driver."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

#: Annotation with the name of the container that the driver runs in; the pod may have others.
CONTAINER_ANNOTATION = "airflow-cdc/container"
#: How long after its time to end a deleted pod counts as lost with its node.
_OVERDUE = timedelta(seconds=10)


def pod_name(driver: str) -> str:
    """Return the name of the pod of a driver."""
    return f"airflow-cdc-{driver}"


def log_command(namespace: str, pod: str, container: str) -> str:
    """Return the command that shows the log of a driver: this stands for the address of its log."""
    return f"kubectl -n {namespace} logs {pod} -c {container}"


@dataclass(frozen=True)
class Pod:
    """A pod of a driver as the API server knows it.

    :param namespace: its namespace.
    :param name: its name.
    :param container: name of the driver's container.
    :param phase: ``Pending``, ``Running``, ``Succeeded``, ``Failed`` or ``Unknown``.
    :param reason: why it waits, or how it ended; empty if that is not known.
    :param is_running: whether the driver's container runs, and is to go on.
    :param is_blocked: whether it waits for something that usually needs a change of settings.
    :param lacks_image: whether that is an image, which a registry may give later.
    :param is_over: whether the driver's container has ended, or is lost.
    :param created_at: when it was created.
    :param ended_at: when the driver's container ended; ``None`` if it has not.
    :param grace: how long its containers may take to end.
    """

    namespace: str
    name: str
    container: str
    phase: str
    reason: str = ""
    is_running: bool = False
    is_blocked: bool = False
    lacks_image: bool = False
    is_over: bool = False
    created_at: datetime | None = None
    ended_at: datetime | None = None
    grace: timedelta = timedelta()

    @property
    def id(self) -> str:
        """Namespace and name."""
        return f"{self.namespace}/{self.name}"

    @property
    def log(self) -> str:
        """Command that shows its log."""
        return log_command(self.namespace, self.name, self.container)

    @property
    def link(self) -> None:
        """No page."""
        return

    @property
    def is_active(self) -> bool:
        """Whether a container runs or may run."""
        return self.phase not in ("Succeeded", "Failed")

    def __str__(self) -> str:
        return f"pod {self.id} is {self.phase}{self.reason and f': {self.reason}'}"


#: Why a container waits for an image: a registry may be away, or limit how much is pulled.
_NO_IMAGE = ("ErrImagePull", "ImagePullBackOff", "ImageInspectError", "RegistryUnavailable")
#: Other reasons for which a container waits until something is changed.
_REFUSED = (
    "CreateContainerConfigError",
    "CreateContainerError",
    "ErrImageNeverPull",
    "InvalidImageName",
    "SignatureValidationFailed",
)
_OUT_OF_MEMORY = (
    "it used more memory than the container's limit, or than the node has: raise the memory in the resources of the "
    "pod template or, if it has none there, spark.driver.memoryOverhead"
)


def to_pod(value: Mapping[str, Any]) -> Pod:
    """Return a pod from what the API server says.

    :param value: ``V1Pod.to_dict()``.
    """
    status, metadata = value["status"] or {}, value["metadata"]
    container = (metadata.get("annotations") or {}).get(CONTAINER_ANNOTATION, "")
    state = _driver_state(value, container)
    ended = state.get("terminated") or {}
    first = [(one.get("state") or {}).get("waiting") or {} for one in status.get("init_container_statuses") or []]
    waiting = next((one for one in first if one.get("reason") in (*_NO_IMAGE, *_REFUSED)), state.get("waiting") or {})
    conditions = [
        condition
        for condition in status.get("conditions") or []
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False"
    ]
    reasons = [_describe(source.get("reason"), source.get("message")) for source in (status, *conditions, waiting)]
    if ended:
        reasons.append(_describe(ended.get("reason"), ended.get("message") or f"exit code {ended.get('exit_code')}"))
        if ended.get("reason") == "OOMKilled":
            reasons.append(_OUT_OF_MEMORY)
    phase, deleted_at = status.get("phase") or "Unknown", metadata.get("deletion_timestamp")  # with the time to end
    if deleted_at is not None:
        reasons.append("it is being deleted")
    created_at, ended_at = metadata.get("creation_timestamp"), ended.get("finished_at")
    if phase in ("Succeeded", "Failed"):  # one that its node has refused has no containers
        ended_at = ended_at or created_at
    is_overdue = deleted_at is not None and datetime.now(UTC) - deleted_at > _OVERDUE
    if is_overdue:
        reasons.append("its node does not say that it has ended")
    return Pod(
        metadata["namespace"],
        metadata["name"],
        container,
        phase,
        "; ".join(filter(None, reasons)),
        is_running=bool(state.get("running")) and deleted_at is None,
        is_blocked=waiting.get("reason") in (*_NO_IMAGE, *_REFUSED),
        lacks_image=waiting.get("reason") in _NO_IMAGE,
        is_over=phase in ("Succeeded", "Failed") or bool(ended) or is_overdue,
        created_at=created_at,
        ended_at=ended_at,
        grace=timedelta(seconds=(value.get("spec") or {}).get("termination_grace_period_seconds") or 0),
    )


def _driver_state(value: Mapping[str, Any], container: str) -> Mapping[str, Any]:
    statuses = (value["status"] or {}).get("container_statuses") or []
    return next((status.get("state") or {} for status in statuses if status["name"] == container), {})


def _describe(reason: str | None, message: str | None) -> str:
    return " ".join(": ".join(filter(None, (reason, message))).split())
