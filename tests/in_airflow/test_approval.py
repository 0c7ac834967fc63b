"""A suspended table waits for a person in the UI, in real Airflow processes, and is read again on approval."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.in_airflow.site import Site

pytestmark = [pytest.mark.airflow, pytest.mark.spark, pytest.mark.timeout(3600)]
DAG = "cdc_approval"


@pytest.fixture
def invoices(site: Site) -> Iterator[Path]:
    site.server.execute("CREATE TABLE shop.invoices (id INT PRIMARY KEY, total INT)")
    site.server.execute("INSERT INTO shop.invoices VALUES (1, 10), (2, 20)")
    with contextlib.ExitStack() as stack:
        stack.callback(site.server.execute, "DROP TABLE shop.invoices")
        yield site.lake.with_name(site.lake.name + "-invoices")


def test_a_suspended_table_waits_for_approval(site: Site, invoices: Path) -> None:
    client = site.client
    first = client.trigger(DAG)
    client.wait_run(DAG, first)
    assert client.xcom(DAG, first, "invoices.stream")["suspended"] == []

    site.server.execute("ALTER TABLE shop.invoices MODIFY total VARCHAR(20), ORDER BY id")
    site.server.execute("INSERT INTO shop.invoices VALUES (3, 'thirty')")
    second = client.trigger(DAG)
    waiting = {"awaiting_input", "deferred"}  # before Airflow 3.3 the latter
    site.wait(
        "a question",
        lambda: [t for t in client.task_instances(DAG, second, "decide.approve") if t.state in waiting],
    )
    path = f"/dags/{DAG}/dagRuns/{second}/taskInstances/decide.approve/0/hitlDetails"
    assert client.get(path)["subject"] == "shop.invoices"
    client.request("PATCH", path, {"chosen_options": ["Approve"], "params_input": {}})
    client.wait_run(DAG, second)
    assert client.xcom(DAG, second, "decide.read_again", map_index=0)["outcome"] == "staged"

    third = client.trigger(DAG)
    client.wait_run(DAG, third)
    assert client.xcom(DAG, third, "invoices.stream")["suspended"] == []
    site.equal("invoices", lake=invoices)
