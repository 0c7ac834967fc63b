"""What docs/deployment.md says to write, one can write: each connection and each part of a pipeline is accepted."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import yaml

from airflow_provider_cdc.config import Pipeline
from airflow_provider_cdc.config.connections import env_variable_name
from airflow_provider_cdc.config.spark_conf import KubernetesCluster, YarnCluster, is_loopback_master
from airflow_provider_cdc.runtime.run_context import RunContext
from airflow_provider_cdc.spark.session import ENCRYPTION_SETTINGS
from tests import ROOT

PAGE = (ROOT / "docs" / "deployment.md").read_text()
START = PAGE.partition("## Where is your Spark\n")[2].partition("\n## ")[0]
#: By its heading, each section of the page's beginning.
SECTIONS = {text.partition("\n")[0]: text for text in START.split("\n### ")[1:]}
SHARED = "For everything else: sink and state"
#: Master, and kind of the cluster that runs the drivers.
EXPECTED: dict[str, tuple[str, type | None]] = {
    "No Spark yet": ("local[4]", None),
    "A standalone cluster": ("spark://spark.example:7077", None),
    "YARN in cluster mode": ("yarn", YarnCluster),
    "YARN in client mode": ("yarn", None),
    "Kubernetes in cluster mode": ("local[2]", KubernetesCluster),  # in the pod
    "Kubernetes in client mode": ("k8s://https://kubernetes.default.svc:443", None),
    "A Spark Connect server": ("local[2]", None),
}
PIPELINE = {
    "name": "shop",
    "source": {"conn_id": "cdc_source", "tables": ["shop..*"]},
    "sink": {"path": "/data/lake"},
}


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.M | re.S)


def pipeline(*texts: str) -> Pipeline:
    value: dict[str, Any] = dict(PIPELINE)
    for text in texts:
        for part in blocks(text, "yaml"):
            value |= yaml.safe_load(part)
    return Pipeline.from_dict(value)


def context(monkeypatch: pytest.MonkeyPatch, *texts: str) -> RunContext:
    monkeypatch.setenv(env_variable_name("cdc_source"), "mysql://cdc:password@127.0.0.1/")
    for text in texts:
        for part in blocks(text, "sh"):
            for name, value in re.findall(r"^export (\w+)='(.*?)'$", part, re.M | re.S):
                monkeypatch.setenv(name, value)
    return RunContext.for_pipeline(pipeline(*texts))


def test_every_row_leads_to_a_section() -> None:
    assert EXPECTED.keys() | {SHARED} == SECTIONS.keys()
    rows = re.findall(r"^\| .* \[.*\]\(#([\w-]+)\) \|$", START, re.M)
    assert sorted(rows) == sorted(re.sub(" ", "-", heading.lower()) for heading in EXPECTED)


@pytest.mark.parametrize("heading", EXPECTED)
def test_what_to_write_for_each_spark(heading: str, monkeypatch: pytest.MonkeyPatch) -> None:
    shared = [] if heading == "No Spark yet" else [SECTIONS[SHARED]]
    found = context(monkeypatch, *shared, SECTIONS[heading])
    master, conf = found.spark_config
    expected, kind = EXPECTED[heading]
    assert master == expected and (found.cluster and type(found.cluster)) is kind
    assert (found.connect is not None) == ("Connect" in heading)
    found.require_stream_master()
    if shared:
        assert found.state_url is not None and found.access is not None
    if kind is None and not is_loopback_master(master):  # Spark is stopped without them
        assert [conf[name] for name in ENCRYPTION_SETTINGS] == ["true", "true"]
    if "Kubernetes" in heading:
        assert conf["spark.kubernetes.namespace"] == "airflow" and conf["spark.kubernetes.container.image"]


def test_a_database_without_a_certificate(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the page says, with the same words as docker/compose.yaml."""
    extra = "?sslmode=disable"
    assert extra in SECTIONS[SHARED] and extra in (ROOT / "docker" / "compose.yaml").read_text()
    url = context(monkeypatch, SECTIONS[SHARED].replace("/cdc_state'", f"/cdc_state{extra}'")).state_url
    assert url is not None and url.query["sslmode"] == "disable"


def test_the_other_blocks_of_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    rest = PAGE.replace(START, "")
    parts = [part for part in blocks(rest, "yaml") if "apiVersion" not in part]
    connections = [json.loads(part) for part in blocks(rest, "json")]
    assert parts
    for part in parts:
        assert pipeline(f"```yaml\n{part}```").spark.conf
    for connection in connections:
        monkeypatch.setenv(env_variable_name("spark_default"), json.dumps(connection))
        one = "```yaml\nspark: {conn_id: spark_default}\n```"
        found = context(monkeypatch, one)
        assert found.connect is not None or found.cluster is not None
