"""What was read again and waits for the stream: small files in the sink, which readers write and the driver reads.

A reading has a folder of its own, named by its number; see :mod:`airflow_provider_cdc.model.staged_read`. It holds
what was read, and in the end the outcome. A file in another folder asks the stream to publish it, and goes when it is
over.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from airflow_provider_cdc.model.plan import Plan
from airflow_provider_cdc.model.staged_read import FIRST_READ_NUMBER, GROUP, TABLE, PublishedReadNumbers, StagedRead
from airflow_provider_cdc.runtime.run_context import RunContext
from airflow_provider_cdc.sinks.protocol import Markers
from airflow_provider_cdc.sinks.storage.storage import read_json, write_json, write_json_once
from airflow_provider_cdc.system.failpoints import failpoint


class ReadOutcome(NamedTuple):
    """How a reading ended.

    :param published: whether its rows are in the copy, or those of a reading of the whole table that began later.
    :param message: one line for people.
    """

    published: bool
    message: str


def allocate_read_number(
    context: RunContext, plan: Plan, scope: str, table: int | None = None, group: int | None = None
) -> int:
    """The next number of the pipeline's sequence of readings: above all that were drawn when this is called. The start
    position was taken before.

    It belongs to whoever writes its file first. The file of the highest number is never removed.

    :param scope: what is to be read.
    :param table: index of the table, or ``group`` the number of the chunk group.
    """
    number = max(list_read_numbers(context, plan.generation), default=FIRST_READ_NUMBER - 1) + 1
    read = {"scope": scope, "table": table, "group": group}
    while not write_json_once(context.storage, context.layout.resnapshot(plan.generation, number), read):
        number += 1
    return number


def list_read_numbers(context: RunContext, generation: int) -> list[int]:
    """Numbers of the readings of a snapshot that are known, in order: those whose files were not removed since."""
    names = (name for name, _ in context.storage.list(context.layout.resnapshots_folder(generation)))
    return sorted(int(name.rpartition("/")[2].removesuffix(".json")) for name in names)


def ranges_marker(plan: Plan) -> str:
    """Name of the marker of a table that holds the number of the last reading of ranges that was exchanged in it."""
    return f"cdc/{plan.pipeline}/{plan.generation}/ranges"


def group_read_marker(plan: Plan, group: int) -> str:
    """Name of the marker of a table that holds the number of the reading with which a chunk group was published again.

    :param group: number of the group.
    """
    return f"cdc/{plan.pipeline}/{plan.generation}/reading/{group}"


def published_read_numbers(plan: Plan, table: int, markers: Markers) -> PublishedReadNumbers:
    """Which readings a copy has, as its markers say.

    :param table: index of the table in the plan.
    :param markers: of the copy.
    """
    groups = (markers.get(group_read_marker(plan, group)) or 0 for group in plan.groups_of(table))
    return PublishedReadNumbers(markers.get(ranges_marker(plan)) or 0, max(groups, default=0))


def request_publication(context: RunContext, plan: Plan, staged: StagedRead) -> None:
    """Ask for what was read to be published."""
    write_json(context.storage, _request_file(context, plan, staged), staged.to_json())
    failpoint("reread.after_stage")


def _request_file(context: RunContext, plan: Plan, staged: StagedRead) -> str:
    return f"{context.layout.staged_reads_folder(plan.generation)}/{staged.group}-{staged.attempt}.json"


def list_request_files(context: RunContext, plan: Plan) -> list[str]:
    """Names of the files that ask the stream for something: to publish attempts, or to reload its tables."""
    listed = context.storage.list(context.layout.staged_reads_folder(plan.generation))
    return [name for name, _ in listed if name.endswith(".json")]


def list_pending_reads(context: RunContext, plan: Plan, names: Iterable[str] | None = None) -> list[StagedRead]:
    """What waits to be published, the newest attempt of each group. Costs a look into a folder where there is nothing.

    :param names: what :func:`requests` returned, if that is known.
    """
    newest: dict[int, StagedRead] = {}
    for name in _publication_requests(context, plan, list_request_files(context, plan) if names is None else names):
        value = read_json(context.storage, name)
        if value is not None:  # else it has just been published
            staged = StagedRead.from_json(value, plan.timeline.newest_segment)
            if staged.group not in newest or newest[staged.group].attempt < staged.attempt:
                newest[staged.group] = staged
    return [newest[number] for number in sorted(newest)]


def tables_pending_publication(context: RunContext, plan: Plan) -> set[int]:
    """Indexes of the tables that were read again as a whole, and wait for the stream."""
    return {
        staged.table
        for staged in list_pending_reads(context, plan)
        if staged.scope == TABLE and staged.table is not None
    }


def remove_request(context: RunContext, plan: Plan, group: int, attempt: int) -> None:
    """Remove what asks for an attempt at a group, and for older ones, to be published."""
    for name in _publication_requests(context, plan, list_request_files(context, plan)):
        number, _, attempt_number = name.rpartition("/")[2].removesuffix(".json").partition("-")
        if int(number) == group and int(attempt_number) <= attempt:
            context.storage.delete(name)


def _publication_requests(context: RunContext, plan: Plan, names: Iterable[str]) -> list[str]:
    """Of the requests those that name an attempt to be published."""
    return [name for name in names if name != context.layout.reload_request(plan.generation)]


def record_outcome(context: RunContext, plan: Plan, staged: StagedRead, outcome: ReadOutcome) -> None:
    """Write down how a reading of a table, or of ranges, has ended, and forget what asks for it. Only the stream's
    driver calls it.
    """
    assert staged.scope != GROUP  # whose outcome the markers of its tables tell
    failpoint("reread.before_outcome")
    name = context.layout.resnapshot_outcome(plan.generation, staged.group)
    write_json(context.storage, name, {"done": outcome.published, "said": outcome.message})
    failpoint("reread.after_outcome")
    remove_request(context, plan, staged.group, staged.attempt)


def load_outcome(context: RunContext, generation: int, number: int) -> ReadOutcome | None:
    """How a reading of a table, or of ranges, has ended; ``None`` as long as it waits.

    :param number: the reading's number.
    """
    stored = read_json(context.storage, context.layout.resnapshot_outcome(generation, number))
    return None if stored is None else ReadOutcome(stored["done"], stored["said"])
