"""Run work items as the tasks of one Spark job: each is sent pickled, and so is its result."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from airflow_provider_cdc import __version__
from airflow_provider_cdc.config.store_access import StoreAccess
from airflow_provider_cdc.model.errors import CdcError, NotReadyError, embed_error
from airflow_provider_cdc.sinks.storage.request_counts import RequestCounts, count_requests_in, current_counts
from airflow_provider_cdc.spark.errors import translate_spark_errors
from airflow_provider_cdc.spark.session import is_connect_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Item = TypeVar("Item")
Result = TypeVar("Result")


class SecretFreePickler:
    """Work to be sent to tasks. Large data passes through disks, so the pickled data contains no secrets.

    ``store_accesses``, the settings and credentials of object stores, are sent separately.
    """

    def __init__(self) -> None:
        self.store_accesses: list[StoreAccess] = []

    def pack(self, payload: object) -> bytes:
        """Return one object pickled; add its credentials to :attr:`store_accesses`."""
        store_accesses = self.store_accesses

        class Pickler(pickle.Pickler):
            def persistent_id(self, value: Any) -> int | None:
                if not isinstance(value, StoreAccess):
                    return None
                if value not in store_accesses:
                    store_accesses.append(value)
                return store_accesses.index(value)

        buffer = io.BytesIO()
        Pickler(buffer).dump(payload)
        return buffer.getvalue()

    def unpack(self, data: bytes) -> Any:
        """Return the unpickled object."""
        store_accesses = self.store_accesses

        class Unpickler(pickle.Unpickler):
            def persistent_load(self, number: int) -> StoreAccess:
                return store_accesses[number]

        return Unpickler(io.BytesIO(data)).load()


def version_check() -> Callable[[], None]:
    """Return a function that a task calls first: it raises an error if this package has another version there.

    It travels by value, unlike all other code of the task.
    """
    version = __version__

    def check() -> None:
        from airflow_provider_cdc import __version__ as found

        if found != version:
            error = NotReadyError(
                f"a Spark worker has version {found} of airflow-provider-cdc, and this process has {version}",
                "Install the same version on the Spark workers",
            )
            raise RuntimeError(embed_error(error))

    return check


def count_parallel_tasks(spark: SparkSession) -> int:
    """Return how many tasks run at a time, as far as Spark knows."""
    if not is_connect_session(spark):
        return spark.sparkContext.defaultParallelism
    with translate_spark_errors():  # a server does not tell, but it cuts a range into as many partitions
        return spark.range(0, 10_000).selectExpr("spark_partition_id()").distinct().count()


def run_tasks(
    spark: SparkSession, items: Sequence[Item], run_item: Callable[[Item], Result], max_tasks: int
) -> list[Result]:
    """Run work items in Spark's workers, and count their requests to an object store in this process.

    :param run_item: processes one item; it travels with the task.
    :param max_tasks: maximum number of tasks.
    :returns: the result of each item, in the order of the items.
    :raises CdcError: if a task has raised one.
    """
    envelope, check_version = SecretFreePickler(), version_check()
    rows = [(number, envelope.pack(item)) for number, item in enumerate(items)]

    def task(batches: Iterable[Any]) -> Iterator[Any]:
        import pyarrow as pa

        check_version()
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
