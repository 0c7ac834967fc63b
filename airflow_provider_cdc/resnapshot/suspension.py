"""A table that cannot go on is suspended: its copy stands at an exact place, and the stream goes on with the others.

It is written down once, beside the plan. Behind the resume point nothing that the binlog says of the table is of
concern any more, until it was read again. The argument is in docs/correctness.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from datetime import UTC, datetime

from sqlalchemy.exc import SQLAlchemyError

from airflow_provider_cdc.apply.applier import Applier
from airflow_provider_cdc.chunk_groups.chunk_group import generation_fence
from airflow_provider_cdc.config.sections import SUSPEND
from airflow_provider_cdc.model.errors import (
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
from airflow_provider_cdc.model.suspension_kinds import ADDED, REMOVED, REQUESTED
from airflow_provider_cdc.mysql.client.catalog import find_tables
from airflow_provider_cdc.mysql.client.session import connect
from airflow_provider_cdc.runtime.run_context import RunContext
from airflow_provider_cdc.sinks.protocol import SinkTable
from airflow_provider_cdc.sinks.storage.storage import write_json_once
from airflow_provider_cdc.sinks.table_errors import name_table_in_errors
from airflow_provider_cdc.state import StateDatabase
from airflow_provider_cdc.system.failpoints import failpoint

#: Kinds of steps behind which a table that is not seen is not there: nothing else was wrong with it, or a DDL was.
_KINDS_OF_MISSING_TABLES = (ADDED, REMOVED, NotFollowedError.__name__)


def table_to_suspend(context: RunContext, plan: Plan, error: CdcError) -> int | None:
    """The table that cannot go on, where the others can.

    :returns: its index in the plan; ``None`` where the error concerns more, is worth a retry, or the pipeline is to
        stop.
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

    :param error: why.
    :returns: the plan without it.
    :raises FencedError: if a newer epoch has taken over.
    """
    applier.check_fence()  # what is written down is not fenced
    record_suspensions(context, store, plan, [_suspension_for_error(context, plan, index, error)])
    return context.require_plan()


def suspend_on_request(
    context: RunContext, store: StateDatabase, plan: Plan, applier: Applier, index: int, by: str
) -> tuple[Plan, str]:
    """Suspend a table at the resume point since somebody wants it. Nothing reads it again until somebody asks for that.

    :param by: who wants it.
    :returns: the plan without it, and a line about it.
    :raises NotReadyError: if it is suspended already, for another reason.
    :raises FencedError: if a newer epoch has taken over.
    """
    label, suspension = plan.tables[index].label, plan.suspension_of(index)
    if suspension is not None and suspension.kind != REQUESTED:
        raise NotReadyError(
            f"table {label} is suspended already, at {suspension.at}: {suspension.message}",
            suspension_remedy(plan, suspension) or "Ask again when it is part of the stream",
            table=label,
        )
    if suspension is None:
        applier.check_fence()  # what is written down is not fenced
        suspension = make_suspension(context, plan, index, REQUESTED, f"{by} asked for it")
        record_suspensions(context, store, plan, [suspension], by=by)
        plan = context.require_plan()
    return (
        plan,
        f"table {label} is suspended at {suspension.at}: {suspension.message}. {suspension_remedy(plan, suspension)}",
    )


def find_unusable_copies(context: RunContext, plan: Plan, tables: Sequence[SinkTable]) -> dict[int, TerminalError]:
    """Tables that a stream which goes on finds without a copy that it could write to, and why: somebody has removed it,
    or put another table in its place. Before its first batch, a copy that is missing is one that was not read yet.

    :param tables: sink tables in the plan's order.
    :raises TerminalError: if no table has a copy: that is a disk or a bucket, and no table's own trouble.
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
    """A plan in which tables are suspended that cannot go on where the stream begins. Nothing is written down yet.

    :param errors: why, by index of the table.
    :raises CdcError: the first of them, if one table's trouble is to stop the stream.
    """
    for index, error in errors.items():
        if table_to_suspend(context, plan, error) != index:
            raise error
    suspensions = [_suspension_for_error(context, plan, index, error) for index, error in errors.items()]
    return plan.with_amendments(step.to_json() for step in suspensions)


def _suspension_for_error(context: RunContext, plan: Plan, index: int, error: CdcError) -> Suspension:
    suspension = make_suspension(context, plan, index, error_kind(error), error.message, error.remedy)
    dropped = isinstance(error, NotFollowedError) and bool(error.dropped)
    return replace(suspension, dropped=dropped, first=error.first if isinstance(error, TerminalError) else None)


