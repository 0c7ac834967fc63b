"""Tasks that fail: for one a person is needed, for the other it is enough to wait. And a connection of the form."""

import os
from datetime import timedelta

from airflow.sdk import DAG

from airflow_provider_cdc import CdcPreflightOperator, CdcSnapshotSensor, Pipeline, Sink, Source

with DAG("broken", schedule=None, default_args={"retries": 1, "retry_delay": timedelta(seconds=1)}):
    for conn_id in ("cdc_nobody", "cdc_away", "cdc_missing"):
        CdcPreflightOperator(
            task_id=conn_id,
            pipeline=Pipeline(
                name=conn_id,
                source=Source(conn_id=conn_id, tables=("shop.customer",)),
                sink=Sink(path=os.environ["CDC_LAKE"] + "-broken"),
            ),
        )
    CdcSnapshotSensor(
        task_id="soft",
        soft_fail=True,
        pipeline=Pipeline(
            name="soft",
            source=Source(conn_id="cdc_missing", tables=("shop.customer",)),
            sink=Sink(path=os.environ["CDC_LAKE"] + "-broken"),
        ),
    )

with DAG("in_form", schedule=None):
    CdcPreflightOperator(
        task_id="preflight",
        pipeline=Pipeline(
            name="in_form",
            source=Source(conn_id="cdc_form", tables=("shop.customer",)),
            sink=Sink(path=os.environ["CDC_LAKE"] + "-in_form"),
        ),
    )
