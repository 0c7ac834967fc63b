"""The stream phase: begin an epoch behind its fence, and drive it with Spark."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from airflow_provider_cdc.apply.applier import Applier, epoch_fence, highest_epoch
from airflow_provider_cdc.apply.fencing import claim_epoch, raise_fences
from airflow_provider_cdc.apply.follow_ddl import apply_pending_definitions
from airflow_provider_cdc.apply.task import StreamJob, merge_manifests
from airflow_provider_cdc.chunk_groups.chunk_group import open_sink_tables, read_coverage, write_coverage
from airflow_provider_cdc.chunk_groups.task import run_in_threads as run_slices
from airflow_provider_cdc.config.fingerprint import settings_fingerprint
from airflow_provider_cdc.config.spark_conf import is_local_master
from airflow_provider_cdc.maintenance.table_maintenance import MaintenanceWorker
from airflow_provider_cdc.maintenance.task import run_compactions_in_threads
from airflow_provider_cdc.model import server_id_slots as slots
from airflow_provider_cdc.model.errors import (
    CdcError,
    NotFollowedError,
    NotReadyError,
    error_kind,
)
from airflow_provider_cdc.resnapshot.membership import add_new_tables, plan_removals
from airflow_provider_cdc.resnapshot.superseded_files import remove_superseded_amendments
from airflow_provider_cdc.resnapshot.suspension import (
    check_none_suspended,
    describe_suspensions,
    find_unusable_copies,
    record_suspensions,
    suspend_in_plan,
)
from airflow_provider_cdc.resnapshot.worker import ResnapshotWorker
from airflow_provider_cdc.runtime.liveness import Heartbeat, process_identity
from airflow_provider_cdc.runtime.outages import tolerate_outage
from airflow_provider_cdc.runtime.request_inbox import RequestInbox
from airflow_provider_cdc.runtime.run_context import RunContext
from airflow_provider_cdc.runtime.server_restarts import record_server_restart
from airflow_provider_cdc.sinks.storage.request_counts import RequestCounts, count_requests_in
from airflow_provider_cdc.sinks.storage.store_check import check_storage_guarantees
from airflow_provider_cdc.snapshot.run import adopt_published_groups
from airflow_provider_cdc.state import StateDatabase
from airflow_provider_cdc.stream.epoch import Epoch
from airflow_provider_cdc.stream.prefetch import PrefetchWorker
from airflow_provider_cdc.stream.resume import move_to_resume_point
from airflow_provider_cdc.system.processes import pid_scope_id
from airflow_provider_cdc.verify.worker import VerifyWorker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_COLUMN_LISTS_REMEDY = "Undo the change, or set stream.on_table_error to suspend: the table is then re-snapshotted"


def begin_epoch(
    context: RunContext, store: StateDatabase, *, catch_up: bool, log: str | None = None, ui: str | None = None
) -> Epoch:
    """Take over the stream: begin a new epoch, fence off older ones, and check the resume point.

    :param catch_up: end at the server's current position, but not before the end of the snapshot's last chunk.
    :param log: file that this process writes to, if any.
    :param ui: address of the Spark UI, if any.
    :raises NotReadyError: if the snapshot is not complete, or a stream of this pipeline is running.
    :raises TerminalError: if the stream cannot continue where it stopped.
    """
    with count_requests_in(RequestCounts()) as requests:
        return _begin_epoch(context, store, requests, catch_up=catch_up, log=log, ui=ui)


def _begin_epoch(
    context: RunContext,
    store: StateDatabase,
    requests: RequestCounts,
    *,
    catch_up: bool,
    log: str | None,
    ui: str | None,
) -> Epoch:
    pipeline = context.pipeline
    context.liveness.refuse_if_running(store, pipeline.name)
    if context.storage.is_remote:  # an upgrade of the store, or a new proxy, may have changed its guarantees
        check_storage_guarantees(context.storage, context.layout.pipeline_folder)
    recorded_plan = context.plans.require()
    context.plans.refuse_unmatched_rules(recorded_plan)
    recorded_plan = add_new_tables(context, store, recorded_plan)
    tables = open_sink_tables(context, recorded_plan)
    context.storage.delete(context.layout.reload_request(recorded_plan.generation))  # it was for the previous epoch
    plan = recorded_plan.with_amendments(plan_removals(context, recorded_plan))
    plan = suspend_in_plan(context, plan, find_unusable_copies(context, plan, tables))
    snapshot_coverage = read_coverage(context, plan, tables)
    if snapshot_coverage is None:
        raise NotReadyError(
            f"the snapshot of {pipeline.name} is not complete",
            "Run `airflow-cdc snapshot` (or `airflow-cdc run`) first",
        )
    adopt_published_groups(context, store, plan)
    record_server_restart(context, store)
    resume_point = context.sink.resume_point()
    resume_point.create()
    for line in describe_suspensions(context, recorded_plan):
        context.reporter.line(line)
    markers_before = {index: tables[index].markers() for index in plan.active_tables}
    highest = highest_epoch(pipeline.name, [*markers_before.values(), resume_point.markers()])
    details: dict[str, Any] = {"mode": "catch_up" if catch_up else "continuous", "log": log, "ui": ui}
    details |= {"machine": pid_scope_id() or None, "settings": settings_fingerprint(pipeline)}
    number = store.begin_epoch(
        pipeline.name,
        highest,
        *process_identity(),
        refuse_if_alive=context.liveness.confirm_not_running,
        details=details,
    )
    stop, inbox = threading.Event(), RequestInbox(store, details)
    try:
        # A failover may read binlog for a long time.
        with Heartbeat(store, pipeline.name, number, details, stop, lambda: False, on_reply=inbox.receive_reply):
            fence = epoch_fence(pipeline.name, number)
            older_epochs_ended = claim_epoch(pipeline.name, resume_point, fence)
            column_errors = {
                index: NotFollowedError(why, _COLUMN_LISTS_REMEDY, table=plan.tables[index].label)
                for index, why in context.plans.find_changed_rules(plan).items()
            }
            plan = suspend_in_plan(context, plan, {**column_errors, **apply_pending_definitions(context, plan, fence)})
            active_tables = {index: tables[index] for index in plan.active_tables}
            raise_fences(pipeline.name, fence, active_tables, markers_before, older_epochs_ended=older_epochs_ended)
            record_suspensions(
                context, store, plan, [step for step in plan.suspensions if step not in recorded_plan.suspensions]
            )
            # Until the fence was raised, a group may have been re-snapshotted.
            snapshot_coverage = read_coverage(context, plan, tables) or snapshot_coverage
            write_coverage(context, plan, snapshot_coverage)
            maintenance = MaintenanceWorker(open_sink_tables(context, plan), run_compactions_in_threads, context.warn)
            applier = Applier(context, plan, tables, snapshot_coverage, resume_point, number, maintenance.mark_changed)
            prefetch_worker = PrefetchWorker(
                [tables[index] for index in plan.active_tables], pipeline.sink.index_bytes, context.warn
            )
            plan, end = move_to_resume_point(context, store, plan, applier, snapshot_coverage)
    except CdcError as error:
        store.end_epoch(pipeline.name, number, "failed", str(error), error_kind(error))
        raise
    # Earlier epochs are over or fenced off, so their files are no longer needed.
    context.local_files.clear_checkpoints()
    context.sink.change_staging().clear_older_epochs(plan.tables, number)
    remove_superseded_amendments(context.storage, context.layout, plan)
    job = StreamJob(
        connect_args=dict(context.connect_args),
        planner_replica=pipeline.replica_ids(slots.STREAM),
        reader_replicas=tuple(map(pipeline.replica_ids, slots.batch_reader_slots(pipeline.stream.parallelism))),
        timeline=applier.timeline,
        sink=context.sink,
        storage=context.storage,
        pipeline=pipeline.name,
        epoch=number,
        max_batch_bytes=pipeline.stream.max_batch_bytes,
        max_batch_rows=pipeline.stream.max_batch_rows,
        zero_dates=pipeline.source.zero_dates,
        deletes=pipeline.sink.delete_policy,
        follows_ddl=pipeline.stream.follows_ddl,
        hash_key=context.hash_key,
    )
    target = end if catch_up else None
    resnapshot_worker = ResnapshotWorker(context, store, run_slices, inbox)
    epoch = Epoch(
        context,
        store,
        plan,
        number,
        job,
        applier.offset,
        applier,
        target,
        details,
        maintenance,
        prefetch_worker,
        resnapshot_worker,
        requests,
        inbox,
        stop,
        verify_worker=VerifyWorker(context, inbox),
    )
    resnapshot_worker.enqueue_suspended(plan)
    return epoch


def run_epoch_on_spark(epoch: Epoch, spark: SparkSession) -> None:
    """Drive an epoch as a Structured Streaming query. Ends when caught up or stopped, at a transaction boundary.

    :raises CdcError: if the query fails.
    """
    from airflow_provider_cdc.chunk_groups.spark_job import spark_runner as run_slices_on_spark
    from airflow_provider_cdc.maintenance.spark_job import spark_compaction_runner
    from airflow_provider_cdc.spark.session import warn_while_waiting
    from airflow_provider_cdc.stream.spark_query import StreamQuery
    from airflow_provider_cdc.verify.spark_job import spark_scan_runner

    epoch.maintenance.runner = spark_compaction_runner(spark, epoch.context.warn)
    epoch.resnapshot_worker.runner = run_slices_on_spark(spark, epoch.context.warn)
    if not is_local_master(epoch.context.spark_config[0]):
        epoch.verify_worker.runner = spark_scan_runner(spark, epoch.context.warn)
    query = StreamQuery(
        spark,
        lambda manifests: epoch.apply_batch(merge_manifests(manifests)),
        on_tick=epoch.publish_pending,
        is_section_over=epoch.is_section_over,
    )
    epoch.is_idle, epoch.release_source = query.is_idle, query.pause

    def run_section() -> None:
        checkpoint = epoch.context.local_files.checkpoint_folder(epoch.number, epoch.job.section)
        query.run_section(
            epoch.job, epoch.section_start, checkpoint=checkpoint, seconds=epoch.context.pipeline.stream.trigger_seconds
        )

    with _EpochLifecycle(epoch), warn_while_waiting(spark, epoch.context.warn):
        with query:
            epoch.run_sections(run_section)
        check_none_suspended(epoch.context, epoch.plan)


class _EpochLifecycle:
    """Runs an epoch's heartbeat and background threads, and records how the epoch ended."""

    def __init__(self, epoch: Epoch) -> None:
        self._epoch, self._batches = epoch, 0
        self._heartbeat = Heartbeat(
            epoch.store,
            epoch.plan.pipeline,
            epoch.number,
            epoch.details,
            epoch.stop,
            self._has_progressed,
            epoch.lease_seconds,
            epoch.inbox.receive_reply,
        )

    def __enter__(self) -> None:
        self._heartbeat.__enter__()
        if not self._epoch.context.pipeline.sink.compaction:
            self._epoch.maintenance.runner = None
        self._epoch.maintenance.__enter__()
        self._epoch.prefetch_worker.__enter__()
        self._epoch.resnapshot_worker.__enter__()
        self._epoch.verify_worker.__enter__()
        self._epoch.observer.__enter__()
        self._epoch.observer.wake()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        epoch = self._epoch
        epoch.verify_worker.__exit__()
        epoch.resnapshot_worker.__exit__()
        epoch.prefetch_worker.__exit__()
        epoch.observer.__exit__()
        epoch.is_running = False
        with count_requests_in(epoch.request_counts):
            epoch.maintenance.__exit__()
            epoch.mark_ended()
            epoch.observer.write()
        self._heartbeat.__exit__()
        with tolerate_outage():  # an outage of the state database must not hide how it ended
            epoch.store.end_epoch(
                epoch.plan.pipeline,
                epoch.number,
                "failed" if error else "caught_up" if epoch.caught_up else "stopped",
                str(error) if error else None,
                error_kind(error) if isinstance(error, CdcError) else type(error).__name__ if error else None,
                epoch.request_counts.to_json() if epoch.context.storage.is_remote else None,
            )

    def _has_progressed(self) -> bool:
        """Return whether there was progress since the last call; waiting for changes and pauses count as progress."""
        epoch = self._epoch
        moved, self._batches = epoch.batches > self._batches or epoch.is_idle() or epoch.inbox.paused, epoch.batches
        return moved
