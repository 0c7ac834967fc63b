"""Publishes the metrics of a pipeline through Airflow's own stats, for statsd, Datadog and OpenTelemetry."""

from __future__ import annotations

import logging
from importlib import import_module
from typing import TYPE_CHECKING, Any

from airflow_provider_cdc.observe.metrics import measure_pipeline

if TYPE_CHECKING:
    from airflow_provider_cdc.state import StateDatabase

#: Seconds between two reports.
STATS_SECONDS = 60.0
#: Where Airflow keeps its stats. The triggerer sets up the core's stats and a task those of the SDK. Before Airflow 3.2
#: there is only one.
_TRIGGERER = ("airflow.observability.stats", "airflow.stats:Stats")
_TASK = ("airflow.sdk.observability.stats", "airflow.stats:Stats")

log = logging.getLogger(__name__)


def send_stats(store: StateDatabase, pipeline: str, *, task: bool = False) -> int:
    """Send the metrics of a pipeline to Airflow's stats. Errors are logged and do not affect the stream.

    :param task: whether this process runs a task. Otherwise it is a triggerer.
    :returns: number of metrics.
    """
    measured = measure_pipeline(store, pipeline)
    try:
        stats = _find_stats(task)
        for measurement in measured:
            stats.gauge(f"cdc.{measurement.name}", measurement.value, tags=measurement.tags)
    except Exception as error:  # a backend that is not installed, or an address that cannot be resolved
        log.warning("Airflow's stats did not accept the metrics of %s: %s", pipeline, error)
    return len(measured)


def _find_stats(task: bool) -> Any:
    for place in _TASK if task else _TRIGGERER:
        module, _, name = place.partition(":")
        try:
            stats_module = import_module(module)
        except ModuleNotFoundError:
            continue
        return getattr(stats_module, name) if name else stats_module
    raise RuntimeError("this version of Airflow has no stats")
