"""What an operator may ask of a launcher, wherever its drivers run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress
from typing import TYPE_CHECKING, Any, Protocol

from airflow_provider_cdc.config.spark_conf import KubernetesCluster
from airflow_provider_cdc.model.errors import CdcError, UnexpectedError
from airflow_provider_cdc.spark.resource_manager import tail_driver_log

if TYPE_CHECKING:
    from airflow_provider_cdc.driver.launchers.cluster_manager import ClusterManager
    from airflow_provider_cdc.driver.request import DriverRequest
    from airflow_provider_cdc.runtime.run_context import RunContext
    from airflow_provider_cdc.state import EpochRow, StateDatabase


class Driver(Protocol):
    """A driver that works for a task."""

    def output_lines(self) -> Iterator[str]:
        """Yield lines for the task's log, until the driver ends."""

    def wait_for_outcome(self) -> dict[str, Any]:
        """Wait for the driver to end, and return its outcome.

        :raises CdcError: as raised in the driver.
        :raises UnexpectedError: if it was lost.
        """

    def terminate(self) -> None:
        """End the driver. This may be called from a signal handler."""


class StreamDriver(Protocol):
    """A driver of a stream that has not begun its epoch yet.

    :param description: what it is, for the task's log.
    :param log: its log: a file, or an address; ``None`` while that is unknown.
    """

    @property
    def description(self) -> str:
        """Human-readable description."""

    @property
    def log(self) -> str | None:
        """Its log: a file, or an address; ``None`` while that is unknown."""

    def has_ended(self) -> bool:
        """Return whether it has ended."""

    def has_begun(self, epoch: EpochRow) -> bool:
        """Return whether an epoch is the one of this driver."""

    def raise_error(self) -> None:
        """Raise the error of a driver that ended without an epoch.

        Return instead if the driver gave way to another stream, or to a user's request to stop.
        """

    def release(self) -> None:
        """Let the driver outlive the task. It is supervised through the state database from now on."""


class Launcher(Protocol):
    """Starts drivers.

    For both methods, ``requester`` is the identity of the requesting task, which is the same for all its tries. A try
    that finds what an earlier one has left in a cluster continues with it. ``is_killed`` returns whether the task is
    being killed: a driver that is then being submitted does not begin.
    """

    def run(
        self, request: DriverRequest, requester: str, is_killed: Callable[[], bool]
    ) -> AbstractContextManager[Driver]:
        """Start a driver that ends with the block."""

    def start_stream(
        self, request: DriverRequest, requester: str, is_killed: Callable[[], bool]
    ) -> AbstractContextManager[StreamDriver]:
        """Start a driver that ends with the block unless it was released."""


def cluster_manager(context: RunContext) -> ClusterManager | None:
    """Return the manager of the cluster that runs the drivers of a pipeline; ``None`` if there is none.

    :raises NotReadyError: if there is no access to it.
    """
    if context.cluster is None:
        return None
    if isinstance(context.cluster, KubernetesCluster):
        from airflow_provider_cdc.driver.launchers.kubernetes import pod_manager

        return pod_manager(context, context.cluster)
    from airflow_provider_cdc.spark.resource_manager import ResourceManager

    return ResourceManager(context.cluster.resource_manager)


def kill_stream(context: RunContext, log: str | None) -> bool:
    """Kill the driver of a stream in a cluster, without the state database.

    :param log: log of the driver, as its epoch has it.
    :returns: whether it was killed; false if drivers of this pipeline do not run in a cluster.
    """
    with suppress(CdcError):
        manager = cluster_manager(context)
        return manager is not None and manager.kill_by_log(log)
    return False


def end_lost_stream(context: RunContext, store: StateDatabase, log: str | None) -> str:
    """End the driver of a stream that was lost, should a cluster still have it: another task may start the next one.

    :param log: log of the driver, as its epoch has it.
    :returns: what the cluster says about it; empty if that is nothing.
    """
    with suppress(CdcError):
        manager = cluster_manager(context)
        if manager is None:
            return ""
        explanation = manager.describe_by_log(log)
        manager.kill_by_log(log)
        error = UnexpectedError("the Spark driver was lost", f"See its log: {log}")
        for row in store.live_drivers(context.pipeline.name):
            if log is not None and row.log == log:
                store.end_driver(row.id, {"error": error.to_json()})
        return explanation
    return ""


def clean_up_stream(context: RunContext, log: str | None) -> None:
    """Remove what a cluster still has of the driver of a stream that has ended as asked."""
    with suppress(CdcError):
        manager = cluster_manager(context)
        if manager is not None:
            manager.clean_up_by_log(log)


def tail_log(context: RunContext, log: str | None, lines: int) -> list[str]:
    """Return the last lines of the log of a driver, wherever it is; empty if it cannot be read from here."""
    with suppress(CdcError):
        manager = cluster_manager(context)
        if manager is not None:
            return manager.tail_log(log, lines)
    return tail_driver_log(log, lines)


def make_launcher(context: RunContext) -> Launcher:
    """Return the launcher for a pipeline, according to its Spark connection."""
    if isinstance(context.cluster, KubernetesCluster):
        from airflow_provider_cdc.driver.launchers.kubernetes import KubernetesLauncher

        return KubernetesLauncher(context, context.cluster)
    if context.cluster is not None:
        from airflow_provider_cdc.driver.launchers.yarn import YarnLauncher

        return YarnLauncher(context, context.cluster)
    from airflow_provider_cdc.driver.launchers.local import LocalLauncher

    return LocalLauncher(context.local_files.log_folder)
