"""Opens the sink of a pipeline; the module of each kind is loaded only when it is used."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from airflow_provider_cdc.config.sink_kinds import SINK_KINDS
from airflow_provider_cdc.model.errors import NotReadyError

if TYPE_CHECKING:
    from airflow_provider_cdc.config.sink_section import Sink
    from airflow_provider_cdc.config.store_access import StoreAccess
    from airflow_provider_cdc.sinks.protocol import PipelineSink


def open_sink(settings: Sink, pipeline: str, access: StoreAccess | None = None) -> PipelineSink:
    """Return the sink of a pipeline, without any access to its storage yet.

    :param settings: the sink section of the pipeline.
    :param pipeline: name of the pipeline.
    :param access: object-store settings from the sink's connection, if it has one.
    :raises NotReadyError: if an optional library that it needs is not installed.
    """
    kind = SINK_KINDS[settings.kind]
    module, _, name = kind.sink_class.partition(":")
    try:
        sink_class: type[PipelineSink] = getattr(import_module(module), name)
    except ModuleNotFoundError as error:
        if kind.extra is None:
            raise
        raise NotReadyError(
            f"a sink of kind {settings.kind} needs {error.name}, which is not installed",
            f'Run on every host: pip install "airflow-provider-cdc[{kind.extra}]"',
        ) from None
    return sink_class.from_settings(settings, pipeline, access)
