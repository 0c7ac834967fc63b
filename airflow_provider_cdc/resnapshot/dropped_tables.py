"""Empty the copy of a table that was dropped in the source (``sink.on_dropped: drop``).

When the stream met the DROP statement, it suspended the table and recorded the suspension with the plan. If the source
has no table of that name, the copy is emptied in one commit under the epoch's fence. A marker in that commit records
which revision of the table ended. Nothing else is stored: if a run dies before the commit, the copy lacks the marker,
and the next epoch checks again. The argument is in docs/correctness.md.
"""

from __future__ import annotations

from contextlib import suppress

from airflow_provider_cdc.apply.applier import Applier
from airflow_provider_cdc.chunk_groups.chunk_group import generation_fence
from airflow_provider_cdc.model.errors import FencedError, NotReadyError, TerminalError
from airflow_provider_cdc.model.plan import Plan
from airflow_provider_cdc.model.plan_history import Suspension
from airflow_provider_cdc.runtime.run_context import RunContext
from airflow_provider_cdc.sinks.protocol import Feature
from airflow_provider_cdc.sinks.table_errors import name_table_in_errors
from airflow_provider_cdc.state import StateDatabase
from airflow_provider_cdc.system.failpoints import failpoint


def dropped_marker(plan: Plan) -> str:
    """Return the name of the marker of an emptied table. Its value is the revision that ended, plus one."""
    return f"cdc/{plan.pipeline}/{plan.generation}/dropped"


def should_empty_copy(context: RunContext, plan: Plan, suspension: Suspension | None) -> bool:
    """Return whether the copy of a suspended table is to be emptied if the source no longer has the table."""
    return (
        suspension is not None
        and suspension.dropped
        and context.pipeline.sink.empties_dropped_table(*plan.tables[suspension.table].id)
    )


def is_copy_emptied(context: RunContext, plan: Plan, index: int) -> bool:
    """Return whether the copy of a table was emptied and the table has not been re-snapshotted since.

    :raises TerminalError: if another table has taken its place.
    """
    suspension = plan.suspension_of(index)
    if suspension is None or not suspension.dropped:
        return False
    return (context.sink.table(plan.tables[index]).markers().get(dropped_marker(plan)) or 0) > suspension.revision


def list_emptied_copies(context: RunContext, plan: Plan) -> list[int]:
    """Return the indexes of tables with emptied copies, except those whose place another table has taken."""
    indexes = []
    for suspension in plan.suspensions:
        with suppress(TerminalError, NotReadyError):
            if is_copy_emptied(context, plan, suspension.table):
                indexes.append(suspension.table)
    return indexes


def empty_copy(context: RunContext, store: StateDatabase, plan: Plan, applier: Applier, index: int) -> bool:
    """Empty the copy of a dropped table unless that was done before. Only the stream's driver calls this.

    A copy that cannot be emptied stays; the reason is reported.

    :param index: index of a table that the source no longer has.
    :returns: whether the copy is empty.
    :raises FencedError: if a newer epoch has taken over.
    """
    suspension, table = plan.suspension_of(index), plan.tables[index]
    if suspension is None or not should_empty_copy(context, plan, suspension):
        return False  # it was re-snapshotted in the meantime
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
        context.report_event(store, "table_refused", message, table=table.label, remedy=error.remedy)
        return False
    if done:
        message = f"table {table.label} was dropped in the source after {suspension.at}: its copy was emptied"
        context.report_event(store, "table_emptied", message, table=table.label)
    return True
