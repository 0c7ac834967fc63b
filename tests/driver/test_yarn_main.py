"""The address of the log that a driver in YARN records, without a cluster; tests/driver/test_yarn.py has a real one."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_cdc.driver.yarn_main import _log_address
from airflow_provider_cdc.spark.java import ensure_java_home
from airflow_provider_cdc.spark.resource_manager import _application_of

_SITE = "<configuration><property><name>yarn.http.policy</name><value>{}</value></property></configuration>"


@pytest.mark.spark
@pytest.mark.parametrize(("policy", "scheme"), [("HTTPS_ONLY", "https"), ("HTTP_ONLY", "http")])
def test_the_address_of_the_log(policy: str, scheme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its scheme is that of the cluster, as the ResourceManager and Spark choose it."""
    from pyspark.java_gateway import launch_gateway

    (tmp_path / "yarn-site.xml").write_text(_SITE.format(policy))
    container = "container_1_0002_01_000001"
    environment = {"HADOOP_CONF_DIR": str(tmp_path), "JAVA_HOME": ensure_java_home(), "USER": "cdc"}
    environment |= {"NM_HOST": "node.test", "NM_HTTP_PORT": "8044", "CONTAINER_ID": container}
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    gateway = launch_gateway(popen_kwargs={})
    try:
        found = _log_address(gateway.jvm)
    finally:
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait(60)
    assert found == f"{scheme}://node.test:8044/node/containerlogs/{container}/cdc"
    assert _application_of(found) == "application_1_0002"
