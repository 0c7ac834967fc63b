"""The binlog as a Structured Streaming source: offsets are ends of transactions, rows are manifests of staged files.

The source, its ``read`` and ``foreachBatch`` run in separate processes, and share only offsets and manifests. An epoch
has sections; a section ends where definitions of tables change. The driver writes a file to make the query continue
with the next section, because stopping a query and starting another would delay all tables for seconds.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

from airflow_provider_cdc.apply.task import StreamJob
from airflow_provider_cdc.model.errors import CdcError, TerminalError, embed_error
from airflow_provider_cdc.model.json_record import JsonRecord
from airflow_provider_cdc.model.offset import Offset

if TYPE_CHECKING:
    # It loads the compiled decoder, which processes that only create the source or plan its tasks do not need.
    from airflow_provider_cdc.apply.batch_planner import BatchPlanner

#: Name of the source within one Spark session.
FORMAT = "airflow_cdc_binlog"
#: Maximum seconds that the source waits before it reports that there is no batch; Spark can end a query only then.
_MAX_WAIT_SECONDS = 1.0
#: Seconds between two checks for the section that the driver begins after a DDL or an error.
_POLL_SECONDS = 0.1


@contextmanager
def _pack_errors() -> Iterator[None]:
    try:
        yield
    except CdcError as error:
        raise RuntimeError(embed_error(error)) from None


class SectionOffset(JsonRecord, frozen=True):
    """An offset in a section of the epoch, in the form that is passed to Spark.

    :param section: number of the section.
    :param offset: offset up to which it has been read.
    :param error: why the section cannot be read any further and ends here (:meth:`CdcError.to_json`).
    """

    section: int
    offset: Offset
    error: dict[str, Any] | None = None

    def encode(self) -> dict[str, str]:
        """Return the flat dictionary of simple values that Spark requires."""
        return {"json": json.dumps(self.to_json())}

    @classmethod
    def decode(cls, value: dict[str, str]) -> SectionOffset:
        """Return the offset that :meth:`encode` has encoded."""
        return cls.from_json(value["json"].encode())

    def write(self, file: Path) -> None:
        """Make the source, in another process of this host, continue from here."""
        new = file.with_suffix(".new")
        new.write_text(json.dumps(self.to_json()))
        new.replace(file)

    @classmethod
    def read(cls, file: Path) -> SectionOffset | None:
        """Return what was written last; ``None`` if nothing was."""
        try:
            return cls.from_json(file.read_bytes(), str(file))
        except FileNotFoundError:
            return None


class BatchRange(InputPartition):
    """The transactions in (start, end], read by one task.

    :param section: number of the section.
    :param start: start offset.
    :param end: end offset.
    :param reader_index: number of the task in its batch.
    :param requests: requests to an object store during planning that have not been counted yet.
    """

    def __init__(
        self, section: int, start: Offset, end: Offset, reader_index: int, requests: list[dict[str, int]]
    ) -> None:
        super().__init__(None)
        self.section, self.start, self.end = section, start, end
        self.reader_index, self.requests = reader_index, requests


class FailurePartition(InputPartition):
    """Takes the place of a range that cannot be read, and tells the driver why.

    :param section: number of the section.
    :param error: the error, as in :class:`SectionOffset`.
    """

    def __init__(self, section: int, error: dict[str, Any]) -> None:
        super().__init__(None)
        self.section, self.error = section, error


def _concerns_one_table(error: CdcError) -> bool:
    """Return whether an error affects only one table.

    It then travels as a batch. An exception would end the query, and starting another delays all tables for seconds.
    """
    return isinstance(error, TerminalError) and error.table is not None


class BinlogStreamReader(DataSourceStreamReader):
    """Stream reader of one epoch.

    :param job: the stream's job, for the section that the query starts with.
    :param start: where this section begins.
    :param file: file with the start of the next section; see :meth:`SectionOffset.write`.
    :param seconds: minimum seconds between the starts of two batches.
    """

    def __init__(self, job: StreamJob, start: Offset, file: Path, seconds: float = 0) -> None:
        self._job = job
        self._section_file = file
        self._start = self._last_offset = SectionOffset(job.section, start)
        self._seconds, self._next_start = seconds, time.monotonic()
        self._planner: BatchPlanner | None = None
        self._range_ends: list[Offset] = []
        self._planning_requests: list[dict[str, int]] = []

    def initialOffset(self) -> dict[str, Any]:
        """Return where the query begins: the sink's resume point. Spark calls this again later."""
        return self._start.encode()

    def latestOffset(self, start: dict[str, Any] | None = None, limit: Any = None) -> dict[str, Any]:
        """Return the end of the next batch, after waiting for changes and for the minimum time between batches.

        If the next section has begun, the batch begins there.

        :param start: where the batch begins. Spark before 4.2 does not pass it; the batch then begins where the last
            one ended, because each query has its own checkpoint and one reader.
        """
        with _pack_errors():
            try:
                if start is not None:
                    self._last_offset = SectionOffset.decode(start)
                next_section = SectionOffset.read(self._section_file)
                if next_section is not None and next_section.section > self._last_offset.section:
                    self._close()
                    self._last_offset = next_section
                if self._last_offset.error is not None or self._last_offset.offset.before_ddl:
                    time.sleep(_POLL_SECONDS)
                elif (end := self._plan_batch(self._last_offset)) is not None:
                    self._last_offset = end
            except CdcError as error:
                self._close()
                if not _concerns_one_table(error):
                    raise
                self._last_offset = self._last_offset.replace(error=error.to_json())
            return self._last_offset.encode()

    def _plan_batch(self, section_start: SectionOffset) -> SectionOffset | None:
        """Return the end of the next batch of a section; ``None`` if there is none yet."""
        job = replace(self._job, section=section_start.section)
        if self._planner is None:
            self._planner, requests = job.make_counted_planner()
            self._planning_requests.append(requests)
        if not self._wait_for_batch(self._planner, section_start.offset):
            return None
        self._range_ends = [section_start.offset, *job.find_range_ends(self._planner, section_start.offset)]
        return SectionOffset(section_start.section, self._range_ends[-1])

    def _wait_for_batch(self, planner: BatchPlanner, begin: Offset) -> bool:
        """Wait, but not for long, until a batch may begin; return whether there are changes for it."""
        now = time.monotonic()
        until = now + _MAX_WAIT_SECONDS
        if not planner.has_backlog:  # with a backlog there is no need to wait
            time.sleep(max(0.0, min(self._next_start, until) - now))
            if until < self._next_start or not planner.wait_for_changes(begin, until - time.monotonic()):
                return False
        self._next_start = time.monotonic() + self._seconds
        return True

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return a partition for each batch range as planned; a single one if Spark plans an earlier batch again."""
        batch_start, batch_end = SectionOffset.decode(start), SectionOffset.decode(end)
        if batch_end.error is not None:
            return [FailurePartition(batch_end.section, batch_end.error)]
        section_start = (
            batch_start if batch_start.section == batch_end.section else SectionOffset.read(self._section_file)
        )
        if section_start is None or section_start.section != batch_end.section:
            return []  # the driver has ended that section, and ignores its batches
        range_ends = [section_start.offset, batch_end.offset]
        if self._range_ends[:1] == range_ends[:1] and self._range_ends[-1:] == range_ends[1:]:
            range_ends = self._range_ends
        requests, self._planning_requests = self._planning_requests, []
        ranges = [bounds for bounds in pairwise(range_ends) if bounds[0] != bounds[1]]
        return [BatchRange(batch_end.section, *bounds, i, [] if i else requests) for i, bounds in enumerate(ranges)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Stage the files of a range and yield their manifest, or the error that prevented it."""
        assert isinstance(partition, BatchRange | FailurePartition)
        result = {"error": partition.error} if isinstance(partition, FailurePartition) else self._stage_range(partition)
        manifest = {**result, "section": partition.section}
        yield pa.RecordBatch.from_pydict({"manifest": [json.dumps(manifest)]})

    def _stage_range(self, partition: BatchRange) -> dict[str, Any]:
        context = TaskContext.get()
        attempt = str(context.taskAttemptId()) if context is not None else "0"
        with _pack_errors():
            job = replace(self._job, section=partition.section)
            try:
                return job.stage_range(
                    partition.start, partition.end, attempt, partition.reader_index, partition.requests
                )
            except CdcError as error:
                if not _concerns_one_table(error):
                    raise
                return {"error": error.to_json()}

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: progress is recorded in the sink, as the resume point."""

    def stop(self) -> None:
        """Close connections."""
        self._close()

    def _close(self) -> None:
        if self._planner is not None:
            self._planner.close()
            self._planner = None


def make_source_class(job: StreamJob, start: Offset, file: Path, seconds: float) -> type[DataSource]:
    """Return a data source class for one epoch; it contains the job, and with it the password.

    :param file: file with the start of the next section.
    :param seconds: minimum seconds between the starts of two batches.
    """

    class StreamDataSource(DataSource):
        @classmethod
        def name(cls) -> str:
            return FORMAT

        def schema(self) -> str:
            return "manifest string"

        def streamReader(self, schema: Any) -> DataSourceStreamReader:
            return BinlogStreamReader(job, start, file, seconds)

    return StreamDataSource
