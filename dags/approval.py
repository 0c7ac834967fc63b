"""A table whose change is not followed waits for a person, and whoever approves it in the UI has it read again.

The stream goes on without the table meanwhile. The next run takes it in.
"""

import os
from typing import Any

from airflow.providers.standard.operators.hitl import ApprovalOperator
from airflow.sdk import DAG, task, task_group

from airflow_provider_cdc import CdcResnapshotOperator, Pipeline, Sink, Source, Stream, cdc_pipeline

PIPELINE = Pipeline(
    name="invoices",
    source=Source(conn_id="cdc_source", tables=("shop.invoices",)),
    # Nothing is read again unasked, and a run is not red for a table that waits.
    stream=Stream(mode="catch_up", reread="ask", fail_on_suspended=False),
    sink=Sink(path=os.environ.get("CDC_LAKE", "/data/lake") + "-invoices"),
)


@task
def suspended(stream: dict[str, Any]) -> list[str]:
    """Tables that the stream goes on without."""
    return stream["suspended"]


@task_group
def decide(table: str) -> None:
    """Ask whether a table is read again, and do so."""
    body = "The stream goes on without this table. Read it again as a whole?"
    approve = ApprovalOperator(task_id="approve", subject=table, body=body)
    approve >> CdcResnapshotOperator(task_id="read_again", pipeline=PIPELINE, table=table)


with DAG("cdc_approval", schedule=None, max_active_runs=1):
    stream = cdc_pipeline(PIPELINE).children["invoices.stream"]
    decide.expand(table=suspended(stream.output))
