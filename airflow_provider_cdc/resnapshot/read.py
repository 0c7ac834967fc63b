"""Read a chunk group, a whole table or key ranges again into staged slices, and ask the stream to publish the rows.

Staged slices are not visible to readers of the copy. A whole table is planned separately, as it is now, and read with
its current definition. Key ranges get chunks of their own too, but the table keeps its definition and stays part of
the stream. The publishing side is in :mod:`~airflow_provider_cdc.resnapshot.publish`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from functools import partial
from typing import Any

from pymysql.connections import Connection

from airflow_provider_cdc.chunk_groups.chunk_group import (
    ChunkGroup,
    entry_resume_point,
    entry_timeline,
    generation_fence,
    open_sink_tables,
    read_coverage,
    watermarks_of,
)
from airflow_provider_cdc.chunk_groups.slice_jobs import make_snapshot_job
from airflow_provider_cdc.chunk_groups.task import JobRunner
from airflow_provider_cdc.ddl.key_predicate import InvalidKeyPredicate
from airflow_provider_cdc.ddl.token_cursor import DdlNotFollowed
from airflow_provider_cdc.model import server_id_slots as slots
from airflow_provider_cdc.model.errors import (
    ADDED,
    CdcError,
    DdlError,
    NotReadyError,
    OtherServerError,
    PurgedError,
    TableAlteredError,
    TableChangedError,
    TransientError,
)
from airflow_provider_cdc.model.offset import Offset, Position, Timeline
from airflow_provider_cdc.model.plan import Chunk, Plan, cut_into_slices
from airflow_provider_cdc.model.plan_history import Rejoin
from airflow_provider_cdc.model.schema import TableSchema
from airflow_provider_cdc.model.staged_read import GROUP, RANGES, TABLE, StagedRead, amendment_ids
from airflow_provider_cdc.mysql.chunks.planner import plan_ranges, plan_resnapshot, plan_table
from airflow_provider_cdc.mysql.client.session import connect
from airflow_provider_cdc.mysql.keys.ranges import parse_key_ranges
from airflow_provider_cdc.mysql.positions.resume import check_resume_offset
from airflow_provider_cdc.resnapshot.deleted_rows import loss_error
from airflow_provider_cdc.resnapshot.staged_files import allocate_read_number, remove_request, request_publication
from airflow_provider_cdc.resnapshot.wait import publish_or_wait
from airflow_provider_cdc.runtime.run_context import RunContext
from airflow_provider_cdc.sinks.protocol import Feature
from airflow_provider_cdc.sinks.storage.storage import write_json
from airflow_provider_cdc.state import ControlRequestRow, StateDatabase
from airflow_provider_cdc.transforms.sealed_bounds import seal_plan

#: Returns ranges of a table's keys in key order, without overlaps.
RangeFinder = Callable[["Connection[Any]", TableSchema], Sequence[Chunk]]

#: How often a table may be altered while it is being re-snapshotted.
_MAX_TRIES = 20
#: Server errors for a table that changed after it was planned: no such database, column, table, index.
_ALTERED_TABLE_CODES = frozenset({1049, 1054, 1146, 1176})


def run_resnapshot(context: RunContext, store: StateDatabase, label: str, where_key: str | None, run: JobRunner) -> str:
    """Re-snapshot a table, or the rows whose keys match a condition, and wait for the stream to publish them.

    :param label: ``database.table``.
    :param where_key: the condition; see :func:`airflow_provider_cdc.ddl.key_predicate.parse_key_predicate`. ``None``
        for the whole table.
    :param run: runs the slices.
    :returns: ``rejoined`` for a table, ``replaced`` for a part of it, or ``staged`` if no stream is running: the next
        one publishes the rows.
    :raises NotReadyError: if the pipeline has no such table, its snapshot is incomplete, the table cannot be copied,
        or the condition is not a range of its key.
    :raises TransientError: if the table keeps being altered, or the stream could not publish the rows.
    """
    plan = context.plans.require()
    index = find_table_index(context, plan, label)
    if read_coverage(context, plan, open_sink_tables(context, plan)) is None:
        raise NotReadyError(
            f"the snapshot of {plan.pipeline} is not complete",
            "Run `airflow-cdc snapshot` (or `airflow-cdc run`) first",
        )
    published = publish_or_wait(*stage_requested(context, index, where_key, run), store)
    return ("rejoined" if where_key is None else "replaced") if published else "staged"


def find_table_index(context: RunContext, plan: Plan, label: str) -> int:
    """Return the index of a table that the pipeline copies.

    :param label: ``database.table``.
    :raises NotReadyError: if the pipeline copies no such table.
    """
    tables = {t.label: i for i, t in enumerate(plan.tables) if context.pipeline.captures(*t.id)}
    if (index := tables.get(label)) is None:
        known = ", ".join(sorted(tables)[:10])
        raise NotReadyError(f"pipeline {plan.pipeline} copies no table {label}", f"It copies {known}")
    return index


def stage_group(group: ChunkGroup, attempt: int, manifests: Sequence[dict[str, Any]]) -> StagedRead:
    """Record that an attempt at a chunk group is complete: write its manifest, then the request to publish it.

    :param manifests: one entry per file, all read in one segment of the timeline.
    """
    context, plan = group.context, group.plan
    manifests = group.write_manifest(attempt, manifests)
    # Files of an earlier try lack more changes than those of this one.
    since = min((entry_resume_point(entry) for entry in manifests), key=lambda offset: offset.at)
    number = min(entry["reading"] for entry in manifests)
    high, timeline = _highest_watermark(since, manifests), entry_timeline(manifests[0])
    staged = StagedRead(number, GROUP, None, group.number, attempt, high, since, timeline)
    request_publication(context, plan, staged)
    remove_request(context, plan, group.number, attempt - 1)
    return staged


def stage_requested(
    context: RunContext, index: int, where_key: str | None, run: JobRunner, by_request: ControlRequestRow | None = None
) -> tuple[ChunkGroup, StagedRead]:
    """Read what a user requested into staged slices, and ask the stream to publish the rows.

    See :func:`run_resnapshot` for the errors.

    :param index: index of the table in the plan.
    :param where_key: a condition on the key; ``None`` for the whole table.
    :param by_request: the control request that this read serves, if any.
    :returns: the chunks that were read, and the publication request.
    """
    if where_key is None:
        return stage_table(context, index, run, requested_by_user=True, by_request=by_request)
    return stage_ranges(context, index, _ranges_from_condition(index, where_key), run, by_request)


def stage_table(
    context: RunContext,
    index: int,
    run: JobRunner,
    *,
    requested_by_user: bool = False,
    by_request: ControlRequestRow | None = None,
) -> tuple[ChunkGroup, StagedRead]:
    """Read a whole table into staged slices, and ask the stream to publish them.

    See :func:`stage_requested` for the return value.

    :param index: index of the table in the plan.
    :param requested_by_user: whether a user requested this, and so accepts columns of other types.
    :param by_request: the control request that this read serves, if any.
    :raises NotReadyError: if the table cannot be copied, or the sink cannot replace it.
    :raises TransientError: if the table keeps being altered.
    """
    label = context.plans.require().tables[index].label
    for feature in (Feature.RESNAPSHOT, Feature.FOLLOW_DDL):
        context.require_feature(feature, f"table {label} is to be re-snapshotted")
    for is_last in (*[False] * (_MAX_TRIES - 1), True):
        try:
            return _stage_table_once(context, index, run, requested_by_user, by_request)
        except CdcError as error:
            if not _is_alteration_error(error):
                raise
            if is_last:
                raise TransientError(error.message, "Run again when the table is no longer being altered") from error
            context.reporter.line(f"{error.message}: re-snapshotting {label} again")
    raise AssertionError("unreachable")


def _stage_table_once(
    context: RunContext, index: int, run: JobRunner, requested_by_user: bool, by_request: ControlRequestRow | None
) -> tuple[ChunkGroup, StagedRead]:
    plan, chunk_rows = context.plans.require(), context.pipeline.snapshot.chunk_rows
    revision = plan.revision_of(index) + 1
    find_table_index(context, plan, plan.tables[index].label)
    generation_fence(plan, index, revision)  # there is such a revision

    def make_reading_plan(current: TableSchema, seq: int) -> Plan:
        schema = _conform_definition(context, plan, index, current, requested_by_user)
        context.sink.table(schema)  # refuse what the sink cannot have before anything is read
        context.pipeline.sink.delete_policy.mode_of(schema)
        if (loss := loss_error(context, plan, index, schema)) is not None:
            raise loss
        return plan.replace(amendments=(*plan.amendments, Rejoin(index, revision, seq, schema)))

    def cut_chunks(connection: Connection[Any], table: TableSchema) -> list[Chunk]:
        return plan_table(connection, index, table, chunk_rows)

    return _stage_chunks(context, plan, TABLE, index, cut_chunks, make_reading_plan, run, by_request)


def stage_ranges(
    context: RunContext, index: int, ranges: RangeFinder, run: JobRunner, by_request: ControlRequestRow | None = None
) -> tuple[ChunkGroup, StagedRead]:
    """Read key ranges into staged slices, and ask the stream to publish them.

    See :func:`stage_requested` for the other parameters and the return value.

    :param ranges: finds the ranges.
    :raises NotReadyError: if the table can only be re-snapshotted as a whole.
    :raises TransientError: if the stream has not followed the table's last DDL yet, or the table is altered.
    """
    plan, chunk_rows = context.plans.require(), context.pipeline.snapshot.chunk_rows
    label = plan.tables[index].label
    context.require_feature(Feature.RESNAPSHOT, f"a part of table {label} is to be re-snapshotted")

    def cut_chunks(connection: Connection[Any], current: TableSchema) -> list[Chunk]:
        _check_definition(context, plan, index, current)
        return plan_ranges(connection, current, ranges(connection, current), chunk_rows)

    try:
        return _stage_chunks(context, plan, RANGES, index, cut_chunks, lambda *_: plan, run, by_request)
    except CdcError as error:
        if not _is_alteration_error(error):
            raise
        message = f"{label} was altered while it was read: {error.message}"
        raise TransientError(message, "Run again when the stream has followed the change", table=label) from error


def _stage_chunks(
    context: RunContext,
    plan: Plan,
    scope: str,
    index: int,
    cut_chunks: Callable[[Connection[Any], TableSchema], list[Chunk]],
    make_reading_plan: Callable[[TableSchema, int], Plan],
    run: JobRunner,
    by_request: ControlRequestRow | None,
) -> tuple[ChunkGroup, StagedRead]:
    """Plan chunks of one table, read them into staged slices, and request publication of the rows.

    :param plan: the plan as it was before anything was queried.
    :param scope: :data:`~airflow_provider_cdc.model.staged_read.TABLE` or ``RANGES``.
    :param make_reading_plan: returns the plan whose definitions the chunks are read with, from the definition of the
        table and the ``_cdc_seq`` of the low watermark.
    :raises OtherHistoryError: if the binlog is not the one that the stream has read: it could never publish the rows.
    """
    resume_point, timeline = context.resume_state(plan)
    with closing(connect(context.connect_args)) as connection:
        with suppress(PurgedError, OtherServerError):  # the next stream decides then
            check_resume_offset(connection, resume_point, context.binlog_opener(slots.PLAN))
        since, schema, planned_chunks = plan_resnapshot(
            connection,
            plan.tables[index],
            index,
            timeline.server,
            apply_rules=partial(context.copy_rules.apply_to_altered, before=plan.tables[index]),
            cut_chunks=cut_chunks,
            open_at=context.binlog_opener(slots.PLAN),
        )
    reading_plan = make_reading_plan(schema, timeline.seq(since.at))
    number = allocate_read_number(context, plan, scope, index)  # after the start position was taken
    chunks = tuple(chunk.replace(number=no, group=number) for no, chunk in enumerate(planned_chunks))
    group = ChunkGroup(context, reading_plan.replace(chunks=chunks), number)
    part = seal_plan(group.plan, context.hash_key).part_for([index])
    write_json(context.storage, context.layout.group_plan(plan.generation, number), part.to_json())
    manifests = group.write_manifest(1, _read_slices(group, since, timeline, run, plan.tables[index].label))
    staged = StagedRead(
        number,
        scope,
        index,
        number,
        1,
        _highest_watermark(since, manifests),
        since,
        timeline.newest_segment,
        plan.revision_of(index),
        amendment_ids(plan, index),
        *(() if by_request is None else (by_request.id, by_request.by)),
    )
    request_publication(context, plan, staged)
    return group, staged


def _read_slices(
    group: ChunkGroup, since: Offset, timeline: Timeline, run: JobRunner, label: str
) -> list[dict[str, Any]]:
    """Read all slices of a group that is not part of the plan, and return their manifests.

    :raises TransientError: if the read is incomplete.
    """
    chunks = group.plan.chunks
    if not chunks:
        return []
    slice_numbers = range(len(cut_into_slices(chunks)))
    group.context.reporter.line(f"re-snapshotting {label}: {len(chunks)} chunks, from {since.at} on")
    manifests = [*run(make_snapshot_job(group, 1, slice_numbers, since, timeline, group.number))]
    if {manifest["slice"] for manifest in manifests} != set(slice_numbers):
        raise TransientError(f"{label} was not read completely", "Run again to read it from the start")
    for manifest in manifests:
        manifest.pop("asked", None)
    return sorted(manifests, key=lambda manifest: int(manifest["slice"]))


def _highest_watermark(since: Offset, manifests: Sequence[dict[str, Any]]) -> Position:
    """Return the highest high watermark of the chunks in some files, or the start position if there are none."""
    return max([since.at, *(watermarks_of(chunk)[1] for entry in manifests for chunk in entry["chunks"])])


def _is_alteration_error(error: CdcError) -> bool:
    """Return whether a table could not be read because it was altered."""
    return isinstance(error, TableAlteredError | DdlError | TableChangedError) or error.code in _ALTERED_TABLE_CODES


def _conform_definition(
    context: RunContext, plan: Plan, index: int, current: TableSchema, requested_by_user: bool
) -> TableSchema:
    """Return the definition with the columns that the copy is to have.

    :raises NotReadyError: if the pipeline's ``stream.schema_changes`` does not allow it.
    """
    suspension, before = plan.suspension_of(index), plan.tables[index]
    if suspension is not None and suspension.kind == ADDED:  # there is no copy yet
        return current
    try:
        return context.schema_policy.decide_definition(
            before, current, overwrites_rows=True, is_requested=requested_by_user
        )
    except DdlNotFollowed as error:
        raise NotReadyError(
            f"{before.label}: {error}", f"To copy it as it is now: airflow-cdc resnapshot --table {before.label}"
        ) from None


def _ranges_from_condition(index: int, where_key: str) -> RangeFinder:
    """Return a function that finds the key ranges of a condition."""

    def ranges(connection: Connection[Any], table: TableSchema) -> Sequence[Chunk]:
        try:
            return parse_key_ranges(connection, table, index, where_key)
        except InvalidKeyPredicate as error:
            raise NotReadyError(
                f"the condition on the key of {table.label}: {error}",
                f"Write it as a range of the key ({', '.join(table.key)})",
                table=table.label,
            ) from None

    return ranges


def _check_definition(context: RunContext, plan: Plan, index: int, current: TableSchema) -> None:
    """Check that rows read now have the same definition as the rows in the copy.

    :param current: the definition in the source now.
    :raises NotReadyError: if the table can only be re-snapshotted as a whole.
    :raises TransientError: if the stream has not followed the table's last DDL yet.
    """
    table = plan.tables[index]
    whole_remedy = f"Re-snapshot the whole table: airflow-cdc resnapshot --table {table.label}"
    if plan.suspension_of(index) is not None:
        raise NotReadyError(
            f"{table.label} is suspended and is not part of the stream", whole_remedy, table=table.label
        )
    if not table.key:
        raise NotReadyError(f"{table.label} has no usable key", whole_remedy, table=table.label)
    if table.has_hashed_key:
        raise NotReadyError(f"the key of {table.label} is hashed in its copy", whole_remedy, table=table.label)
    try:
        conformed = context.schema_policy.decide_definition(table, current)
    except DdlNotFollowed as error:
        raise NotReadyError(f"{table.label}: {error}", whole_remedy, table=table.label) from None
    if conformed.fingerprint() != table.fingerprint():
        raise TransientError(
            f"{table.label} was altered, and the stream has not followed that yet",
            "Run again when it has",
            table=table.label,
        )
