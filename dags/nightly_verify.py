"""Every night a seventh of the tables is compared with the source, while the stream runs; what differs is repaired."""

import os
from datetime import datetime

from airflow.sdk import DAG

from airflow_provider_cdc import CdcVerifyOperator, Pipeline, Sink, Source

# The pipeline of whole_database.py.
shop = Pipeline(
    name="shop",
    source=Source(conn_id="cdc_source", tables=("shop..*",), exclude=("shop.tmp_.*",)),
    sink=Sink(path=os.environ.get("CDC_LAKE", "/data/lake"), conn_id=os.environ.get("CDC_LAKE_CONN_ID") or None),
)

with DAG(
    "cdc_nightly_verify",
    schedule="0 2 * * *",
    start_date=datetime(2026, 1, 1),
    catchup=False,
    max_active_runs=1,
    params={"share": "1/7"},  # trigger it with 1/1 for all tables
    default_args={"owner": "data-platform"},
    tags=["cdc"],
    doc_md=__doc__,
):
    CdcVerifyOperator(
        task_id="verify", pipeline=shop, sample="{{ params.share }}", repair=True, max_rows_per_second=200_000
    )
