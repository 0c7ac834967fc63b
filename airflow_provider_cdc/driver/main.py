"""The process that runs Spark for a scheduler's task.

It runs one chunk group, a re-snapshot, the stream, maintenance or a comparison. The request, including the
connections, is one line of JSON on standard input, so that no secret is ever on a command line, in the environment or
in a file. The result is written to a file that the request names; all other output goes to standard error.

A driver lives as long as its task: the pipe stays open, and when it closes, the whole session ends. A stream's driver
is released by :data:`RELEASE_LINE` when its task has found its epoch in the state database. From then on it runs
independently, and a task supervises it through that database.
"""

from __future__ import annotations

import faulthandler
import hashlib
import json
import logging
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from airflow_provider_cdc.config import Pipeline
from airflow_provider_cdc.config.connections import ResolvedConnection, remove_airflow_variables, scrub_secrets
from airflow_provider_cdc.config.selection import TableSelection
from airflow_provider_cdc.config.spark_conf import CLUSTER_MODE_REFUSED, YarnCluster, reachable_url
from airflow_provider_cdc.model.errors import REPORT_REMEDY, CdcError, NotReadyError, OutOfMemoryError
from airflow_provider_cdc.observe.log_lines import FINAL_ERROR_PREFIX, LOGGER_NAME, log_to_standard_error
from airflow_provider_cdc.observe.reporters import LogReporter
from airflow_provider_cdc.runtime.run_context import RunContext
from airflow_provider_cdc.sinks.storage.disk import translate_disk_full
from airflow_provider_cdc.sinks.storage.local_storage import LocalStorage
from airflow_provider_cdc.sinks.storage.storage import write_json
from airflow_provider_cdc.system.processes import kill_session, rotate_log

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from airflow_provider_cdc.chunk_groups.task import JobRunner
    from airflow_provider_cdc.model.comparison import TableComparison
    from airflow_provider_cdc.state import StateDatabase
    from airflow_provider_cdc.verify.task import RowCollector, SinkScan

#: Size in bytes at which a stream's log is rotated, and seconds between two checks.
_LOG_BYTES, _LOG_SECONDS = 16 << 20, 10.0

#: Prefix of the line with the address of the Spark UI.
UI_LINE_PREFIX = "Spark UI at "
#: The line with which a task releases the driver of a stream.
RELEASE_LINE = "release\n"


@dataclass(frozen=True)
class DriverRequest:
    """What a driver is to do: one of ``groups``, ``maintain``, ``reread`` and ``verify``, or, by default, the stream.

    :param pipeline: :meth:`Pipeline.to_dict`.
    :param connections: :meth:`ResolvedConnection.to_json` by connection id; they contain the secrets.
    :param result: file for the result: ``{"outcome": ...}`` or ``{"error": {kind, message, remedy}}``.
    :param groups: numbers of the chunk groups to read, one after the other.
    :param maintain: whether to compact and clean up the sink's tables.
    :param purge: with ``maintain``, whether to remove all deleted rows and merge all small files.
    :param reread: the table to re-snapshot, ``database.table``.
    :param where_key: with ``reread``, a condition that limits it to a range of keys.
    :param verify: compare source and sink: ``show_values``, ``repair``, and the keyword arguments of
        :class:`~airflow_provider_cdc.config.selection.TableSelection`.
    :param holder: with ``groups``, human-readable name of the process that reads them.
    :param task: with ``groups``, identity of the requesting task; see
        :class:`~airflow_provider_cdc.chunk_groups.chunk_group.TaskRequest`.
    :param task_request: with ``groups``, number of the task's request.
    :param catch_up: whether the stream ends at the source's current position.
    :param log: file that a stream's driver writes to.
    :param log_bytes: size at which this file is rotated.
    :param log_level: name of the lowest level of the lines that the driver writes.
    :param lease: seconds for which a stream continues without a task that supervises it; ``None`` for ever.
    """

    pipeline: dict[str, Any]
    connections: dict[str, dict[str, Any]] = field(repr=False)
    result: str = ""
    groups: list[int] | None = None
    maintain: bool = False
    purge: bool = False
    reread: str | None = None
    where_key: str | None = None
    verify: dict[str, Any] | None = None
    holder: str = ""
    task: str = ""
    task_request: int = 0
    catch_up: bool = False
    log: str | None = None
    log_bytes: int = _LOG_BYTES
    log_level: str = "INFO"
    lease: float | None = None

    @property
    def is_stream(self) -> bool:
        """Whether it asks for a stream."""
        return not (self.maintain or self.reread or self.verify) and self.groups is None

    @property
    def description(self) -> str:
        """What is asked for, with a digest of the settings. Requests of tries of one task have the same description.

        It does not name chunk groups: a later try asks only for those that are not published yet.
        """
        kinds = {"chunk groups": self.groups, "maintenance": self.maintain, "re-snapshot": self.reread}
        kind = next((name for name, asked in kinds.items() if asked), "verification" if self.verify else "stream")
        omitted = ("connections", "result", "groups", "holder", "log", "log_bytes", "log_level")
        values = {name: value for name, value in asdict(self).items() if name not in omitted}
        digest = hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]
        return f"{kind} {digest}"

    def to_line(self) -> str:
        """Return the request as one line of JSON."""
        return json.dumps(asdict(self)) + "\n"

    @classmethod
    def from_line(cls, line: str) -> DriverRequest:
        """Return the request from a line of :meth:`to_line`."""
        return cls(**json.loads(line))


