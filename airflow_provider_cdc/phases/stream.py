"""The stream phase: one epoch of the long-running job, from fencing to a clean end. Spark drives it, or a loop here."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from sqlalchemy.exc import SQLAlchemyError

from airflow_provider_cdc.core import slots
from airflow_provider_cdc.core.offset import Offset, Position
from airflow_provider_cdc.core.plan import Plan
from airflow_provider_cdc.exceptions import (
    CdcError,
    NotReadyError,
    kind_of,
)
from airflow_provider_cdc.jobs.batches import StreamJob, together
from airflow_provider_cdc.jobs.compactions import run_in_threads
from airflow_provider_cdc.phases.apply import Applied, Applier, epoch_fence, highest_epoch
from airflow_provider_cdc.phases.context import Context
from airflow_provider_cdc.phases.groups import coverage, targets
from airflow_provider_cdc.phases.liveness import Heart, whoami
from airflow_provider_cdc.phases.reading_ahead import ReadingAhead
from airflow_provider_cdc.phases.reread import publish_staged
from airflow_provider_cdc.phases.restarts import note_restart
from airflow_provider_cdc.phases.resuming import find_place
from airflow_provider_cdc.phases.snapshot import adopt_published
from airflow_provider_cdc.phases.upkeep import Upkeep
from airflow_provider_cdc.processes import machine
from airflow_provider_cdc.sinks.traffic import Traffic, counting, text_of
from airflow_provider_cdc.store import Store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Seconds from one look for groups that were read again to the next, where a look is a request to a server.
_LOOK_SECONDS = 5.0
_OTHER = "Point the connection to a server that has the same tables, or start with a fresh sink.path"


@dataclass
class Epoch:
    """One run of the stream, fenced against all earlier ones.

    :param number: the epoch.
    :param job: what source and tasks need.
    :param start: where it begins.
    :param target: position at which a catch-up ends, ``None`` for a continuous stream.
    :param details: what else the bookkeeping knows of it.
    :param upkeep: looks after the tables while it runs.
    :param ahead: gets them ready while it begins.
    :param asked: requests to an object store since it began.
    :param lease: seconds for which it continues without a task that supervises it.
    """

    context: Context
    store: Store
    plan: Plan
    number: int
    job: StreamJob
    start: Offset
    applier: Applier
    target: Position | None
    details: dict[str, str | None]
    upkeep: Upkeep
    ahead: ReadingAhead
    asked: Traffic
    stop: threading.Event = field(default_factory=threading.Event)
    batches: int = 0
    idle: Callable[[], bool] = lambda: False
    lease: float | None = None
    _looked: float = -_LOOK_SECONDS

    def apply(self, manifest: dict[str, Any]) -> Applied:
        """Apply a batch and write it into the bookkeeping."""
        began = time.monotonic()
        with counting(Traffic(self.asked)) as asked:
            applied = self.applier.apply(manifest)
        asked.add(manifest["asked"])
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
                index=self.applier.index,
                traffic=(asked.to_json(), self.asked.to_json()) if self.context.storage.remote else None,
            )
        self.batches += 1
        if applied.changes:
            lag = f"lag p95 {(applied.percentile(95) or 0) / 1000:.1f} s"
            more = f"; {text_of(asked.to_json())}" if self.context.storage.remote else ""
            self.context.reporter.line(f"batch to {end.at}: {applied.changes} changes, {lag}{more}")
        self.publish()
        return applied

    def publish(self) -> None:
        """Publish chunk groups that were read again and whose turn it is; a look into a folder where there are none."""
        now = time.monotonic()
        if self.context.storage.remote and now < self._looked + _LOOK_SECONDS and not self.over():
            return
        self._looked = now
        with counting(self.asked):
            publish_staged(self.context, self.store, self.plan, self.applier, self.job)

    @property
    def reached(self) -> bool:
        """Whether a catch-up is done."""
        return self.target is not None and self.target <= self.applier.at.at

    def over(self) -> bool:
        """Whether it is to end: caught up, or asked to stop."""
        return self.stop.is_set() or self.reached


def begin(context: Context, store: Store, *, catch_up: bool, log: str | None = None, ui: str | None = None) -> Epoch:
    """Take over the stream: a new epoch, the fence in every table, then the resume point and its checks.

    :param catch_up: end at the position that the server has now (at least where the snapshot's last chunk ended).
    :param log: file that this process writes to, if any.
    :param ui: address of Spark's own page, if any.
    :raises NotReadyError: if the snapshot is not complete or a stream of this pipeline is running.
    :raises TerminalError: if the stream cannot go on where it stopped.
    """
    # Compiled now if it never was on this machine: that holds all threads for seconds, the heartbeat's with them.
    import airflow_provider_cdc.mysql.stream.batches  # noqa: F401

    with counting(Traffic()) as asked:
        return _begin(context, store, asked, catch_up=catch_up, log=log, ui=ui)


def _begin(context: Context, store: Store, asked: Traffic, *, catch_up: bool, log: str | None, ui: str | None) -> Epoch:
    pipeline, plan = context.pipeline, context.need_plan()
    tables = targets(context, plan)
    held = coverage(context, plan, tables)
    if held is None:
        raise NotReadyError(
            f"the snapshot of {pipeline.name} is not complete",
            "Run `airflow-cdc snapshot` (or `airflow-cdc run`) first",
        )
    adopt_published(context, store, plan)
    note_restart(context, store)
    progress = context.sink.resume_point()
    progress.create()
    guarded = [*tables, progress]
    highest = highest_epoch(pipeline.name, guarded)
    details: dict[str, str | None] = {"mode": "catch_up" if catch_up else "continuous", "log": log, "ui": ui}
    details["machine"] = machine() or None
    context.watcher.refuse(store, pipeline.name)
    number = store.new_epoch(pipeline.name, highest, *whoami(), refuse=context.watcher.confirm, details=details)
    stop = threading.Event()
    try:
        # A failover reads binlog for as long as it takes.
        with Heart(store, pipeline.name, number, details, stop, lambda: False):
            for target in guarded:
                target.raise_fence(epoch_fence(pipeline.name, number))
            held = coverage(context, plan, tables) or held  # up to the fence a group may have been read again
            upkeep = Upkeep(targets(context, plan), run_in_threads, context.reporter.line)
            applier = Applier(context, plan, tables, held, progress, number, upkeep.changed)
            ahead = ReadingAhead(tables, pipeline.sink.index_bytes, context.reporter.line)
            end = find_place(context, store, applier, held)
    except CdcError as error:
        store.end_stream(pipeline.name, number, "failed", str(error), kind_of(error))
        raise
    # Epochs before this one are fenced: nothing of theirs is needed any more.
    context.local.clear_checkpoints()
    context.sink.staging().clear(plan.tables, number)
    job = StreamJob(
        connect_args=dict(context.connect_args),
        planner=pipeline.replica(slots.STREAM),
        readers=tuple(map(pipeline.replica, slots.batch_readers(pipeline.stream.parallelism))),
        lineage=applier.lineage,
        sink=context.sink,
        storage=context.storage,
        pipeline=pipeline.name,
        epoch=number,
        max_batch_bytes=pipeline.stream.max_batch_bytes,
        max_batch_rows=pipeline.stream.max_batch_rows,
        zero_dates=pipeline.source.zero_dates,
        deletes=pipeline.sink.deletions,
    )
    ends = end if catch_up else None
    return Epoch(context, store, plan, number, job, applier.at, applier, ends, details, upkeep, ahead, asked, stop)


def run_in_process(epoch: Epoch) -> None:
    """Drive an epoch in this process, without Spark: for tests. Ends when caught up or stopped."""
    with counting(epoch.asked), closing(epoch.job.make_planner()) as planner, _Life(epoch):
        at = epoch.start
        epoch.publish()
        while not epoch.over():
            ends = [at, *epoch.job.pieces(planner, at)]
            if ends[-1] == at:
                epoch.publish()
                time.sleep(0.05)
                continue
            epoch.apply(together([epoch.job.stage(*piece, "0", i) for i, piece in enumerate(pairwise(ends))]))
            at = ends[-1]


def run_on_spark(epoch: Epoch, spark: SparkSession) -> None:
    """Drive an epoch as a Structured Streaming query. Ends when caught up or stopped, at a transaction boundary.

    :raises CdcError: what made the query fail.
    """
    from airflow_provider_cdc.spark.session import told_of_waiting
    from airflow_provider_cdc.spark.stream_query import StreamQuery
    from airflow_provider_cdc.spark.upkeep_job import run_compactions

    epoch.upkeep.run = run_compactions(spark)
    with _Life(epoch), told_of_waiting(spark, epoch.context.reporter.line):
        epoch.publish()
        if epoch.over():
            return
        query = StreamQuery(
            lambda manifests: epoch.apply(together(manifests)), each_second=epoch.publish, over=epoch.over
        )
        epoch.idle = query.idle
        query.run(
            spark,
            epoch.job,
            epoch.start,
            checkpoint=str(epoch.context.local.checkpoint(epoch.number)),
            seconds=epoch.context.pipeline.stream.trigger_seconds,
        )


class _Life:
    """Keeps an epoch's heartbeat going, obeys a request to stop, and writes down how it ended."""

    def __init__(self, epoch: Epoch) -> None:
        self._epoch, self._batches = epoch, 0
        self._heart = Heart(
            epoch.store, epoch.plan.pipeline, epoch.number, epoch.details, epoch.stop, self._has_moved, epoch.lease
        )

    def __enter__(self) -> None:
        self._heart.__enter__()
        if not self._epoch.context.pipeline.sink.compaction:
            self._epoch.upkeep.run = None
        self._epoch.upkeep.__enter__()
        self._epoch.ahead.__enter__()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        epoch = self._epoch
        epoch.ahead.__exit__()
        with counting(epoch.asked):
            epoch.upkeep.__exit__()
        self._heart.__exit__()
        with suppress(CdcError, SQLAlchemyError):  # an outage of the bookkeeping must not hide how it ended
            epoch.store.end_stream(
                epoch.plan.pipeline,
                epoch.number,
                "failed" if error else "caught_up" if epoch.reached else "stopped",
                str(error) if error else None,
                kind_of(error) if isinstance(error, CdcError) else type(error).__name__ if error else None,
                epoch.asked.to_json() if epoch.context.storage.remote else None,
            )

    def _has_moved(self) -> bool:
        """A batch that takes long shows as progress that stands still; waiting for changes does not."""
        epoch = self._epoch
        moved, self._batches = epoch.batches > self._batches or epoch.idle(), epoch.batches
        return moved
