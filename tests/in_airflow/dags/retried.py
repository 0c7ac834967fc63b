"""Pipelines whose tasks are killed, cleared and run again by the tests; their bookkeeping is in PostgreSQL."""

import os
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from airflow.sdk import DAG

from airflow_provider_cdc import (
    CdcResnapshotOperator,
    CdcSnapshotSensor,
    CdcStatusOperator,
    CdcStopOperator,
    CdcStreamOperator,
    CdcVerifyOperator,
    Pipeline,
    Sink,
    Snapshot,
    Source,
    State,
    Stream,
    cdc_pipeline,
)
from tests.support import driver_without_spark

driver_without_spark.use()


def pipeline(name: str, table: str, group_rows: int = 1_000_000) -> Pipeline:
    return Pipeline(
        name=name,
        source=Source(conn_id="cdc_source", tables=(f"shop.{table}",)),
        snapshot=Snapshot(chunk_rows=1000, group_rows=group_rows),
        sink=Sink(path=os.environ["CDC_LAKE"] + f"-{name}"),
        state=State(conn_id="cdc_state"),
    )


RETRIES = {"retries": 1, "retry_delay": timedelta(seconds=1)}

# Two runs at once on purpose.
with DAG("groups", schedule=None, max_active_runs=2, default_args=RETRIES):
    # Three groups or some more, as the server's statistics are.
    cdc_pipeline(pipeline("groups", "orders", 5000), map_published=True)

# Five groups of ten rows, in three tasks; a group whose rows cannot be copied fails.
with DAG("several", schedule=None, max_active_runs=1):
    cdc_pipeline(
        replace(
            pipeline("several", "t"),
            source=Source(conn_id="cdc_source", tables=("several.t",)),
            snapshot=Snapshot(chunk_rows=5, group_rows=10),
        ),
        stream=False,
        groups_per_task=2,
    )

with DAG("nightly", schedule="@daily", start_date=datetime(2026, 1, 1), catchup=False, max_active_runs=2):
    cdc_pipeline(pipeline("nightly", "customer_address"), catch_up=True, verify=True)

with DAG("purged", schedule=None, default_args=RETRIES):
    again = replace(pipeline("purged", "customer_address", 2000), stream=Stream(on_purged="reread"))
    cdc_pipeline(again, catch_up=True, verify=True)

with DAG("life", schedule=None, max_active_runs=1, default_args=RETRIES):
    cdc_pipeline(
        pipeline("life", "customer"),
        snapshot_args={"retries": 4, "pool_slots": 2},
        stream_args={"poll_seconds": 2, "pool_slots": 2},
    )

with DAG("shared", schedule=None, max_active_runs=1):
    cdc_pipeline(pipeline("shared", "customer"))

with DAG("elsewhere", schedule=None, max_active_runs=1, default_args=RETRIES):
    cdc_pipeline(replace(pipeline("elsewhere", "customer_address"), state=State(conn_id="cdc_file")))

LEDGER = pipeline("in_worker", "ledger")

with DAG("in_worker", schedule=None, max_active_runs=1):
    whole = cdc_pipeline(LEDGER, stream=False, deferrable=False)
    sensor = CdcSnapshotSensor(task_id="again", pipeline=LEDGER, deferrable=False, mode="reschedule", poke_interval=2)
    whole >> sensor >> CdcStreamOperator(task_id="stream", pipeline=LEDGER, deferrable=False, poll_seconds=1)

# The test writes this file, and changes it while the stream runs.
TABLES = os.environ["CDC_LAKE"] + "-tables.yaml"


def told(context: Mapping[str, Any]) -> None:
    """What a hook hears, and when."""
    alert = context["cdc_alert"]
    with open(TABLES + ".told", "a") as file:
        print(alert["kind"], alert["table"], "over" if alert["over"] else "begun", file=file)


with DAG("tables", schedule=None, max_active_runs=1, default_args=RETRIES):
    cdc_pipeline(TABLES, group_id="tables", on_suspended=told, on_recovered=[told])

with DAG("again", schedule=None, max_active_runs=1, default_args=RETRIES):
    CdcResnapshotOperator(task_id="again", pipeline=TABLES, table="{{ 'tables' }}.one")

with DAG("pausing", schedule=None, max_active_runs=2, params={"pause": None}, default_args=RETRIES):
    CdcStreamOperator(task_id="stream", pipeline=TABLES, paused="{{ params.pause }}", poll_seconds=1)

with DAG("changed", schedule=None, max_active_runs=1):
    CdcStreamOperator(task_id="stream", pipeline=TABLES)

with DAG("asked", schedule=None, max_active_runs=1):
    (
        CdcStatusOperator(task_id="status", pipeline=TABLES, fail_on=["suspended", "stopped"])
        >> CdcStopOperator(task_id="stop", pipeline=TABLES, poll_seconds=1)
        >> CdcStatusOperator(task_id="worried", pipeline=TABLES, fail_on=["stopped"], retries=3)
    )

# One group after the other, and none is tried again by itself: there is time to look at it.
with DAG("watched", schedule=None, max_active_runs=1):
    cdc_pipeline(pipeline("watched", "orders", 9000), max_active_groups=1)

with DAG("watched_compared", schedule=None):
    CdcVerifyOperator(task_id="verify", pipeline=pipeline("watched", "orders", 9000))

with DAG("watched_repaired", schedule=None):
    CdcVerifyOperator(task_id="verify", pipeline=pipeline("watched", "orders", 9000), repair=True)
