"""Tables whose news begin other DAGs: those of a stream, and those of catch-ups that complete partitions."""

import os
from datetime import datetime
from typing import Any

from airflow.sdk import DAG, task

from airflow_provider_cdc import Pipeline, Sink, Source, State, Stream, cdc_asset, cdc_pipeline
from tests.support import driver_without_spark

driver_without_spark.use()


def pipeline(name: str, mode: str) -> Pipeline:
    return Pipeline(
        name=name,
        source=Source(conn_id="cdc_source", tables=(f"{name}..*",)),
        stream=Stream(mode=mode),
        sink=Sink(path=os.environ["CDC_LAKE"] + f"-{name}"),
        state=State(conn_id="cdc_state"),
    )


watched, caught = pipeline("watched_table", "continuous"), pipeline("partitions", "catch_up")
one = cdc_asset(watched, "watched_table.t", min_seconds=1)

with DAG("watched_table", schedule=None, max_active_runs=1):
    cdc_pipeline(watched)

with DAG("watched_table_heard", schedule=[one], catchup=False, max_active_runs=1):

    @task
    def hear(triggering_asset_events: Any = None) -> list[Any]:
        return [event.extra.get("payload", event.extra) for event in triggering_asset_events[one]]

    hear()

try:
    from airflow.sdk import CronPartitionTimetable, PartitionedAssetTimetable
except ImportError:  # before Airflow 3.2
    pass
else:
    with DAG(
        "partitions",
        schedule=CronPartitionTimetable("* * * * *", timezone="UTC"),
        start_date=datetime(2026, 1, 1),
        catchup=False,
        max_active_runs=1,
    ):
        cdc_pipeline(caught)

    with DAG(
        "partitions_heard",
        schedule=PartitionedAssetTimetable(
            assets=cdc_asset(caught, "partitions.busy") & cdc_asset(caught, "partitions.quiet")
        ),
        catchup=False,
        max_active_runs=1,
    ):

        @task
        def name(dag_run: Any = None) -> str:
            return str(dag_run.partition_key)

        name()
