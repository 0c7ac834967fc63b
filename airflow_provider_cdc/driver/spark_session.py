"""Spark sessions of drivers: when Spark starts, and where."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import TYPE_CHECKING

from airflow_provider_cdc.config.spark_conf import YarnCluster, cluster_mode_refused
from airflow_provider_cdc.runtime.run_context import RunContext

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from airflow_provider_cdc.chunk_groups.task import JobRunner

#: Prefix of the line with the address of the Spark UI.
UI_LINE_PREFIX = "Spark UI at "


@contextmanager
def lazy_session(context: RunContext) -> Iterator[Callable[[], SparkSession]]:
    """Yield a function that returns the Spark session. Its first call starts Spark: not all work needs it."""
    with ExitStack() as stack:

        @cache
        def get_session() -> SparkSession:
            from airflow_provider_cdc.spark.session import stop_session

            spark, _ = start_spark(context, short_lived=True)
            stack.callback(stop_session, spark)
            return spark

        yield get_session


@contextmanager
def background_session(context: RunContext) -> Iterator[Callable[[], SparkSession]]:
    """Start Spark in a thread, and yield a function that waits for the session.

    If the function is never called, Spark ends with this process.
    """
    from airflow_provider_cdc.spark.early_start import compile_for_workers, start_in_thread

    if context.runs_jobs_locally:
        compile_for_workers(context.reporter.line)
    started = start_in_thread(lambda: start_spark(context, short_lived=True))
    with ExitStack() as stack:

        @cache
        def get_session() -> SparkSession:
            from airflow_provider_cdc.spark.session import stop_session

            spark, _ = started.result()
            stack.callback(stop_session, spark)
            return spark

        yield get_session


def job_runner(context: RunContext, spark: Callable[[], SparkSession]) -> JobRunner:
    """Return what runs a job that reads chunks, in a session that it asks for then."""
    from airflow_provider_cdc.chunk_groups.spark_job import spark_runner

    return lambda job: spark_runner(spark(), context.warn)(job)


def start_spark(context: RunContext, *, short_lived: bool = False) -> tuple[SparkSession, str | None]:
    """Start Spark where the pipeline says.

    :param short_lived: whether it runs a few jobs and ends, unlike that of a stream.
    :returns: the session, and the address of Spark's page if there is one.
    :raises NotReadyError: if Spark cannot run there.
    """
    from airflow_provider_cdc.spark.early_start import start_local_workers
    from airflow_provider_cdc.spark.session import open_cluster_session, runs_in_cluster, start_session, ui_address

    if context.connect is not None:
        if short_lived:
            from airflow_provider_cdc.spark.connect import open_connect_session

            return open_connect_session(context.connect, context.reporter.line), None
        context.require_stream_master()
    if context.cluster is not None and not runs_in_cluster():
        raise cluster_mode_refused("maintain")  # the other commands refuse before they begin
    if isinstance(context.cluster, YarnCluster):
        spark = open_cluster_session(require_encryption=True)
        # Spark's own page is behind the ResourceManager; one that is on standby points to the active one.
        manager = context.cluster.resource_manager.split(",")[0]
        page = f"{manager}/proxy/{spark.sparkContext.applicationId}/"
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
