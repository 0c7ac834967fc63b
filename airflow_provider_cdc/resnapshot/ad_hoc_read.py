"""Ad-hoc reads: re-snapshot a table, or ranges of its keys, as a chunk group that is not in the plan."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from airflow_provider_cdc.chunk_groups.chunk_group import ChunkGroup, watermarks_of
from airflow_provider_cdc.chunk_groups.slice_jobs import make_snapshot_job
from airflow_provider_cdc.chunk_groups.task import JobRunner
from airflow_provider_cdc.model.errors import TransientError
from airflow_provider_cdc.model.offset import Offset, Timeline
from airflow_provider_cdc.model.plan import Chunk, Plan, cut_into_slices
from airflow_provider_cdc.model.staged_read import StagedRead, amendment_ids
from airflow_provider_cdc.resnapshot.staged_files import (
    ReadOutcome,
    allocate_read_number,
    list_pending_reads,
    load_outcome,
    request_publication,
)
from airflow_provider_cdc.resnapshot.staged_reads import wait_until_published
from airflow_provider_cdc.runtime.run_context import RunContext
from airflow_provider_cdc.sinks.storage.storage import write_json
from airflow_provider_cdc.state import ControlRequestRow, StateDatabase


def stage_ad_hoc_read(
    context: RunContext,
    plan: Plan,
    reading_plan: Plan,
    scope: str,
    index: int,
    chunks: Sequence[Chunk],
    since: Offset,
    timeline: Timeline,
    run: JobRunner,
    by_request: ControlRequestRow | None,
) -> tuple[ChunkGroup, StagedRead]:
    """Read chunks of one table into staged slices, write their manifest, and request publication of the rows.

    :param plan: the plan as it was before anything was queried.
    :param reading_plan: the plan whose definitions the chunks are read with.
    :param scope: :data:`~airflow_provider_cdc.model.staged_read.TABLE` or ``RANGES``.
    :param index: index of the table in the plan.
    :param since: low watermark of the whole read.
    :param timeline: numbers the transactions of the server that ``since`` belongs to.
    :param run: runs the slices.
    :param by_request: the control request that this read serves, if any.
    :returns: the chunk group that was read, and the publication request.
    :raises TransientError: if the read is incomplete.
    """
    read_number = allocate_read_number(context, plan, scope, index)
    grouped = tuple(chunk.replace(number=no, group=read_number) for no, chunk in enumerate(chunks))
    group = ChunkGroup(context, reading_plan.replace(chunks=grouped), read_number)
    write_json(context.storage, context.layout.group_plan(plan.generation, read_number), group.plan.to_json())
    manifests: list[dict[str, Any]] = []
    if chunks:
        missing, label = range(len(cut_into_slices(grouped))), plan.tables[index].label
        context.reporter.line(f"re-snapshotting {label}: {len(chunks)} chunks, from {since.at} on")
        for manifest in run(make_snapshot_job(group, 1, missing, since, timeline, read_number)):
            manifest.pop("asked", None)
            manifests.append(manifest)
        if {manifest["slice"] for manifest in manifests} != set(missing):
            raise TransientError(f"{label} was not read completely", "Run again to read it from the start")
    manifests = group.write_manifest(1, sorted(manifests, key=lambda manifest: int(manifest["slice"])))
    high = max([since.at, *(watermarks_of(chunk)[1] for entry in manifests for chunk in entry["chunks"])])
    staged = StagedRead(
        read_number,
        scope,
        index,
        read_number,
        1,
        high,
        since,
        timeline.newest_segment,
        plan.revision_of(index),
        amendment_ids(plan, index),
        None if by_request is None else by_request.id,
        None if by_request is None else by_request.by,
    )
    request_publication(context, plan, staged)
    return group, staged


def wait_for_ad_hoc_read(group: ChunkGroup, store: StateDatabase, staged: StagedRead, description: str) -> bool:
    """Wait while a stream is running that will publish the table or its key ranges.

    See :func:`~airflow_provider_cdc.resnapshot.staged_reads.wait_until_published` for the parameters, the return value
    and the errors.
    """

    def outcome() -> ReadOutcome | None:
        context, plan = group.context, group.plan
        is_pending = any(pending_read.number == staged.number for pending_read in list_pending_reads(context, plan))
        result = load_outcome(context, plan.generation, staged.number)  # after that check: requests go last
        return result if is_pending or result is not None else ReadOutcome(False, "its request no longer exists")

    return wait_until_published(group, store, staged, outcome, description)
