"""What Airflow keeps of a DAG says which task does what for which pipeline."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG

from airflow_provider_cdc import CdcSnapshotOperator, CdcVerifyOperator, Pipeline, Sink, Source, cdc_pipeline
from airflow_provider_cdc.ui.action_rules import _describe_retry
from airflow_provider_cdc.ui.declared_tasks import _add_pipelines, _find_own_tasks
from airflow_provider_cdc.ui.task_instances import _group_numbers

PIPELINE = Pipeline(name="shop", source=Source(conn_id="s", tables=("shop.orders",)), sink=Sink(path="/lake"))


def kept(dag: DAG) -> Any:
    from airflow.serialization import serialized_objects

    known: Any = serialized_objects  # before Airflow 3.2 it has another name
    serialization = getattr(known, "DagSerialization", None) or known.SerializedDAG
    return json.loads(json.dumps(serialization.to_dict(dag)))


def test_kinds_of_tasks() -> None:
    with DAG("whole", schedule=None) as whole:
        cdc_pipeline(PIPELINE, verify=True)
    with DAG("parts", schedule=None) as parts:
        CdcVerifyOperator(task_id="repair", pipeline=PIPELINE, repair=True)
        CdcVerifyOperator.partial(task_id="repairs", repair=True).expand(pipeline=[PIPELINE.to_dict()])
        CdcSnapshotOperator.partial(task_id="two", pipeline=PIPELINE.to_dict()).expand(groups=[0, [1, 2]])
        CdcSnapshotOperator(task_id="one", pipeline=PIPELINE, groups=[4, 5])

    found = {one.task_id: one for one in _add_pipelines(None, list(_find_own_tasks("whole", kept(whole))))}
    assert {one.pipeline_name for one in found.values()} == {"shop"}
    assert all(one.dag_has_stream for one in found.values())
    assert found["shop.snapshot"].groups == "shop.plan_chunks"
    assert (found["shop.verify"].operator_name, found["shop.verify"].repair) == ("CdcVerifyOperator", False)

    tasks = {task.task_id: task for task in _find_own_tasks("parts", kept(parts))}
    assert {name: task.repair for name, task in tasks.items()} == {
        "repair": True,
        "repairs": True,
        "two": False,
        "one": False,
    }
    assert (tasks["two"].groups, tasks["one"].groups) == ((0, [1, 2]), ([4, 5],))


@pytest.mark.parametrize(
    ("state", "numbers", "published", "says"),
    [
        ("failed", (3,), (), "It reads what is missing in group 3"),
        (
            "failed",
            (3, 4, 5, 7),
            (3, 4, 9),
            "It reads what is missing in groups 5, 7. Its other groups (3-4) are published and are not read again",
        ),
        ("success", (3, 4), (3,), "It has succeeded, so it re-snapshots all of its groups (3-4)"),
    ],
)
def test_what_is_read(state: str, numbers: tuple[int, ...], published: tuple[int, ...], says: str) -> None:
    assert _describe_retry(SimpleNamespace(state=state), numbers, published) == says


def test_the_groups_of_a_task() -> None:
    given = (3, "3", [3, "4"], (3,), {"groups": [3, 4], "label": "3-4: t"}, None, "Truncated", {"group": 3})
    assert [_group_numbers(one) for one in given] == [(3,), (3,), (3, 4), (3,), (3, 4), (), (), ()]
