"""Compactions as Spark tasks: the workers copy rows from file to file, so none passes through the driver."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow_provider_cdc.maintenance.task import CompactionRunner, files_from_json, run_to_json
from airflow_provider_cdc.spark.tasks import run_tasks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def spark_compaction_runner(spark: SparkSession) -> CompactionRunner:
    """Return a runner that runs compactions as one Spark job, with tasks on at most half of the cores at a time."""

    def run(work: Sequence[Any]) -> Sequence[Any]:
        cores = max(1, spark.sparkContext.defaultParallelism // 2)
        return [files_from_json(done.decode()) for done in run_tasks(spark, work, _run_compaction, cores)]

    return run


def _run_compaction(compaction: Any) -> bytes:
    return run_to_json(compaction).encode()
