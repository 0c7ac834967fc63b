"""Scans of a sink as Spark tasks: rows are read and hashed in the workers, and what comes back are sums."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import TYPE_CHECKING

from airflow_provider_cdc.spark.session import told_of_waiting
from airflow_provider_cdc.spark.tasks import run_tasks
from airflow_provider_cdc.verify.task import Gathering, Runner, Scan

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession


def run_scans(spark: SparkSession, log_line: Callable[[str], None]) -> Runner:
    """Runner that makes one Spark job of some scans, a task each.

    :param log_line: gets a line if Spark waits for executors.
    """

    def run(work: Sequence[Scan]) -> Sequence[Gathering]:
        with told_of_waiting(spark, log_line):
            return [pickle.loads(done) for done in run_tasks(spark, work, _scanned, len(work))]

    return run


def _scanned(scan: Scan) -> bytes:
    return pickle.dumps(scan.run())
