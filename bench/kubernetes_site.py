"""Where the demo in Kubernetes works: in a cluster of your own, or in one that it starts on this host.

For a cluster of your own, the settings are variables of the environment:

- ``CONTEXT``: context of the kubeconfig file; ``NAMESPACE``: of the pods (``default``);
- ``IMAGE``: image of the pods; or ``POD_TEMPLATE``: file with a pod, and ``POD_PYTHON``: its interpreter;
- ``AIRFLOW_CONN_CDC_SOURCE``: a MySQL that this host and the pods reach; its user may also create a database;
- ``AIRFLOW_CONN_CDC_STATE``: a PostgreSQL or MySQL database that both reach;
- ``SINK``: ``s3://bucket/folder``, and ``AIRFLOW_CONN_CDC_LAKE``: its connection, if it needs one.

Without any of them, a cluster of one node, a MySQL server, PostgreSQL and an S3-compatible server are started on this
host: that needs root.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import yaml

from airflow_provider_cdc.config import Pipeline
from airflow_provider_cdc.config.connections import resolve_connection
from airflow_provider_cdc.config.store_access import StoreAccess
from airflow_provider_cdc.sinks.storage.open_storage import open_storage
from bench.lake import CONN_ID, opened
from bench.screen import DemoFailed, Screen
from tests.support.servers import MySQLServer

SETTINGS = ("CONTEXT", "IMAGE", "POD_TEMPLATE", "AIRFLOW_CONN_CDC_SOURCE", "AIRFLOW_CONN_CDC_STATE", "SINK")
#: Seconds that each of the two tasks of the snapshot takes at least: time to kill a pod.
_SECONDS = 20


@dataclass(frozen=True)
class StorePlace:
    """A place in an object store, for who compares the copy."""

    path: str
    access: StoreAccess | None

    def uri(self) -> str:
        return open_storage(self.path, self.access).uri()

    @property
    def options(self) -> Mapping[str, str]:
        return open_storage(self.path, self.access).storage_options()

    def under(self, path: str) -> StorePlace:
        return StorePlace(f"{self.path}/{path}", self.access)


def start_locally(screen: Screen, folder: Path, stack: ExitStack) -> None:
    """Start everything on this host, and make the settings that lead there."""
    from tests.support.kubernetes import Kubernetes
    from tests.support.postgres import Postgres

    if os.geteuid():
        raise DemoFailed(f"without {', '.join(SETTINGS)} it starts a cluster on this host, which only root may")
    with screen.phase("cluster", "Starting a Kubernetes of one node (built the first time: nine minutes of CPU time)"):
        cluster = stack.enter_context(Kubernetes())
    with screen.phase("servers", "Starting MySQL, and PostgreSQL for the state database"):
        server, books = stack.enter_context(MySQLServer()), stack.enter_context(Postgres(["bookkeeping"]))
        user = server.create_cdc_user("cdc_demo")
        server.execute(r"GRANT ALL ON `cdc\_demo\_%%`.* TO %s@'%%'", (user["user"],))
    lake = opened("s3", screen, folder, stack)
    pod = cluster.pod_template(memory="2Gi", cpu="500m")
    files = {"KUBECONFIG": cluster.kubeconfig("airflow"), "POD_TEMPLATE": pod}
    for name, value in files.items():
        file = folder / f"{name.lower()}.yaml"
        file.touch(mode=0o600)
        file.write_text(yaml.safe_dump(value))
        os.environ[name] = str(file)
    os.environ |= {
        "CONTEXT": "airflow",
        "NAMESPACE": cluster.namespace,
        "POD_PYTHON": sys.executable,
        "AIRFLOW_CONN_CDC_SOURCE": server.uri(**user),
        "AIRFLOW_CONN_CDC_STATE": books.uri(),
        "SINK": lake.path,
    }


def connect_cluster() -> Any:
    """Return a client of the cluster, and set the connections that the operators need.

    :raises DemoFailed: if a setting is missing, or the kubeconfig file has no such context.
    """
    import kubernetes

    images = {"IMAGE", "POD_TEMPLATE"}
    missing = [name for name in SETTINGS if name not in images and not os.environ.get(name)]
    if missing or not any(os.environ.get(name) for name in images):
        raise DemoFailed(f"set {', '.join(missing) or 'IMAGE or POD_TEMPLATE'} in the environment, or none of them")
    context, namespace = os.environ["CONTEXT"], os.environ.setdefault("NAMESPACE", "default")
    file = os.path.expanduser(os.environ.get("KUBECONFIG") or "~/.kube/config")
    try:
        client = kubernetes.config.new_client_from_config(file, context)
    except kubernetes.config.ConfigException as error:
        raise DemoFailed(f"context {context}: {error}") from None
    access = {"kube_config_path": file, "cluster_context": context}
    extra = {"deploy-mode": "cluster", "namespace": namespace, "kubernetes_conn_id": "cdc_kube"}
    spark = {"conn_type": "spark", "host": f"k8s://{client.configuration.host}", "extra": extra}
    os.environ["AIRFLOW_CONN_CDC_SPARK"] = json.dumps(spark)
    os.environ["AIRFLOW_CONN_CDC_KUBE"] = json.dumps({"conn_type": "kubernetes", "extra": access})
    source = resolve_connection("cdc_source")
    login, password = (quote(text or "", safe="") for text in (source.login, source.password))
    os.environ[MySQLServer.url_variable] = f"mysql://{login}:{password}@{source.host}:{source.port or 3306}"
    return kubernetes.client.CoreV1Api(client)


def make_pipeline(name: str, customers: int) -> Pipeline:
    """Return the pipeline of the demo's own database."""
    conf = {"spark.driver.memory": "512m"}
    for variable, key in {
        "IMAGE": "spark.kubernetes.container.image",
        "POD_TEMPLATE": "spark.kubernetes.driver.podTemplateFile",
        "POD_PYTHON": "spark.pyspark.python",
    }.items():
        if value := os.environ.get(variable):
            conf[key] = value
    sink = {"path": f"{os.environ['SINK'].rstrip('/')}/{name}"}
    if f"AIRFLOW_CONN_{CONN_ID.upper()}" in os.environ:
        sink["conn_id"] = CONN_ID
    return Pipeline.from_dict(
        {
            "name": name,
            "source": {"conn_id": "cdc_source", "tables": [rf"{name}\..*"]},
            "snapshot": {
                "chunk_rows": max(1, customers // 40),
                "group_rows": max(1, customers // 4),
                "max_rows_per_second": max(100, customers // _SECONDS),  # more than the writers write
            },
            "sink": sink,
            "state": {"conn_id": "cdc_state"},
            "spark": {"conn_id": "cdc_spark", "conf": conf},
        }
    )
