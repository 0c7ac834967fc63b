"""Opens the sink of a pipeline; the module of each kind is loaded only when it is used."""

from __future__ import annotations

import inspect
from importlib import import_module
from typing import TYPE_CHECKING, Any

from airflow_provider_cdc.config.sink_kinds import SINK_CLASSES
from airflow_provider_cdc.model.errors import NotReadyError

if TYPE_CHECKING:
    from airflow_provider_cdc.sinks.protocol import PipelineSink


def open_sink(kind: str, path: str, pipeline: str, **settings: Any) -> PipelineSink:
    """Return the sink of a pipeline, without any access to its storage yet.

    :param kind: ``sink.kind``.
    :param path: ``sink.path``.
    :param pipeline: name of the pipeline.
    :param settings: settings of this kind that differ from the default.
    :raises NotReadyError: if this kind does not have such settings.
    """
    module, _, name = SINK_CLASSES[kind].partition(":")
    sink_class = getattr(import_module(module), name)
    if unknown := sorted(settings.keys() - inspect.signature(sink_class).parameters.keys()):
        raise NotReadyError(f"a sink of kind {kind} has no setting {', '.join(unknown)}", "Leave it out")
    sink: PipelineSink = sink_class(path, pipeline, **settings)
    return sink
