"""A Structured Streaming query that carries the batches of an epoch: Spark decides when, its caller what is done."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from typing import Any

from pyspark.sql import SparkSession

from airflow_provider_cdc.core.offset import Offset
from airflow_provider_cdc.exceptions import CdcError, TransientError
from airflow_provider_cdc.jobs.batches import StreamJob
from airflow_provider_cdc.spark.session import of_spark
from airflow_provider_cdc.spark.stream_source import FORMAT, make_source


class StreamQuery:
    """One query.

    :param apply: gets the manifests of the pieces of each batch, none of them twice.
    :param each_second: called about once a second, never while a batch is applied.
    :param over: whether to end.
    """

    def __init__(
        self,
        apply: Callable[[list[dict[str, Any]]], object],
        *,
        each_second: Callable[[], None],
        over: Callable[[], bool],
    ) -> None:
        self._apply, self._each_second, self._over = apply, each_second, over
        self._query: Any = None
        self._working, self._ended = threading.Lock(), False
        self._failure: CdcError | None = None

    def idle(self) -> bool:
        """Whether it waits for changes."""
        return self._query is not None and not self._query.status["isTriggerActive"]

    def run(self, spark: SparkSession, job: StreamJob, start: Offset, *, checkpoint: str, seconds: float) -> None:
        """Run until it is over, at a transaction boundary.

        :param checkpoint: folder that Spark wants.
        :param seconds: time between the starts of two batches.
        :raises CdcError: what made the query fail.
        """
        spark.dataSource.register(make_source(job, start))
        self._query = query = (
            spark.readStream.format(FORMAT)
            .load()
            .writeStream.foreachBatch(self._on_batch)
            .option("checkpointLocation", checkpoint)
            .trigger(processingTime=f"{seconds} seconds")
            .start()
        )
        looked = time.monotonic()
        try:
            while query.isActive and not self._over():
                time.sleep(0.1)  # not Event.wait(): a signal that meets it and sets the event would wait for itself
                if time.monotonic() - looked > 1:
                    looked = time.monotonic()
                    with self._working:
                        self._each_second()
            failed = query.exception()
            if self._failure is not None or failed is not None:
                raise self._failure or of_spark(failed)  # type: ignore[arg-type]
            if not self._over():
                raise TransientError("the stream ended by itself", "Run again: it continues where it stopped")
        finally:
            with self._working:  # a batch that is being applied is finished first
                self._ended = True
            query.stop()

    def _on_batch(self, frame: Any, _: int) -> None:
        try:
            manifests = [json.loads(row["manifest"]) for row in frame.collect()]
            with self._working:
                if self._ended or self._over() or self._failure:
                    return  # the end has been decided: what was read now is read again by the next epoch
                if manifests:
                    self._apply(manifests)
        except Exception as error:
            self._failure = error if isinstance(error, CdcError) else of_spark(error)
            # Spark searches the text for words of its own with a regular expression that overflows the stack on a long
            # one (seen when a stream was stopped during a batch), so it gets a short one.
            raise RuntimeError("the batch was not applied") from None
