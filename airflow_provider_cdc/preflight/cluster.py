"""Checks of what a driver in a cluster needs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

from airflow_provider_cdc.config.spark_conf import KubernetesCluster, YarnCluster
from airflow_provider_cdc.config.store_address import local_folder_of
from airflow_provider_cdc.config.tls import is_local_host
from airflow_provider_cdc.preflight.check_result import CheckResult
from airflow_provider_cdc.sinks.storage.disk import is_on_network
from airflow_provider_cdc.spark.session import runs_in_cluster

if TYPE_CHECKING:
    from airflow_provider_cdc.runtime.run_context import RunContext


def check_cluster(context: RunContext) -> Iterator[CheckResult]:
    """Check what a driver in a cluster needs, if drivers run there."""
    if context.cluster is None or runs_in_cluster():
        return
    if context.state_url is None or context.state_url.get_backend_name() == "sqlite":
        yield CheckResult(
            "error",
            "drivers run in a cluster, and the state database is a file on one host",
            "Set state.conn_id to a PostgreSQL or MySQL database that Airflow and the cluster can reach",
        )
    yield from _check_addresses(context)
    folder = local_folder_of(context.pipeline.sink.path)
    if folder is not None and not is_on_network(folder):
        yield CheckResult(
            "warning",
            f"drivers run in a cluster, and sink.path {folder} seems to be on a disk of this host",
            "Use an object store, or a folder that all hosts of the cluster share at this path",
        )
    if isinstance(context.cluster, KubernetesCluster):
        yield from _check_kubernetes(context, context.cluster)
    else:
        yield from _check_yarn(context.cluster)


def _check_addresses(context: RunContext) -> Iterator[CheckResult]:
    """Yield a warning for each server that only processes of this host reach by its address."""
    pipeline, args, url = context.pipeline, context.connect_args, context.state_url
    servers = [(f"source.conn_id {pipeline.source.conn_id}", args.get("host"), args.get("unix_socket"))]
    if url is not None and url.get_backend_name() != "sqlite":
        servers.append((f"state.conn_id {pipeline.state.conn_id}", url.host, url.query.get("unix_socket")))
    for subject, host, socket in servers:
        if is_local_host(host, socket):
            yield CheckResult(
                "warning",
                f"drivers run in a cluster, and {subject} names {socket or host}, which other hosts and pods do not "
                "reach",
                "Use an address that Airflow and the cluster can reach",
            )


def _check_yarn(cluster: YarnCluster) -> Iterator[CheckResult]:
    from airflow_provider_cdc.spark.resource_manager import ResourceManager

    if not os.environ.get("HADOOP_CONF_DIR") and not os.environ.get("YARN_CONF_DIR"):
        yield CheckResult(
            "error",
            "drivers run in YARN, and HADOOP_CONF_DIR is not set",
            "Set it to the folder with the configuration of the cluster, for all workers of Airflow",
        )
    manager = ResourceManager(cluster.resource_manager)
    yield CheckResult("ok", f"drivers run in YARN (Hadoop {manager.check()}, {manager.address})")


def _check_kubernetes(context: RunContext, cluster: KubernetesCluster) -> Iterator[CheckResult]:
    from airflow_provider_cdc.spark.kubernetes_api import make_configuration
    from airflow_provider_cdc.spark.kubernetes_pods import PodManager
    from airflow_provider_cdc.spark.pod_spec import make_pod, namespace_of

    conf = context.spark_config[1]
    pod = make_pod(context.pipeline.name, "check", "check", conf)  # before the API server is asked
    configuration = make_configuration(cluster, context.kubernetes)
    if not configuration.verify_ssl:
        yield CheckResult(
            "warning",
            f"the certificate of the API server at {configuration.host} is not verified, and drivers get passwords "
            "through it",
            "Remove disable_verify_ssl from the Kubernetes connection (insecure-skip-tls-verify from the kubeconfig), "
            "and specify the CA in the kubeconfig",
        )
    manager = PodManager(configuration, namespace_of(conf))
    version = manager.check(pod)
    where = f"namespace {namespace_of(conf)} at {manager.address}"
    yield CheckResult("ok", f"drivers run in pods (Kubernetes {version}, {where})")
