"""Compactions as Spark tasks: rows go from file to file in the workers, and never pass through the driver."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from airflow_provider_cdc.exceptions import CdcError, pack
from airflow_provider_cdc.jobs.compactions import Parcel, Runner, from_json, run_for_json
from airflow_provider_cdc.spark.session import spark_errors

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def run_compactions(spark: SparkSession) -> Runner:
    """Runner that makes one Spark job of some compactions, with no more tasks at a time than half of the cores."""

    def run(work: Sequence[Any]) -> Sequence[Any]:
        parcel = Parcel()
        rows = [(number, parcel.pack(one)) for number, one in enumerate(work)]

        def task(batches: Iterable[Any]) -> Iterator[Any]:
            import pyarrow as pa

            for batch in batches:
                for number, packed in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                    try:
                        done = run_for_json(parcel.unpack(packed))
                    except CdcError as error:
                        raise RuntimeError(pack(error)) from None
                    yield pa.RecordBatch.from_pydict({"number": [number], "done": [done]})

        slots = max(1, spark.sparkContext.defaultParallelism // 2)
        frame = spark.createDataFrame(rows, "number long, work binary").repartition(min(len(work), slots))
        with spark_errors():
            done = frame.mapInArrow(task, "number long, done string").collect()
        found = {row["number"]: from_json(row["done"]) for row in done}
        return [found[number] for number in range(len(work))]

    return run
