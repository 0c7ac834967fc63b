"""The kinds of sinks. A line here makes one known to pipelines."""

#: ``sink.kind`` -> module and class; the class is called with ``sink.path``, the name of the pipeline, and settings.
SINK_CLASSES = {
    "delta": "airflow_provider_cdc.sinks.delta.sink:DeltaSink",
}
