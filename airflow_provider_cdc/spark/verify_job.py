"""Scans of a sink as Spark tasks: rows are read and hashed in the workers, and what comes back are sums."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from airflow_provider_cdc.exceptions import CdcError, pack
from airflow_provider_cdc.jobs.compactions import Parcel
from airflow_provider_cdc.jobs.scans import Gathering, Runner, Scan
from airflow_provider_cdc.spark.session import spark_errors, told_of_waiting

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession


def run_scans(spark: SparkSession, tell: Callable[[str], None]) -> Runner:
    """Runner that makes one Spark job of some scans, a task each.

    :param tell: gets a line if Spark waits for executors.
    """

    def run(work: Sequence[Scan]) -> Sequence[Gathering]:
        parcel = Parcel()
        rows = [(number, parcel.pack(one)) for number, one in enumerate(work)]

        def task(batches: Iterable[Any]) -> Iterator[Any]:
            import pyarrow as pa

            for batch in batches:
                for number, packed in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                    try:
                        found = pickle.dumps(parcel.unpack(packed).run())
                    except CdcError as error:
                        raise RuntimeError(pack(error)) from None
                    yield pa.RecordBatch.from_pydict({"number": [number], "found": [found]})

        frame = spark.createDataFrame(rows, "number long, work binary").repartition(max(1, len(work)))
        with spark_errors(), told_of_waiting(spark, tell):
            done = frame.mapInArrow(task, "number long, found binary").collect()
        found = {row["number"]: pickle.loads(row["found"]) for row in done}
        return [found[number] for number in range(len(work))]

    return run
