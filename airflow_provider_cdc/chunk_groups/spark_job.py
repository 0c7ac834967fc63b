"""Run a Spark job for each chunk group, with one task per worker. Only manifests pass through the JVM, never rows."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from airflow_provider_cdc.chunk_groups.task import JobRunner, SnapshotJob
from airflow_provider_cdc.model.errors import CdcError, embed_error
from airflow_provider_cdc.spark.errors import translate_spark_errors
from airflow_provider_cdc.spark.session import is_connect_session, warn_while_waiting
from airflow_provider_cdc.spark.tasks import version_check

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def spark_runner(spark: SparkSession, report_line: Callable[[str], None]) -> JobRunner:
    """Return a runner that reads a group in one Spark job, with one task per worker.

    :param report_line: called with a line of text if Spark waits for executors.
    """
    check_version = version_check()

    def run(job: SnapshotJob) -> list[dict[str, Any]]:
        def task(workers: Iterable[int]) -> Iterator[str]:
            from pyspark import TaskContext

            check_version()
            context = TaskContext.get()
            copy = context.attemptNumber() if context else 0
            for worker in workers:
                try:
                    yield from map(json.dumps, job.read_slices(worker, copy))
                except CdcError as error:
                    # Spark reports a Python traceback; the error travels inside of it.
                    raise RuntimeError(embed_error(error)) from None

        def task_of_server(batches: Iterable[Any]) -> Iterator[Any]:
            import pyarrow as pa

            for batch in batches:
                for manifest in task(batch.column(0).to_pylist()):
                    yield pa.RecordBatch.from_pydict({"manifest": [manifest]})

        workers = len(job.replica_ids)
        with translate_spark_errors(), warn_while_waiting(spark, report_line):
            if is_connect_session(spark):
                rows = spark.range(0, workers, 1, workers).mapInArrow(task_of_server, "manifest string").collect()
                return [json.loads(row["manifest"]) for row in rows]
            # An RDD, not a DataFrame: Spark's SQL engine would have to be started, which costs more than Spark itself.
            slices = spark.sparkContext.parallelize(range(workers), workers).mapPartitions(task)
            return [json.loads(manifest) for manifest in slices.collect()]

    return run
