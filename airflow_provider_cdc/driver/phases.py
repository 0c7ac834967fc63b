"""What drivers do: a function for each kind of request. The command line calls some of them in its own process."""

from __future__ import annotations

import signal
import threading
from collections.abc import Sequence
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Any

from airflow_provider_cdc.config.selection import TableSelection
from airflow_provider_cdc.config.spark_conf import YarnCluster, reachable_url
from airflow_provider_cdc.driver.request import DriverRequest
from airflow_provider_cdc.driver.spark_session import background_session, job_runner, lazy_session, start_spark
from airflow_provider_cdc.runtime.run_context import RunContext

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from airflow_provider_cdc.model.comparison import TableComparison
    from airflow_provider_cdc.state import StateDatabase
    from airflow_provider_cdc.verify.task import RowCollector, SinkScan


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


def run_requested_groups(context: RunContext, request: DriverRequest) -> dict[str, Any]:
    """Read chunk groups; the outcome of a request for that."""
    assert request.groups is not None
    with ExitStack() as stack:
        spark = stack.enter_context(background_session(context))  # before these imports, which take a second
        from airflow_provider_cdc.chunk_groups.chunk_group import TaskRequest
        from airflow_provider_cdc.observe.observer import snapshot_observer
        from airflow_provider_cdc.snapshot.run_groups import run_groups
        from airflow_provider_cdc.spark.connect import require_server

        store = stack.enter_context(closing(context.open_state_database()))
        results = run_groups(
            context,
            store,
            context.plans.ensure(store),
            request.groups,
            job_runner(context, spark),
            holder=request.holder,
            requested_by=TaskRequest(request.task, request.task_request) if request.task else None,
            observe=snapshot_observer,
            require_runner=lambda: require_server(spark()),
        )
        return {"groups": [result.to_json() for result in results]}


def run_requested_resnapshot(context: RunContext, table: str, where_key: str | None) -> dict[str, Any]:
    """Re-snapshot a table; the outcome of a request for that."""
    from airflow_provider_cdc.resnapshot.read import run_resnapshot

    with background_session(context) as spark, closing(context.open_state_database()) as store:
        outcome = run_resnapshot(context, store, table, where_key, job_runner(context, spark))
        return {"table": table, "outcome": outcome}


def run_maintenance(context: RunContext, *, purge: bool = False) -> dict[str, Any]:
    """Compact and clean up the sink's tables; Spark is started only if there is something to compact."""
    from airflow_provider_cdc.maintenance.spark_job import spark_compaction_runner
    from airflow_provider_cdc.maintenance.table_maintenance import maintain_tables

    with lazy_session(context) as spark:
        return maintain_tables(context, lambda work: spark_compaction_runner(spark(), context.warn)(work), purge=purge)


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

    with lazy_session(context) as spark:

        def run_on_spark(work: Sequence[SinkScan]) -> Sequence[RowCollector]:
            return spark_scan_runner(spark(), context.warn)(work)

        runner = run_scans_in_threads if context.runs_jobs_locally else run_on_spark
        verdicts = compare_and_repair(context, selection, runner, show_values=show_values, repair=repair)
        record_verdicts(context, verdicts)
        return verdicts


def run_requested_verification(
    context: RunContext, *, show_values: bool, repair: bool = False, **selection: Any
) -> dict[str, Any]:
    """Compare source and sink; the outcome of a request for that.

    :raises CdcError: if they differ.
    """
    from airflow_provider_cdc.verify.report import check_equal, repair_hint

    chosen = TableSelection(**{**selection, "tables": tuple(selection["tables"])})
    verdicts = run_verification(context, show_values=show_values, selection=chosen, repair=repair)
    check_equal(verdicts, hint=repair_hint("repair=True", repaired=repair), show_values="show_values=True")
    return {"tables": [v.to_json(show_values=show_values) for v in verdicts]}


def run_requested_stream(context: RunContext, request: DriverRequest) -> dict[str, Any]:
    """Run the stream as :func:`run_stream_epoch`, after the preflight; the outcome of a request for that."""
    from airflow_provider_cdc.preflight.run import require_preflight

    has_spark = isinstance(context.cluster, YarnCluster)  # which has started it
    for finding in require_preflight(context, spark=not has_spark, for_stream=True):
        context.warn(str(finding))
    context.plans.require()
    with closing(context.open_state_database()) as store:
        context.liveness.refuse_if_running(store, context.pipeline.name)
        spark, address = start_spark(context)
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
