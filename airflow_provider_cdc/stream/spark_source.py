"""The binlog as a Structured Streaming source: offsets are ends of transactions, rows are manifests of staged files.

The source, its ``read`` and ``foreachBatch`` run in separate processes; what they share is in offsets and manifests.
An epoch has sections: one ends where the definitions of tables change. A query goes on with the next one when a file
says so, which the driver writes: to stop a query and begin another takes seconds, for all tables.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

from airflow_provider_cdc.apply.stream_job import StreamJob
from airflow_provider_cdc.model.errors import CdcError, TerminalError, embed_error
from airflow_provider_cdc.model.offset import Offset

if TYPE_CHECKING:
    # Not in the processes in which Spark only makes the source or plans its tasks: it loads the compiled decoder.
    from airflow_provider_cdc.apply.batch_planner import BatchPlanner

#: Name of the source within one Spark session.
FORMAT = "airflow_cdc_binlog"
#: Seconds for which the source waits at most before it says that there is no batch: Spark can end a query only then.
_MAX_WAIT_SECONDS = 1.0
#: Seconds between two looks for the section with which the driver answers a DDL, or an error.
_POLL_SECONDS = 0.1


@contextmanager
def _pack_errors() -> Iterator[None]:
    try:
        yield
    except CdcError as error:
        raise RuntimeError(embed_error(error)) from None


@dataclass(frozen=True)
class SectionOffset:
    """An offset in a section of the epoch, as Spark is told it.

    :param section: number of the section.
    :param offset: up to where it has been read.
    :param error: why it cannot be read any further (:meth:`CdcError.to_json`): the section ends here.
    """

    section: int
    offset: Offset
    error: dict[str, Any] | None = None

    def encode(self) -> dict[str, Any]:
        """As Spark wants it: a flat dictionary of simple values."""
        value = {"section": self.section, "offset": json.dumps(self.offset.to_json())}
        return value if self.error is None else {**value, "error": json.dumps(self.error)}

    @classmethod
    def decode(cls, value: dict[str, Any]) -> SectionOffset:
        """Inverse of :meth:`encode`."""
        error = json.loads(value["error"]) if "error" in value else None
        return cls(value["section"], Offset.from_json(json.loads(value["offset"])), error)

    def write(self, file: Path) -> None:
        """Let the source go on from here, in another process of this host."""
        new = file.with_suffix(".new")
        new.write_text(json.dumps(self.encode()))
        new.replace(file)

    @classmethod
    def read(cls, file: Path) -> SectionOffset | None:
        """What was written last; ``None`` before that."""
        try:
            return cls.decode(json.loads(file.read_text()))
        except FileNotFoundError:
            return None


class BatchRange(InputPartition):
    """The transactions in (start, end], read by one task.

    :param section: number of the section.
    :param start: start offset.
    :param end: end offset.
    :param reader_index: number of the task in its batch.
    :param requests: requests to an object store that planning took, and that nobody has told of yet.
    """

    def __init__(
        self, section: int, start: Offset, end: Offset, reader_index: int, requests: list[dict[str, int]]
    ) -> None:
        super().__init__(None)
        self.section, self.start, self.end, self.reader_index, self.requests = (
            section,
            start,
            end,
            reader_index,
            requests,
        )


class FailurePartition(InputPartition):
    """Instead of what cannot be read: tells the driver why.

    :param section: number of the section.
    :param error: why, as :class:`SectionOffset` has it.
    """

    def __init__(self, section: int, error: dict[str, Any]) -> None:
        super().__init__(None)
        self.section, self.error = section, error


def _concerns_one_table(error: CdcError) -> bool:
    """Whether an error may leave the other tables alone. Then it travels as a batch: to end the query, as an exception
    does, and begin another takes seconds, for all tables.
    """
    return isinstance(error, TerminalError) and error.table is not None


class BinlogStreamReader(DataSourceStreamReader):
    """Stream reader of one epoch.

    :param job: the stream's job, in the section that the query begins with.
    :param start: where that begins.
    :param file: says where the next section begins; see :meth:`SectionOffset.write`.
    :param seconds: least time between the starts of two batches.
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
        """Where the query begins: the sink's resume point. Spark asks for it again later."""
        return self._start.encode()

    def latestOffset(self, start: dict[str, Any] | None = None, limit: Any = None) -> dict[str, Any]:
        """End of the next batch, which begins as soon as there are changes, and not too soon after the one before it.
        If the next section has begun, it begins there.

        :param start: where the batch begins. Spark before 4.2 does not say it: the batch begins where the last one
            ended, since a checkpoint serves one query, and a query one reader.
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
                self._last_offset = replace(self._last_offset, error=error.to_json())
            return self._last_offset.encode()

    def _plan_batch(self, section_start: SectionOffset) -> SectionOffset | None:
        """End of the next batch of a section, if there is one."""
        job = replace(self._job, section=section_start.section)
        if self._planner is None:
            self._planner, requests = job.make_counted_planner()
            self._planning_requests.append(requests)
        if not self._wait_for_batch(self._planner, section_start.offset):
            return None
        self._range_ends = [section_start.offset, *job.find_range_ends(self._planner, section_start.offset)]
        return SectionOffset(section_start.section, self._range_ends[-1])

    def _wait_for_batch(self, planner: BatchPlanner, begin: Offset) -> bool:
        """Wait, but not for long, until a batch may begin, and there is something for it."""
        now = time.monotonic()
        until = now + _MAX_WAIT_SECONDS
        if not planner.has_backlog:  # of a backlog there is no need to wait for more
            time.sleep(max(0.0, min(self._next_start, until) - now))
            if until < self._next_start or not planner.wait_for_changes(begin, until - time.monotonic()):
                return False
        self._next_start = time.monotonic() + self._seconds
        return True

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """A task for each piece of a batch, as they were found; else one, as of a batch that Spark plans again."""
        batch_start, batch_end = SectionOffset.decode(start), SectionOffset.decode(end)
        if batch_end.error is not None:
            return [FailurePartition(batch_end.section, batch_end.error)]
        section_start = (
            batch_start if batch_start.section == batch_end.section else SectionOffset.read(self._section_file)
        )
        if section_start is None or section_start.section != batch_end.section:
            return []  # the driver has ended that section: it takes nothing of it any more
        range_ends = [section_start.offset, batch_end.offset]
        if self._range_ends[:1] == range_ends[:1] and self._range_ends[-1:] == range_ends[1:]:
            range_ends = self._range_ends
        requests, self._planning_requests = self._planning_requests, []
        ranges = [bounds for bounds in pairwise(range_ends) if bounds[0] != bounds[1]]
        return [BatchRange(batch_end.section, *bounds, i, [] if i else requests) for i, bounds in enumerate(ranges)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Stage the files of a range and return their manifest, or what has kept it from that."""
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
        """Nothing: the sink's progress record is the resume point."""

    def stop(self) -> None:
        """Close connections."""
        self._close()

    def _close(self) -> None:
        if self._planner is not None:
            self._planner.close()
            self._planner = None


def make_source_class(job: StreamJob, start: Offset, file: Path, seconds: float) -> type[DataSource]:
    """Data source class for one epoch; the job, and with it the password, stays inside of the class.

    :param file: says where the next section begins.
    :param seconds: least time between the starts of two batches.
    """

    class BinlogSource(DataSource):
        @classmethod
        def name(cls) -> str:
            return FORMAT

        def schema(self) -> str:
            return "manifest string"

        def streamReader(self, schema: Any) -> DataSourceStreamReader:
            return BinlogStreamReader(job, start, file, seconds)

    return BinlogSource
