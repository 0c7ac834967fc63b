"""A catch-up that has to be done in time: if a run takes longer, Airflow sends a mail, and the run goes on.

The mail goes out by the connection smtp_default, from the triggerer, so what sends it has to be a module there.
"""

import os
from datetime import datetime, timedelta

from airflow.providers.smtp.notifications.smtp import SmtpNotifier
from airflow.sdk import DAG
from airflow.sdk.definitions.deadline import AsyncCallback, DeadlineAlert, DeadlineReference

from airflow_provider_cdc import Pipeline, Sink, Source, Stream, cdc_pipeline

MINUTES = float(os.environ.get("CDC_DEADLINE_MINUTES", "30"))

with DAG(
    "cdc_deadline",
    schedule="@hourly",
    start_date=datetime(2026, 1, 1),
    catchup=False,
    max_active_runs=1,
    deadline=DeadlineAlert(
        reference=DeadlineReference.DAGRUN_QUEUED_AT,
        interval=timedelta(minutes=MINUTES),
        callback=AsyncCallback(
            SmtpNotifier,
            kwargs={
                "from_email": "airflow@example.com",
                "to": "on-call@example.com",
                "subject": "The copy of shop.customer_address is late",
                "html_content": f"A run of cdc_deadline has not caught up within {MINUTES:g} minutes.",
            },
        ),
    ),
    default_args={"owner": "data-platform"},
    tags=["cdc"],
    doc_md=__doc__,
):
    cdc_pipeline(
        Pipeline(
            name="late",
            source=Source(conn_id="cdc_source", tables=("shop.customer_address",)),
            stream=Stream(mode="catch_up"),
            sink=Sink(path=os.environ.get("CDC_LAKE", "/data/lake") + "-deadline"),
        ),
        default_args={"retries": 3, "retry_delay": timedelta(minutes=1)},
    )
