"""The stream phase: one epoch of the long-running job, from fencing to a clean end."""

from __future__ import annotations

import json
import os
import shutil
import socket
import threading
import time
from contextlib import closing, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy.exc import SQLAlchemyError

from airflow_provider_cdc.core.offset import Offset, Position
from airflow_provider_cdc.core.plan import Plan
from airflow_provider_cdc.exceptions import CdcError, NotReadyError, TransientError
from airflow_provider_cdc.mysql.scanner import check_resume
from airflow_provider_cdc.mysql.session import connect
from airflow_provider_cdc.mysql.watermark import status
from airflow_provider_cdc.phases.apply import Applied, Applier, epoch_fence
from airflow_provider_cdc.phases.context import Context
from airflow_provider_cdc.phases.snapshot import coverage, rebuild, targets
from airflow_provider_cdc.sinks.progress import Progress
from airflow_provider_cdc.spark.stage import StreamJob
from airflow_provider_cdc.store import Store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Seconds between two heartbeats, and after how many without one a stream counts as lost.
HEARTBEAT_SECONDS, LOST_SECONDS = 1.0, 15.0


@dataclass
class Epoch:
    """One run of the stream, fenced against all earlier ones.

    :param number: the epoch.
    :param job: what source and tasks need.
    :param start: where it begins.
    :param target: position at which a catch-up ends, ``None`` for a continuous stream.
    """

    context: Context
    store: Store
    plan: Plan
    number: int
    job: StreamJob
    start: Offset
    applier: Applier
    target: Position | None
    stop: threading.Event = field(default_factory=threading.Event)
    batches: int = 0

    def apply(self, manifest: dict[str, Any]) -> Applied:
        """Apply a batch and write it into the bookkeeping."""
        began = time.monotonic()
        applied = self.applier.apply(manifest)
        start, end = Offset.from_json(manifest["start"]), Offset.from_json(manifest["end"])
        size = end.at.position - (start.at.position if start.at.file == end.at.file else 0)
        with suppress(CdcError, SQLAlchemyError):  # an outage of the bookkeeping does not stop the stream
            self.store.record_batch(
                self.plan.pipeline,
                self.number,
                self.batches,
                start_offset=manifest["start"],
                end_offset=manifest["end"],
                changes=applied.changes,
                bytes=size,
                seconds=time.monotonic() - began,
                lag_p50_ms=applied.percentile(50),
                lag_p95_ms=applied.percentile(95),
                lag_max_ms=applied.percentile(100),
            )
        self.batches += 1
        if applied.changes:
            self.context.reporter.line(
                f"batch to {end.at}: {applied.changes} changes, lag p95 {(applied.percentile(95) or 0) / 1000:.1f} s"
            )
        return applied

    @property
    def reached(self) -> bool:
        """Whether a catch-up is done."""
        return self.target is not None and self.target <= self.applier.at.at


def begin(context: Context, store: Store, *, catch_up: bool) -> Epoch:
    """Take over the stream: a new epoch, the fence in every table, then the resume point and its checks.

    :param catch_up: end at the position that the server has now (at least where the snapshot's last chunk ended).
    :raises NotReadyError: if the snapshot is not complete or a stream of this pipeline is running.
    :raises TerminalError: if the stream cannot go on where it stopped.
    """
    pipeline, plan = context.pipeline, context.need_plan()
    tables = targets(context, plan)
    held = coverage(context, plan, tables)
    if held is None:
        raise NotReadyError(
            f"the snapshot of {pipeline.name} is not complete",
            "Run `airflow-cdc snapshot` (or `airflow-cdc run`) first",
        )
    rebuild(context, store, plan)
    refuse_second(store, pipeline.name)
    progress = Progress(context.layout.progress, pipeline.name)
    progress.create()
    guarded = [*tables, progress.target]
    highest = max((t.marker(epoch_fence(pipeline.name, 0).app_id) or 0 for t in guarded), default=0)
    number = store.new_epoch(pipeline.name, highest, socket.gethostname(), os.getpid(), process_start(os.getpid()))
    try:
        for target in guarded:
            target.raise_fence(epoch_fence(pipeline.name, number))
        applier = Applier(context, plan, tables, held, progress, number)
        with closing(connect(context.connect_args)) as connection:
            check_resume(connection, applier.at)
            marks = [seq for table in held for seq in table.high_watermarks]
            end = max([status(connection)[0], *([plan.lineage.position(max(marks))] if marks else [])])
    except CdcError as error:
        store.end_stream(pipeline.name, number, "failed", str(error))
        raise
    for kind in ("checkpoint", "staging"):
        # Epochs before this one are fenced: nothing of theirs is needed any more.
        shutil.rmtree(context.layout.epoch(kind, number).parent, ignore_errors=True)
    job = StreamJob(
        connect_args=dict(context.connect_args),
        scanner=(pipeline.server_id(0), pipeline.replica_uuid(0)),
        reader=(pipeline.server_id(1), pipeline.replica_uuid(1)),
        root=str(context.layout.root),
        pipeline=pipeline.name,
        epoch=number,
        max_batch_bytes=pipeline.stream.max_batch_bytes,
    )
    return Epoch(context, store, plan, number, job, applier.at, applier, end if catch_up else None)


