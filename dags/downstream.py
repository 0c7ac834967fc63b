"""A DAG that begins when there is something new in a table: its snapshot, a minute of its stream, a repair."""

import os

from airflow.sdk import DAG, task

from airflow_provider_cdc import Pipeline, Sink, Source, cdc_asset

# The pipeline of whole_database.py.
shop = Pipeline(
    name="shop",
    source=Source(conn_id="cdc_source", tables=("shop..*",), exclude=("shop.tmp_.*",)),
    sink=Sink(path=os.environ.get("CDC_LAKE", "/data/lake"), conn_id=os.environ.get("CDC_LAKE_CONN_ID") or None),
)
orders = cdc_asset(shop, "shop.orders")

with DAG(
    "cdc_downstream",
    schedule=[orders],
    catchup=False,
    max_active_runs=1,
    default_args={"owner": "data-platform"},
    tags=["cdc"],
    doc_md=__doc__,
):

    @task
    def look(triggering_asset_events=None):
        """Here stands what reads the copy. The events say what has happened to it since the last run."""
        news = [event.extra.get("payload", event.extra) for event in triggering_asset_events[orders]]
        for new in news:
            print(", ".join(f"{name}: {value}" for name, value in new.items()))
        return news

    look()
