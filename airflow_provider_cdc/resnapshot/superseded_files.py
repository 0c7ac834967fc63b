"""Steps of tables, and readings, that nothing goes by any more are removed: else each start would read all that ever
happened.

When a table has rejoined, what was written down of its revisions before says nothing about it. The last revision before
stays as well: whoever lists the steps at this moment may miss a file that has just come, and must not miss both.
"""

from __future__ import annotations

from airflow_provider_cdc.model.plan import Plan
from airflow_provider_cdc.model.plan_history import Amendment, Rejoin
from airflow_provider_cdc.resnapshot.staged_files import list_pending_reads, list_read_numbers
from airflow_provider_cdc.runtime.run_context import RunContext
from airflow_provider_cdc.sinks.files.layout import Layout, amendment_file
from airflow_provider_cdc.sinks.storage.storage import Storage, read_json


def remove_superseded_amendments(storage: Storage, layout: Layout, plan: Plan) -> None:
    """Remove the files of steps of all but the last two revisions of each table. Only the stream's driver calls it.

    :param storage: that of the sink.
    """
    file_names = [
        amendment_file(layout, plan.generation, step) for step in plan.amendments if _is_superseded(plan, step)
    ]
    if file_names:
        storage.delete(*file_names)


def remove_superseded_reads(context: RunContext, plan: Plan, table: int) -> None:
    """Remove what is left of readings of a table, or of parts of it, that began before the last but one with which it
    has rejoined. Only the stream's driver calls it.

    Whoever waits for one of those has long heard of its outcome. The reading with which it has rejoined the last time
    stays, so the highest number that was drawn does. A process that has looked for that before, and is slow, may draw a
    number that was removed meanwhile: it is above all that had been drawn when it looked, all the same.

    :param table: index of the table in the plan.
    """
    rejoin_numbers = sorted(
        step.group or 0 for step in plan.amendments if isinstance(step, Rejoin) and step.table == table
    )
    if len(rejoin_numbers) < 2:
        return
    storage, layout, generation = context.storage, context.layout, plan.generation
    pending = {staged.number for staged in list_pending_reads(context, plan)}
    for number in list_read_numbers(context, generation):
        if number >= rejoin_numbers[-2] or number in pending:
            continue
        record = read_json(storage, layout.resnapshot(generation, number))
        # One without a manifest is not read to its end: its tasks may still be at it.
        is_over = storage.size(layout.attempt_manifest(generation, number, 1)) is not None
        if record is not None and record["table"] == table and is_over:
            context.sink.table(plan.tables[table]).clear_staged(f"{generation}/{number}")
            storage.delete_folder(layout.group_folder(generation, number))
            storage.delete(layout.resnapshot(generation, number))


def _is_superseded(plan: Plan, amendment: Amendment) -> bool:
    """Whether two revisions have followed that of a step. What adds a table to the plan is needed for good."""
    return amendment.revision < plan.revision_of(amendment.table) - 1 and not plan.is_addition(amendment)