def run_stream_epoch(
    context: RunContext,
    store: StateDatabase,
    spark: SparkSession,
    *,
    catch_up: bool,
    log: str | None = None,
    ui: str | None = None,
    lease: float | None = None,
    stop: threading.Event | None = None,
) -> None:
    """Run one epoch of the stream until it has caught up, is asked to stop, or gets SIGTERM or SIGINT.

    :param stop: set by these signals; if it is already set, the epoch ends at once.
    """
    from airflow_provider_cdc.stream.run import begin_epoch, run_epoch_on_spark

    epoch = begin_epoch(context, store, catch_up=catch_up, log=log, ui=ui)
    epoch.lease_seconds = lease
    stop = stop or threading.Event()

    def stop_epoch(*_: object) -> None:
        stop.set()
        epoch.stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop_epoch)
    if stop.is_set():
        epoch.stop.set()
    context.reporter.line(f"stream epoch {epoch.number} begins at {epoch.section_start.at}")
    run_epoch_on_spark(epoch, spark)
    context.reporter.line(f"stream epoch {epoch.number} ended at {epoch.applier.offset.at}")


def main() -> int:
    """Carry out the request on standard input.

    :returns: exit code, as of the command line.
    """
    faulthandler.enable()  # crashes in machine code leave a traceback in the log
    request = DriverRequest.from_line(sys.stdin.readline())
    threading.Thread(target=_end_with_task, name="task-lifeline", daemon=True).start()
    if request.log is not None:
        rotation = Path(request.log), request.log_bytes
        rotate_log(*rotation)
        threading.Thread(target=_rotate_log, args=rotation, name="log-rotation", daemon=True).start()
    code, result = carry_out(request)
    _write_result(request, result)
    return code


def carry_out(request: DriverRequest) -> tuple[int, dict[str, Any]]:
    """Carry out a request.

    :returns: exit code, as of the command line, and result: ``{"outcome": ...}`` or ``{"error": ...}`` without secrets.
    """
    log_to_standard_error(logging.getLevelNamesMapping().get(request.log_level, logging.INFO))
    remove_airflow_variables()
    connections = {conn_id: ResolvedConnection.from_json(value) for conn_id, value in request.connections.items()}
    log = logging.getLogger(LOGGER_NAME)
    secrets = [secret for connection in connections.values() for secret in connection.secrets]
    try:
        context = RunContext.for_pipeline(
            Pipeline.from_dict(request.pipeline), LogReporter(), _connection_resolver(connections), is_driver=True
        )
        try:
            with translate_disk_full():
                return 0, {"outcome": _run_request(context, request)}
        except MemoryError:
            raise OutOfMemoryError from None
    except CdcError as error:
        failure = error.to_json()
        code = error.exit_code
    except Exception as error:
        log.info("%s", scrub_secrets(_format_stack(error), secrets))
        failure = {
            "kind": "",
            "message": f"unexpected {type(error).__name__}: {error}",
            "remedy": "See the lines above",
        }
        code = 1
    failure = {key: scrub_secrets(fact, secrets) if isinstance(fact, str) else fact for key, fact in failure.items()}
    text = f"{failure['message']}. {failure['remedy']}".replace("\n", " ")
    log.error("%s%s", FINAL_ERROR_PREFIX, text)
    return code, {"error": failure}


