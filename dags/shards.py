"""Many shards with the same tables: a DAG for each of them from one template, and a folder for each in the lake."""

import os
from datetime import datetime, timedelta

from airflow.sdk import DAG

from airflow_provider_cdc import Pipeline, Sink, Source, Stream, cdc_pipeline

# Connections of the shards.
SHARDS = os.environ.get("CDC_SHARDS", "cdc_shard_0 cdc_shard_1").split()

for number, conn_id in enumerate(SHARDS):
    with DAG(
        f"cdc_shard_{number}",
        schedule=f"{number % 60} * * * *",  # not all in the same minute
        start_date=datetime(2026, 1, 1),
        catchup=False,
        max_active_runs=1,
        default_args={"owner": "data-platform"},
        tags=["cdc"],
        doc_md=__doc__,
    ):
        cdc_pipeline(
            Pipeline(
                name=f"shard_{number}",
                source=Source(conn_id=conn_id, tables=("shop.customer_address",)),
                stream=Stream(mode="catch_up"),
                sink=Sink(path=os.environ.get("CDC_LAKE", "/data/lake") + f"/shards/{number}"),
            ),
            default_args={"retries": 3, "retry_delay": timedelta(minutes=1)},
        )
