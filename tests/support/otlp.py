"""A collector of metrics by OpenTelemetry's protocol over HTTP: what an operator's own would get."""

from __future__ import annotations

import gzip
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Self

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest


class Collector:
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
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port: int = self._server.server_address[1]

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._server.shutdown()
        self._server.server_close()

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
