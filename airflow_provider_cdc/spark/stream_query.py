"""A Structured Streaming query that carries the batches of an epoch, and hands each to its caller.

While a batch is applied, Spark reads the next one already: nothing rests on what it writes down as done.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from pyspark.sql import SparkSession

from airflow_provider_cdc.core.offset import Offset
from airflow_provider_cdc.exceptions import CdcError, TransientError
from airflow_provider_cdc.jobs.batches import StreamJob
from airflow_provider_cdc.spark.session import of_spark
from airflow_provider_cdc.spark.stream_source import FORMAT, make_source


class StreamQuery:
    """One query.

    :param apply: gets the manifests of the pieces of each batch, none of them twice: one batch after the other, in a
        thread of its own.
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
        self._applying: Future[None] | None = None
        self._pool = ThreadPoolExecutor(1, "apply")
        self._working, self._ended = threading.Lock(), False
        self._failure: CdcError | None = None

    def idle(self) -> bool:
        """Whether it waits for changes."""
        if self._query is None or not (self._applying is None or self._applying.done()):
            return False
        status = self._query.status
        return not (status["isTriggerActive"] and status["isDataAvailable"])

    def run(self, spark: SparkSession, job: StreamJob, start: Offset, *, checkpoint: str, seconds: float) -> None:
        """Run until it is over, at a transaction boundary.

        :param checkpoint: folder that Spark wants.
        :param seconds: least time between the starts of two batches. The source waits, since a trigger of Spark with
            an interval begins batches at multiples of it, whenever the changes come.
        :raises CdcError: what made the query fail.
        """
        spark.dataSource.register(make_source(job, start, seconds))
        self._query = query = (
            spark.readStream.format(FORMAT)
            .load()
            .writeStream.foreachBatch(self._on_batch)
            .option("checkpointLocation", checkpoint)
            .trigger(processingTime="0 seconds")
            .start()
        )
        looked = time.monotonic()
        try:
            while query.isActive and not self._over() and not self._failure:
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
            self._pool.shutdown()

    def _on_batch(self, frame: Any, _: int) -> None:
        try:
            manifests = [json.loads(row["manifest"]) for row in frame.collect()]
            if self._applying is not None:
                self._applying.result()  # no more than one waits
            if manifests:
                self._applying = self._pool.submit(self._do, manifests)
        except Exception as error:
            self._fail(error)
            # Spark searches the text for words of its own with a regular expression that overflows the stack on a long
            # one (seen when a stream was stopped during a batch), so it gets a short one.
            raise RuntimeError("the batch was not applied") from None

    def _do(self, manifests: list[dict[str, Any]]) -> None:
        with self._working:
            if self._ended or self._over() or self._failure:
                return  # the end has been decided: what was read is read again by the next epoch
            try:
                self._apply(manifests)
            except BaseException as error:  # nobody else would hear of it
                self._fail(error)

    def _fail(self, error: BaseException) -> None:
        """Note the first failure: others may follow from it."""
        self._failure = self._failure or (error if isinstance(error, CdcError) else of_spark(error))
