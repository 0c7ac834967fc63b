"""The preflight: find everything that is going to fail, before anything is written."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from airflow_provider_cdc.config.connections import connection_risk
from airflow_provider_cdc.config.sink_section import KEEP
from airflow_provider_cdc.config.spark_conf import STREAM_REFUSED, KubernetesCluster
from airflow_provider_cdc.config.store_address import local_folder_of
from airflow_provider_cdc.config.table_paths import URL_READERS_REMEDY, url_escaped_characters
from airflow_provider_cdc.model.errors import CdcError
from airflow_provider_cdc.mysql.client.session import connect
from airflow_provider_cdc.preflight.check_result import CheckResult, run_check
from airflow_provider_cdc.preflight.cluster import check_cluster
from airflow_provider_cdc.preflight.server import check_server, check_server_ids
from airflow_provider_cdc.preflight.tables import check_tables
from airflow_provider_cdc.runtime.run_context import RunContext
from airflow_provider_cdc.sinks.protocol import Feature, HasCatalog
from airflow_provider_cdc.sinks.storage.disk import why_not_writable
from airflow_provider_cdc.sinks.storage.store_check import check_storage_guarantees
from airflow_provider_cdc.spark.session import runs_in_cluster, stop_session

#: Free bytes below which a disk is nearly full: too little for a batch, a compaction and the state database.
_MIN_FREE_BYTES = 1 << 30


def run_preflight(context: RunContext, *, spark: bool = True, for_stream: bool = False) -> list[CheckResult]:
    """Check server, grants, tables, sink and runtime. This leaves nothing behind, not even a folder.

    :param spark: also check pyspark and Java.
    :param for_stream: whether only a stream begins, which does not need the Spark Connect server.
    """
    results: list[CheckResult] = []
    results += run_check(lambda: _check_sink(context))
    results += run_check(lambda: _check_catalog(context))
    results += run_check(lambda: _check_sink_supports(context))
    results += run_check(lambda: _check_connection_security(context))
    if spark:
        # A task creates the pod of a driver without Spark.
        creates_pods = isinstance(context.cluster, KubernetesCluster) and not runs_in_cluster()
        if not creates_pods and (context.connect is None or context.pipeline.spark.master is not None):
            results += run_check(_check_runtime)
        results += run_check(lambda: check_cluster(context))
        if not for_stream:
            results += run_check(lambda: _check_connect_server(context))
    try:
        connection = connect(context.connect_args)
    except CdcError as error:
        return [*results, CheckResult.from_error(error)]
    with closing(connection):
        results += run_check(lambda: check_server(context, connection))
        results += run_check(lambda: check_server_ids(context, connection))
        results += check_tables(context, connection)
    return [*dict.fromkeys(results)]  # what is wrong with the sink may be wrong with each table


def require_preflight(context: RunContext, *, spark: bool = True, for_stream: bool = False) -> list[CheckResult]:
    """Run the preflight, and raise its first error, if any.

    For the parameters, see :func:`run_preflight`.

    :returns: the warnings.
    :raises NotReadyError: if a check found an error.
    :raises TransientError: if the error may be temporary, for example because the server cannot be reached.
    """
    results = run_preflight(context, spark=spark, for_stream=for_stream)
    for result in results:
        if result.level == "error":
            raise result.to_error()
    return [f for f in results if f.level == "warning"]


def _check_sink(context: RunContext) -> Iterator[CheckResult]:
    folder = local_folder_of(context.pipeline.sink.path)
    if folder is None:
        check_storage_guarantees(context.storage, context.layout.pipeline_folder)
        has_database = context.state_url is not None
        state_location = "in a database" if has_database else f"in {context.local_files.state_database} on this host"
        yield CheckResult("ok", f"sink {context.storage.location()} is writable; state is kept {state_location}")
        if context.state_url is None:
            yield from _check_disk_space("the state database", _nearest_existing(context.local_files.state_database))
        return
    path, existing = Path(folder), _nearest_existing(Path(folder))
    if (reason := why_not_writable(existing)) is not None:
        yield CheckResult(
            "error",
            f"sink.path {path} cannot be written: {existing} {reason}",
            "Give the user that runs this write access to it, or choose another sink.path",
        )
        return
    free = shutil.disk_usage(existing).free
    yield CheckResult("ok", f"sink {path} is writable, {free / 1e9:.1f} GB free")
    yield from _check_disk_space(f"sink {path}", existing)
    if odd_characters := url_escaped_characters(folder):
        yield CheckResult("warning", f"sink.path {path} has {odd_characters!r} in it", URL_READERS_REMEDY)


def _check_catalog(context: RunContext) -> Iterator[CheckResult]:
    """Check the catalog of the tables, if the sink has one."""
    sink = context.sink
    if isinstance(sink, HasCatalog):
        yield CheckResult("ok", f"catalog of the tables: {sink.check_catalog()}")


def _nearest_existing(path: Path) -> Path:
    """Return the path, or the nearest folder above it that exists."""
    while not os.path.exists(path) and path != path.parent:  # not Path.exists(), which raises if access is denied
        path = path.parent
    return path


def _check_disk_space(subject: str, existing: Path) -> Iterator[CheckResult]:
    """Yield a warning if the disk of a folder is nearly full."""
    free = shutil.disk_usage(existing).free
    if free < _MIN_FREE_BYTES:
        yield CheckResult(
            "warning",
            f"the disk of {subject} has only {free:,} bytes left (at {existing})",
            "Make room on that disk, or use a larger one: a snapshot needs about as much space as the tables",
        )


def _check_sink_supports(context: RunContext) -> Iterator[CheckResult]:
    """Check that the sink supports the settings of the pipeline; what tables need is checked with each table."""
    if context.pipeline.stream.on_purged == "reread":
        context.require_feature(Feature.RESNAPSHOT, "stream.on_purged is reread")
    if context.pipeline.sink.on_dropped != KEEP:
        for feature in (Feature.RESNAPSHOT, Feature.FOLLOW_DDL):
            context.require_feature(feature, "sink.on_dropped is not keep")
    yield from ()


def _check_connection_security(context: RunContext) -> Iterator[CheckResult]:
    """Yield warnings about insecure settings of the connections, without connecting."""
    pipeline, url = context.pipeline, context.state_url
    connections: dict[str, tuple[Any, Mapping[str, Any]]] = {
        f"source.conn_id {pipeline.source.conn_id}": (context.connect_args, context.connect_args)
    }
    if url is not None:
        connections[f"state.conn_id {pipeline.state.conn_id}"] = url, url.query
    if context.access is not None and (risk := context.access.risk):
        yield CheckResult(
            "warning",
            f"sink.conn_id {pipeline.sink.conn_id}: {risk}",
            "Use an https endpoint, and set verify to the file of the CA that signed its certificate",
        )
    for subject, (settings_source, settings) in connections.items():
        if risk := connection_risk(settings_source):
            yield CheckResult(
                "warning",
                f"{subject}: {risk}",
                f"Remove {'sslmode' if 'sslmode' in settings else 'ssl_mode'} from its extra, and specify there the "
                "CA that signed the server's certificate, unless the system trusts it",
            )
        key = str(settings.get("ssl_key") or settings.get("sslkey") or "")
        if key and os.path.exists(key) and os.stat(key).st_mode & 0o077:
            yield CheckResult("warning", f"{subject}: the key {key} is readable by other users", f"chmod 600 {key}")


def _check_connect_server(context: RunContext) -> Iterator[CheckResult]:
    """Check the Spark Connect server, if the pipeline has one, and run a task there."""
    server = context.connect
    if server is None:
        return
    if context.pipeline.spark.master is None:
        yield CheckResult("warning", *STREAM_REFUSED)
    from airflow_provider_cdc.spark.connect import check_workers, open_connect_session

    spark = open_connect_session(server)
    try:
        check_workers(spark, server, context.warn)
        stream = context.pipeline.spark.master
        runs = f"; the stream runs at {stream}" if stream else ""
        yield CheckResult("ok", f"Spark {spark.version} at {server.address} runs all jobs but the stream{runs}")
    finally:
        stop_session(spark)


def _check_runtime() -> Iterator[CheckResult]:
    from airflow_provider_cdc.spark.install_check import check_spark_home, check_spark_install
    from airflow_provider_cdc.spark.java import ensure_java_home

    version = check_spark_install()
    check_spark_home(version)
    yield CheckResult("ok", f"pyspark {version}, Java at {ensure_java_home()}")
