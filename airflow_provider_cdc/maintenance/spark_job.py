"""Compactions as Spark tasks: rows go from file to file in the workers, and never pass through the driver."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow_provider_cdc.maintenance.task import Runner, from_json, run_for_json
from airflow_provider_cdc.spark.tasks import run_tasks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def run_compactions(spark: SparkSession) -> Runner:
    """Runner that makes one Spark job of some compactions, with no more tasks at a time than half of the cores."""

    def run(work: Sequence[Any]) -> Sequence[Any]:
        cores = max(1, spark.sparkContext.defaultParallelism // 2)
        return [from_json(done.decode()) for done in run_tasks(spark, work, _compacted, cores)]

    return run


def _compacted(compaction: Any) -> bytes:
    return run_for_json(compaction).encode()
