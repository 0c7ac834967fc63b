"""The pipeline: its sections, patterns, connections and settings.

``pipeline.Pipeline`` is built from YAML or in Python, and checks every key and value; ``sections`` has ``Source``,
``Snapshot``, ``Stream``, ``State``, ``Alerts`` and ``Spark``, ``sink_section`` has ``Sink``, and ``transforms`` has
``Transforms``. A new setting begins here. ``connections`` resolves Airflow connections from the environment,
``hash_key`` takes the secret key of hashed columns from one, and ``tls`` says what a server must prove before it gets
any data; ``store_access`` resolves access to object stores, and ``catalog_settings`` catalogs of Iceberg tables.
``spark_conf`` checks Spark masters and Spark settings. ``sink_kinds`` names the class of each kind of sink, and the
settings that it has. ``fingerprint`` tells a running stream which settings have changed. Every room above uses this
one. It imports nothing heavy, because Airflow parses DAG files all the time.
"""

from airflow_provider_cdc.config.pipeline import Pipeline
from airflow_provider_cdc.config.sections import MAX_SERVER_ID, Alerts, Snapshot, Source, Spark, State, Stream
from airflow_provider_cdc.config.sink_section import Sink
from airflow_provider_cdc.config.transforms import Transforms

__all__ = [
    "MAX_SERVER_ID",
    "Alerts",
    "Pipeline",
    "Sink",
    "Snapshot",
    "Source",
    "Spark",
    "State",
    "Stream",
    "Transforms",
]
