"""What is read again by itself: a table, or ranges of its keys, as a chunk group that the plan does not have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from airflow_provider_cdc.chunk_groups.groups import Group, watermarks_of
from airflow_provider_cdc.chunk_groups.slice_jobs import job_of
from airflow_provider_cdc.chunk_groups.task import Runner
from airflow_provider_cdc.model.errors import TransientError
from airflow_provider_cdc.model.offset import Lineage, Offset
from airflow_provider_cdc.model.plan import Chunk, Plan, slices
from airflow_provider_cdc.model.staged_read import Staged, step_ids
from airflow_provider_cdc.resnapshot.staged_files import Outcome, draw_number, outcome_of, request, waiting
from airflow_provider_cdc.resnapshot.staged_reads import is_taken
from airflow_provider_cdc.runtime.run_context import Context
from airflow_provider_cdc.sinks.storage.storage import write_json
from airflow_provider_cdc.state import RequestRow, Store


def read_aside(
    context: Context,
    plan: Plan,
    reading_plan: Plan,
    scope: str,
    index: int,
    chunks: Sequence[Chunk],
    since: Offset,
    timeline: Lineage,
    run: Runner,
    by_request: RequestRow | None,
) -> tuple[Group, Staged]:
    """Read chunks of one table into staged slices, write their manifest, and ask for the rows to be exchanged.

    :param plan: the plan as it was before anything was looked up.
    :param reading_plan: the plan by whose definitions the chunks are read.
    :param scope: what they are: :data:`~airflow_provider_cdc.model.staged_read.TABLE` or ``RANGES``.
    :param index: index of the table in the plan.
    :param since: low watermark of the whole, and ``timeline``: numbers the transactions of its server.
    :param run: runs the slices.
    :param by_request: the request by which somebody wants that, if it was by one.
    :returns: what was read, and what asks for it.
    :raises TransientError: if not all of it was read.
    """
    read_number = draw_number(context, plan, scope, index)
    grouped = tuple(replace(chunk, number=no, group=read_number) for no, chunk in enumerate(chunks))
    group = Group(context, replace(reading_plan, chunks=grouped), read_number)
    write_json(context.storage, context.layout.group_plan(plan.generation, read_number), group.plan.to_json())
    manifests: list[dict[str, Any]] = []
    if chunks:
        missing, label = range(len(slices(grouped))), plan.tables[index].label
        context.reporter.line(f"{label} is read again: {len(chunks)} chunks, from {since.at} on")
        for manifest in run(job_of(group, 1, missing, since, timeline, read_number)):
            manifest.pop("asked", None)
            manifests.append(manifest)
        if {manifest["slice"] for manifest in manifests} != set(missing):
            raise TransientError(f"{label} was not read to its end", "Run again: it is then read once more")
    manifests = group.write_manifest(1, sorted(manifests, key=lambda manifest: int(manifest["slice"])))
    high = max([since.at, *(watermarks_of(chunk)[1] for entry in manifests for chunk in entry["chunks"])])
    staged = Staged(
        read_number,
        scope,
        index,
        read_number,
        1,
        high,
        since,
        timeline.newest_segment,
        plan.revision_of(index),
        step_ids(plan, index),
        None if by_request is None else by_request.id,
        None if by_request is None else by_request.by,
    )
    request(context, plan, staged)
    return group, staged


def is_published(group: Group, store: Store, staged: Staged, description: str) -> bool:
    """Wait while a stream runs that will publish a table, or ranges of its keys.

    :returns: and raises what :func:`~airflow_provider_cdc.resnapshot.staged_reads.is_taken` does, which has these
        parameters.
    """

    def outcome() -> Outcome | None:
        context, plan = group.context, group.plan
        is_pending = any(pending_read.number == staged.number for pending_read in waiting(context, plan))
        result = outcome_of(context, plan.generation, staged.number)  # looked at behind that: the request goes last
        return result if is_pending or result is not None else Outcome(False, "nothing asks for that any more")

    return is_taken(group, store, staged, outcome, description)
