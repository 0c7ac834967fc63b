"""Scans of a sink as Spark tasks: the workers read and hash the rows, and return sums."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import methodcaller
from typing import TYPE_CHECKING

from airflow_provider_cdc.spark.session import warn_while_waiting
from airflow_provider_cdc.spark.tasks import run_tasks
from airflow_provider_cdc.verify.task import RowCollector, ScanRunner, SinkScan

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def spark_scan_runner(spark: SparkSession, log_line: Callable[[str], None]) -> ScanRunner:
    """Return a runner that runs scans as one Spark job, with a task for each.

    :param log_line: receives a line if Spark waits for executors.
    """

    def run(work: Sequence[SinkScan]) -> Sequence[RowCollector]:
        with warn_while_waiting(spark, log_line):
            return run_tasks(spark, work, methodcaller("run"), len(work))

    return run
