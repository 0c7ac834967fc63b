"""Where a stream continues: at its resume point, also after a failover, once all checks have passed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any

from pymysql.connections import Connection

from airflow_provider_cdc.apply.applier import Applier
from airflow_provider_cdc.apply.follow_ddl import adapt_alteration
from airflow_provider_cdc.chunk_groups.chunk_group import SnapshotCoverage
from airflow_provider_cdc.ddl.alter_table import DdlNotFollowed, apply_ddl
from airflow_provider_cdc.model import server_id_slots as slots
from airflow_provider_cdc.model.definition_history import DefinitionHistory, histories_by_table
from airflow_provider_cdc.model.errors import (
    NotFollowedError,
    NotReadyError,
    OtherHistoryError,
    PurgedError,
    TerminalError,
)
from airflow_provider_cdc.model.offset import Position
from airflow_provider_cdc.model.plan import Plan
from airflow_provider_cdc.model.schema import TableSchema
from airflow_provider_cdc.mysql.binlog.events.transactions import Transaction, read_transactions
from airflow_provider_cdc.mysql.client.catalog import current_fingerprint
from airflow_provider_cdc.mysql.client.identity import binlog_end, binlog_status, server_identity
from airflow_provider_cdc.mysql.client.replication_filters import excluding_filter, read_filters
from airflow_provider_cdc.mysql.client.server_traits import read_server_traits
from airflow_provider_cdc.mysql.client.session import connect
from airflow_provider_cdc.mysql.positions.binlog_files import file_start_time
from airflow_provider_cdc.mysql.positions.failover import fail_over, is_other_server
from airflow_provider_cdc.mysql.positions.resume import check_resume_offset
from airflow_provider_cdc.resnapshot.suspension import record_suspensions, suspend_in_plan
from airflow_provider_cdc.runtime.outages import tolerate_outage
from airflow_provider_cdc.runtime.run_context import RunContext
from airflow_provider_cdc.state import StateDatabase

_OTHER_SERVER_REMEDY = "Point the connection to a server that has the same tables, or start with a fresh sink.path"


def move_to_resume_point(
    context: RunContext, store: StateDatabase, plan: Plan, applier: Applier, coverage: Sequence[SnapshotCoverage]
) -> tuple[Plan, Position]:
    """Move the applier to the position where it continues. The fence of its epoch is already raised.

    :param coverage: what the snapshot has read.
    :returns: the plan, without the tables that cannot continue on another server; and the end of the server's binlog,
        which is not before anything that the snapshot has read.
    :raises CdcError: if changes would be missing or different from there on.
    """
    with closing(connect(context.connect_args)) as connection:
        _check_binlog_filters(connection)
        with _add_purge_remedy(context):
            if is_other_server(connection, applier.offset):
                plan = _fail_over(context, store, plan, applier, connection)
            applier.replace_offset(check_resume_offset(connection, applier.offset, context.binlog_opener(slots.STREAM)))
        marks = [seq for table in coverage for seq in table.high_watermarks]
        if applier.timeline.seq(applier.offset.at) < max(marks, default=0):
            _check_same_files(context, applier, coverage)
        binlog_position = binlog_end(connection)
        end = applier.timeline.position(max([applier.timeline.seq(binlog_position), *marks]))
        if binlog_position < end:
            raise OtherHistoryError(
                f"the binlog of the server ends at {binlog_position}, and the snapshot read up to {end}"
            )
    return plan, end


def _check_binlog_filters(connection: Connection[Any]) -> None:
    """Refuse a server that leaves changes out of its binlog, as a promoted replica may.

    :raises TerminalError: if it does.
    """
    _, do, ignore = binlog_status(connection)
    if do or ignore:
        raise TerminalError(
            f"server {server_identity(connection)} leaves databases out of its binary log (binlog-do-db={do}, "
            f"binlog-ignore-db={ignore})",
            "Remove these options: changes that are not in the binary log cannot be copied. Changes made since the "
            "options were set are missing from the copy: `airflow-cdc verify --repair` finds them",
        )


def _check_same_files(context: RunContext, applier: Applier, coverage: Sequence[SnapshotCoverage]) -> None:
    """Check that the positions in the chunks refer to the binlog that the server has today.

    Positions decide which changes the chunks already contain.
    """
    at = applier.offset
    for base, file, began in sorted({known for table in coverage for known in table.binlog_files}):
        if base == applier.timeline.first_ordinal and at.at.file != file and at.at < Position(file, 0):
            file_start_time(context.binlog_opener(slots.STREAM), file, known=began)


@contextmanager
def _add_purge_remedy(context: RunContext) -> Iterator[None]:
    """Add to a purge error what the user can do about it in this pipeline."""
    try:
        yield
    except PurgedError as error:
        way = "" if context.pipeline.stream.on_purged == "reread" else "set stream.on_purged to reread and "
        raise PurgedError(
            error.message,
            f"Raise binlog_expire_logs_seconds. To re-snapshot all tables, {way}use `airflow-cdc run` (in Airflow: "
            "clear the planner and everything downstream), or start with a fresh sink.path",
        ) from None


def _fail_over(
    context: RunContext, store: StateDatabase, plan: Plan, applier: Applier, connection: Connection[Any]
) -> Plan:
    """Continue on the server that the connection now reaches; tables that cannot continue there are suspended first.

    :returns: the plan without these tables.
    :raises CdcError: if the stream cannot continue there. No table is suspended in this case.
    """
    pipeline, old_offset = context.pipeline, applier.offset
    open_at = context.binlog_opener(slots.STREAM)
    new_offset = fail_over(connection, open_at, old_offset)
    channels = [] if new_offset.server == old_offset.server else read_filters(connection)
    for table in map(plan.tables.__getitem__, plan.active_tables):
        if missing := {name for channel in channels if (name := excluding_filter(channel, *table.id))}:
            raise TerminalError(
                f"the connection reaches server {server_identity(connection)} now, a replica that leaves out changes "
                f"of {table.label} ({', '.join(sorted(missing))}), or was one",
                f"{_OTHER_SERVER_REMEDY}. If this filter has never left anything out, remove it and run again",
            )
    remaining_plan = suspend_in_plan(
        context,
        plan,
        {**_find_redefined_tables(context, connection, plan, new_offset.at), **applier.tables_bound_to_server()},
    )
    applier.use_plan(remaining_plan)
    try:
        # Before anything is recorded: on an error, the old server still finds all tables unchanged.
        applier.check_snapshot_passed()
    except TerminalError as error:
        if new_offset.server != old_offset.server:
            raise
        raise PurgedError(
            f"{error.message}, whose binlog files have been renamed since", _OTHER_SERVER_REMEDY
        ) from None
    if (interrupted_end := applier.interrupted_batch_end()) is not None:
        # Tables may contain changes after the resume point. The new server must have them, or they would stay there.
        fail_over(connection, open_at, interrupted_end.replace(open_xa=()))
    if new_suspensions := [step for step in remaining_plan.suspensions if step not in plan.suspensions]:
        applier.check_fence()  # amendments are not fenced themselves
        record_suspensions(context, store, plan, new_suspensions)
    applier.move_to_server(new_offset)
    with tolerate_outage():
        store.add_event(
            pipeline.name,
            "failover",
            f"{old_offset.server} at {old_offset.at} to {applier.offset.server} at {applier.offset.at}",
        )
    context.reporter.line(
        f"continuing on server {applier.offset.server}, {applier.offset.at} (before: {old_offset.server}, "
        f"{old_offset.at})"
    )
    return remaining_plan


def _find_redefined_tables(
    context: RunContext, connection: Connection[Any], plan: Plan, at: Position
) -> dict[int, TerminalError]:
    """Return an error for each table whose definition on the server its DDL after a position does not lead to.

    :returns: errors, by index of the table.
    """
    errors: dict[int, TerminalError] = {}
    for index in plan.active_tables:
        table = plan.tables[index]
        if not _has_definition(connection, table) and not _ddl_leads_to_definition(context, connection, at, table):
            message = (
                f"the connection reaches server {server_identity(connection)} now, where {table.label} has another "
                "definition"
            )
            errors[index] = NotFollowedError(message, _OTHER_SERVER_REMEDY, table=table.label)
    return errors


def _has_definition(connection: Connection[Any], table: TableSchema) -> bool:
    """Return whether the server has a table with this definition."""
    try:
        return current_fingerprint(connection, table) == table.fingerprint()
    except NotReadyError:  # it has none, or one that cannot be copied
        return False


def _ddl_leads_to_definition(
    context: RunContext, connection: Connection[Any], at: Position, table: TableSchema
) -> bool:
    """Return whether a table's DDL after a position in the binlog leads to the definition that the server has.

    Also true if the stream does not follow one of the statements: it then stops there, and reports why.
    """
    if not context.pipeline.stream.follows_ddl:
        return False
    server, reached = read_server_traits(connection), table
    with closing(context.binlog_opener(slots.STREAM)(at)) as stream:
        captured = histories_by_table([DefinitionHistory.from_single(table)])
        for item in read_transactions(stream, captured, stream.collations, yield_ddl=True):
            if isinstance(item, Transaction) and item.altered_tables and item.ddl is not None:
                try:
                    change = apply_ddl(reached, item.ddl.sql, item.ddl.database, item.ddl.session, server)
                    reached = adapt_alteration(context, reached, change).definition
                except DdlNotFollowed:
                    return True
    return _has_definition(connection, reached)
