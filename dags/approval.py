"""A table whose change is not followed waits for a person, and is read again when somebody approves that in the UI.

The stream goes on with the other tables meanwhile, and takes this one in again when it was read.
"""

import os
from datetime import datetime
from typing import Any

from airflow.providers.standard.operators.hitl import ApprovalOperator
from airflow.sdk import DAG, task, task_group

from airflow_provider_cdc import CdcResnapshotOperator, CdcStatusOperator, Pipeline, Sink, Source, Stream, cdc_pipeline

INVOICES = Pipeline(
    name="invoices",
    source=Source(conn_id="cdc_source", tables=("shop.invoices", "shop.refunds")),
    stream=Stream(reread="ask"),  # nothing is read again unasked
    sink=Sink(path=os.environ.get("CDC_LAKE", "/data/lake")),
)

with DAG(
    "cdc_invoices",
    schedule=None,
    max_active_runs=1,
    default_args={"owner": "data-platform"},
    tags=["cdc"],
    doc_md=__doc__,
):
    cdc_pipeline(INVOICES)


@task
def questions(status: dict[str, Any]) -> list[dict[str, str]]:
    """One for each suspended table about which something can be done."""
    return [{"table": one["table"], "why": one["message"]} for one in status["suspended"] if one["remedy"]]


@task_group
def decide(table: str, why: str) -> None:
    """Ask whether a table is read again as a whole, and do so."""
    approve = ApprovalOperator(task_id="approve", subject=table, body=why)
    approve >> CdcResnapshotOperator(task_id="read_again", pipeline=INVOICES, table=table)


# One run at a time: while a question is open, it is not asked again.
with DAG(
    "cdc_approval",
    schedule="*/10 * * * *",
    start_date=datetime(2026, 1, 1),
    catchup=False,
    max_active_runs=1,
    default_args={"owner": "data-platform"},
    tags=["cdc"],
    doc_md=__doc__,
):
    decide.expand_kwargs(questions(CdcStatusOperator(task_id="status", pipeline=INVOICES).output))
