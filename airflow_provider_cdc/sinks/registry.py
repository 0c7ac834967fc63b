"""Opens the sink of a pipeline; the module of each kind is loaded only when it is used."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from airflow_provider_cdc.config.sink_kinds import SINK_KINDS

if TYPE_CHECKING:
    from airflow_provider_cdc.config.sink_section import Sink
    from airflow_provider_cdc.config.store_access import StoreAccess
    from airflow_provider_cdc.sinks.protocol import PipelineSink


def open_sink(settings: Sink, pipeline: str, access: StoreAccess | None = None) -> PipelineSink:
    """Return the sink of a pipeline, without any access to its storage yet.

    :param settings: the sink section of the pipeline.
    :param pipeline: name of the pipeline.
    :param access: object-store settings from the sink's connection, if it has one.
    """
    module, _, name = SINK_KINDS[settings.kind].sink_class.partition(":")
    sink_class: type[PipelineSink] = getattr(import_module(module), name)
    return sink_class.from_settings(settings, pipeline, access)