def _run_request(context: RunContext, request: DriverRequest) -> dict[str, Any]:
    if context.connect is not None and not request.is_stream:
        signal.signal(signal.SIGTERM, _interrupt_and_end)
    if request.maintain:
        return run_maintenance(context, purge=request.purge)
    if request.reread is not None:
        return _run_resnapshot(context, request.reread, request.where_key)
    if request.verify is not None:
        return _run_verify(context, **request.verify)
    return _run_stream(context, request) if request.groups is None else _run_groups(context, request)


def _format_stack(error: Exception) -> str:
    """Return the traceback of an error with the errors that caused it, but without its own text."""
    parts = list(traceback.TracebackException.from_exception(error).format())
    own_text = len(list(traceback.TracebackException.from_exception(error).format_exception_only()))
    return "".join(parts[:-own_text])


def _write_result(request: DriverRequest, value: dict[str, Any]) -> None:
    """Write the result for the task, which runs on this host. This file is unrelated to the sink's storage."""
    path = Path(request.result)
    write_json(LocalStorage(path.parent), path.name, value)


def _connection_resolver(known: dict[str, ResolvedConnection]) -> Callable[[str], ResolvedConnection]:
    def find(conn_id: str) -> ResolvedConnection:
        if conn_id not in known:
            raise NotReadyError(
                f"connection {conn_id} was not passed to the driver", f"This must not happen: {REPORT_REMEDY}"
            )
        return known[conn_id]

    return find


def _interrupt_and_end(number: int, _: object) -> NoReturn:
    from airflow_provider_cdc.spark.connect import interrupt_sessions

    interrupt_sessions()
    kill_session(os.getsid(0))
    os._exit(128 + number)


def _end_with_task() -> None:
    """End the driver and everything that it has started when the task closes standard input or dies.

    This does not apply after the task has released the driver. A stream that has just begun ends at a transaction
    boundary.
    """
    if sys.stdin.readline() == RELEASE_LINE:
        return
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        kill_session(os.getsid(0))
    os.kill(os.getpid(), signal.SIGTERM)


def _rotate_log(log: Path, limit: int) -> None:
    while True:
        time.sleep(_LOG_SECONDS)
        rotate_log(log, limit)


def _run_groups(context: RunContext, request: DriverRequest) -> dict[str, Any]:
    assert request.groups is not None
    with ExitStack() as stack:
        spark = stack.enter_context(_background_spark(context))  # before these imports, which take a second
        from airflow_provider_cdc.chunk_groups.chunk_group import TaskRequest
        from airflow_provider_cdc.observe.observer import snapshot_observer
        from airflow_provider_cdc.snapshot.run_groups import run_groups

        store = stack.enter_context(closing(context.open_state_database()))
        results = run_groups(
            context,
            store,
            context.plans.ensure(store),
            request.groups,
            _job_runner(context, spark),
            holder=request.holder,
            requested_by=TaskRequest(request.task, request.task_request) if request.task else None,
            observe=snapshot_observer,
        )
        return {"groups": [result.to_json() for result in results]}


def _run_resnapshot(context: RunContext, table: str, where_key: str | None) -> dict[str, Any]:
    from airflow_provider_cdc.resnapshot.read import run_resnapshot

    with _background_spark(context) as spark, closing(context.open_state_database()) as store:
        outcome = run_resnapshot(context, store, table, where_key, _job_runner(context, spark))
        return {"table": table, "outcome": outcome}


@contextmanager
def _lazy_spark(context: RunContext) -> Iterator[Callable[[], SparkSession]]:
    """Yield a function that returns the Spark session. Its first call starts Spark: not all work needs it."""
    with ExitStack() as stack:

        @cache
        def get_session() -> SparkSession:
            spark, _ = _start_spark(context, short_lived=True)
            stack.callback(spark.stop)
            return spark

        yield get_session


@contextmanager
def _background_spark(context: RunContext) -> Iterator[Callable[[], SparkSession]]:
    """Start Spark in a thread, and yield a function that waits for the session.

    If the function is never called, Spark ends with this process.
    """
    from airflow_provider_cdc.spark.early_start import compile_for_workers, start_in_thread

    if context.runs_jobs_locally:
        compile_for_workers(context.reporter.line)
    started = start_in_thread(lambda: _start_spark(context, short_lived=True))
    with ExitStack() as stack:

        @cache
        def get_session() -> SparkSession:
            spark, _ = started.result()
            stack.callback(spark.stop)
            return spark

        yield get_session


