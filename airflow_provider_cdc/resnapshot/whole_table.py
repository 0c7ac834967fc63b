"""Re-snapshot a whole table while the stream runs; afterwards the table rejoins the stream.

The reading process plans the table separately, as it is now. It reads the table with the ordinary chunk reader into
staged slices, which are not visible to readers of the copy. Then it asks the stream to publish the rows. The stream's
driver does that between two batches, once it has passed the highest high watermark: it brings the slices forward to
its own binlog position, records that the table rejoins there, and replaces all rows and columns in one commit. From
that position on, the stream follows the table with the definition that it was read with. The publishing side is in
:mod:`~airflow_provider_cdc.resnapshot.overwrite`; the argument is in docs/correctness.md.
"""

from __future__ import annotations

from contextlib import closing

from airflow_provider_cdc.chunk_groups.chunk_group import ChunkGroup, generation_fence, open_sink_tables, read_coverage
from airflow_provider_cdc.chunk_groups.task import JobRunner
from airflow_provider_cdc.ddl.token_cursor import DdlNotFollowed
from airflow_provider_cdc.model import server_id_slots as slots
from airflow_provider_cdc.model.errors import (
    ADDED,
    CdcError,
    DdlError,
    NotReadyError,
    TableAlteredError,
    TableChangedError,
    TransientError,
)
from airflow_provider_cdc.model.plan import Plan
from airflow_provider_cdc.model.plan_history import Rejoin
from airflow_provider_cdc.model.schema import TableSchema
from airflow_provider_cdc.model.staged_read import TABLE, StagedRead
from airflow_provider_cdc.mysql.chunks.planner import plan_resnapshot, plan_table
from airflow_provider_cdc.mysql.client.session import connect
from airflow_provider_cdc.resnapshot.ad_hoc_read import stage_ad_hoc_read, wait_for_ad_hoc_read
from airflow_provider_cdc.resnapshot.deleted_rows import loss_error
from airflow_provider_cdc.runtime.run_context import RunContext
from airflow_provider_cdc.sinks.protocol import Feature
from airflow_provider_cdc.state import ControlRequestRow, StateDatabase

#: How often a table may be altered while it is being re-snapshotted.
_MAX_TRIES = 20
#: Server errors for a table that changed after it was planned: no such database, column, table, index.
_ALTERED_TABLE_CODES = frozenset({1049, 1054, 1146, 1176})


def resnapshot_table(context: RunContext, store: StateDatabase, label: str, run: JobRunner) -> str:
    """Re-snapshot a table, and wait for the stream to publish its rows.

    :param label: ``database.table``.
    :param run: runs the slices.
    :returns: ``rejoined``, or ``staged`` if no stream is running: the next one publishes the rows.
    :raises NotReadyError: if the pipeline has no such table, its snapshot is incomplete, or the table cannot be copied.
    :raises TransientError: if the table keeps being altered, or the stream could not publish the rows.
    """
    group, staged = stage_table(context, require_table_index(context, label), run, requested_by_user=True)
    if wait_for_ad_hoc_read(group, store, staged, f"{label} was re-snapshotted"):
        return "rejoined"
    context.reporter.line(f"{label} was re-snapshotted; no stream is running: the next one will publish it")
    return "staged"


def require_table_index(context: RunContext, label: str) -> int:
    """Return the index of a table that is to be re-snapshotted.

    :param label: ``database.table``.
    :raises NotReadyError: if the pipeline has no such table, or its snapshot is incomplete.
    """
    plan = context.require_plan()
    index = find_table_index(context, plan, label)
    if read_coverage(context, plan, open_sink_tables(context, plan)) is None:
        raise NotReadyError(
            f"the snapshot of {plan.pipeline} is not complete",
            "Run `airflow-cdc snapshot` (or `airflow-cdc run`) first",
        )
    return index


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


def stage_table(
    context: RunContext,
    index: int,
    run: JobRunner,
    *,
    requested_by_user: bool = False,
    by_request: ControlRequestRow | None = None,
) -> tuple[ChunkGroup, StagedRead]:
    """Read a whole table into staged slices, and ask the stream to publish them.

    :param index: index of the table in the plan.
    :param requested_by_user: whether a user requested this, and so accepts columns of other types.
    :param by_request: the control request that this read serves, if any.
    :returns: the chunk group that was read, and the publication request.
    :raises NotReadyError: if the table cannot be copied, or the sink cannot replace it.
    :raises TransientError: if the table keeps being altered.
    """
    label = context.require_plan().tables[index].label
    for feature in (Feature.RESNAPSHOT, Feature.FOLLOW_DDL):
        context.require_feature(feature, f"table {label} is to be re-snapshotted")
    for is_last in (*[False] * (_MAX_TRIES - 1), True):
        try:
            return _stage_table_once(context, context.require_plan(), index, run, requested_by_user, by_request)
        except CdcError as error:
            if not is_alteration_error(error):
                raise
            if is_last:
                raise TransientError(error.message, "Run again when the table is no longer being altered") from error
            context.reporter.line(f"{error.message}: re-snapshotting {label} again")
    raise AssertionError("unreachable")


def is_alteration_error(error: CdcError) -> bool:
    """Return whether a table could not be read because it was altered."""
    return isinstance(error, TableAlteredError | DdlError | TableChangedError) or error.code in _ALTERED_TABLE_CODES


def _stage_table_once(
    context: RunContext,
    plan: Plan,
    index: int,
    run: JobRunner,
    requested_by_user: bool,
    by_request: ControlRequestRow | None,
) -> tuple[ChunkGroup, StagedRead]:
    """Plan the table separately, read it, and request publication."""
    find_table_index(context, plan, plan.tables[index].label)
    generation_fence(plan, index, plan.revision_of(index) + 1)  # there is a next revision
    _, timeline = context.resume_state(plan)
    open_at = context.binlog_opener(slots.PLAN)
    with closing(connect(context.connect_args)) as connection:
        since, schema, chunks = plan_resnapshot(
            connection,
            plan.tables[index],
            index,
            timeline.server,
            keeps=context.pipeline.copies_column,
            cut_chunks=lambda connection, table: plan_table(
                connection, index, table, context.pipeline.snapshot.chunk_rows
            ),
            open_at=open_at,
        )
    schema = _conform_definition(context, plan, index, schema, requested_by_user)
    context.sink.table(schema)  # refuse what the sink cannot have before anything is read
    context.pipeline.sink.delete_policy.mode_of(schema)
    if (loss := loss_error(context, plan, index, schema)) is not None:
        raise loss
    rejoin = Rejoin(index, plan.revision_of(index) + 1, timeline.seq(since.at), schema)
    reading_plan = plan.replace(amendments=(*plan.amendments, rejoin))
    return stage_ad_hoc_read(context, plan, reading_plan, TABLE, index, chunks, since, timeline, run, by_request)


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
