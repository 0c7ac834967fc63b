"""Run work items as the tasks of one Spark job: each is sent pickled, and so is its result."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from airflow_provider_cdc.model.errors import CdcError, embed_error
from airflow_provider_cdc.sinks.storage.pickle_envelope import PickleEnvelope
from airflow_provider_cdc.sinks.storage.request_counts import RequestCounts, count_requests_in, current_counts
from airflow_provider_cdc.spark.session import translate_spark_errors

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Item = TypeVar("Item")
Result = TypeVar("Result")


def run_tasks(
    spark: SparkSession, items: Sequence[Item], run_item: Callable[[Item], Result], max_tasks: int
) -> list[Result]:
    """Run work items in Spark's workers, and count their requests to an object store in this process.

    :param run_item: processes one item; it travels with the task.
    :param max_tasks: maximum number of tasks.
    :returns: the result of each item, in the order of the items.
    :raises CdcError: if a task has raised one.
    """
    envelope = PickleEnvelope()
    rows = [(number, envelope.pack(item)) for number, item in enumerate(items)]

    def task(batches: Iterable[Any]) -> Iterator[Any]:
        import pyarrow as pa

        for batch in batches:
            for number, packed in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                try:
                    with count_requests_in(RequestCounts()) as requests:
                        result = run_item(envelope.unpack(packed))
                except CdcError as error:
                    raise RuntimeError(embed_error(error)) from None
                yield pa.RecordBatch.from_pydict(
                    {"number": [number], "done": [pickle.dumps((result, requests.to_json()))]}
                )

    frame = spark.createDataFrame(rows, "number long, work binary").repartition(max(1, min(len(items), max_tasks)))
    with translate_spark_errors():
        collected = frame.mapInArrow(task, "number long, done binary").collect()
    results: dict[int, Result] = {}
    for row in collected:
        results[row["number"]], requests = pickle.loads(row["done"])
        current_counts().add(requests)
    return [results[number] for number in range(len(items))]
