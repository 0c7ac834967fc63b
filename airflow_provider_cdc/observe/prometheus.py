"""The metrics in the text format of Prometheus: as text, in a file, or by HTTP."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app, write_to_textfile
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import ThreadingWSGIServer
from prometheus_client.registry import Collector

from airflow_provider_cdc.model.errors import CdcError, NotReadyError
from airflow_provider_cdc.observe.metrics import METRICS, Measurement


class _MeasurementCollector(Collector):
    """Groups measurements by metric. A metric without any is left out."""

    def __init__(self, measure: Callable[[], Iterable[Measurement]]) -> None:
        self._measure = measure

    def collect(self) -> Iterator[Metric]:
        families = {
            name: (CounterMetricFamily if metric.is_counter else GaugeMetricFamily)(
                f"cdc_{name}", metric.help_text, labels=("pipeline", "table") if metric.per_table else ("pipeline",)
            )
            for name, metric in METRICS.items()
        }
        for measurement in self._measure():
            families[measurement.name].add_metric([*measurement.tags.values()], measurement.value)
        return (family for family in families.values() if family.samples)


def make_registry(measure: Callable[[], Iterable[Measurement]]) -> CollectorRegistry:
    """Return a registry of all metrics.

    :param measure: returns the current measurements; called each time that the metrics are read.
    """
    registry = CollectorRegistry()
    registry.register(_MeasurementCollector(measure))
    return registry


def write_metrics_file(measure: Callable[[], Iterable[Measurement]], path: str) -> None:
    """Replace a file atomically, so that readers see either the complete old or the complete new text.

    :param measure: returns the current measurements.
    :raises NotReadyError: if it cannot be written.
    """
    measurements = list(measure())  # before there is a new file, which would stay if this process was killed
    try:
        write_to_textfile(path, make_registry(lambda: measurements))
    except OSError as error:
        raise NotReadyError(f"{path} cannot be written: {error.strerror}", "Name a file in a writable folder") from None


class _SilentHandler(WSGIRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Do not log requests."""


def serve_metrics(address: str, measure: Callable[[], Iterable[Measurement]], log_line: Callable[[str], None]) -> None:
    """Answer ``GET /metrics`` until SIGTERM or SIGINT.

    :param address: ``host:port``.
    :param measure: returns the current measurements.
    :param log_line: receives a line when the server starts, and one for each failure.
    :raises NotReadyError: if it is not possible to listen there.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise NotReadyError(f"--listen {address} is not host:port", "Give both, such as 127.0.0.1:9108")
    metrics_app = make_wsgi_app(make_registry(measure))

    def app(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        status, text = "404 Not Found", "see /metrics\n"
        if environ["PATH_INFO"] == "/metrics":
            try:
                # It would look for the metrics that the query names among those that a collector describes beforehand.
                return metrics_app({**environ, "QUERY_STRING": ""}, start_response)  # type: ignore[no-any-return]
            except CdcError as error:
                status, text = "503 Service Unavailable", "the state database cannot be read\n"
                log_line(str(error))
        start_response(status, [("Content-Type", "text/plain; charset=utf-8")])
        return [text.encode()]

    try:
        server = make_server(host, int(port), app, ThreadingWSGIServer, _SilentHandler)
    except OSError as error:
        raise NotReadyError(f"cannot listen on {address}: {error.strerror}", "Give another --listen") from None
    with server:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        log_line(f"http://{host}:{server.server_address[1]}/metrics")
        with suppress(KeyboardInterrupt):
            server.serve_forever()
