"""Taking over from Debezium, or another tool: the stream begins behind the transactions which that one has delivered.

Stop the other tool, and set the variable `cdc_gtid_set` to the GTIDs of its offset (Debezium: `gtids`). The tables here
hold what has changed since; what was before is where the other tool has written it.
"""

import os
from datetime import timedelta

from airflow.sdk import DAG

from airflow_provider_cdc import cdc_pipeline

pipeline = {
    "name": "taken_over",
    "source": {"conn_id": "cdc_source", "tables": ["shop.ledger"]},
    "stream": {"start": {"gtid_set": "{{ var.value.cdc_gtid_set }}"}},
    "sink": {"path": os.environ.get("CDC_LAKE", "/data/lake") + "/taken_over"},
}

with DAG(
    "cdc_takeover",
    schedule=None,
    max_active_runs=1,
    default_args={"owner": "data-platform"},
    tags=["cdc"],
    doc_md=__doc__,
):
    cdc_pipeline(pipeline, default_args={"retries": 3, "retry_delay": timedelta(minutes=1)})
