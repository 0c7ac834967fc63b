"""What is checked, without a cluster, before drivers run in one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_cdc.config import Pipeline
from airflow_provider_cdc.config.connections import ResolvedConnection
from airflow_provider_cdc.preflight.check_result import CheckResult, run_check
from airflow_provider_cdc.preflight.cluster import check_cluster
from airflow_provider_cdc.preflight.run import run_preflight
from airflow_provider_cdc.runtime.run_context import RunContext
from airflow_provider_cdc.spark.session import DRIVER_POD_VARIABLE
from tests.support.processes import free_port

IMAGE = {"spark.kubernetes.container.image": "registry.test/cdc:1"}


def make_context(folder: Path, source: str = "", state: str = "", **kubernetes: Any) -> RunContext:
    """A pipeline whose drivers run in pods. Nothing answers at the addresses of source and API server."""
    api, port = f"https://127.0.0.1:{free_port()}", free_port()
    config = {
        "current-context": "a",
        "contexts": [{"name": "a", "context": {"cluster": "b", "user": "c"}}],
        "clusters": [{"name": "b", "cluster": {"server": api, **kubernetes.pop("cluster", {})}}],
        "users": [{"name": "c", "user": {"token": "t"}}],
    }
    extra = {"deploy-mode": "cluster", "kubernetes_conn_id": "kube"}
    known = {
        "shop": ResolvedConnection("shop", "mysql", source or "127.0.0.1", port=port),
        "books": ResolvedConnection("books", "mysql", state or "127.0.0.1", "u", "p", 3306, "books"),
        "spark": ResolvedConnection("spark", "spark", f"k8s://{api}", extra=extra),
        "kube": ResolvedConnection("kube", "kubernetes", extra={"kube_config": json.dumps(config), **kubernetes}),
    }
    pipeline = {
        "name": "p",
        "source": {"conn_id": "shop", "tables": ["d.t"]},
        "sink": {"path": str(folder)},
        "state": {"conn_id": "books"},
        "spark": {"conn_id": "spark", "conf": IMAGE},
    }
    return RunContext.for_pipeline(Pipeline.from_dict(pipeline), find_connection=known.__getitem__)


def check(context: RunContext) -> list[CheckResult]:
    return run_check(lambda: check_cluster(context))


def test_java_where_pods_are_created(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that creates pods needs none; the driver in the pod does."""
    monkeypatch.setenv("JAVA_HOME", "/nowhere")  # and restore it
    context = make_context(tmp_path)
    found = [*map(str, run_preflight(context))]
    assert any("its API server does not answer" in line for line in found), found
    assert not any("Java" in line for line in found)
    monkeypatch.setenv(DRIVER_POD_VARIABLE, "n/p/c")
    assert any("Java" in line for line in map(str, run_preflight(context)))


def test_servers_that_only_this_host_reaches(tmp_path: Path) -> None:
    def warned(**hosts: str) -> list[str]:
        found = check(make_context(tmp_path, **hosts))
        return [result.message for result in found if "do not reach" in result.message and result.level == "warning"]

    beginning = "drivers run in a cluster, and "
    assert warned(source="db.test", state="10.0.0.1") == []
    (source,) = warned(source="localhost", state="db.test")
    assert source.startswith(f"{beginning}source.conn_id shop names localhost, which")
    (state,) = warned(source="db.test", state="127.0.0.1")
    assert state.startswith(f"{beginning}state.conn_id books names 127.0.0.1, which")


@pytest.mark.parametrize("how", [{"disable_verify_ssl": True}, {"cluster": {"insecure-skip-tls-verify": True}}, {}])
def test_an_api_server_that_is_not_verified(tmp_path: Path, how: Any) -> None:
    found = [result for result in check(make_context(tmp_path, **how)) if "is not verified" in result.message]
    assert [result.level for result in found] == (["warning"] if how else [])
