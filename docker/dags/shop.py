"""The database shop, kept in step by a stream: Spark on the cluster, the state database in PostgreSQL."""

from datetime import timedelta

from airflow.sdk import DAG

from airflow_provider_cdc import cdc_pipeline

with DAG(
    "shop", schedule=None, max_active_runs=1, default_args={"owner": "data-platform"}, tags=["cdc"], doc_md=__doc__
):
    cdc_pipeline("shop.yaml", max_active_groups=2, default_args={"retries": 2, "retry_delay": timedelta(seconds=30)})
