"""Drivers as applications of a YARN cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider_cdc.config.spark_conf import YarnCluster
from airflow_provider_cdc.driver.launchers.cluster import ClusterDriver, ClusterLauncher
from airflow_provider_cdc.driver.launchers.sealed_request import DriverSecret
from airflow_provider_cdc.driver.launchers.yarn_submission import submit
from airflow_provider_cdc.spark.resource_manager import ResourceManager

if TYPE_CHECKING:
    from airflow_provider_cdc.runtime.run_context import RunContext
    from airflow_provider_cdc.state import StateDatabase


class YarnLauncher(ClusterLauncher):
    """Starts drivers in a YARN cluster.

    :param context: the pipeline.
    :param cluster: the cluster.
    """

    def __init__(self, context: RunContext, cluster: YarnCluster) -> None:
        super().__init__(context, ResourceManager(cluster.resource_manager))

    def _submit(self, store: StateDatabase, secret: DriverSecret, what: str) -> ClusterDriver:
        submit(self._context.pipeline.name, self._context.spark_config[1], secret)
        return self._known_driver(store, secret.driver)
