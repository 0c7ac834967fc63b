"""A pipeline whose tasks tell OpenLineage what they read and write."""

import os

from airflow.sdk import DAG

from airflow_provider_cdc import Pipeline, Sink, Source, cdc_pipeline
from tests.support import driver_without_spark

driver_without_spark.use()

with DAG("lineage", schedule=None, max_active_runs=1):
    cdc_pipeline(
        Pipeline(
            name="lineage",
            source=Source(conn_id="cdc_source", tables=("lineage..*",), exclude_columns=("lineage..*.secret",)),
            sink=Sink(path=os.environ["CDC_LAKE"] + "-lineage"),
        ),
        catch_up=True,
        verify=True,
    )
