"""What Airflow keeps of a DAG says which task does what for which pipeline."""

from __future__ import annotations

import json
from typing import Any

from airflow.sdk import DAG

from airflow_provider_cdc import CdcSnapshotOperator, CdcVerifyOperator, Pipeline, Sink, Source, cdc_pipeline
from airflow_provider_cdc.ui.declared_tasks import _add_pipelines, _find_own_tasks

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
        CdcSnapshotOperator.partial(task_id="two", pipeline=PIPELINE.to_dict()).expand(group=[0, 1])
        CdcSnapshotOperator(task_id="one", pipeline=PIPELINE, group=4)

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
    assert (tasks["two"].groups, tasks["one"].groups) == ((0, 1), (4,))
