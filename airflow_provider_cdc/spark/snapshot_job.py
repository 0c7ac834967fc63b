"""The snapshot's work: slices of a chunk group, each read into one Parquet file with its manifest beside it.

What runs in a Spark task is plain Python; rows never pass through the JVM, only manifests do.

Spark may run a task more than once, one copy after the other or at the same time: after a failure, speculatively, or
because it takes an executor for lost that goes on working. So every copy writes files of its own, and a slice's
manifest is written only once: the file that it names is the slice, whatever other copies do before or after.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pymysql.connections import Connection

from airflow_provider_cdc.core.definitions import by_table
from airflow_provider_cdc.core.limits import Limits
from airflow_provider_cdc.core.offset import Lineage, Offset, Position
from airflow_provider_cdc.core.plan import Chunk, Plan, slices
from airflow_provider_cdc.core.schema import TableSchema
from airflow_provider_cdc.exceptions import CdcError, pack
from airflow_provider_cdc.failpoints import failpoint
from airflow_provider_cdc.mysql.binlog.events.binlog_stream import BinlogStream
from airflow_provider_cdc.mysql.places.binlog_files import with_beginning
from airflow_provider_cdc.mysql.places.watermark import watermarks
from airflow_provider_cdc.mysql.server.catalog import same_definition
from airflow_provider_cdc.mysql.server.charsets import decoders
from airflow_provider_cdc.mysql.server.session import connect
from airflow_provider_cdc.mysql.server.throttle import Throttle
from airflow_provider_cdc.sinks.files import write_file
from airflow_provider_cdc.sinks.layout import Layout, read_json, write_json_once
from airflow_provider_cdc.sinks.notes import Notes
from airflow_provider_cdc.spark.session import spark_errors, told_of_waiting

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from airflow_provider_cdc.mysql.snapshot.chunk import ChunkRead
    from airflow_provider_cdc.mysql.snapshot.windows import WindowReader

#: Copies of a task that may be at work at the same time, each with a replication server id of its own: of two readers
#: with the same id the server throws one out.
COPIES = 4


@dataclass(frozen=True)
class SnapshotJob:
    """What tasks need to read slices of one attempt of a group.

    It travels in a closure, with the password in it. Spark writes large closures to disk, so it stays small: what the
    tasks have to know of tables and chunks they read from the group's share of the plan in the sink.

    :param connect_args: pymysql.connect keyword arguments.
    :param replicas: for each worker (server id, replica uuid) of each of its :data:`COPIES`.
    :param root: ``sink.path``.
    :param pipeline: name of the pipeline.
    :param generation: number of the snapshot.
    :param group: number of the chunk group.
    :param attempt: number of the attempt.
    :param missing: numbers of the slices to read.
    :param limits: what all workers together may ask of the server.
    :param zero_dates: ``source.zero_dates``.
    :param lineage: numbers the transactions of the server that is read: the newest segment, by itself.
    :param since: the resume point before the reading began: what the files lack stands behind it.
    """

    connect_args: dict[str, Any]
    replicas: tuple[tuple[tuple[int, str], ...], ...]
    root: str
    pipeline: str
    generation: int
    group: int
    attempt: int
    missing: tuple[int, ...]
    limits: Limits
    zero_dates: str
    lineage: Lineage
    since: Offset

    def read(self, worker: int, copy: int = 0) -> Iterator[dict[str, Any]]:
        """Read a worker's share of the slices, one after the other. Those that another copy has finished are not read.

        :param worker: number of the worker, from 0.
        :param copy: how many copies of this worker were started before.
        :returns: the manifests of the finished files.
        """
        # Compiled, and so 100 MB of memory, which the driver does not need.
        from airflow_provider_cdc.mysql.places.lookback import look_back
        from airflow_provider_cdc.mysql.snapshot.keyless import pieces
        from airflow_provider_cdc.mysql.snapshot.windows import WindowReader

        layout = Layout(self.root, self.pipeline)
        plan = Plan.from_json(read_json(layout.share(self.generation, self.group))).with_zero_dates(self.zero_dates)
        wanted = slices(plan.chunks)
        server_id, replica_uuid = self.replicas[worker][copy % COPIES]

        def open_at(at: Position) -> BinlogStream:
            return BinlogStream(
                self.connect_args,
                server_id=server_id,
                replica_uuid=replica_uuid,
                file=at.file,
                position=at.position,
                server=self.lineage.server,
            )

        connection = connect(self.connect_args)
        notes = Notes(layout.notes(plan.generation, self.group, self.attempt))
        throttle = Throttle(connection, self.limits.share(len(self.replicas)), lambda why: notes.pause(worker, why))
        marks = watermarks(connection, self.lineage.server)
        reader: WindowReader | None = None
        begun: dict[str, int] = {}

        def when_begun(file: str) -> int:
            if file not in begun:
                if reader is not None:
                    reader.close()  # there is one replication server id for both
                begun[file] = with_beginning(Offset(self.lineage.server, Position(file, 0), ""), open_at).began
            return begun[file]

        try:
            for no in self.missing[worker :: len(self.replicas)]:
                index = wanted[no][0].table
                table = plan.tables[index]
                found = read_json(self._sidecar(table, no))
                if found is None:
                    if reader is None or reader.table is not table:
                        if reader is not None:
                            reader.close()  # there is one replication server id for all of them
                        texts = decoders(lambda: nullcontext(connection), [table])
                        over_time = plan.definitions[index]
                        before = partial(look_back, self.connect_args, self.lineage.server, by_table([over_time]))
                        reader = WindowReader(open_at, over_time, self.lineage, before, texts)

                    def read(
                        chunk: Chunk, table: TableSchema = table, reader: WindowReader = reader
                    ) -> Generator[ChunkRead, None, None]:
                        throttle.wait(notes.check)
                        began = time.monotonic()
                        for piece in pieces(connection, reader, table, chunk, self.lineage, marks):
                            throttle.used(began, piece.rows.num_rows, piece.rows.nbytes)
                            yield piece
                            del piece
                            if not table.key:
                                throttle.pace(notes.check)
                            began = time.monotonic()

                    found = self._write(connection, table, no, wanted[no], read, when_begun)
                yield found
        finally:
            if reader is not None:
                reader.close()
            connection.close()

    def _sidecar(self, table: TableSchema, no: int) -> Path:
        folder = Layout(self.root, self.pipeline).files(table, self.generation, self.group)
        return folder / str(self.attempt) / f"slice-{no:05d}.json"

    def _write(
        self,
        connection: Connection[Any],
        table: TableSchema,
        no: int,
        chunks: Sequence[Chunk],
        read: Callable[[Chunk], Generator[ChunkRead, None, None]],
        when_begun: Callable[[str], int],
    ) -> dict[str, Any]:
        """Write chunks as they are read, so that few are held (:func:`write_file` says how many); then the manifest."""
        home, sidecar = Layout(self.root, self.pipeline).table(table), self._sidecar(table, no)
        path = sidecar.with_name(f"slice-{no:05d}-{uuid.uuid4().hex[:12]}.parquet")
        done: list[dict[str, Any]] = []
        started = time.time()

        def rows() -> Iterator[pa.Table]:
            for chunk in chunks:
                count = 0
                with closing(read(chunk)) as parts:
                    for found in parts:
                        count += found.rows.num_rows
                        entry = {
                            "no": chunk.no,
                            "lw": found.low.to_json(),
                            "hw": found.high.to_json(),
                            "rows": count,
                            "corrected": found.corrected,
                            "seconds": round(found.seconds, 4),
                        }
                        yield found.rows
                        del found
                done.append(entry)

        try:
            failpoint("file.before_write")
            file = write_file(
                home,
                str(path.relative_to(home)),
                table.sink_schema,
                rows(),
                table.integer_key,
                ordered_by=table.key,
            )
            failpoint("file.after_write")
            same_definition(connection, table, Position.from_json(done[-1]["hw"]))
            binlogs = {file: when_begun(file) for file in {entry["hw"][0] for entry in done}}
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        manifest = {
            "slice": no,
            "table": chunks[0].table,
            "fingerprint": table.fingerprint(),
            "lineage": self.lineage.to_json(),
            "since": self.since.to_json(),
            "file": file.to_json(),
            "began": round(started, 3),
            "ended": round(time.time(), 3),
            "chunks": done,
            "binlogs": binlogs,
        }
        if not write_json_once(sidecar, manifest):  # another copy was faster: its file is the slice
            path.unlink(missing_ok=True)
            manifest = read_json(sidecar)
        failpoint("manifest.after_write")
        return manifest


#: Runs a job on all of its workers and returns the manifests of the finished files.
Runner = Callable[[SnapshotJob], list[dict[str, Any]]]


def run_in_threads(job: SnapshotJob) -> list[dict[str, Any]]:
    """Run a job in this process, without a JVM: for tests and for small machines."""
    with ThreadPoolExecutor(len(job.replicas)) as pool:
        parts = [pool.submit(lambda w: list(job.read(w)), w) for w in range(len(job.replicas))]
        return [manifest for part in parts for manifest in part.result()]


def run_on_spark(spark: SparkSession, tell: Callable[[str], None]) -> Runner:
    """Runner that makes one Spark job of a group, one task a worker.

    :param tell: gets a line if Spark waits for executors.
    """

    def run(job: SnapshotJob) -> list[dict[str, Any]]:
        def task(batches: Iterable[Any]) -> Iterator[Any]:
            import pyarrow as pa
            from pyspark import TaskContext

            context = TaskContext.get()
            copy = context.attemptNumber() if context else 0
            for batch in batches:
                for worker in batch.column(0).to_pylist():
                    try:
                        for manifest in job.read(worker, copy):
                            yield pa.RecordBatch.from_pydict({"manifest": [json.dumps(manifest)]})
                    except CdcError as error:
                        # Spark reports a Python traceback; the error's own words travel inside of it.
                        raise RuntimeError(pack(error)) from None

        workers = len(job.replicas)
        frame = spark.range(0, workers, 1, workers).mapInArrow(task, "manifest string")
        with spark_errors(), told_of_waiting(spark, tell):
            return [json.loads(row["manifest"]) for row in frame.collect()]

    return run
