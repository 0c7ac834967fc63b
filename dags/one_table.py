"""One table: the shortest there is. Snapshot, then a stream that goes on until it is stopped."""

import os
from datetime import timedelta

from airflow.sdk import DAG

from airflow_provider_cdc import Pipeline, Sink, Source, cdc_pipeline

with DAG(
    "cdc_one_table",
    schedule=None,
    max_active_runs=1,
    default_args={"owner": "data-platform"},
    tags=["cdc"],
    doc_md=__doc__,
):
    cdc_pipeline(
        Pipeline(
            name="customers",
            source=Source(conn_id="cdc_source", tables=("shop.customer",)),
            sink=Sink(path=os.environ.get("CDC_LAKE", "/data/lake")),
        ),
        default_args={"retries": 3, "retry_delay": timedelta(minutes=1)},
    )
