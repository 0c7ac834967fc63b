"""The binlog as a Structured Streaming source: offsets are ends of transactions, rows are manifests of staged files.

The source, its ``read`` and ``foreachBatch`` run in separate processes; what they share is in offsets and manifests.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

from airflow_provider_cdc.core.offset import Offset
from airflow_provider_cdc.exceptions import CdcError, pack
from airflow_provider_cdc.jobs.batches import StreamJob

if TYPE_CHECKING:
    # Not in the processes in which Spark only makes the source or plans its tasks: it loads the compiled decoder.
    from airflow_provider_cdc.mysql.stream.batches import BatchPlanner

#: Name of the source within one Spark session.
FORMAT = "airflow_cdc_binlog"
#: Seconds for which the source waits at most before it says that there is no batch: Spark can end a query only then.
_WAIT_SECONDS = 1.0


@contextmanager
def _packed() -> Iterator[None]:
    try:
        yield
    except CdcError as error:
        raise RuntimeError(pack(error)) from None


def _encode(offset: Offset) -> dict[str, Any]:
    # Spark wants a flat dictionary of simple values.
    return {"offset": json.dumps(offset.to_json())}


def _decode(value: dict[str, Any]) -> Offset:
    return Offset.from_json(json.loads(value["offset"]))


class Range(InputPartition):
    """The transactions in (start, end], read by one task.

    :param start: start offset.
    :param end: end offset.
    :param reader: number of the task in its batch.
    :param asked: requests to an object store that planning took, and that nobody has told of yet.
    """

    def __init__(self, start: Offset, end: Offset, reader: int, asked: list[dict[str, int]]) -> None:
        super().__init__(None)
        self.start, self.end, self.reader, self.asked = start, end, reader, asked


class BinlogReader(DataSourceStreamReader):
    """Stream reader of one epoch.

    :param job: the stream's job.
    :param start: where the epoch begins.
    :param seconds: least time between the starts of two batches.
    """

    def __init__(self, job: StreamJob, start: Offset, seconds: float = 0) -> None:
        self._job = job
        self._start = start
        self._seconds, self._due = seconds, time.monotonic()
        self._planner: BatchPlanner | None = None
        self._pieces: list[Offset] = []
        self._asked: list[dict[str, int]] = []

    def initialOffset(self) -> dict[str, Any]:
        """Where the epoch begins: the sink's resume point."""
        return _encode(self._start)

    def latestOffset(self, start: dict[str, Any] | None = None, limit: Any = None) -> dict[str, Any]:
        """End of the next batch, which begins as soon as there are changes, and not too soon after the one before it.

        :param start: where the batch begins. Spark before 4.2 does not say it: the batch begins where the last one
            ended, since a checkpoint serves one epoch, and an epoch one reader.
        """
        with _packed():
            try:
                if self._planner is None:
                    self._planner, asked = self._job.open_planner()
                    self._asked.append(asked)
                begin = _decode(start) if start is not None else (self._pieces or [self._start])[-1]
                if not self._begins(self._planner, begin):
                    return _encode(begin)
                self._pieces = [begin, *self._job.pieces(self._planner, begin)]
                return _encode(self._pieces[-1])
            except CdcError:
                self._close()
                raise

    def _begins(self, planner: BatchPlanner, begin: Offset) -> bool:
        """Wait, but not for long, until a batch may begin, and there is something for it."""
        now = time.monotonic()
        until = now + _WAIT_SECONDS
        if not planner.full:  # of a backlog there is no need to wait for more
            time.sleep(max(0.0, min(self._due, until) - now))
            if until < self._due or not planner.wait(begin, until - time.monotonic()):
                return False
        self._due = time.monotonic() + self._seconds
        return True

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """A task for each piece of a batch, as they were found; else one, as of a batch that Spark plans again."""
        found = [_decode(start), _decode(end)]
        if self._pieces[:1] == found[:1] and self._pieces[-1:] == found[1:]:
            found = self._pieces
        asked, self._asked = self._asked, []
        pieces = [ends for ends in pairwise(found) if ends[0] != ends[1]]
        return [Range(*ends, i, [] if i else asked) for i, ends in enumerate(pieces)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Stage the files of a range and return their manifest."""
        assert isinstance(partition, Range)
        context = TaskContext.get()
        attempt = str(context.taskAttemptId()) if context is not None else "0"
        with _packed():
            manifest = self._job.stage(partition.start, partition.end, attempt, partition.reader, partition.asked)
        yield pa.RecordBatch.from_pydict({"manifest": [json.dumps(manifest)]})

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing: the sink's progress record is the resume point."""

    def stop(self) -> None:
        """Close connections."""
        self._close()

    def _close(self) -> None:
        if self._planner is not None:
            self._planner.close()
            self._planner = None


def make_source(job: StreamJob, start: Offset, seconds: float) -> type[DataSource]:
    """Data source class for one epoch; the job, and with it the password, stays inside of the class.

    :param seconds: least time between the starts of two batches.
    """

    class BinlogSource(DataSource):
        @classmethod
        def name(cls) -> str:
            return FORMAT

        def schema(self) -> str:
            return "manifest string"

        def streamReader(self, schema: Any) -> DataSourceStreamReader:
            return BinlogReader(job, start, seconds)

    return BinlogSource
