"""The snapshot's work: read slices of a chunk group and stage each in the sink, with a separate manifest file.

Spark may run a task more than once, one copy after the other or at the same time: after a failure, speculatively, or
because it considers an executor lost that is still working. So every copy stages its own rows, and the manifest of a
slice is written only once. The file that it names is the slice, whatever other copies do before or after.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from airflow_provider_cdc.config.load_limits import LoadLimits
from airflow_provider_cdc.model.offset import Offset, Position, Timeline
from airflow_provider_cdc.model.plan import Chunk, cut_into_slices
from airflow_provider_cdc.model.schema import TableSchema
from airflow_provider_cdc.mysql.binlog.events.binlog_source import BinlogSource
from airflow_provider_cdc.mysql.client.catalog import check_same_definition
from airflow_provider_cdc.mysql.client.charsets import load_decoders
from airflow_provider_cdc.mysql.client.session import connect
from airflow_provider_cdc.mysql.client.throttle import Throttle
from airflow_provider_cdc.mysql.positions.binlog_files import file_start_time
from airflow_provider_cdc.mysql.positions.watermarks import make_watermarks
from airflow_provider_cdc.sinks.files.attempt_signals import AttemptSignals
from airflow_provider_cdc.sinks.files.layout import Layout, read_group_plan
from airflow_provider_cdc.sinks.files.parquet import DataFile
from airflow_provider_cdc.sinks.protocol import PipelineSink
from airflow_provider_cdc.sinks.storage.request_counts import RequestCounts, count_requests_in
from airflow_provider_cdc.sinks.storage.storage import Storage, read_json, write_json_once
from airflow_provider_cdc.system.failpoints import failpoint
from airflow_provider_cdc.transforms.row_transform import BinlogOrigin, RowTransform
from airflow_provider_cdc.transforms.sealed_bounds import open_plan

if TYPE_CHECKING:
    import pyarrow as pa

    from airflow_provider_cdc.mysql.chunks.window_reader import WindowReader


@dataclass(frozen=True)
class SnapshotJob:
    """Everything that tasks need to read slices of one attempt at a group.

    It travels in a closure that contains password and hash key. Spark writes large closures to disk, so it must stay
    small: the tasks read table definitions and chunks from the group's part of the plan in the sink.

    :param connect_args: pymysql.connect keyword arguments.
    :param replica_ids: for each worker, (server id, replica uuid) of each copy of its task that may run at the same
        time.
    :param sink: where the rows are staged.
    :param storage: where the plan and the manifests are stored.
    :param layout: names in the storage.
    :param generation: number of the snapshot.
    :param group: number of the chunk group.
    :param attempt: number of the attempt.
    :param slice_numbers: numbers of the slices to read.
    :param limits: load limits for all workers together.
    :param zero_dates: ``source.zero_dates``.
    :param timeline: numbers the transactions of the server that is read: only the newest segment.
    :param resume_point: the resume point before the read began: changes that the files lack come after it.
    :param resnapshot_number: number of the read, if this is a re-snapshot; else 0.
    :param hash_key: secret key of hashed columns; ``None`` if the pipeline hashes none.
    """

    connect_args: dict[str, Any]
    replica_ids: tuple[tuple[tuple[int, str], ...], ...]
    sink: PipelineSink
    storage: Storage
    layout: Layout
    generation: int
    group: int
    attempt: int
    slice_numbers: tuple[int, ...]
    limits: LoadLimits
    zero_dates: str
    timeline: Timeline
    resume_point: Offset
    resnapshot_number: int
    hash_key: bytes | None = field(default=None, repr=False)

    def read_slices(self, worker: int, task_copy: int = 0) -> Iterator[dict[str, Any]]:
        """Read a worker's share of the slices, one after the other, except those that another copy has finished.

        :param worker: number of the worker, from 0.
        :param task_copy: number of copies of this worker that were started before.
        :returns: the manifests of the finished slices, each with ``asked``: the object-store request counts since the
            previous one.
        """
        with count_requests_in(RequestCounts()) as request_counts:
            reader = _SliceReader(self, worker, task_copy)
        with closing(reader):
            for no in self.slice_numbers[worker :: len(self.replica_ids)]:
                with count_requests_in(request_counts):
                    manifest = reader.read_slice(no)
                yield manifest | {"asked": request_counts.to_json()}
                request_counts = RequestCounts()

    def manifest_name(self, table: TableSchema, number: int) -> str:
        """Return the name of a slice's manifest, which exists once the slice is finished."""
        return self.layout.slice_manifest(table, self.generation, self.group, self.attempt, number)


