"""The kinds of sinks. A line here makes one known to pipelines; its module is loaded when it is used."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from airflow_provider_cdc.sinks.protocol import Sink

#: ``sink.kind`` -> module and class; the class is called with ``sink.path`` and the name of the pipeline.
KINDS = {
    "delta": "airflow_provider_cdc.sinks.delta.sink:DeltaSink",
}


def open_sink(kind: str, path: str, pipeline: str) -> Sink:
    """The sink of a pipeline; nothing is looked at yet.

    :param kind: ``sink.kind``.
    :param path: ``sink.path``.
    :param pipeline: name of the pipeline.
    """
    module, _, name = KINDS[kind].partition(":")
    found: Sink = getattr(import_module(module), name)(path, pipeline)
    return found
