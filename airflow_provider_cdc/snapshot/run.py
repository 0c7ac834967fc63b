"""The snapshot phase: read every chunk group with one job, and publish it with one commit per table."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import Any

from airflow_provider_cdc.apply.follow_ddl import copies_with_old_definition
from airflow_provider_cdc.chunk_groups.chunk_group import (
    ChunkGroup,
    GroupTotals,
    TaskRequest,
    entry_resume_point,
    entry_timeline,
    generation_fence,
    group_marker,
    open_sink_tables,
    to_chunk_results,
    watermarks_of,
)
from airflow_provider_cdc.chunk_groups.slice_jobs import binlog_opener, make_snapshot_job
from airflow_provider_cdc.chunk_groups.task import JobRunner
from airflow_provider_cdc.model.errors import (
    FencedError,
    NotReadyError,
    OtherServerError,
    TableAlteredError,
    TerminalError,
    TransientError,
)
from airflow_provider_cdc.model.offset import Offset, Position, Timeline
from airflow_provider_cdc.model.plan import Plan
from airflow_provider_cdc.model.staged_read import GROUP, StagedRead
from airflow_provider_cdc.mysql.binlog.events.binlog_source import OpenStreamAt
from airflow_provider_cdc.mysql.client.session import connect, query_rows
from airflow_provider_cdc.mysql.positions.resume import why_purged
from airflow_provider_cdc.resnapshot.publish import find_refusal
from airflow_provider_cdc.resnapshot.read import stage_group
from airflow_provider_cdc.resnapshot.staged_files import allocate_read_number, list_pending_reads, remove_request
from airflow_provider_cdc.resnapshot.suspension import suspension_remedy
from airflow_provider_cdc.resnapshot.wait import publish_or_wait
from airflow_provider_cdc.runtime.plan_store import mirror_plan
from airflow_provider_cdc.runtime.run_context import RunContext
from airflow_provider_cdc.runtime.server_restarts import record_server_restart
from airflow_provider_cdc.sinks.protocol import Feature, SinkTable
from airflow_provider_cdc.sinks.storage.request_counts import (
    RequestCounts,
    count_requests_in,
    current_counts,
    format_counts,
)
from airflow_provider_cdc.sinks.storage.storage import write_json
from airflow_provider_cdc.snapshot.claims import GroupClaim, claim_group
from airflow_provider_cdc.snapshot.group_result import GroupResult, make_group_result
from airflow_provider_cdc.snapshot.replan_table import replan_table
from airflow_provider_cdc.snapshot.retention_guard import RetentionGuard
from airflow_provider_cdc.snapshot.snapshot_observer import NullObserver, SnapshotObserver
from airflow_provider_cdc.state import TAKEN_OVER, StateDatabase
from airflow_provider_cdc.system.failpoints import failpoint
from airflow_provider_cdc.transforms.sealed_bounds import seal_plan

#: Number of a slice -> (attempt that read it, its manifest).
FinishedSlices = dict[int, tuple[int, dict[str, Any]]]
#: How often tables may be altered while one group is read.
_REPLANS = 20


def run_snapshot(
    context: RunContext,
    store: StateDatabase,
    plan: Plan,
    runner: JobRunner,
    observe: Callable[..., SnapshotObserver] = NullObserver,
) -> None:
    """Read and publish every group that is not published yet.

    :param runner: runs the slices of a group.
    :param observe: creates the observer of a group, given context, state database and plan.
    """
    open_tables = open_sink_tables(context, plan)
    for group in plan.groups():
        run_group(context, store, plan, group, runner, holder="airflow-cdc", open_tables=open_tables, observe=observe)
    adopt_published_groups(context, store, context.plans.refresh(plan))


def run_group(
    context: RunContext,
    store: StateDatabase,
    plan: Plan,
    group: int,
    runner: JobRunner,
    *,
    holder: str,
    requested_by: TaskRequest | None = None,
    open_tables: Sequence[SinkTable] = (),
    observe: Callable[..., SnapshotObserver] = NullObserver,
) -> GroupResult:
    """Read one group and publish it.

    A group that is already published is adopted, unless a re-snapshot of it is requested. Tables that the stream has
    taken over, because they were re-snapshotted as a whole or are suspended, are not read.

    Several processes may call this at the same time, for different groups or for the same one. For the same group, the
    second process waits, and then adopts the result of the first, or takes over if the first has died.

    :param group: number of the group.
    :param runner: runs the slices of the group.
    :param holder: human-readable name of the process that reads it.
    :param requested_by: the request of a scheduler's task. If the group was finished for an earlier request of the same
        task, a user has cleared the task: the group is re-snapshotted in a new attempt, which replaces the first.
    :param open_tables: sink tables of all tables of the plan, if the caller has them open.
    :param observe: creates the observer, given context, state database and plan.
    :raises NotReadyError: if the plan has no such group.
    :raises TransientError: if another process took the group over while it was read.
    :raises FencedError: if a newer snapshot has fenced the tables.
    :raises TableAlteredError: if a DDL has changed a table and it cannot be planned again.
    """
    record_server_restart(context, store)
    requests = RequestCounts()
    for is_last in (*[False] * _REPLANS, True):
        if group not in plan.groups():
            return taken_over_result(context, store, plan, group)
        try:
            with count_requests_in(requests):
                chunk_group = ChunkGroup(context, plan, group, open_tables)
                return _read_and_publish(chunk_group, store, runner, holder, requested_by, requests, observe)
        except TableAlteredError as error:
            if is_last:
                raise
            replan_table(context, plan, error)
            plan, open_tables = context.plans.refresh(plan), ()
        except FencedError:
            newest = context.plans.refresh(plan)
            if is_last or newest is plan:
                raise
            plan, open_tables = newest, ()  # another process has planned a table again
        except TerminalError as error:
            newest = context.plans.refresh(plan)
            if is_last or type(error) is not TerminalError or newest.tables == plan.tables:
                raise
            plan, open_tables = newest, ()  # the definitions have changed meanwhile, so the error may be outdated
    raise AssertionError("unreachable")


def taken_over_result(context: RunContext, store: StateDatabase, plan: Plan, group: int) -> GroupResult:
    """Return the result of a group with nothing left to read, because the stream has taken over all of its tables.

    :raises NotReadyError: if the group was never planned.
    """
    chunks = plan.superseded_groups().get(group)
    if chunks is None:
        raise NotReadyError(
            f"snapshot {plan.generation} of {plan.pipeline} has no chunk group {group}: the snapshot was planned again",
            "Clear the planner and everything downstream, so that the groups are those of the plan",
        )
    record_superseded_groups(store, plan)
    tables = sorted({chunk.table for chunk in chunks})
    for index in tables:
        suspension = plan.suspension_of(index)
        outcome = "was re-snapshotted as a whole since"
        if suspension:
            outcome = f"is suspended at {suspension.at}. {suspension_remedy(plan, suspension)}"
        context.reporter.line(f"group {group}: nothing is left to read of {plan.tables[index].label}: it {outcome}")
    labels = tuple(plan.tables[index].label for index in tables)
    return GroupResult(group, TAKEN_OVER, 0, labels, 0, 0, 0, 0.0, None, None, None, None)


def record_superseded_groups(store: StateDatabase, plan: Plan) -> None:
    """Record the groups that have nothing left to read."""
    if left := plan.superseded_groups():
        rows = store.groups(plan.pipeline, plan.generation)
        if numbers := [row.group_no for row in rows if row.group_no in left and row.state != TAKEN_OVER]:
            store.mark_groups_taken_over(plan.pipeline, plan.generation, numbers)


def _read_and_publish(
    group: ChunkGroup,
    store: StateDatabase,
    runner: JobRunner,
    holder: str,
    requested_by: TaskRequest | None,
    requests: RequestCounts,
    observe: Callable[..., SnapshotObserver],
) -> GroupResult:
    began, plan = time.monotonic(), group.plan
    _prepare_tables(group.context, plan, group.tables)
    with observe(group.context, store, plan) as observation:
        group_claim = claim_group(group, store, holder, requested_by)
        if group_claim is None:
            attempt, totals = _adopt_group(group, store, requested_by)
            outcome = "adopted"
        else:
            with group_claim:
                if group_claim.published_attempt is None:
                    outcome, attempt = _read_first_time(group, group_claim, runner)
                else:
                    outcome, attempt = _resnapshot_group(group, store, group_claim, runner)
                totals = _finish_group(group, store, group_claim.attempt, requested_by)
                if outcome == "replaced":
                    remove_request(group.context, plan, group.number, attempt)
            if outcome == "staged":
                totals = group.read_totals(dict.fromkeys(group.tables, attempt))
        store.finish_snapshot(plan.pipeline, plan.generation)
    observation.write(group.tables)
    traffic = requests.to_json() if group.context.storage.is_remote else None
    if traffic is not None and group_claim is not None:
        store.record_group_request_counts(plan.pipeline, plan.generation, group.number, traffic)
        group.context.reporter.line(f"group {group.number} took {format_counts(traffic)}")
    seconds = time.monotonic() - began
    return make_group_result(group, outcome, attempt, totals, seconds, traffic)


def adopt_group(group: ChunkGroup, store: StateDatabase, requested_by: TaskRequest | None) -> GroupResult:
    """Adopt a published group without reading anything: record in the state database what the sink has of it.

    :param requested_by: the task that is finished with the group.
    """
    return make_group_result(group, "adopted", *_adopt_group(group, store, requested_by), seconds=0.0)


def adopt_published_groups(context: RunContext, store: StateDatabase, plan: Plan) -> bool:
    """Restore the state database from the sink, if it was lost. Cheap if nothing is missing.

    :returns: whether the snapshot is complete.
    """
    mirror_plan(store, plan, context.pipeline.snapshot.chunk_rows)
    record_superseded_groups(store, plan)
    if not plan.groups():
        _prepare_tables(context, plan, {})
    snapshot = store.snapshot(plan.pipeline, plan.generation)
    if snapshot is not None and snapshot.state == "done":
        return True
    open_tables = open_sink_tables(context, plan)
    for row in store.groups(plan.pipeline, plan.generation):
        if row.state in ("pending", "running") and row.group_no in plan.groups():
            group = ChunkGroup(context, plan, row.group_no, open_tables)
            # The manifest is written before the first commit: without one there is no need to read the tables.
            if group.count_complete_attempts() and group.published_attempt() is not None:
                group.mirror_published(store, row.attempt)
    return store.finish_snapshot(plan.pipeline, plan.generation)


def _read_first_time(group: ChunkGroup, group_claim: GroupClaim, runner: JobRunner) -> tuple[str, int]:
    """Read a group for the first time; return the outcome, and the attempt that is published."""
    manifests = _read_slices(group, group_claim, runner, group.plan.p0, group.plan.timeline)
    group.publish(group_claim.attempt, manifests)
    published_attempt = max(group.published_by_table().values())
    return "published" if published_attempt == group_claim.attempt else "adopted", published_attempt


def _resnapshot_group(
    group: ChunkGroup, store: StateDatabase, group_claim: GroupClaim, runner: JobRunner
) -> tuple[str, int]:
    """Re-snapshot a published group, or continue an earlier try of the same request.

    :returns: the outcome, and the attempt.
    """
    group.context.require_feature(Feature.RESNAPSHOT, f"group {group.number} is to be re-snapshotted")
    since, timeline = group.context.resume_state(group.plan)
    try:
        staged = _find_staged_read(group, group_claim, timeline)
        if (
            staged is None
            and group_claim.row_before.state == "rereading"
            and (group_claim.published_attempt or 0) >= group_claim.row_before.attempt
        ):
            # The stream published it after that try was killed.
            return "replaced", group_claim.published_attempt or 0
        if staged is None:
            number = allocate_read_number(group.context, group.plan, GROUP, group=group.number)
            manifests = _read_slices(group, group_claim, runner, since, timeline, number)
            if group.context.resume_state(group.plan)[1].newest_segment != timeline.newest_segment:
                raise TransientError(
                    f"the stream moved to another server while group {group.number} was read", "Run again"
                )
            staged = stage_group(group, group_claim.attempt, manifests)
    except OtherServerError as error:
        if since == group.plan.p0:
            raise
        raise TransientError(error.message, "Run again after the stream has continued on that server") from None
    return "replaced" if publish_or_wait(group, staged, store) else "staged", staged.attempt


def _find_staged_read(group: ChunkGroup, group_claim: GroupClaim, timeline: Timeline) -> StagedRead | None:
    """Return the staged read of an earlier try of the same request, if it can still be published."""
    if group_claim.row_before.state != "rereading":
        return None
    candidates = (s for s in list_pending_reads(group.context, group.plan) if s.group == group.number)
    open_at = binlog_opener(group.context, group.number, group_claim.attempt)
    return next((s for s in candidates if find_refusal(group, s, timeline, open_at) is None), None)


def _read_slices(
    group: ChunkGroup,
    group_claim: GroupClaim,
    runner: JobRunner,
    since: Offset,
    timeline: Timeline,
    read_number: int = 0,
) -> list[dict[str, Any]]:
    """Return the manifests of all slices of a group, after reading those that are not finished yet.

    :param since: the resume point.
    :param timeline: numbers the transactions of its server.
    :param read_number: number of the re-snapshot; 0 if the group is read for the first time.
    """
    context, plan = group.context, group.plan
    wanted = range(len(group.slices))
    open_at = binlog_opener(context, group.number, group_claim.attempt)
    finished = _keep_replayable(
        context, plan, timeline, group.read_finished_slices(group_claim.last_stale_attempt), open_at
    )
    group_claim.report_reused(finished.values())
    missing = [no for no in wanted if no not in finished]
    write_json(
        context.storage,
        context.layout.group_plan(plan.generation, group.number),
        seal_plan(plan.for_group(group.number), context.hash_key).part_for(group.tables).to_json(),
    )
    job = make_snapshot_job(group, group_claim.attempt, missing, since, timeline, read_number)
    group_claim.report_progress()
    notes = group.signals(group_claim.attempt)
    try:
        if missing:
            chunks = sum(len(group.slices[no]) for no in missing)
            context.reporter.line(f"group {plan.group_label(group.chunks)}: reading {chunks} chunks")
            with RetentionGuard(context, group_claim.store, plan, group.number, notes):
                for manifest in runner(job):
                    current_counts().add(manifest.pop("asked"))
                    finished[manifest["slice"]] = group_claim.attempt, manifest
    finally:
        notes.remove_all()
    group_claim.report_progress()
    unread = [no for no in wanted if no not in finished]
    if unread:
        raise TransientError(f"group {group.number} ended without its slices {unread[:5]}", "Run again")
    group_claim.check_still_held()
    return [finished[no][1] for no in wanted]


def _keep_replayable(
    context: RunContext, plan: Plan, timeline: Timeline, finished: FinishedSlices, open_at: OpenStreamAt
) -> FinishedSlices:
    """Return the finished slices that can still be used.

    They were read from the server that the stream reads now, and that server still has the binlog that is needed to
    bring them up to date: from their resume point, and at each of their high watermarks.
    """
    finished = {
        no: slice_read
        for no, slice_read in finished.items()
        if entry_timeline(slice_read[1]) == timeline.newest_segment
    }
    if not finished:
        return {}
    with closing(connect(context.connect_args)) as connection:
        since = {slice_read[0]: entry_resume_point(slice_read[1]) for slice_read in finished.values()}
        lost_attempts = {attempt for attempt, at in since.items() if why_purged(connection, at, open_at)}
        binlog_sizes = {str(row[0]): int(row[1] or 0) for row in query_rows(connection, "SHOW BINARY LOGS")}

    def has(at: Position) -> bool:
        return at.position <= binlog_sizes.get(at.file, -1)

    return {
        no: (attempt, manifest)
        for no, (attempt, manifest) in finished.items()
        if attempt not in lost_attempts and all(has(watermarks_of(chunk)[1]) for chunk in manifest["chunks"])
    }


def _prepare_tables(context: RunContext, plan: Plan, group_tables: Mapping[int, SinkTable]) -> None:
    """Create the sink tables of a group, and those of tables without a group because they were empty.

    Rows of an older snapshot are removed from them.
    """
    is_resnapshot, adopt = plan.generation > 1, context.pipeline.sink.adopt
    sink = context.sink
    tables_without_group = {
        i: sink.table(plan.tables[i]) for i in plan.active_tables if not plan.groups_of(i) and plan.rejoin_of(i) is None
    }
    empty = {i: t for i, t in tables_without_group.items() if is_resnapshot or adopt or not t.exists()}
    tables = {**group_tables, **empty}
    outdated = copies_with_old_definition(context, plan, tables)
    for index, target in tables.items():
        fence = generation_fence(plan, index)
        if (is_resnapshot or plan.definitions[index].revision) and target.exists():
            target.reset(plan.pipeline, fence, [group_marker(plan, g) for g in plan.groups_of(index)])
        if index not in outdated:  # an outdated one exists, and gets its new columns from the next stream
            target.create(plan.pipeline)
        target.raise_fence(fence)


def _adopt_group(group: ChunkGroup, store: StateDatabase, requested_by: TaskRequest | None) -> tuple[int, GroupTotals]:
    """Adopt a published group; return the attempt that is published, and what it contains."""
    row = store.group(group.plan.pipeline, group.plan.generation, group.number)
    if row.state != "done":
        group.mirror_published(store, row.attempt)
    group.record_finished(requested_by)
    published = group.published_by_table()
    return max(published.values()), group.read_totals(published)


def _finish_group(
    group: ChunkGroup, store: StateDatabase, attempt: int, requested_by: TaskRequest | None
) -> GroupTotals:
    """Record that a claim has done its work, and return the group's totals as published in the sink."""
    plan, totals = group.plan, group.read_totals(group.published_by_table())
    # Before the state database: if this try dies in between, the next one continues instead of starting over.
    group.record_finished(requested_by)
    store.record_published_chunks(plan.pipeline, plan.generation, to_chunk_results(totals.chunks))
    failpoint("books.after_chunks")
    store.finish_group(plan.pipeline, plan.generation, group.number, attempt, totals.rows)
    failpoint("books.after_group")
    return totals
