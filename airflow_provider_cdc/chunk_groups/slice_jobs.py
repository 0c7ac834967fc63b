"""Make the jobs that read slices of a chunk group, with the replication server ids that they use."""

from __future__ import annotations

from collections.abc import Sequence

from airflow_provider_cdc.chunk_groups.chunk_group import ChunkGroup
from airflow_provider_cdc.chunk_groups.task import SnapshotJob
from airflow_provider_cdc.model import server_id_slots as slots
from airflow_provider_cdc.model.offset import Offset, Timeline
from airflow_provider_cdc.model.staged_read import FIRST_READ_NUMBER
from airflow_provider_cdc.mysql.binlog.events.binlog_source import BinlogSource, OpenStreamAt
from airflow_provider_cdc.runtime.run_context import RunContext


def make_snapshot_job(
    group: ChunkGroup,
    attempt: int,
    slice_numbers: Sequence[int],
    resume_point: Offset,
    timeline: Timeline,
    resnapshot_number: int = 0,
) -> SnapshotJob:
    """Make the job that reads slices of a group.

    :param slice_numbers: numbers of the slices.
    :param resume_point: the resume point before the read.
    :param timeline: numbers the transactions of the resume point's server.
    :param resnapshot_number: number of the read, if this is a re-snapshot; else 0.
    """
    context = group.context
    return SnapshotJob(
        connect_args=dict(context.connect_args),
        replica_ids=replica_ids(context, group.number, attempt, len(slice_numbers)),
        sink=context.sink,
        storage=context.storage,
        layout=context.layout,
        generation=group.plan.generation,
        group=group.number,
        attempt=attempt,
        slice_numbers=tuple(slice_numbers),
        limits=context.pipeline.snapshot.load_limits,
        zero_dates=context.pipeline.source.zero_dates,
        timeline=timeline.newest_segment,
        resume_point=resume_point,
        resnapshot_number=resnapshot_number,
        hash_key=context.hash_key,
    )


def replica_ids(
    context: RunContext, group: int, attempt: int, slice_count: int
) -> tuple[tuple[tuple[int, str], ...], ...]:
    """Return the replication server id and uuid of each task copy of each worker of an attempt."""
    parallelism = context.pipeline.snapshot.parallelism
    if group < FIRST_READ_NUMBER:
        workers = slots.chunk_worker_slots(group, attempt, parallelism)
    else:
        workers = slots.resnapshot_worker_slots(group - FIRST_READ_NUMBER, parallelism)
    return tuple(tuple(map(context.pipeline.replica_ids, copies)) for copies in workers[: max(1, slice_count)])


def binlog_opener(context: RunContext, group: int, attempt: int) -> OpenStreamAt:
    """Return a function that opens the binlog with a worker's server id, for use before the workers start."""
    return BinlogSource(context.connect_args, replica=replica_ids(context, group, attempt, 1)[0][0]).open_to_end
