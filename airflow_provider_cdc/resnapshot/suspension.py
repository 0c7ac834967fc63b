"""Suspend a table that cannot continue: its copy stays at an exact position, and the stream continues with the others.

A suspension is stored once, with the plan. After the resume point, binlog events of the table are ignored until it has
been re-snapshotted. The argument is in docs/correctness.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from datetime import UTC, datetime

from airflow_provider_cdc.apply.applier import Applier
from airflow_provider_cdc.chunk_groups.chunk_group import generation_fence
from airflow_provider_cdc.config.sections import SUSPEND
from airflow_provider_cdc.model.errors import (
    ADDED,
    REMOVED,
    REQUESTED,
    CdcError,
    DdlError,
    FencedError,
    NotFollowedError,
    NotReadyError,
    TableSuspendedError,
    TerminalError,
    error_kind,
)
from airflow_provider_cdc.model.plan import Plan
from airflow_provider_cdc.model.plan_history import Suspension
from airflow_provider_cdc.model.schema import TableSchema
from airflow_provider_cdc.mysql.client.catalog import find_tables
from airflow_provider_cdc.mysql.client.session import connect
from airflow_provider_cdc.runtime.run_context import RunContext
from airflow_provider_cdc.sinks.protocol import SinkTable
from airflow_provider_cdc.sinks.storage.storage import write_json_once
from airflow_provider_cdc.sinks.table_errors import name_table_in_errors
from airflow_provider_cdc.state import StateDatabase
from airflow_provider_cdc.state.event_kinds import INFO
from airflow_provider_cdc.system.failpoints import failpoint

#: Suspension kinds for which a table that cannot be seen is gone: only a DDL, if anything, was wrong with it.
_KINDS_OF_MISSING_TABLES = (ADDED, REMOVED, NotFollowedError.__name__)


def table_to_suspend(context: RunContext, plan: Plan, error: CdcError) -> int | None:
    """Return the table that an error is limited to, if the stream can continue without it.

    :returns: index of the table in the plan; ``None`` if the error affects more than one table, can be retried, or must
        stop the pipeline.
    """
    stream = context.pipeline.stream
    if stream.on_table_error != SUSPEND or not isinstance(error, TerminalError) or isinstance(error, FencedError):
        return None
    if isinstance(error, DdlError) and not stream.follows_ddl:
        return None
    return next((i for i in plan.active_tables if plan.tables[i].label == error.table), None)


def suspend_table(
    context: RunContext, store: StateDatabase, plan: Plan, applier: Applier, index: int, error: CdcError
) -> Plan:
    """Suspend a table at the resume point.

    :param error: why it is suspended.
    :returns: the plan without the table.
    :raises FencedError: if a newer epoch has taken over.
    """
    applier.check_fence()  # the file written below is not fenced
    record_suspensions(context, store, plan, [_suspension_for_error(context, plan, index, error)])
    return context.plans.require()


def suspend_on_request(
    context: RunContext, store: StateDatabase, plan: Plan, applier: Applier, index: int, by: str
) -> tuple[Plan, str]:
    """Suspend a table at the resume point on request. It is re-snapshotted only on request, too.

    :param by: name of the requester.
    :returns: the plan without the table, and a human-readable line.
    :raises NotReadyError: if the table is already suspended for another reason.
    :raises FencedError: if a newer epoch has taken over.
    """
    label, suspension = plan.tables[index].label, plan.suspension_of(index)
    if suspension is not None and suspension.kind != REQUESTED:
        raise NotReadyError(
            f"table {label} is suspended already, at {suspension.at}: {suspension.message}",
            suspension_remedy(plan, suspension) or "Try again when it is part of the stream",
            table=label,
        )
    if suspension is None:
        applier.check_fence()  # the file written below is not fenced
        suspension = make_suspension(context, plan, index, REQUESTED, f"{by} asked for it")
        record_suspensions(context, store, plan, [suspension], by=by)
        plan = context.plans.require()
    return (
        plan,
        f"table {label} is suspended at {suspension.at}: {suspension.message}. {suspension_remedy(plan, suspension)}",
    )


def find_unusable_copies(context: RunContext, plan: Plan, tables: Sequence[SinkTable]) -> dict[int, TerminalError]:
    """Find tables whose copy a resuming stream cannot write to, because it was removed or replaced by another table.

    Before the first batch, a missing copy is merely one that has not been read yet.

    :param tables: sink tables in the plan's order.
    :returns: the error of each such table, by index.
    :raises TerminalError: if no table has a copy: then the disk or the bucket is the problem, not a table.
    """
    errors: dict[int, TerminalError] = {}
    offset, timeline = context.resume_state(plan)
    if timeline.seq(offset.at) <= plan.p0_seq:
        return errors
    for index in plan.active_tables:
        try:
            with name_table_in_errors(plan.tables[index]):
                target = tables[index]
                exists = target.exists()
                if not exists or target.markers().get(generation_fence(plan, index).name) is None:
                    problem = "is not the one that was written before" if exists else "is missing"
                    raise TerminalError(f"the {target.name} {problem}", "Put it back, or start with a fresh sink.path")
        except TerminalError as error:
            errors[index] = error
    if errors and len(errors) == len(plan.active_tables):
        raise next(iter(errors.values()))
    return errors


def suspend_in_plan(context: RunContext, plan: Plan, errors: Mapping[int, CdcError]) -> Plan:
    """Return a plan in which tables that cannot continue at the resume point are suspended. Nothing is stored yet.

    :param errors: the error of each of these tables, by index.
    :raises CdcError: the first error that must stop the stream, if any.
    """
    for index, error in errors.items():
        if table_to_suspend(context, plan, error) != index:
            raise error
    suspensions = [_suspension_for_error(context, plan, index, error) for index, error in errors.items()]
    return plan.with_amendments(suspensions)


def _suspension_for_error(context: RunContext, plan: Plan, index: int, error: CdcError) -> Suspension:
    suspension = make_suspension(context, plan, index, error_kind(error), error.message, error.remedy)
    dropped = isinstance(error, NotFollowedError) and bool(error.dropped)
    return suspension.replace(dropped=dropped, first=error.first if isinstance(error, TerminalError) else None)


def make_suspension(
    context: RunContext,
    plan: Plan,
    index: int,
    kind: str,
    message: str,
    remedy: str = "",
    schema: TableSchema | None = None,
) -> Suspension:
    """Return a suspension of a table at the resume point. See :class:`Suspension` for the parameters."""
    offset, timeline = context.resume_state(plan)
    revision = 0 if schema is not None else plan.revision_of(index)
    now = datetime.now(UTC).isoformat(timespec="seconds")
    return Suspension(index, revision, timeline.seq(offset.at), str(offset.at), now, kind, message, remedy, schema)


def record_suspensions(
    context: RunContext, store: StateDatabase, plan: Plan, suspensions: Iterable[Suspension], *, by: str | None = None
) -> None:
    """Store suspensions and report them. The epoch's fence must have been raised.

    :param plan: the plan, with or without these suspensions.
    :param by: name of the requester, if the suspensions were requested.
    """
    for suspension in suspensions:
        name = context.layout.suspension(plan.generation, suspension.table, suspension.revision)
        failpoint("suspend.before_write")
        write_json_once(context.storage, name, suspension.to_json())
        failpoint("suspend.after_write")
        label, remedy = plan.tables[suspension.table].label, suspension_remedy(plan, suspension)
        kind, message = "table_suspended", f"table {label} is suspended at {suspension.at}: {suspension.message}"
        if suspension.kind == REMOVED:
            kind = "table_removed"
            message = f"table {label} was removed from the pipeline: its copy stays as it was at {suspension.at}"
        level = None
        if suspension.dropped:
            kind, remedy = "table_dropped", ""
            message = f"table {label} was dropped in the source: its copy stays as it was at {suspension.at}"
        elif is_resnapshot_automatic(context, suspension):
            level, remedy = INFO, ""
            message += ". The stream re-snapshots it"
        elif suspension.kind == REQUESTED:
            level = INFO
        context.report_event(store, kind, message, table=label, remedy=remedy, by=by, level=level)


def is_resnapshot_automatic(context: RunContext, suspension: Suspension) -> bool:
    """Return whether the stream re-snapshots a suspended table automatically, because a DDL was not followed."""
    return context.pipeline.stream.reread == "auto" and suspension.kind == NotFollowedError.__name__


def suspension_remedy(plan: Plan, suspension: Suspension) -> str:
    """Return the remedy for a suspended table; empty for one that was added or removed."""
    if suspension.kind in (ADDED, REMOVED):
        return ""
    label = plan.tables[suspension.table].label
    if suspension.kind == REQUESTED:
        return f"To resume it: airflow-cdc resume --table {label}"
    if suspension.first:
        # Not resume: a stream that runs would read it with the settings that it began with.
        how = f"airflow-cdc resnapshot --table {label}, or CdcResnapshotOperator"
        return f"{suspension.first}, then re-snapshot it: {how}"
    return f"Re-snapshot it: airflow-cdc resume --table {label}"


def list_suspensions(context: RunContext, plan: Plan) -> list[Suspension]:
    """Return the suspensions of tables that the pipeline captures, without those of removed tables."""
    return [step for step in plan.suspensions if context.pipeline.captures(*plan.tables[step.table].id)]


def list_requested_suspensions(context: RunContext, plan: Plan) -> list[Suspension]:
    """Return the suspensions that were requested by a user."""
    return [step for step in list_suspensions(context, plan) if step.kind == REQUESTED]


def tables_missing_in_source(context: RunContext, plan: Plan) -> set[int]:
    """Return the indexes of suspended tables that the source no longer has. Their copies stay as they were.

    A table that was suspended for an error other than a DDL is not included: it may only be invisible to the user.

    :raises CdcError: if the source cannot be queried.
    """
    suspects = [step.table for step in list_suspensions(context, plan) if step.kind in _KINDS_OF_MISSING_TABLES]
    if not suspects:
        return set()
    with closing(connect(context.connect_args)) as connection:
        existing = {listed[:2] for listed in find_tables(connection, context.pipeline.captures)}
    return {index for index in suspects if plan.tables[index].id not in existing}


def tables_known_missing(context: RunContext, plan: Plan) -> set[int]:
    """Return :func:`tables_missing_in_source`, or an empty set if the source cannot be queried."""
    try:
        return tables_missing_in_source(context, plan)
    except CdcError:
        return set()


def describe_suspensions(context: RunContext, plan: Plan) -> list[str]:
    """Return a human-readable line for each suspended table."""
    missing = tables_known_missing(context, plan)
    lines = []
    for suspension in list_suspensions(context, plan):
        since = (
            f"table {plan.tables[suspension.table].label} has been suspended since {suspension.since}, "
            f"at {suspension.at}: {suspension.message}"
        )
        remedy = "The source no longer has it" if suspension.table in missing else suspension_remedy(plan, suspension)
        lines.append(f"{since}. {remedy}".removesuffix(". "))
    return lines


def check_none_suspended(context: RunContext, plan: Plan) -> None:
    """Fail at the end of a stream if tables are suspended, unless ``stream.fail_on_suspended`` is off.

    Suspensions that a user requested, and those of tables that the source no longer has, are no failures. If no active
    table is left, ``stream.fail_on_suspended`` is ignored.

    :raises TableSuspendedError: if tables are suspended.
    :raises NotReadyError: if the pipeline copies no table at all.
    """
    missing = tables_known_missing(context, plan)  # nothing can be done about these
    suspensions = [
        step for step in list_suspensions(context, plan) if step.table not in missing and step.kind != REQUESTED
    ]
    if not suspensions and not plan.active_tables and not list_requested_suspensions(context, plan):
        raise NotReadyError(
            f"pipeline {plan.pipeline} copies no table any more: no pattern of source.tables matches one",
            "Correct source.tables and source.exclude",
        )
    if not suspensions or (plan.active_tables and not context.pipeline.stream.fail_on_suspended):
        return
    first = suspensions[0]
    label = plan.tables[first.table].label
    more = f" (and {len(suspensions) - 1} more)" if len(suspensions) > 1 else ""
    raise TableSuspendedError(
        f"the stream continued without table {label}{more}, suspended since {first.since} at {first.at}: "
        f"{first.message}",
        suspension_remedy(plan, first) or "See the log for why it could not be read, then run again",
        table=label if len(suspensions) == 1 else None,
        suspended=len(suspensions),
    )
