"""DAGs whose pipelines the page shows. They never run: what they would have done is written into the bookkeeping."""

import os

from airflow.sdk import DAG

from airflow_provider_cdc import CdcPreflightOperator, CdcVerifyOperator, Pipeline, Sink, Source, State, cdc_pipeline


def pipeline(name: str) -> Pipeline:
    return Pipeline(
        name=name,
        source=Source(conn_id="cdc_source", tables=("shop.orders", "shop.customer")),
        sink=Sink(path=os.environ["CDC_LAKE"]),
        state=State(conn_id="cdc_books"),
    )


with DAG("shop", schedule=None):
    cdc_pipeline(pipeline("shop"))

with DAG("elsewhere", schedule=None):
    cdc_pipeline(pipeline("elsewhere"))

# One pipeline, and who may edit one of its DAGs need not be one who may edit the others.
with DAG("acted", schedule=None):
    cdc_pipeline(pipeline("acted"), verify=True)
with DAG("compared", schedule=None):
    CdcVerifyOperator(task_id="compare", pipeline=pipeline("acted"))
with DAG("mended", schedule=None):
    CdcVerifyOperator(task_id="mend", pipeline=pipeline("acted"), repair=True)

with DAG("beside_the_sink", schedule=None):
    here = {"name": "beside", "source": {"conn_id": "cdc_source", "tables": ["shop.orders"]}}
    cdc_pipeline({**here, "sink": {"path": os.environ["CDC_LAKE"]}}, group_id="beside")

with DAG("templated", schedule=None, params={"shard": 1}):
    CdcPreflightOperator(
        task_id="preflight", pipeline={**here, "name": "shard_{{ params.shard }}", "sink": {"path": "/nowhere"}}
    )

with DAG("nothing_of_ours", schedule=None):
    pass
