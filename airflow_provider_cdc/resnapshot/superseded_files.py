"""Remove amendments and reads that are no longer used, so that a start need not read a pipeline's whole history.

Once a table has rejoined, the amendments of its earlier revisions are obsolete. Those of the last revision before stay
as well: a process that lists the amendments at this moment may miss a file that has just been written, and must not
miss both revisions.
"""

from __future__ import annotations

from airflow_provider_cdc.model.plan import Plan
from airflow_provider_cdc.model.plan_history import Amendment, Rejoin
from airflow_provider_cdc.resnapshot.staged_files import list_pending_reads, list_read_numbers
from airflow_provider_cdc.runtime.run_context import RunContext
from airflow_provider_cdc.sinks.files.layout import Layout, amendment_file
from airflow_provider_cdc.sinks.storage.storage import Storage, read_json


def remove_superseded_amendments(storage: Storage, layout: Layout, plan: Plan) -> None:
    """Remove the amendment files of all but the last two revisions of each table. Only the stream's driver calls this.

    :param storage: storage of the sink.
    """
    file_names = [
        amendment_file(layout, plan.generation, step) for step in plan.amendments if _is_superseded(plan, step)
    ]
    if file_names:
        storage.delete(*file_names)


def remove_superseded_reads(context: RunContext, plan: Plan, table: int) -> None:
    """Remove a table's reads, of the whole table or of key ranges, that began before its last but one rejoining read.

    Only the stream's driver calls this. Processes that waited for one of those reads have long seen the outcome. The
    read of the last rejoin stays, and so does the highest number. A slow process that listed the numbers earlier may
    allocate one that has been removed since, but that one is still above all numbers that it had listed.

    :param table: index of the table in the plan.
    """
    rejoin_numbers = sorted(s.group for s in plan.amendments if isinstance(s, Rejoin) and s.table == table)
    if len(rejoin_numbers) < 2:
        return
    storage, layout, generation = context.storage, context.layout, plan.generation
    pending = {staged.number for staged in list_pending_reads(context, plan)}
    for number in list_read_numbers(context, generation):
        if number >= rejoin_numbers[-2] or number in pending:
            continue
        record = read_json(storage, layout.resnapshot(generation, number))
        # A read without a manifest is unfinished: its tasks may still be running.
        is_over = storage.size(layout.attempt_manifest(generation, number, 1)) is not None
        if record is not None and record["table"] == table and is_over:
            context.sink.table(plan.tables[table]).clear_staged(f"{generation}/{number}")
            storage.delete_folder(layout.group_folder(generation, number))
            storage.delete(layout.resnapshot(generation, number))


def _is_superseded(plan: Plan, amendment: Amendment) -> bool:
    """Return whether two later revisions exist. An amendment that adds a table to the plan is always needed."""
    return amendment.revision < plan.revision_of(amendment.table) - 1 and not plan.is_addition(amendment)
