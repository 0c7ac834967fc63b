"""A table was dropped in the source, and the rows of its copy are to go (``sink.on_dropped: drop``).

The stream has met the statement and has suspended the table for it, which is written down beside the plan. When the
source has no table of that name, the copy is emptied: one commit under the fence of the epoch, with a marker that says
which revision of the table it has ended. Nothing else is written down: a run that dies before the commit leaves a copy
without the marker, and the next epoch looks again. The argument is in docs/correctness.md.
"""

from __future__ import annotations

from contextlib import suppress

from sqlalchemy.exc import SQLAlchemyError

from airflow_provider_cdc.apply.applier import Applier
from airflow_provider_cdc.chunk_groups.chunk_group import generation_fence
from airflow_provider_cdc.model.errors import CdcError, FencedError, NotReadyError, TerminalError
from airflow_provider_cdc.model.plan import Plan
from airflow_provider_cdc.model.plan_history import Suspension
from airflow_provider_cdc.runtime.run_context import RunContext
from airflow_provider_cdc.sinks.protocol import Feature
from airflow_provider_cdc.sinks.table_errors import name_table_in_errors
from airflow_provider_cdc.state import StateDatabase
from airflow_provider_cdc.system.failpoints import failpoint


def dropped_marker(plan: Plan) -> str:
    """Name of the marker of a table that was emptied: one more than the revision that ended then."""
    return f"cdc/{plan.pipeline}/{plan.generation}/dropped"


def should_empty_copy(context: RunContext, plan: Plan, suspension: Suspension | None) -> bool:
    """Whether the rows of a suspended table go, if the source does not have the table any more."""
    return (
        suspension is not None
        and suspension.dropped
        and context.pipeline.sink.empties_dropped_table(*plan.tables[suspension.table].id)
    )


def is_copy_emptied(context: RunContext, plan: Plan, index: int) -> bool:
    """Whether the copy of a table was emptied, and the table was not read again since.

    :raises TerminalError: if there is another table in its place.
    """
    suspension = plan.suspension_of(index)
    if suspension is None or not suspension.dropped:
        return False
    return (context.sink.table(plan.tables[index]).markers().get(dropped_marker(plan)) or 0) > suspension.revision


def list_emptied_copies(context: RunContext, plan: Plan) -> list[int]:
    """Tables whose copies were emptied, without those that have another table in their place."""
    indexes = []
    for suspension in plan.suspensions:
        with suppress(TerminalError, NotReadyError):
            if is_copy_emptied(context, plan, suspension.table):
                indexes.append(suspension.table)
    return indexes


def empty_copy(context: RunContext, store: StateDatabase, plan: Plan, applier: Applier, index: int) -> bool:
    """Empty the copy of a table that was dropped, if that was not done yet. Only the stream's driver calls it.

    A copy that cannot be emptied stays, and it is said why.

    :param index: index of a table that the source was seen not to have any more.
    :returns: whether the copy is empty.
    :raises FencedError: if a newer epoch has taken over.
    """
    suspension, table = plan.suspension_of(index), plan.tables[index]
    if suspension is None or not should_empty_copy(context, plan, suspension):
        return False  # it was read again meanwhile
    try:
        for feature in (Feature.RESNAPSHOT, Feature.FOLLOW_DDL):
            context.require_feature(feature, f"sink.on_dropped is drop for table {table.label}")
        with name_table_in_errors(table):
            target = context.sink.table(table)
            if target.exists() and target.markers().get(generation_fence(plan, index).name) is None:
                raise TerminalError(f"the {target.name} is not the one that was written before")
            failpoint("drop.before_commit")
            done = target.overwrite([], {dropped_marker(plan): suspension.revision + 1}, applier.fence)
            failpoint("drop.after_commit")
    except FencedError:
        raise
    except (TerminalError, NotReadyError) as error:
        message = f"table {table.label} was dropped in the source, and its copy cannot be emptied: {error.message}"
        _report_event(context, store, plan, "table_refused", message, table.label, error.remedy)
        return False
    if done:
        message = f"table {table.label} was dropped in the source, behind {suspension.at}: its copy was emptied"
        _report_event(context, store, plan, "table_emptied", message, table.label)
    return True


def _report_event(
    context: RunContext, store: StateDatabase, plan: Plan, kind: str, text: str, table: str, remedy: str | None = None
) -> None:
    context.reporter.line(text)
    with suppress(CdcError, SQLAlchemyError):  # this is for people
        store.add_event(plan.pipeline, kind, text, table=table, remedy=remedy)
