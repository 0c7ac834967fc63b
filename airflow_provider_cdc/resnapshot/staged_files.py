"""Staged reads in the sink: small files that readers write and the stream's driver reads.

Each read has a separate folder, named by its number; see :mod:`airflow_provider_cdc.model.staged_read`. The folder
holds the rows, and finally the outcome. A request file in another folder asks the stream to publish the read; it is
removed when the read has an outcome.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from airflow_provider_cdc.model.errors import TerminalError
from airflow_provider_cdc.model.plan import Plan
from airflow_provider_cdc.model.staged_read import FIRST_READ_NUMBER, GROUP, TABLE, StagedRead
from airflow_provider_cdc.runtime.run_context import RunContext
from airflow_provider_cdc.sinks.files.layout import read_group_plan
from airflow_provider_cdc.sinks.storage.storage import read_json, read_record, write_json, write_json_once
from airflow_provider_cdc.system.failpoints import failpoint
from airflow_provider_cdc.transforms.sealed_bounds import open_plan


class ReadOutcome(NamedTuple):
    """How a read ended.

    :param published: whether its rows are in the copy, or those of a read of the whole table that began later.
    :param message: one human-readable line.
    """

    published: bool
    message: str


def allocate_read_number(
    context: RunContext, plan: Plan, scope: str, table: int | None = None, group: int | None = None
) -> int:
    """Allocate the next number in the pipeline's sequence of reads, above all that were allocated before this call.

    The start position must have been taken before. A number belongs to the process that first writes its file. The file
    of the highest number is never removed.

    :param scope: what is to be read.
    :param table: index of the table, if a table or key ranges are read.
    :param group: number of the chunk group, if a group is read.
    """
    number = max(list_read_numbers(context, plan.generation), default=FIRST_READ_NUMBER - 1) + 1
    read = {"scope": scope, "table": table, "group": group}
    while not write_json_once(context.storage, context.layout.resnapshot(plan.generation, number), read):
        number += 1
    return number


def list_read_numbers(context: RunContext, generation: int) -> list[int]:
    """Return the numbers of a snapshot's reads in ascending order, except those whose files have been removed."""
    names = (name for name, _ in context.storage.list(context.layout.resnapshots_folder(generation)))
    return sorted(int(name.rpartition("/")[2].removesuffix(".json")) for name in names)


def request_publication(context: RunContext, plan: Plan, staged: StagedRead) -> None:
    """Write the request file that asks the stream to publish a staged read."""
    write_json(context.storage, _request_file(context, plan, staged), staged.to_json())
    failpoint("reread.after_stage")


def _request_file(context: RunContext, plan: Plan, staged: StagedRead) -> str:
    return f"{context.layout.staged_reads_folder(plan.generation)}/{staged.group}-{staged.attempt}.json"


def list_request_files(context: RunContext, plan: Plan) -> list[str]:
    """Return the names of the request files: requests to publish attempts, and the one to reload the tables."""
    listed = context.storage.list(context.layout.staged_reads_folder(plan.generation))
    return [name for name, _ in listed if name.endswith(".json")]


def list_pending_reads(context: RunContext, plan: Plan, names: Iterable[str] | None = None) -> list[StagedRead]:
    """Return the staged reads that wait to be published: the newest attempt of each group, by group number.

    If there are none, this costs a single listing of a folder.

    :param names: result of :func:`list_request_files`, if the caller has it.
    """
    newest: dict[int, StagedRead] = {}
    for name in _publication_requests(context, plan, list_request_files(context, plan) if names is None else names):
        staged = read_record(context.storage, name, StagedRead)
        if staged is None:  # it has just been published
            continue
        if staged.group not in newest or newest[staged.group].attempt < staged.attempt:
            newest[staged.group] = staged
    return [newest[number] for number in sorted(newest)]


def tables_pending_publication(context: RunContext, plan: Plan) -> set[int]:
    """Return the indexes of tables with a whole-table read that waits to be published."""
    return whole_tables(list_pending_reads(context, plan))


def whole_tables(staged_reads: Iterable[StagedRead]) -> set[int]:
    """Return the indexes of the tables that were read as a whole."""
    return {staged.table for staged in staged_reads if staged.scope == TABLE and staged.table is not None}


def remove_request(context: RunContext, plan: Plan, group: int, attempt: int) -> None:
    """Remove the publication requests for an attempt at a group and for older attempts."""
    for name in _publication_requests(context, plan, list_request_files(context, plan)):
        number, _, attempt_number = name.rpartition("/")[2].removesuffix(".json").partition("-")
        if int(number) == group and int(attempt_number) <= attempt:
            context.storage.delete(name)


def _publication_requests(context: RunContext, plan: Plan, names: Iterable[str]) -> list[str]:
    """Return the request files that ask for publication of an attempt."""
    return [name for name in names if name != context.layout.reload_request(plan.generation)]


def record_outcome(context: RunContext, plan: Plan, staged: StagedRead, outcome: ReadOutcome) -> None:
    """Record the outcome of a read of a table or key ranges, and remove its request. Only the stream's driver may."""
    assert staged.scope != GROUP  # table markers record the outcome of a group
    failpoint("reread.before_outcome")
    name = context.layout.resnapshot_outcome(plan.generation, staged.group)
    write_json(context.storage, name, {"done": outcome.published, "said": outcome.message})
    failpoint("reread.after_outcome")
    remove_request(context, plan, staged.group, staged.attempt)


def load_outcome(context: RunContext, generation: int, number: int) -> ReadOutcome | None:
    """Return how a read of a table or of key ranges ended; ``None`` while it waits.

    :param number: number of the read.
    """
    stored = read_json(context.storage, context.layout.resnapshot_outcome(generation, number))
    return None if stored is None else ReadOutcome(stored["done"], stored["said"])


def load_reading_plan(context: RunContext, plan: Plan, table: int, number: int) -> Plan:
    """Return the plan that a table or key ranges were read with.

    :param table: index of the table.
    :param number: number of the read.
    :raises TerminalError: if it is missing.
    """
    name = context.layout.group_plan(plan.generation, number)
    if (stored := read_group_plan(context.storage, name)) is None:
        raise TerminalError(
            f"the plan {context.storage.location(name)} of a re-snapshot is missing",
            f"Restore it, or re-snapshot the table: airflow-cdc resnapshot --table {plan.tables[table].label}",
        )
    return open_plan(stored, context.hash_key).with_zero_dates(context.pipeline.source.zero_dates)