class _SliceReader:
    """Reads slices with one connection and one replication server id, so only one binlog stream may be open at a time.

    See :meth:`SnapshotJob.read_slices` for the parameters.
    """

    def __init__(self, job: SnapshotJob, worker: int, task_copy: int) -> None:
        # Imported here: its compiled kernels take 100 MB of memory, which the driver does not need.
        from airflow_provider_cdc.mysql.chunks.keyless import read_parts

        self._read_chunk_parts = read_parts
        layout, storage = job.layout, job.storage
        copies = job.replica_ids[worker]
        self._job = job
        self._binlog_source = BinlogSource(job.connect_args, job.timeline.server, copies[task_copy % len(copies)])
        group_plan = read_group_plan(storage, layout.group_plan(job.generation, job.group))
        assert group_plan is not None  # it is written before the job
        self._plan = open_plan(group_plan, job.hash_key).with_zero_dates(job.zero_dates)
        self._slices = cut_into_slices(self._plan.chunks)
        notes = AttemptSignals(storage, layout.signals_folder(job.generation, job.group, job.attempt))
        self._raise_if_stopped = notes.raise_if_stopped
        self._connection = connect(job.connect_args)
        limits = job.limits.per_reader(len(job.replica_ids))
        self._throttle = Throttle(self._connection, limits, lambda why: notes.set_pause_reason(worker, why))
        self._watermarks = make_watermarks(self._connection, job.timeline.server)
        self._window_reader: WindowReader | None = None
        self._file_begin_times: dict[str, int] = {}

    def close(self) -> None:
        """Close all connections."""
        self._close_window_reader()
        self._connection.close()

    def read_slice(self, no: int) -> dict[str, Any]:
        """Return the manifest of a slice. Read the slice first unless another copy has finished it."""
        chunks = self._slices[no]
        table = self._plan.tables[chunks[0].table]
        name = self._job.manifest_name(table, no)
        manifest: dict[str, Any] | None = read_json(self._job.storage, name)
        if manifest is None:
            manifest = self._stage_slice(table, no, chunks, name)
        return manifest

    def _stage_slice(self, table: TableSchema, no: int, chunks: Sequence[Chunk], name: str) -> dict[str, Any]:
        job, target = self._job, self._job.sink.table(table)
        chunk_entries: list[dict[str, Any]] = []
        started = time.time()
        failpoint("file.before_write")
        place = f"{job.generation}/{job.group}/{job.attempt}/slice-{no:05d}-{uuid.uuid4().hex[:12]}"
        file = target.stage(place, self._read_chunks(table, chunks, chunk_entries))
        try:
            failpoint("file.after_write")
            check_same_definition(self._connection, table, Position.from_json(chunk_entries[-1]["hw"]))
            manifest = self._build_manifest(table, no, file, chunk_entries) | {"began": round(started, 3)}
        except BaseException:
            target.discard_staged(file)
            raise
        if not write_json_once(job.storage, name, manifest):  # another copy was faster: its file is the slice
            target.discard_staged(file)
            manifest = read_json(job.storage, name)
        failpoint("manifest.after_write")
        return manifest

    def _build_manifest(
        self, table: TableSchema, no: int, file: DataFile, chunk_entries: list[dict[str, Any]]
    ) -> dict[str, Any]:
        return {
            "pipeline": self._plan.pipeline,
            "slice": no,
            "table": self._slices[no][0].table,
            "fingerprint": table.fingerprint(),
            "lineage": self._job.timeline.to_json(),
            "since": self._job.resume_point.to_json(),
            "reading": self._job.resnapshot_number,
            "file": file.to_json(),
            "ended": round(time.time(), 3),
            "chunks": chunk_entries,
            "binlogs": {name: self._file_begin_time(name) for name in {entry["hw"][0] for entry in chunk_entries}},
        }

    def _read_chunks(
        self, table: TableSchema, chunks: Sequence[Chunk], chunk_entries: list[dict[str, Any]]
    ) -> Iterator[pa.Table]:
        """Yield the rows of chunks as they are read, so that few are in memory.

        :param chunk_entries: receives the manifest's entry of each chunk.
        """
        for chunk in chunks:
            self._throttle.wait_for_turn(self._raise_if_stopped)
            yield from self._read_chunk(table, chunk, chunk_entries)

    def _read_chunk(self, table: TableSchema, chunk: Chunk, chunk_entries: list[dict[str, Any]]) -> Iterator[pa.Table]:
        count, started = 0, time.monotonic()
        transform, origin = RowTransform(table, self._job.hash_key), BinlogOrigin(self._job.timeline)
        parts = self._read_chunk_parts(self._window_reader_for(chunk.table), table, chunk, self._watermarks)
        with closing(parts):
            for part in parts:
                self._throttle.record_chunk(started, part.rows.num_rows, part.rows.nbytes)
                rows = transform.rows(part.rows, origin)
                count += rows.num_rows
                entry = {
                    "no": chunk.number,
                    "lw": part.low.to_json(),
                    "hw": part.high.to_json(),
                    "rows": count,
                    "corrected": part.corrected,
                    "seconds": round(part.seconds, 4),
                }
                del part  # free the memory before the rows are written
                yield rows
                del rows
                if not table.key:
                    self._throttle.wait_for_rates(self._raise_if_stopped)
                started = time.monotonic()
        chunk_entries.append(entry)

    def _window_reader_for(self, index: int) -> WindowReader:
        from airflow_provider_cdc.mysql.chunks.window_reader import WindowReader

        table = self._plan.tables[index]
        if self._window_reader is None or self._window_reader.table is not table:
            self._close_window_reader()
            timeline = self._job.timeline
            texts = load_decoders(lambda: nullcontext(self._connection), [table])
            self._window_reader = WindowReader(
                self._binlog_source, self._plan.definitions_for(timeline)[index], timeline, texts
            )
        return self._window_reader

    def _close_window_reader(self) -> None:
        if self._window_reader is not None:
            self._window_reader.close()

    def _file_begin_time(self, file: str) -> int:
        """Return when the server began a binlog file."""
        if file not in self._file_begin_times:
            self._close_window_reader()
            self._file_begin_times[file] = file_start_time(self._binlog_source.open, file)
        return self._file_begin_times[file]


#: Runs a job on all of its workers and returns the manifests of the finished slices.
JobRunner = Callable[[SnapshotJob], list[dict[str, Any]]]


def run_in_threads(job: SnapshotJob) -> list[dict[str, Any]]:
    """Run a job in this process, without a JVM: for tests and for small machines."""
    with ThreadPoolExecutor(len(job.replica_ids)) as pool:
        parts = [pool.submit(lambda w: list(job.read_slices(w)), w) for w in range(len(job.replica_ids))]
        return [manifest for part in parts for manifest in part.result()]
