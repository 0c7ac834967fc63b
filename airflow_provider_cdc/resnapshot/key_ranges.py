"""Re-snapshot ranges of a table's keys while the stream runs, and overwrite the copy's rows in those ranges.

This works like the re-snapshot of a chunk group, but with its own chunks; the argument is in docs/correctness.md.
The table keeps its definition and stays part of the stream.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any

from pymysql.connections import Connection

from airflow_provider_cdc.chunk_groups.chunk_group import ChunkGroup
from airflow_provider_cdc.chunk_groups.task import JobRunner
from airflow_provider_cdc.ddl.key_predicate import InvalidKeyPredicate
from airflow_provider_cdc.ddl.token_cursor import DdlNotFollowed
from airflow_provider_cdc.model import server_id_slots as slots
from airflow_provider_cdc.model.errors import (
    CdcError,
    NotReadyError,
    TransientError,
)
from airflow_provider_cdc.model.plan import Chunk, Plan
from airflow_provider_cdc.model.schema import TableSchema
from airflow_provider_cdc.model.staged_read import RANGES, StagedRead
from airflow_provider_cdc.mysql.chunks.planner import plan_ranges, plan_resnapshot
from airflow_provider_cdc.mysql.client.session import connect
from airflow_provider_cdc.mysql.keys.ranges import parse_key_ranges
from airflow_provider_cdc.resnapshot.ad_hoc_read import stage_ad_hoc_read, wait_for_ad_hoc_read
from airflow_provider_cdc.resnapshot.whole_table import is_alteration_error, require_table_index, resnapshot_table
from airflow_provider_cdc.runtime.run_context import RunContext
from airflow_provider_cdc.sinks.protocol import Feature
from airflow_provider_cdc.state import ControlRequestRow, StateDatabase

#: Returns ranges of a table's keys in key order, without overlaps.
RangeFinder = Callable[["Connection[Any]", TableSchema], Sequence[Chunk]]


def run_resnapshot(context: RunContext, store: StateDatabase, label: str, where_key: str | None, run: JobRunner) -> str:
    """Re-snapshot a table, or the rows whose keys match a condition, and wait for the stream to publish them.

    See :func:`~airflow_provider_cdc.resnapshot.whole_table.resnapshot_table` and :func:`resnapshot_where` for the
    return value and the errors.

    :param where_key: the condition; ``None`` for the whole table.
    """
    if where_key is None:
        return resnapshot_table(context, store, label, run)
    return resnapshot_where(context, store, label, where_key, run)


def resnapshot_where(context: RunContext, store: StateDatabase, label: str, where_key: str, run: JobRunner) -> str:
    """Re-snapshot the rows whose keys match a condition, and wait for the stream to publish them.

    :param label: ``database.table``.
    :param where_key: the condition; see :func:`airflow_provider_cdc.ddl.key_predicate.parse_key_predicate`.
    :param run: runs the slices.
    :returns: ``replaced``, or ``staged`` if no stream is running: the next one publishes the rows.
    :raises NotReadyError: if the pipeline has no such table, its snapshot is incomplete, the condition is not a range
        of its key, or the table is suspended.
    :raises TransientError: if the stream has not followed the table's last DDL yet, or could not publish the rows.
    """
    index = require_table_index(context, label)
    return resnapshot_ranges(context, store, index, _ranges_from_condition(index, where_key), run)


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


def resnapshot_ranges(
    context: RunContext, store: StateDatabase, index: int, ranges: RangeFinder, run: JobRunner
) -> str:
    """Re-snapshot ranges of a table's keys, and wait for the stream to publish their rows.

    See :func:`resnapshot_where` for the return value and the errors.

    :param index: index of the table in the plan.
    :param ranges: finds the ranges.
    :param run: runs the slices.
    """
    label = context.require_plan().tables[index].label
    group, staged = _stage_ranges(context, index, ranges, run)
    description = f"{label} was re-snapshotted in part"
    if wait_for_ad_hoc_read(group, store, staged, description):
        return "replaced"
    context.reporter.line(f"{description}; no stream is running: the next one will publish the rows")
    return "staged"


def stage_where(context: RunContext, index: int, where_key: str, run: JobRunner, by_request: ControlRequestRow) -> None:
    """Read the rows of a control request again, and ask the stream to publish them.

    See :func:`resnapshot_where` for the other parameters and the errors.

    :param by_request: the control request.
    """
    _stage_ranges(context, index, _ranges_from_condition(index, where_key), run, by_request)


def _stage_ranges(
    context: RunContext, index: int, ranges: RangeFinder, run: JobRunner, by_request: ControlRequestRow | None = None
) -> tuple[ChunkGroup, StagedRead]:
    """Read ranges into staged slices, and request their publication.

    :raises TransientError: if the table is altered in the meantime.
    """
    try:
        return _stage_ranges_once(context, index, ranges, run, by_request)
    except CdcError as error:
        if not is_alteration_error(error):
            raise
        label = context.require_plan().tables[index].label
        message = f"{label} was altered while it was read: {error.message}"
        raise TransientError(message, "Run again when the stream has followed the change", table=label) from error


def _stage_ranges_once(
    context: RunContext, index: int, ranges: RangeFinder, run: JobRunner, by_request: ControlRequestRow | None
) -> tuple[ChunkGroup, StagedRead]:
    plan = context.require_plan()
    label = plan.tables[index].label
    context.require_feature(Feature.RESNAPSHOT, f"a part of table {label} is to be re-snapshotted")
    _, timeline = context.resume_state(plan)

    def cut(connection: Connection[Any], current: TableSchema) -> list[Chunk]:
        _check_definition(context, plan, index, current)
        return plan_ranges(connection, current, ranges(connection, current), context.pipeline.snapshot.chunk_rows)

    with closing(connect(context.connect_args)) as connection:
        since, _, chunks = plan_resnapshot(
            connection,
            plan.tables[index],
            index,
            timeline.server,
            keeps=context.pipeline.copies_column,
            cut_chunks=cut,
            open_at=context.binlog_opener(slots.PLAN),
        )
    return stage_ad_hoc_read(context, plan, plan, RANGES, index, chunks, since, timeline, run, by_request)


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
