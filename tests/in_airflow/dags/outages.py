"""One pipeline with one stream, looked after by tasks of several kinds; none of them has a retry."""

import os
from datetime import timedelta

from airflow.sdk import DAG

from airflow_provider_cdc import CdcStreamOperator, Pipeline, Sink, Source, State, cdc_pipeline
from tests.support import driver_without_spark

driver_without_spark.use()

OUTAGES = Pipeline(
    name="outages",
    source=Source(conn_id="cdc_source_flaky", tables=("shop.customer",)),
    sink=Sink(path=os.environ["CDC_LAKE"] + "-outages"),
    state=State(conn_id="cdc_state"),
)


def as_in_a_pod(_context: object) -> None:
    """What KubernetesExecutor sets for the pod of a task."""
    os.environ["AIRFLOW_IS_K8S_EXECUTOR_POD"] = "True"


with DAG("outages_snapshot", schedule=None, max_active_runs=1):
    cdc_pipeline(OUTAGES, stream=False, default_args={"retries": 2, "retry_delay": timedelta(seconds=1)})

with DAG("outages_deferred", schedule=None, max_active_runs=1):
    CdcStreamOperator(task_id="stream", pipeline=OUTAGES)

with DAG("outages_leased", schedule=None, max_active_runs=1):
    CdcStreamOperator(task_id="stream", pipeline=OUTAGES, poll_seconds=2, lease_seconds=20)

with DAG("outages_in_worker", schedule=None, max_active_runs=1):
    CdcStreamOperator(task_id="stream", pipeline=OUTAGES, deferrable=False, poll_seconds=60)

with DAG("outages_timed", schedule=None, max_active_runs=1):
    CdcStreamOperator(
        task_id="stream",
        pipeline=OUTAGES,
        deferrable=False,
        poll_seconds=60,
        execution_timeout=timedelta(seconds=60),  # a busy machine needs half of it until the stream begins
    )

with DAG("outages_in_pod", schedule=None, max_active_runs=1):
    CdcStreamOperator(task_id="stream", pipeline=OUTAGES, pre_execute=as_in_a_pod)
    CdcStreamOperator(task_id="refused", pipeline=OUTAGES, deferrable=True, pre_execute=as_in_a_pod)
