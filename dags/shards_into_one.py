"""Tables of several databases, copied into one: a copy of all customers, whichever shard they are in.

Each row has the table that it comes from in `_cdc_source`, which is part of the key of the copy.
"""

import os
from datetime import timedelta

from airflow.sdk import DAG

from airflow_provider_cdc import Pipeline, Sink, Source, Stream, cdc_pipeline

shards_into_one = Pipeline(
    name="shards_into_one",
    source=Source(conn_id="cdc_source", tables=(r"shop(_\d+)?[.]customer",)),
    sink=Sink(
        path=os.environ.get("CDC_LAKE", "/data/lake") + "/shards",
        # With `"unique": True`, the key is that of the tables, and a customer in two of them stops the second one.
        routes=({"match": r"shop(_\d+)?[.]customer", "into": "all/customer"},),
    ),
    stream=Stream(mode="catch_up"),
)

with DAG(
    "cdc_shards_into_one",
    schedule=None,
    max_active_runs=1,
    default_args={"owner": "data-platform"},
    tags=["cdc"],
    doc_md=__doc__,
):
    cdc_pipeline(shards_into_one, verify=True, default_args={"retries": 3, "retry_delay": timedelta(minutes=1)})
