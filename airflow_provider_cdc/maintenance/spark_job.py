"""Compactions as Spark tasks: the workers copy rows from file to file, so none passes through the driver."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import methodcaller
from typing import TYPE_CHECKING

from airflow_provider_cdc.maintenance.task import CompactionRunner
from airflow_provider_cdc.sinks.files.parquet import DataFile
from airflow_provider_cdc.sinks.protocol import Compaction
from airflow_provider_cdc.spark.session import warn_while_waiting
from airflow_provider_cdc.spark.tasks import count_parallel_tasks, run_tasks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def spark_compaction_runner(spark: SparkSession, report_line: Callable[[str], None]) -> CompactionRunner:
    """Return a runner that runs compactions as one Spark job, with tasks on at most half of the cores at a time.

    :param report_line: called with a line of text if Spark waits for executors.
    """

    def run(work: Sequence[Compaction]) -> Sequence[Sequence[DataFile]]:
        with warn_while_waiting(spark, report_line):
            return run_tasks(spark, work, methodcaller("run"), max(1, count_parallel_tasks(spark) // 2))

    return run
