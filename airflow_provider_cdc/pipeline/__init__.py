"""The declarative pipeline: what to copy, how, and where to."""

from airflow_provider_cdc.pipeline.pipeline import Pipeline
from airflow_provider_cdc.pipeline.sections import MAX_SERVER_ID, Alerts, Snapshot, Source, Spark, State, Stream
from airflow_provider_cdc.pipeline.sink import Sink

__all__ = ["MAX_SERVER_ID", "Alerts", "Pipeline", "Sink", "Snapshot", "Source", "Spark", "State", "Stream"]