def refuse_second(store: Store, pipeline: str) -> None:
    """Refuse to start while another stream of the pipeline is alive.

    :raises NotReadyError: naming it.
    """
    running = store.current_stream(pipeline)
    if running is None or running.state != "running":
        return
    here = running.host == socket.gethostname()
    if here and process_start(running.pid) != running.pid_started:
        return  # it died on this host: no need to wait for its heartbeat to grow old
    if (datetime.now(UTC) - running.heartbeat_at).total_seconds() < LOST_SECONDS:
        raise NotReadyError(
            f"a stream of {pipeline} is running (epoch {running.epoch}, process {running.pid} on {running.host})",
            f"Stop it with `airflow-cdc stop`, or wait {LOST_SECONDS:g} s if it was lost",
        )


def process_start(pid: int) -> float:
    """Start time of a process in clock ticks since boot, 0 if there is none. Process ids alone come around again."""
    try:
        return float(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except (OSError, IndexError, ValueError):
        return 0.0


def run_in_process(epoch: Epoch) -> None:
    """Drive an epoch in this process, without Spark: for tests. Ends when caught up or stopped."""
    with closing(epoch.job.make_scanner()) as scanner, _Life(epoch):
        at = epoch.start
        while not epoch.stop.is_set() and not epoch.reached:
            end = scanner.advance(at, epoch.job.max_batch_bytes)
            if end == at:
                time.sleep(0.05)
                continue
            epoch.apply(epoch.job.stage(at, end, "0"))
            at = end


def run_on_spark(epoch: Epoch, spark: SparkSession) -> None:
    """Drive an epoch as a Structured Streaming query. Ends when caught up or stopped, at a transaction boundary.

    :raises CdcError: what made the query fail.
    """
    from airflow_provider_cdc.spark.session import of_spark
    from airflow_provider_cdc.spark.stream_source import FORMAT, make_source

    working, over = threading.Lock(), threading.Event()
    failure: list[CdcError] = []

    def on_batch(frame: Any, _: int) -> None:
        try:
            manifests = [json.loads(row["manifest"]) for row in frame.collect()]
            with working:
                if over.is_set() or epoch.stop.is_set() or epoch.reached or failure:
                    return  # the end has been decided: what was read now is read again by the next epoch
                for manifest in manifests:
                    epoch.apply(manifest)
        except Exception as error:
            failure.append(error if isinstance(error, CdcError) else of_spark(error))
            # Spark searches the text for words of its own with a regular expression that overflows the stack on a long
            # one (seen when a stream was stopped during a batch), so it gets a short one.
            raise RuntimeError("the batch was not applied") from None

    if epoch.reached:
        epoch.store.end_stream(epoch.plan.pipeline, epoch.number, "stopped")
        return
    spark.dataSource.register(make_source(epoch.job, epoch.start))
    with _Life(epoch):
        query = (
            spark.readStream.format(FORMAT)
            .load()
            .writeStream.foreachBatch(on_batch)
            .option("checkpointLocation", str(epoch.context.layout.epoch("checkpoint", epoch.number)))
            .trigger(processingTime=f"{epoch.context.pipeline.stream.trigger_seconds} seconds")
            .start()
        )
        try:
            while query.isActive and not epoch.stop.is_set() and not epoch.reached:
                epoch.stop.wait(0.1)
            failed = query.exception()
            if failure or failed is not None:
                raise failure[0] if failure else of_spark(failed)  # type: ignore[arg-type]
            if not epoch.stop.is_set() and not epoch.reached:
                raise TransientError("the stream ended by itself", "Run again: it goes on where it stopped")
        finally:
            with working:  # a batch that is being applied is finished first
                over.set()
            query.stop()


class _Life:
    """Keeps an epoch's heartbeat going, obeys a request to stop, and writes down how it ended."""

    def __init__(self, epoch: Epoch) -> None:
        self._epoch = epoch
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)
        self._batches = 0

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._over.set()
        self._thread.join()
        epoch = self._epoch
        if error is None and epoch.batches:
            epoch.applier.tidy()
        with suppress(CdcError, SQLAlchemyError):  # an outage of the bookkeeping must not hide how it ended
            epoch.store.end_stream(
                epoch.plan.pipeline, epoch.number, "failed" if error else "stopped", str(error) if error else None
            )

    def _beat(self) -> None:
        epoch = self._epoch
        while True:
            with suppress(CdcError, SQLAlchemyError):  # an outage does not stop the stream; the next beat tries again
                moved, self._batches = epoch.batches > self._batches, epoch.batches
                if epoch.store.heartbeat(epoch.plan.pipeline, epoch.number, moved) == "stop":
                    epoch.stop.set()
            if self._over.wait(HEARTBEAT_SECONDS):
                return
