"""The snapshot's work: slices of a chunk group, each read into one Parquet file with its manifest beside it.

What runs in a Spark task is plain Python; rows never pass through the JVM, only manifests do.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_provider_cdc.core.offset import Position
from airflow_provider_cdc.core.plan import Chunk, Plan, slices
from airflow_provider_cdc.exceptions import CdcError, TerminalError, pack
from airflow_provider_cdc.failpoints import hit
from airflow_provider_cdc.mysql.backlog import Backlog
from airflow_provider_cdc.mysql.binlog.stream import BinlogStream
from airflow_provider_cdc.mysql.catalog import read_schema
from airflow_provider_cdc.mysql.chunk import ChunkRead, read_chunk
from airflow_provider_cdc.mysql.session import connect
from airflow_provider_cdc.sinks.delta import statistics_key, write_file
from airflow_provider_cdc.sinks.layout import Layout, read_json, write_json
from airflow_provider_cdc.spark.session import spark_errors

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class SnapshotJob:
    """What tasks need to read slices of one attempt of a group.

    It travels in a closure, with the password in it. Spark writes large closures to disk, so it stays small: what the
    tasks have to know of tables and chunks they read from the plan in the sink.

    :param connect_args: pymysql.connect keyword arguments.
    :param replicas: (server id, replica uuid) of each worker; as many as there are workers.
    :param root: ``sink.path``.
    :param pipeline: name of the pipeline.
    :param group: number of the chunk group.
    :param attempt: number of the attempt.
    :param missing: numbers of the slices to read.
    """

    connect_args: dict[str, Any]
    replicas: tuple[tuple[int, str], ...]
    root: str
    pipeline: str
    group: int
    attempt: int
    missing: tuple[int, ...]

    def read(self, worker: int) -> Iterator[dict[str, Any]]:
        """Read a worker's share of the slices, one after the other.

        :param worker: number of the worker, from 0.
        :returns: the manifests of the finished files.
        """
        plan = Plan.from_json(read_json(Layout(self.root, self.pipeline).plan))
        wanted = slices(plan.groups()[self.group])
        server_id, replica_uuid = self.replicas[worker]

        def open_at(at: Position) -> BinlogStream:
            return BinlogStream(
                self.connect_args,
                server_id=server_id,
                replica_uuid=replica_uuid,
                file=at.file,
                position=at.position,
                server=plan.p0.server,
            )

        connection = connect(self.connect_args)
        backlog = Backlog(open_at, {t.id: t for t in plan.tables})
        try:
            for no in self.missing[worker :: len(self.replicas)]:
                table = plan.tables[wanted[no][0].table]
                reads = [read_chunk(connection, backlog, table, chunk, plan.lineage) for chunk in wanted[no]]
                found = read_schema(connection, table.database, table.name)
                if found.fingerprint() != table.fingerprint():
                    raise TerminalError(
                        f"the definition of {table.label} changed while the snapshot was running",
                        "Start with a fresh sink.path (or remove the old one) and run again",
                    )
                yield self._finish(plan, no, wanted[no], reads)
        finally:
            backlog.close()
            connection.close()

    def _finish(self, plan: Plan, no: int, chunks: Sequence[Chunk], reads: Sequence[ChunkRead]) -> dict[str, Any]:
        layout, table = Layout(self.root, self.pipeline), plan.tables[chunks[0].table]
        folder = layout.files(table, plan.generation, self.group) / str(self.attempt)
        name = (folder / f"slice-{no:05d}.parquet").relative_to(layout.table(table))
        hit("file.before_write")
        file = write_file(layout.table(table), str(name), [r.rows for r in reads], statistics_key(table))
        hit("file.after_write")
        manifest = {
            "slice": no,
            "table": chunks[0].table,
            "fingerprint": table.fingerprint(),
            "file": file.to_json(),
            "chunks": [
                {
                    "no": chunk.no,
                    "lw": read.low.to_json(),
                    "hw": read.high.to_json(),
                    "rows": read.rows.num_rows,
                    "corrected": read.corrected,
                    "seconds": round(read.seconds, 4),
                }
                for chunk, read in zip(chunks, reads, strict=True)
            ],
        }
        write_json(folder / f"slice-{no:05d}.json", manifest)
        hit("manifest.after_write")
        return manifest


#: Runs a job on all of its workers and returns the manifests of the finished files.
Runner = Callable[[SnapshotJob], list[dict[str, Any]]]


def run_in_threads(job: SnapshotJob) -> list[dict[str, Any]]:
    """Run a job in this process, without a JVM: for tests and for small machines."""
    with ThreadPoolExecutor(len(job.replicas)) as pool:
        parts = [pool.submit(lambda w: list(job.read(w)), w) for w in range(len(job.replicas))]
        return [manifest for part in parts for manifest in part.result()]


def run_on_spark(spark: SparkSession) -> Runner:
    """Runner that makes one Spark job of a group, one task a worker."""

    def run(job: SnapshotJob) -> list[dict[str, Any]]:
        def task(batches: Iterable[Any]) -> Iterator[Any]:
            import pyarrow as pa

            for batch in batches:
                for worker in batch.column(0).to_pylist():
                    try:
                        for manifest in job.read(worker):
                            yield pa.RecordBatch.from_pydict({"manifest": [json.dumps(manifest)]})
                    except CdcError as error:
                        # Spark reports a Python traceback; the error's own words travel inside of it.
                        raise RuntimeError(pack(error)) from None

        workers = len(job.replicas)
        frame = spark.range(0, workers, 1, workers).mapInArrow(task, "manifest string")
        with spark_errors():
            return [json.loads(row["manifest"]) for row in frame.collect()]

    return run
