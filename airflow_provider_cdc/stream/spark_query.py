"""A Structured Streaming query that reads the batches of an epoch, and passes each to its caller.

While a batch is applied, Spark already reads the next one. Spark's record of finished batches is not used.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from airflow_provider_cdc.apply.task import StreamJob
from airflow_provider_cdc.model.errors import CdcError, SlowWorkerError, TransientError, make_error
from airflow_provider_cdc.model.offset import Offset
from airflow_provider_cdc.spark.errors import to_cdc_error, translate_spark_errors
from airflow_provider_cdc.stream.spark_source import FORMAT, SectionOffset, make_source_class

#: How often a query is started if Spark's Python workers start too slowly; restarting the driver takes much longer.
_MAX_STARTS = 5


class StreamQuery:
    """One query, which runs section after section of an epoch until something fails. A context manager.

    :param apply: receives the manifests of the batch ranges of each batch, each once. Batches are applied one after
        the other, in a separate thread.
    :param on_tick: called about once a second, never while a batch is applied.
    :param is_section_over: returns whether to end the section.
    """

    def __init__(
        self,
        spark: SparkSession,
        apply: Callable[[list[dict[str, Any]]], object],
        *,
        on_tick: Callable[[], None],
        is_section_over: Callable[[], bool],
    ) -> None:
        self._spark = spark
        self._apply, self._on_tick, self._is_section_over = apply, on_tick, is_section_over
        self._query: Any = None
        self._applying: Future[None] | None = None
        self._pool = ThreadPoolExecutor(1, "apply")
        self._apply_lock, self._has_batch = threading.Lock(), False
        #: The section whose batches are applied; ``None`` between two sections.
        self._section: int | None = None
        self._failure: CdcError | None = None
        #: Identifies the query whose batches count: a stopped query may still deliver its last one.
        self._current_token: object = None

    def __enter__(self) -> StreamQuery:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()
        self._pool.shutdown()

    def is_idle(self) -> bool:
        """Return whether it is waiting for changes."""
        if self._query is None or not (self._applying is None or self._applying.done()):
            return False
        status = self._query.status
        return not (status["isTriggerActive"] and status["isDataAvailable"])

    def run_section(self, job: StreamJob, start: Offset, *, checkpoint: Path, seconds: float) -> None:
        """Run a section until it is over, at a transaction boundary.

        :param checkpoint: folder for Spark's checkpoint, which does not exist yet.
        :param seconds: minimum seconds between the starts of two batches. The source waits for it, because a Spark
            trigger with an interval starts batches at multiples of it, no matter when changes arrive.
        :raises CdcError: if the query failed, in which case the next section starts a new one; or if the section
            cannot continue because of one table, in which case the query continues with the next section.
        """
        with self._apply_lock:
            self._section = job.section
        try:
            if self._query is not None:
                SectionOffset(job.section, start).write(self._section_file)
                return self._wait_for_section_end()
            for number in range(_MAX_STARTS):
                try:
                    return self._start_query(job, start, checkpoint / str(number), seconds)
                except SlowWorkerError:
                    if self._has_batch or number == _MAX_STARTS - 1:
                        raise
        except BaseException as error:
            if not (isinstance(error, CdcError) and error.table and self._query is not None and self._query.isActive):
                self._stop()
            raise
        finally:
            with self._apply_lock:  # waits for a batch that is being applied
                self._section = self._failure = None

    def _start_query(self, job: StreamJob, start: Offset, checkpoint: Path, seconds: float) -> None:
        self._has_batch, self._failure = False, None
        self._current_token = token = object()
        checkpoint.mkdir(parents=True)
        self._section_file = checkpoint / "section.json"
        self._spark.dataSource.register(make_source_class(job, start, self._section_file, seconds))
        with translate_spark_errors():
            self._query = (
                self._spark.readStream.format(FORMAT)
                .load()
                .writeStream.foreachBatch(partial(self._on_batch, token))
                # With a scheme: on YARN, Spark would look for a bare path in HDFS.
                .option("checkpointLocation", f"file://{checkpoint / 'spark'}")
                .trigger(processingTime="0 seconds")
                .start()
            )
        self._wait_for_section_end()

    def _wait_for_section_end(self) -> None:
        query, ticked_at = self._query, time.monotonic()
        while query.isActive and not self._is_section_over() and not self._failure:
            time.sleep(0.1)  # not Event.wait(): a signal that meets it and sets the event would wait for itself
            if time.monotonic() - ticked_at > 1:
                ticked_at = time.monotonic()
                with self._apply_lock:
                    self._on_tick()
        query_error = query.exception()
        if self._failure is not None or query_error is not None:
            raise self._failure or to_cdc_error(query_error)
        if not self._is_section_over():
            raise TransientError("the stream ended unexpectedly", "Run again: it continues where it stopped")

    def pause(self) -> None:
        """Stop reading until the next section is run."""
        self._stop()

    def _stop(self) -> None:
        """End the query. None of its batches is applied any more."""
        with self._apply_lock:
            self._section = self._current_token = None
        if self._query is not None:
            self._query.stop()
            self._query = None

    def _on_batch(self, token: object, frame: Any, _: int) -> None:
        self._has_batch = True
        try:
            manifests = [json.loads(row["manifest"]) for row in frame.collect()]
            if self._applying is not None:
                self._applying.result()  # at most one batch waits
            if manifests:
                self._applying = self._pool.submit(self._apply_batch, token, manifests)
        except Exception as error:
            self._record_failure(token, error)
            # Spark searches the message with a regular expression that overflows the stack if the message is long
            # (seen when a stream was stopped during a batch), so it gets a short one.
            raise RuntimeError("the batch was not applied") from None

    def _apply_batch(self, token: object, manifests: list[dict[str, Any]]) -> None:
        with self._apply_lock:
            if (
                token is not self._current_token
                or manifests[0]["section"] != self._section
                or self._is_section_over()
                or self._failure
            ):
                return  # its section is over: the next one reads the same changes again
            try:
                if errors := [manifest["error"] for manifest in manifests if "error" in manifest]:
                    raise make_error(**errors[0])
                self._apply(manifests)
            except BaseException as error:  # otherwise it would be lost in this thread
                self._record_failure(token, error)

    def _record_failure(self, token: object, error: BaseException) -> None:
        """Record the first failure only, because others may follow from it."""
        if token is self._current_token:
            self._failure = self._failure or (error if isinstance(error, CdcError) else to_cdc_error(error))
