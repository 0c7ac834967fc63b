"""Compactions as Spark tasks: rows go from file to file in the workers, and never pass through the driver."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from airflow_provider_cdc.exceptions import CdcError, pack
from airflow_provider_cdc.jobs.compactions import Runner, from_json, run_for_json
from airflow_provider_cdc.spark.session import spark_errors

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def run_compactions(spark: SparkSession) -> Runner:
    """Runner that makes one Spark job of some compactions, with no more tasks at a time than half of the cores."""

    def run(work: Sequence[Any]) -> Sequence[Any]:
        def task(batches: Iterable[Any]) -> Iterator[Any]:
            import pyarrow as pa

            for batch in batches:
                for number in batch.column(0).to_pylist():
                    try:
                        done = run_for_json(work[number])
                    except CdcError as error:
                        raise RuntimeError(pack(error)) from None
                    yield pa.RecordBatch.from_pydict({"number": [number], "done": [done]})

        slots = max(1, spark.sparkContext.defaultParallelism // 2)
        frame = spark.range(0, len(work), 1, min(len(work), slots)).mapInArrow(task, "number long, done string")
        with spark_errors():
            found = {row["number"]: from_json(row["done"]) for row in frame.collect()}
        return [found[number] for number in range(len(work))]

    return run
