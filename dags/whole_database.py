"""A whole database, kept in step by a stream; small chunk groups, two of them at a time, and each may be retried."""

import os
from datetime import timedelta

from airflow.sdk import DAG

from airflow_provider_cdc import Pipeline, Sink, Snapshot, Source, cdc_pipeline

shop = Pipeline(
    name="shop",
    source=Source(conn_id="cdc_source", tables=("shop..*",), exclude=("shop.tmp_.*",)),
    snapshot=Snapshot(group_rows=1_000_000, parallelism=2),
    # A folder, or a place in an object store: s3://bucket/lake, with the connection that has its keys.
    sink=Sink(path=os.environ.get("CDC_LAKE", "/data/lake"), conn_id=os.environ.get("CDC_LAKE_CONN_ID") or None),
)

with DAG(
    "cdc_whole_database",
    schedule=None,
    max_active_runs=1,
    default_args={"owner": "data-platform"},
    tags=["cdc"],
    doc_md=__doc__,
):
    cdc_pipeline(shop, max_active_groups=2, default_args={"retries": 3, "retry_delay": timedelta(minutes=1)})
