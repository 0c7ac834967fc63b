"""Take a new snapshot if the stream cannot continue because the server purged binlogs that were never read.

The new snapshot replaces the old one in the same sink. The argument is in docs/correctness.md.
"""

from __future__ import annotations

from contextlib import closing

from airflow_provider_cdc.apply.applier import epoch_fence, highest_epoch, stream_marker
from airflow_provider_cdc.chunk_groups.chunk_group import open_sink_tables, read_coverage
from airflow_provider_cdc.model import server_id_slots as slots
from airflow_provider_cdc.model.definition_history import DefinitionHistory
from airflow_provider_cdc.model.errors import CdcError, OtherHistoryError, PurgedError
from airflow_provider_cdc.model.plan import Plan
from airflow_provider_cdc.mysql.client.identity import check_same_server, server_identity
from airflow_provider_cdc.mysql.client.session import connect
from airflow_provider_cdc.mysql.positions.binlog_files import are_files_renamed
from airflow_provider_cdc.mysql.positions.failover import fail_over
from airflow_provider_cdc.mysql.positions.resume import check_resume_offset
from airflow_provider_cdc.runtime.outages import tolerate_outage
from airflow_provider_cdc.runtime.run_context import RunContext
from airflow_provider_cdc.sinks.protocol import Feature, Fenceable
from airflow_provider_cdc.sinks.storage.storage import read_json, write_json, write_json_once
from airflow_provider_cdc.state import StateDatabase
from airflow_provider_cdc.system.failpoints import failpoint
from airflow_provider_cdc.transforms.sealed_bounds import seal_plan


def replan_if_purged(context: RunContext, store: StateDatabase) -> Plan:
    """Return the plan to use: that of a new snapshot if the server has purged binlogs that the stream needs next.

    There is a new snapshot only if ``stream.on_purged`` is ``reread``. Call this only at the beginning of a run: the
    plan must not change while it is in use.

    :raises NotReadyError: if a new snapshot is needed while a stream is running.
    :raises TerminalError: if the numbering of the server's binlogs started over.
    """
    _start_new_snapshot_if_purged(context, store)
    return context.plans.ensure(store)


def _start_new_snapshot_if_purged(context: RunContext, store: StateDatabase) -> None:
    """Plan a new snapshot if one is needed.

    If a run is killed at any point, the next one calls this again: each step takes effect once, and leftovers of the
    old snapshot cannot be mistaken for parts of the new one.
    """
    layout, name = context.layout, context.pipeline.name
    plan = context.plans.load()
    if plan is None:
        return
    resume_point = context.sink.resume_point()
    resume_point.forget_older_generation(plan.generation)
    if context.pipeline.stream.on_purged != "reread":
        return
    offset, timeline = context.resume_state(plan)
    with closing(connect(context.connect_args)) as connection:
        renamed = server_identity(connection) == offset.server and are_files_renamed(connection, offset.at)
        try:
            if renamed and _has_passed_snapshot(context, plan, timeline.seq(offset.at)):
                fail_over(connection, context.binlog_opener(slots.PLAN), offset)
            else:
                check_resume_offset(connection, offset, context.binlog_opener(slots.PLAN))
            return
        except PurgedError as error:
            reason = error.message
        except CdcError:
            return  # the stream reports what is wrong
    context.require_feature(Feature.RESNAPSHOT, "stream.on_purged is reread")
    context.liveness.refuse_if_running(store, name)
    existing: list[Fenceable] = [table for table in (*open_sink_tables(context, plan), resume_point) if table.exists()]
    fence = epoch_fence(name, highest_epoch(name, [table.markers() for table in existing]) + 1)
    for table in existing:  # a stream that was presumed dead can no longer write
        table.raise_fence(fence)
    failpoint("next_snapshot.after_fence")
    new_plan = context.plans.make(plan.generation + 1)
    check_same_server(new_plan.p0.server, timeline.server)
    # Numbering continues from the old snapshot: none of its markers is ahead of a new one.
    old_tables, policy = {table.id: table for table in plan.tables}, context.schema_policy
    definitions = (
        policy.decide_definition(old_tables[new.id], new, is_requested=True) if new.id in old_tables else new
        for new in new_plan.tables
    )
    # If a run died, the tables may be ahead of the resume point.
    read_seq = max([timeline.seq(offset.at), *(table.markers().get(stream_marker(name)) or 0 for table in existing)])
    if renamed:
        timeline = timeline.with_segment(new_plan.p0.server, new_plan.p0.at.file, read_seq)
    new_plan = new_plan.replace(
        timeline=timeline.newest_segment, definitions=tuple(map(DefinitionHistory.from_single, definitions))
    )
    if timeline.seq(new_plan.p0.at) < read_seq:
        raise OtherHistoryError(
            f"the binlog of the server ends at {new_plan.p0.at}, and was read up to {timeline.position(read_seq)}"
        )
    plan_file = layout.next_plan(new_plan.generation)
    write_json_once(context.storage, plan_file, seal_plan(new_plan, context.hash_key).to_json())
    failpoint("next_snapshot.after_plan")
    write_json(context.storage, layout.plan, read_json(context.storage, plan_file))
    failpoint("next_snapshot.after_switch")
    resume_point.forget_older_generation(new_plan.generation)
    missing = sorted({t.label for t in plan.tables} - {t.label for t in new_plan.tables})
    context.reporter.line(f"{reason}: re-snapshotting all tables (snapshot {new_plan.generation})")
    if missing:
        context.reporter.line(f"not re-snapshotted because the source no longer has them: {', '.join(missing)}")
    with tolerate_outage():
        store.add_event(name, "reread", reason)


def _has_passed_snapshot(context: RunContext, plan: Plan, seq: int) -> bool:
    """Return whether no chunk holds anything after the resume point, which only positions can tell.

    :param seq: ``_cdc_seq`` of the resume point.
    """
    table_coverages = read_coverage(context, plan, open_sink_tables(context, plan))
    return table_coverages is not None and all(
        mark <= seq for table in table_coverages for mark in table.high_watermarks
    )
