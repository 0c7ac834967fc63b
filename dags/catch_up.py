"""Every hour: what is left of the snapshot, then the changes up to now, then the end. No process runs in between."""

import os
from datetime import datetime, timedelta

from airflow.sdk import DAG

from airflow_provider_cdc import Pipeline, Sink, Source, Stream, cdc_pipeline

with DAG(
    "cdc_catch_up",
    schedule="@hourly",
    start_date=datetime(2026, 1, 1),
    catchup=False,
    max_active_runs=1,
    default_args={"owner": "data-platform"},
    tags=["cdc"],
    doc_md=__doc__,
):
    cdc_pipeline(
        Pipeline(
            name="addresses",
            source=Source(conn_id="cdc_source", tables=("shop.customer_address",)),
            stream=Stream(mode="catch_up"),
            sink=Sink(
                path=os.environ.get("CDC_LAKE", "/data/lake"),
                # What history.py needs: a change data feed that delta-rs can read, in which a delete has its time.
                table_properties={"delta.enableChangeDataFeed": "true"},
                merge="copy_on_write",
                deletes="soft",
            ),
        ),
        verify=True,
        default_args={"retries": 3, "retry_delay": timedelta(minutes=1)},
    )
