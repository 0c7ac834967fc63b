"""The operators spelled out, with upkeep of the sink and a comparison of source and sink at the end."""

import os
from datetime import timedelta

from airflow.sdk import DAG

from airflow_provider_cdc import (
    CdcMaintainOperator,
    CdcPlanChunksOperator,
    CdcPreflightOperator,
    CdcSnapshotOperator,
    CdcSnapshotSensor,
    CdcStreamOperator,
    CdcVerifyOperator,
)

# Plain values, as in a YAML file, may hold templates.
pipeline = {
    "name": "orders",
    "source": {"conn_id": "cdc_source", "tables": ["shop.orders"]},
    "snapshot": {"chunk_rows": 1000, "group_rows": 6000},
    # The stream does not compact its tables: the task `maintain` does.
    "sink": {"path": os.environ.get("CDC_LAKE", "/data/lake"), "compaction": False},
}

tasks = {"owner": "data-platform", "pipeline": pipeline, "retries": 3, "retry_delay": timedelta(minutes=1)}

with DAG("cdc_operators", schedule=None, max_active_runs=1, default_args=tasks, tags=["cdc"], doc_md=__doc__):
    preflight = CdcPreflightOperator(task_id="preflight")
    plan = CdcPlanChunksOperator(task_id="plan_chunks", groups_per_task=2)
    snapshot = CdcSnapshotOperator.partial(
        task_id="snapshot", pipeline=pipeline, map_index_template="{{ task.groups['label'] }}"
    ).expand(groups=plan.output)
    complete = CdcSnapshotSensor(task_id="snapshot_complete")
    stream = CdcStreamOperator(task_id="stream", catch_up=True)
    maintain = CdcMaintainOperator(task_id="maintain")
    verify = CdcVerifyOperator(task_id="verify")

    # The sensor hangs on the plan: a group that failed does not fail what follows, and clearing it harms nothing.
    preflight >> plan >> [snapshot, complete]
    complete >> stream >> maintain >> verify
