"""The kinds of sinks. To add one, add a line here."""

#: ``sink.kind`` -> module and class. The class gets ``sink.path``, the name of the pipeline, and settings.
SINK_CLASSES = {
    "delta": "airflow_provider_cdc.sinks.delta.sink:DeltaSink",
}
