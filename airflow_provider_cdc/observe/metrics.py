"""The metrics of pipelines, from the state database alone. Neither the source nor the sink is accessed."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_provider_cdc.model.errors import REQUESTED, CdcError, NotReadyError
from airflow_provider_cdc.observe.metric_definitions import Measurement

if TYPE_CHECKING:
    from airflow_provider_cdc.state import EpochRow, StateDatabase, TableStateRow

#: Seconds after which a stream without a heartbeat no longer counts as running, and after which a sample is outdated.
_ALIVE_SECONDS, FRESH_SECONDS = 60.0, 300.0
_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def measure_pipeline(store: StateDatabase, pipeline: str) -> list[Measurement]:
    """Return the current metrics of a pipeline.

    Unknown values are left out, for example the lag if the source was not queried within the last five minutes.
    """
    return [
        Measurement(name, float(value), pipeline, table)
        for name, value, table in (*_pipeline_values(store, pipeline), *_table_values(store, pipeline))
        if value is not None
    ]


MetricValues = Iterator[tuple[str, float | None, str | None]]


def _pipeline_values(store: StateDatabase, pipeline: str) -> MetricValues:
    from airflow_provider_cdc.state import utc_now

    moment, run = utc_now(), store.newest_epoch(pipeline)
    if run is not None:
        yield from _stream_values(run, moment)
    sample = store.last_sample(pipeline)
    if sample is not None and (moment - sample.at).total_seconds() < FRESH_SECONDS:
        yield "lag_seconds", sample.lag_seconds, None
        yield "bytes_behind", sample.lag_bytes, None
        yield "hours_to_purge", sample.purge_hours, None
    for batch in store.last_batches(pipeline, 1):
        yield "change_lag_seconds", None if batch.lag_p95_ms is None else batch.lag_p95_ms / 1000, None
        yield "merge_seconds", batch.seconds, None
    totals = store.batch_totals(pipeline)
    yield "changes", totals.changes, None
    yield "batches", totals.batches, None
    snapshot = store.snapshot(pipeline)
    if snapshot is not None:
        progress = store.table_progress(pipeline, snapshot.generation)
        yield "rows", sum(table.rows for table in progress), None
        yield "chunks_done", sum(table.done for table in progress), None
        yield "chunks_total", sum(table.chunks for table in progress), None


def _stream_values(run: EpochRow, moment: datetime) -> MetricValues:
    age = max(0.0, (moment - run.heartbeat_at).total_seconds())
    yield "running", run.state == "running" and age < _ALIVE_SECONDS, None
    yield "paused", run.paused_by is not None, None
    yield "failed", run.state == "failed", None
    yield "heartbeat_age_seconds", age, None


def _table_values(store: StateDatabase, pipeline: str) -> MetricValues:
    from airflow_provider_cdc.state import utc_now

    tables, moment = [row for row in store.table_states(pipeline) if row.state != "removed"], utc_now()
    yield "tables", len(tables), None
    yield "suspended_tables", sum(map(is_suspended, tables)), None
    for row in tables:
        label = f"{row.database}.{row.name}"
        yield "suspended", is_suspended(row), label
        yield "table_rows", row.rows, label
        yield "table_bytes", row.bytes, label
        yield "files", row.files, label
        yield "dead_rows", row.dead_rows, label
        yield "compactions", row.compactions, label
        yield "compaction_seconds", row.compaction_seconds, label
        yield "inserts", row.inserts, label
        yield "updates", row.updates, label
        yield "deletes", row.deletes, label
        verified = row.last_verified or {}
        if verified:
            yield "not_comparable", verified.get("not_comparable") is not None, label
        if row.last_verified_at is not None:
            yield "verified_equal", bool(verified.get("equal")), label
            yield "verified_age_seconds", max(0.0, (moment - row.last_verified_at).total_seconds()), label


def is_suspended(row: TableStateRow) -> bool:
    """Return whether a table is suspended because of a problem, and not by request."""
    return row.state == "suspended" and row.kind != REQUESTED


def write_atomically(text: str, path: Path) -> None:
    """Replace a file atomically, so that readers see either the complete old or the complete new text.

    :raises NotReadyError: if it cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        try:
            temporary.write_text(text, encoding="utf-8")
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise NotReadyError(f"{path} cannot be written: {error.strerror}", "Name a file in a writable folder") from None


def serve_metrics(address: str, render: Callable[[], str], log_line: Callable[[str], None]) -> None:
    """Answer ``GET /metrics`` until SIGTERM or SIGINT.

    :param address: ``host:port``.
    :param render: returns the response body; called for each request.
    :param log_line: receives a line when the server starts, and one for each failure.
    :raises NotReadyError: if it is not possible to listen there.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise NotReadyError(f"--listen {address} is not host:port", "Give both, such as 127.0.0.1:9108")

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            code, body = 404, "see /metrics\n"
            if self.path.partition("?")[0] == "/metrics":
                try:
                    code, body = 200, render()
                except CdcError as error:
                    code, body = 503, "the state database cannot be read\n"
                    log_line(str(error))
            self.send_response(code)
            self.send_header("Content-Type", _CONTENT_TYPE)
            self.send_header("Content-Length", str(len(body.encode())))
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, format: str, *args: object) -> None:
            """Do not log requests."""

    try:
        server = ThreadingHTTPServer((host, int(port)), Handler)
    except OSError as error:
        raise NotReadyError(f"cannot listen on {address}: {error.strerror}", "Give another --listen") from None
    server.daemon_threads = True
    with server:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        log_line(f"http://{host}:{server.server_address[1]}/metrics")
        with suppress(KeyboardInterrupt):
            server.serve_forever()
