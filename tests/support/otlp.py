"""A collector of metrics by OpenTelemetry's protocol over HTTP: what an operator's own would get."""

from __future__ import annotations

import gzip
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from tests.support.served_meanwhile import ServedMeanwhile


class Collector(ServedMeanwhile):
    """Keeps the newest value of each metric, by its name and attributes. A context manager."""

    def __init__(self) -> None:
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                collector._take(gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body)
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                """Nothing."""

        self._found: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
        super().__init__(ThreadingHTTPServer(("127.0.0.1", 0), Handler))

    def _take(self, body: bytes) -> None:
        for resource in ExportMetricsServiceRequest.FromString(body).resource_metrics:
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    for point in metric.gauge.data_points:
                        tags = frozenset((pair.key, pair.value.string_value) for pair in point.attributes)
                        value = point.as_double if point.HasField("as_double") else float(point.as_int)
                        self._found[metric.name, tags] = value

    def of(self, **tags: str) -> dict[str, float]:
        """The newest values of metrics with exactly these attributes, by their names."""
        return {name: value for (name, found), value in list(self._found.items()) if found == frozenset(tags.items())}
