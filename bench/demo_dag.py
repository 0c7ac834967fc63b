"""The DAG of `make demo`: a whole database, in chunk groups so small that a small shop has several mapped tasks.

A DAG for a real database needs no such settings: see `dags/whole_database.py`.
"""

import json
import os
from datetime import timedelta

from airflow.sdk import DAG

from airflow_provider_cdc import Pipeline, Sink, Snapshot, Source, cdc_pipeline

shop = Pipeline(
    name="shop",
    source=Source(conn_id="cdc_source", tables=(r"shop\..*",)),
    snapshot=Snapshot(chunk_rows=int(os.environ["CDC_CHUNK_ROWS"]), group_rows=int(os.environ["CDC_GROUP_ROWS"])),
    sink=Sink(**json.loads(os.environ["CDC_SINK"])),
)

with DAG("cdc_demo", schedule=None, max_active_runs=1, tags=["cdc"], doc_md=__doc__):
    cdc_pipeline(
        shop,
        groups_per_task=3,
        max_active_groups=2,
        default_args={"retries": 3, "retry_delay": timedelta(seconds=10)},
    )
