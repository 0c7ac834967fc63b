"""A pipeline whose tasks run in pods, and whose drivers run in pods of their own."""

import os
from datetime import timedelta

from airflow.sdk import DAG

from airflow_provider_cdc import (
    CdcStreamOperator,
    CdcVerifyOperator,
    Pipeline,
    Sink,
    Snapshot,
    Source,
    Spark,
    State,
    cdc_pipeline,
)

PIPELINE = Pipeline(
    name="pods",
    source=Source(conn_id="cdc_source", tables=(os.environ["CDC_TABLE"],)),
    # So slow that a task that is killed is tried again while its driver still reads.
    snapshot=Snapshot(chunk_rows=10, group_rows=100, max_rows_per_second=1),
    sink=Sink(path=os.environ["CDC_LAKE"]),
    state=State(conn_id="cdc_state"),
    spark=Spark(
        conn_id="spark_kube",
        conf={
            "spark.kubernetes.driver.podTemplateFile": os.environ["CDC_POD_TEMPLATE"],
            "spark.pyspark.python": os.environ["CDC_PYTHON"],
            "spark.driver.memory": "512m",
        },
    ),
)

with DAG("pods", schedule=None, max_active_runs=1):
    cdc_pipeline(PIPELINE, default_args={"retries": 2, "retry_delay": timedelta(seconds=1)})

with DAG("pods_stream", schedule=None, max_active_runs=1):
    CdcStreamOperator(task_id="stream", pipeline=PIPELINE)

with DAG("pods_verify", schedule=None, max_active_runs=1):
    CdcVerifyOperator(task_id="verify", pipeline=PIPELINE)
