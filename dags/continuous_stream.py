"""The snapshot in one DAG, the stream in another: one run of it at a time, and the next begins when one has ended."""

import os
from datetime import datetime, timedelta

from airflow.sdk import DAG

from airflow_provider_cdc import CdcSnapshotSensor, CdcStreamOperator, Pipeline, Sink, Source, cdc_pipeline

# For workers that die; what passes by itself the stream rides out without using them up.
RETRIES = {"retries": 3, "retry_delay": timedelta(minutes=1)}
ledger = Pipeline(
    name="ledger",
    source=Source(conn_id="cdc_source", tables=("shop.ledger",)),
    sink=Sink(path=os.environ.get("CDC_LAKE", "/data/lake")),
)

with DAG(
    "cdc_ledger_snapshot",
    schedule=None,
    max_active_runs=1,
    default_args={"owner": "data-platform"},
    tags=["cdc"],
    doc_md=__doc__,
):
    cdc_pipeline(ledger, stream=False, default_args=RETRIES)

# Without a start date Airflow makes one run only.
with DAG(
    "cdc_ledger_stream",
    schedule="@continuous",
    start_date=datetime(2026, 1, 1),
    catchup=False,
    max_active_runs=1,
    default_args={"owner": "data-platform", "pipeline": ledger, **RETRIES},
    tags=["cdc"],
    doc_md=__doc__,
):
    CdcSnapshotSensor(task_id="snapshot_complete") >> CdcStreamOperator(task_id="stream")
