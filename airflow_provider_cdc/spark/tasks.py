"""Pieces of work as the tasks of one Spark job: each travels pickled, and its result comes back as bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from airflow_provider_cdc.model.errors import CdcError, pack
from airflow_provider_cdc.sinks.storage.pickle_envelope import PickleEnvelope
from airflow_provider_cdc.spark.session import spark_errors

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def run_tasks(spark: SparkSession, work: Sequence[Any], do: Callable[[Any], bytes], at_once: int) -> list[bytes]:
    """Run pieces of work in Spark's workers.

    :param do: does one of them; it travels with the task.
    :param at_once: no more tasks than this.
    :returns: what was returned for each, in the order of the work.
    :raises CdcError: what a task has raised.
    """
    parcel = PickleEnvelope()
    rows = [(number, parcel.pack(one)) for number, one in enumerate(work)]

    def task(batches: Iterable[Any]) -> Iterator[Any]:
        import pyarrow as pa

        for batch in batches:
            for number, packed in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                try:
                    done = do(parcel.unpack(packed))
                except CdcError as error:
                    raise RuntimeError(pack(error)) from None
                yield pa.RecordBatch.from_pydict({"number": [number], "done": [done]})

    frame = spark.createDataFrame(rows, "number long, work binary").repartition(max(1, min(len(work), at_once)))
    with spark_errors():
        collected = frame.mapInArrow(task, "number long, done binary").collect()
    found = {row["number"]: bytes(row["done"]) for row in collected}
    return [found[number] for number in range(len(work))]