def make_suspension(
    context: RunContext,
    plan: Plan,
    index: int,
    kind: str,
    message: str,
    remedy: str = "",
    schema: TableSchema | None = None,
) -> Suspension:
    """What suspends a table at the resume point; parameters as of :class:`Suspension`."""
    offset, timeline = context.resume_state(plan)
    revision = 0 if schema is not None else plan.revision_of(index)
    now = datetime.now(UTC).isoformat(timespec="seconds")
    return Suspension(index, revision, timeline.seq(offset.at), str(offset.at), now, kind, message, remedy, schema)


def record_suspensions(
    context: RunContext, store: StateDatabase, plan: Plan, suspensions: Iterable[Suspension], *, by: str | None = None
) -> None:
    """Write down that tables are suspended, and tell people. The epoch's fence is raised.

    :param plan: the plan, with or without these steps.
    :param by: who wants that, if somebody does.
    """
    for suspension in suspensions:
        name = context.layout.suspension(plan.generation, suspension.table, suspension.revision)
        failpoint("suspend.before_write")
        write_json_once(context.storage, name, suspension.to_json())
        failpoint("suspend.after_write")
        label = plan.tables[suspension.table].label
        message = f"table {label} is suspended at {suspension.at}: {suspension.message}"
        if suspension.kind == REMOVED:
            message = f"table {label} was removed from the pipeline: its copy stays as it was at {suspension.at}"
        context.reporter.line(f"{message}. {suspension_remedy(plan, suspension)}".removesuffix(". "))
        with suppress(CdcError, SQLAlchemyError):  # this is for people
            kind = "table_removed" if suspension.kind == REMOVED else "table_suspended"
            store.add_event(
                plan.pipeline, kind, message, table=label, remedy=suspension_remedy(plan, suspension), by=by
            )


def suspension_remedy(plan: Plan, suspension: Suspension) -> str:
    """What to do about a suspended table; nothing about one that comes and goes."""
    if suspension.kind in (ADDED, REMOVED):
        return ""
    label = plan.tables[suspension.table].label
    if suspension.kind == REQUESTED:
        return f"To let it go on: airflow-cdc resume --table {label}"
    if suspension.first:
        return f"{suspension.first}, then read it again: airflow-cdc resnapshot --table {label}"
    return f"Read it again: airflow-cdc resnapshot --table {label}"


def list_suspensions(context: RunContext, plan: Plan) -> list[Suspension]:
    """What has suspended tables that the pipeline is to copy: not those that were removed from it."""
    return [step for step in plan.suspensions if context.pipeline.captures(*plan.tables[step.table].id)]


def list_requested_suspensions(context: RunContext, plan: Plan) -> list[Suspension]:
    """What has suspended tables since somebody wants that."""
    return [step for step in list_suspensions(context, plan) if step.kind == REQUESTED]


def tables_missing_in_source(context: RunContext, plan: Plan) -> set[int]:
    """Tables that are missed, and that the source does not have any more: their copies stay as they were.

    A table that was suspended for another reason than a DDL is none of them: perhaps it may only not be seen.

    :raises CdcError: if the source cannot be asked.
    """
    suspects = [step.table for step in list_suspensions(context, plan) if step.kind in _KINDS_OF_MISSING_TABLES]
    if not suspects:
        return set()
    with closing(connect(context.connect_args)) as connection:
        existing = {listed[:2] for listed in find_tables(connection, context.pipeline.captures)}
    return {index for index in suspects if plan.tables[index].id not in existing}


def tables_known_missing(context: RunContext, plan: Plan) -> set[int]:
    """The same; none while the source cannot be asked."""
    try:
        return tables_missing_in_source(context, plan)
    except CdcError:
        return set()


def describe_suspensions(context: RunContext, plan: Plan) -> list[str]:
    """A line for each table that is missed."""
    missing = tables_known_missing(context, plan)
    lines = []
    for suspension in list_suspensions(context, plan):
        since = (
            f"table {plan.tables[suspension.table].label} is suspended since {suspension.since}, at {suspension.at}: "
            f"{suspension.message}"
        )
        remedy = (
            "The source does not have it any more"
            if suspension.table in missing
            else suspension_remedy(plan, suspension)
        )
        lines.append(f"{since}. {remedy}".removesuffix(". "))
    return lines


def check_none_suspended(context: RunContext, plan: Plan) -> None:
    """At the end of a stream: tables that it went on without make it red, unless the pipeline says otherwise. One that
    has no table left ends, and is red. What somebody has asked for is no failure.

    :raises TableSuspendedError: naming them.
    """
    missing = tables_known_missing(context, plan)  # nothing can be done about those
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
        f"the stream went on without table {label}{more}, suspended since {first.since} at {first.at}: {first.message}",
        suspension_remedy(plan, first) or "Look in the log for why it could not be read, and run again",
        table=label if len(suspensions) == 1 else None,
        suspended=len(suspensions),
    )