def _job_runner(context: RunContext, spark: Callable[[], SparkSession]) -> JobRunner:
    from airflow_provider_cdc.chunk_groups.spark_job import spark_runner

    return lambda job: spark_runner(spark(), context.warn)(job)


def run_maintenance(context: RunContext, *, purge: bool = False) -> dict[str, Any]:
    """Compact and clean up the sink's tables; Spark is started only if there is something to compact."""
    from airflow_provider_cdc.maintenance.spark_job import spark_compaction_runner
    from airflow_provider_cdc.maintenance.table_maintenance import maintain_tables

    with _lazy_spark(context) as spark:
        return maintain_tables(context, lambda work: spark_compaction_runner(spark())(work), purge=purge)


def run_verification(
    context: RunContext, *, show_values: bool, selection: TableSelection, repair: bool = False
) -> list[TableComparison]:
    """Compare source and sink. The sink is read by Spark tasks if there is a cluster, otherwise by threads.

    :param repair: re-snapshot the rows that differ, and compare again.
    """
    from airflow_provider_cdc.verify.repair import compare_and_repair
    from airflow_provider_cdc.verify.report import record_verdicts
    from airflow_provider_cdc.verify.spark_job import spark_scan_runner
    from airflow_provider_cdc.verify.task import run_scans_in_threads

    with _lazy_spark(context) as spark:

        def run_on_spark(work: Sequence[SinkScan]) -> Sequence[RowCollector]:
            return spark_scan_runner(spark(), context.warn)(work)

        runner = run_scans_in_threads if context.runs_jobs_locally else run_on_spark
        verdicts = compare_and_repair(context, selection, runner, show_values=show_values, repair=repair)
        record_verdicts(context, verdicts)
        return verdicts


def _run_verify(context: RunContext, *, show_values: bool, repair: bool = False, **selection: Any) -> dict[str, Any]:
    from airflow_provider_cdc.verify.report import check_equal, repair_hint

    chosen = TableSelection(**{**selection, "tables": tuple(selection["tables"])})
    verdicts = run_verification(context, show_values=show_values, selection=chosen, repair=repair)
    check_equal(verdicts, hint=repair_hint("repair=True", repaired=repair), show_values="show_values=True")
    return {"tables": [v.to_json(show_values=show_values) for v in verdicts]}


def _run_stream(context: RunContext, request: DriverRequest) -> dict[str, Any]:
    from airflow_provider_cdc.preflight.run import require_preflight

    has_spark = isinstance(context.cluster, YarnCluster)  # which has started it
    for finding in require_preflight(context, spark=not has_spark):
        context.warn(str(finding))
    context.plans.require()
    with closing(context.open_state_database()) as store:
        context.liveness.refuse_if_running(store, context.pipeline.name)
        spark, address = _start_spark(context)
        ui = reachable_url(address)
        try:
            run_stream_epoch(
                context,
                store,
                spark,
                catch_up=request.catch_up,
                log=request.log,
                ui=ui,
                lease=request.lease,
            )
        finally:
            spark.stop()
    return {}


def _start_spark(context: RunContext, *, short_lived: bool = False) -> tuple[SparkSession, str | None]:
    from airflow_provider_cdc.spark.early_start import start_local_workers
    from airflow_provider_cdc.spark.session import open_cluster_session, runs_in_cluster, start_session, ui_address

    if context.connect is not None:
        if short_lived:
            from airflow_provider_cdc.spark.connect import open_connect_session

            return open_connect_session(context.connect, context.reporter.line), None
        context.require_stream_master()
    if context.cluster is not None and not runs_in_cluster():
        raise NotReadyError(*CLUSTER_MODE_REFUSED)
    if isinstance(context.cluster, YarnCluster):
        spark = open_cluster_session(require_encryption=True)
        # Spark's own page is behind the ResourceManager.
        page = f"{context.cluster.resource_manager}/proxy/{spark.sparkContext.applicationId}/"
        context.reporter.line(UI_LINE_PREFIX + page)
        return spark, page
    spark = start_session(
        context.pipeline.name,
        *context.spark_config,
        ui=True,
        report_line=context.reporter.line,
        short_lived=short_lived,
    )
    address = ui_address(spark)
    if address:
        context.reporter.line(UI_LINE_PREFIX + address)
    # Not those of a stream: Spark gives a worker ten seconds to start, and the first jobs of a stream need others.
    if short_lived and context.runs_jobs_locally:
        start_local_workers(spark, context.reporter.line)
    return spark, address


if __name__ == "__main__":
    sys.exit(main())
