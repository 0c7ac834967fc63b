"""The pipeline: its sections, patterns, connections and settings."""

from airflow_provider_cdc.config.pipeline import Pipeline
from airflow_provider_cdc.config.sections import MAX_SERVER_ID, Alerts, Snapshot, Source, Spark, State, Stream
from airflow_provider_cdc.config.sink_section import Sink

__all__ = ["MAX_SERVER_ID", "Alerts", "Pipeline", "Sink", "Snapshot", "Source", "Spark", "State", "Stream"]
