"""Drivers as pods of a Kubernetes cluster.

The pod waits for its request: the task hands it over through a command that it runs in the pod, so that no secret is
in the pod's specification, in an environment or in a file.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from airflow_provider_cdc.config.spark_conf import KubernetesCluster
from airflow_provider_cdc.driver.launchers.cluster import ClusterDriver, ClusterLauncher
from airflow_provider_cdc.driver.launchers.sealed_request import DriverSecret
from airflow_provider_cdc.model.errors import CdcError, NotReadyError, TransientError
from airflow_provider_cdc.observe.log_lines import LOGGER_NAME
from airflow_provider_cdc.spark.kubernetes_pods import PodManager
from airflow_provider_cdc.spark.pod_spec import hand_over_command, make_pod, namespace_of, pipeline_label
from airflow_provider_cdc.spark.pod_status import Pod
from airflow_provider_cdc.system.failpoints import failpoint

if TYPE_CHECKING:
    from airflow_provider_cdc.runtime.run_context import RunContext
    from airflow_provider_cdc.state import StateDatabase
    from airflow_provider_cdc.state.models import DriverRow

#: Seconds between two attempts to hand a request over.
_HAND_OVER_SECONDS = 5.0
#: Seconds for a container that cannot be created: a registry may be away for a moment, and a Secret come later.
_BLOCKED_SECONDS = 120.0
_BLOCKED_REMEDY = (
    "Check the image (spark.kubernetes.container.image, or the pod template) and how it is pulled, and the Secrets and "
    "ConfigMaps that the pod template names"
)


def pod_manager(context: RunContext, cluster: KubernetesCluster) -> PodManager:
    """Return the manager of the pods of a pipeline."""
    return PodManager.connect(cluster, context.kubernetes, namespace_of(context.spark_config[1]))


class PodDriver(ClusterDriver):
    """A driver in a pod.

    :param secret: what the pod waits for; ``None`` if another process has created it.
    :param command: command in the pod that hands it over.
    """

    def __init__(
        self,
        store: StateDatabase,
        manager: PodManager,
        driver: str,
        secret: DriverSecret | None = None,
        command: list[str] | None = None,
    ) -> None:
        super().__init__(store, manager, driver)
        self._pods, self._secret, self._command = manager, secret, command or []
        self._handed_over_at = float("-inf")
        self._blocked_since: float | None = None

    def can_be_adopted(self) -> bool:
        """Return whether it works already. One that still waits for its request cannot get it from another process."""
        return self.confirm() and self._row is not None and self._row.state == "running"

    def look(self) -> DriverRow | None:
        """Read the driver's row, and hand the request over as soon as the pod runs."""
        row = super().look()
        if row is not None and row.state == "submitted" and self._secret is not None:
            self._hand_over(self._secret)
        return row

    def _hand_over(self, secret: DriverSecret) -> None:
        if time.monotonic() - self._handed_over_at < _HAND_OVER_SECONDS:
            return
        try:
            pod = self._pods.find_job(self._driver)
            if pod is None or not pod.is_running:
                if pod is not None and (blockage := self._find_blockage(pod)) is not None:
                    self._end(blockage)
                return
            self._handed_over_at = time.monotonic()
            self._pods.hand_over(pod, self._command, secret.to_bytes().decode() + "\n")
            self._secret = None  # the driver has it, and may take a while until it says so in its row
            failpoint("driver.handed_over")
        except NotReadyError as error:
            self._end(error)
        except CdcError as error:
            self._manager_says = str(error)

    def _find_blockage(self, pod: Pod) -> CdcError | None:
        """Return why a driver's container cannot be created, when there was time for another attempt."""
        now = time.monotonic()
        if not pod.is_blocked:
            self._blocked_since = None
        elif self._blocked_since is None:
            self._blocked_since = now
        elif now - self._blocked_since > _BLOCKED_SECONDS:
            error_class = TransientError if pod.lacks_image else NotReadyError
            return error_class(f"the Spark driver cannot start: {pod}", _BLOCKED_REMEDY)
        return None


class KubernetesLauncher(ClusterLauncher):
    """Starts drivers in pods.

    :param context: the pipeline.
    :param cluster: the cluster.
    """

    def __init__(self, context: RunContext, cluster: KubernetesCluster) -> None:
        self._pods = pod_manager(context, cluster)
        super().__init__(context, self._pods)

    def _known_driver(self, store: StateDatabase, driver: str) -> ClusterDriver:
        return PodDriver(store, self._pods, driver)

    def _submit(self, store: StateDatabase, secret: DriverSecret, what: str) -> ClusterDriver:
        pipeline, conf = self._context.pipeline.name, self._context.spark_config[1]
        for error in self._pods.delete_finished(pipeline_label(pipeline), store.driver):
            logging.getLogger(LOGGER_NAME).warning("pods of drivers that have ended are left over: %s", error)
        self._pods.create(make_pod(pipeline, secret.driver, what, conf))
        return PodDriver(store, self._pods, secret.driver, secret, hand_over_command(conf))
