"""A table is read again as a whole while the stream runs, and takes its place in the stream again: it rejoins.

Whoever wants that plans the table by itself, as it is now, and reads it with the ordinary chunk reader into staged
slices, which nobody sees. Then it asks the stream to exchange the rows. The stream's driver does that between two
batches, when it has passed the highest high watermark: it brings the slices to its own place in the binlog, writes
down that the table begins anew there, and exchanges all rows and the columns in one commit. From that place on the
stream follows the table as it was read. That is in :mod:`~airflow_provider_cdc.resnapshot.overwrite`;
the argument is in docs/correctness.md.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace

from airflow_provider_cdc.chunk_groups.chunk_group import ChunkGroup, generation_fence, open_sink_tables, read_coverage
from airflow_provider_cdc.chunk_groups.task import JobRunner
from airflow_provider_cdc.ddl.token_cursor import DdlNotFollowed
from airflow_provider_cdc.model import server_id_slots as slots
from airflow_provider_cdc.model.errors import (
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
from airflow_provider_cdc.model.suspension_kinds import ADDED
from airflow_provider_cdc.mysql.chunks.planner import plan_resnapshot, plan_table
from airflow_provider_cdc.mysql.client.session import connect
from airflow_provider_cdc.resnapshot.ad_hoc_read import stage_ad_hoc_read, wait_for_ad_hoc_read
from airflow_provider_cdc.resnapshot.deleted_rows import loss_error
from airflow_provider_cdc.runtime.run_context import RunContext
from airflow_provider_cdc.sinks.protocol import Feature
from airflow_provider_cdc.state import ControlRequestRow, StateDatabase

#: How often a table may be altered while it is read again.
_MAX_TRIES = 20
#: What the server says of a table that has changed since it was planned: no such database, column, table, index.
_ALTERED_TABLE_CODES = frozenset({1049, 1054, 1146, 1176})


def resnapshot_table(context: RunContext, store: StateDatabase, label: str, run: JobRunner) -> str:
    """Read a table again, and wait for the stream to exchange its rows.

    :param label: ``database.table``.
    :param run: runs the slices.
    :returns: ``rejoined``, or ``staged`` where no stream runs: the next one does it.
    :raises NotReadyError: if the pipeline has no such table, its snapshot is not complete, or the table cannot be
        copied.
    :raises TransientError: if it is altered all the time, or the stream could not exchange the rows.
    """
    group, staged = stage_table(context, require_table_index(context, label), run, requested_by_user=True)
    if wait_for_ad_hoc_read(group, store, staged, f"{label} was read again"):
        return "rejoined"
    context.reporter.line(f"{label} was read again; no stream runs: the next one takes it in")
    return "staged"


def require_table_index(context: RunContext, label: str) -> int:
    """Index of a table that somebody wants to be read again.

    :param label: ``database.table``.
    :raises NotReadyError: if the pipeline has no such table, or its snapshot is not complete.
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
    """Index of a table that the pipeline copies.

    :param label: ``database.table``.
    :raises NotReadyError: if it copies no such table.
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
    """Read a table again, and ask the stream to exchange its rows.

    :param index: index of the table in the plan.
    :param requested_by_user: whether somebody has asked for it, and takes columns of other types for granted.
    :param by_request: the request by which somebody has, if it was by one.
    :returns: what was read, and what asks for it.
    :raises NotReadyError: if the table cannot be copied, or the sink cannot exchange it.
    :raises TransientError: if it is altered all the time.
    """
    label = context.require_plan().tables[index].label
    for feature in (Feature.RESNAPSHOT, Feature.FOLLOW_DDL):
        context.require_feature(feature, f"table {label} is to be read again")
    for is_last in (*[False] * (_MAX_TRIES - 1), True):
        try:
            return _stage_table_once(context, context.require_plan(), index, run, requested_by_user, by_request)
        except CdcError as error:
            if not is_alteration_error(error):
                raise
            if is_last:
                raise TransientError(error.message, "Run again when the table is not altered any more") from error
            context.reporter.line(f"{error.message}: {label} is read once more")
    raise AssertionError("unreachable")


def is_alteration_error(error: CdcError) -> bool:
    """Whether a table could not be read since it was altered."""
    return isinstance(error, TableAlteredError | DdlError | TableChangedError) or error.code in _ALTERED_TABLE_CODES


def _stage_table_once(
    context: RunContext,
    plan: Plan,
    index: int,
    run: JobRunner,
    requested_by_user: bool,
    by_request: ControlRequestRow | None,
) -> tuple[ChunkGroup, StagedRead]:
    """Plan the table by itself, read it, and ask for it to be exchanged."""
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
    context.sink.table(schema)  # what it cannot have is refused before anything is read
    context.pipeline.sink.delete_policy.mode_of(schema)
    if (loss := loss_error(context, plan, index, schema)) is not None:
        raise loss
    rejoin = Rejoin(index, plan.revision_of(index) + 1, timeline.seq(since.at), schema)
    reading_plan = replace(plan, amendments=(*plan.amendments, rejoin))
    return stage_ad_hoc_read(context, plan, reading_plan, TABLE, index, chunks, since, timeline, run, by_request)


def _conform_definition(
    context: RunContext, plan: Plan, index: int, current: TableSchema, requested_by_user: bool
) -> TableSchema:
    """The definition with the columns that the copy is to have.

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
            f"{before.label}: {error}", f"To take it over: airflow-cdc resnapshot --table {before.label}"
        ) from None
