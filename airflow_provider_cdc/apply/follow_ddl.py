"""Follow a DDL in the stream: the table continues with a new definition, and its copy gets the new columns.

Everything before the DDL has been applied, and the resume point is right before it. First the definition is stored,
once: from then on the DDL is known, and no process stops at it. Then the copy gets its columns in one commit that also
sets a marker. If a run dies in between, the copy lacks the marker, and the next epoch begins with that commit. The
resume point moves past the DDL with the next batch. The argument is in docs/correctness.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace

from airflow_provider_cdc.apply.applier import Applier, stream_marker
from airflow_provider_cdc.apply.task import retry_in_next_epoch
from airflow_provider_cdc.chunk_groups.chunk_group import generation_fence
from airflow_provider_cdc.ddl.affected_tables import classify_statement
from airflow_provider_cdc.ddl.alter_table import Alteration, DdlNotFollowed, apply_ddl
from airflow_provider_cdc.ddl.column_names import column_name_problem
from airflow_provider_cdc.ddl.drop_statements import drops_table
from airflow_provider_cdc.ddl.schema_policy import check_reused_names, describe_change
from airflow_provider_cdc.model import server_id_slots as slots
from airflow_provider_cdc.model.column_policy import KEEP, ColumnPolicy
from airflow_provider_cdc.model.errors import (
    CdcError,
    DdlError,
    FencedError,
    NotFollowedError,
    NotReadyError,
    TerminalError,
    TransientError,
)
from airflow_provider_cdc.model.offset import Position
from airflow_provider_cdc.model.plan import Plan
from airflow_provider_cdc.model.plan_history import FollowedDdl, Rejoin
from airflow_provider_cdc.model.schema import TableSchema
from airflow_provider_cdc.model.start_mode import LATEST, SNAPSHOT
from airflow_provider_cdc.model.table_names import fold_table
from airflow_provider_cdc.mysql.binlog.events.query import QueryEvent
from airflow_provider_cdc.mysql.binlog.events.transactions import FRESH_SINK_REMEDY, Transaction, read_transactions
from airflow_provider_cdc.mysql.client.server_traits import read_server_traits
from airflow_provider_cdc.mysql.client.session import connect, query_value
from airflow_provider_cdc.runtime.run_context import RunContext
from airflow_provider_cdc.sinks.files.parquet import DataFile
from airflow_provider_cdc.sinks.protocol import Extendable, Feature, Fence, InPlaceAlterable
from airflow_provider_cdc.sinks.storage.storage import write_json_once
from airflow_provider_cdc.sinks.table_errors import name_table_in_errors
from airflow_provider_cdc.state import StateDatabase
from airflow_provider_cdc.system.failpoints import failpoint


def definition_marker(pipeline: str) -> str:
    """Return the name of the marker that holds the ``_cdc_seq`` of the last DDL whose columns the table has."""
    return f"cdc/{pipeline}/definition"


def follow_ddl(context: RunContext, store: StateDatabase, plan: Plan, applier: Applier) -> tuple[Plan, int]:
    """Follow the DDL that begins at the resume point.

    :param plan: the plan without the DDL.
    :returns: the plan with the DDL, and the index of the table that it changed.
    :raises NotFollowedError: if the DDL cannot be followed.
    :raises TerminalError: if rows have another layout than the definition, and no DDL explains that.
    :raises FencedError: if a newer epoch has taken over.
    """
    transaction = _read_ddl_transaction(context, plan, applier, yield_ddl=True)
    if transaction.ddl is None:  # not a DDL alone: let the reader report what it is
        try:
            _read_ddl_transaction(context, plan, applier, yield_ddl=False)
        except DdlError as error:  # a DDL with rows, such as MariaDB's CREATE OR REPLACE TABLE ... SELECT
            label = plan.tables[_first_altered_table(plan, transaction)].label
            place = f"{transaction.file}:{transaction.start_position}"
            raise NotFollowedError(error.message, error.remedy, table=label, place=place) from None
        raise TransientError(f"the binlog after {applier.offset.at} has changed", "Run again")
    end = Position(transaction.file, transaction.position)
    applier.check_fence()  # the file written below is not fenced
    index, change = _alteration_of(context, plan, applier, transaction, transaction.ddl)
    seq = applier.timeline.seq(end)
    amendment = FollowedDdl(index, plan.revision_of(index), seq, change.definition, change.columns)
    failpoint("definition.before_write")
    write_json_once(
        context.storage, context.layout.definition(plan.generation, index, amendment.seq), amendment.to_json()
    )
    failpoint("definition.after_write")
    renewed = context.plans.require()
    apply_pending_amendments(context, renewed, index, applier.fence)
    message = f"{_statement_type(transaction.ddl)} on {plan.tables[index].label}, at {end}: followed"
    message += describe_change(plan.tables[index], change.definition, change.columns)
    context.report_event(store, "schema_change", message, table=plan.tables[index].label)
    return renewed, index


def rejoined_marker(plan: Plan) -> str:
    """Return the name of the table marker that holds the revision with which the table last rejoined.

    The name includes the generation, because revisions start over with each snapshot.
    """
    return f"cdc/{plan.pipeline}/{plan.generation}/rejoined"


def apply_pending_definitions(context: RunContext, plan: Plan, fence: Fence) -> dict[int, TerminalError]:
    """Apply :func:`apply_pending_amendments` to all active tables.

    :param fence: fence of the epoch.
    :returns: the error of each table for which that is not possible, by index.
    :raises FencedError: if a newer epoch has taken over.
    """
    errors = {}
    for index in plan.active_tables:
        try:
            apply_pending_amendments(context, plan, index, fence)
        except FencedError:
            raise
        except TerminalError as error:
            errors[index] = error
    return errors


def apply_pending_amendments(context: RunContext, plan: Plan, index: int, fence: Fence) -> None:
    """Give a copy the rows of a stored rejoin and the columns of the stored definitions, unless it has them already.

    :raises TerminalError: if the sink refuses that; the error names the table.
    """
    marker = definition_marker(plan.pipeline)
    with name_table_in_errors(plan.tables[index]):
        if (rejoin := _pending_rejoin(context, plan, index)) is not None:
            files = [DataFile.from_json(file) for file in rejoin.slices]
            table_fence = generation_fence(plan, index)
            markers = {rejoined_marker(plan): rejoin.revision, stream_marker(plan.pipeline): rejoin.seq}
            failpoint("rejoin.before_exchange")
            context.sink.table(rejoin.schema).overwrite(
                files,
                {**markers, table_fence.name: table_fence.value},
                fence,
                keep_deleted_to=rejoin.seq if rejoin.keeps_deleted_rows else None,
            )
            failpoint("rejoin.after_exchange")
        for old, amendment in _pending_definitions(context, plan, index):
            failpoint("definition.before_alter")
            context.sink.table(amendment.schema).alter(old, {marker: amendment.seq}, fence, amendment.columns)
            failpoint("definition.after_alter")


def _pending_rejoin(context: RunContext, plan: Plan, index: int) -> Rejoin | None:
    """Return the rejoin of a table if its copy does not have the rows of that rejoin yet."""
    rejoin = plan.rejoin_of(index)
    if rejoin is None:
        return None
    applied_revision = context.sink.table(rejoin.schema).markers().get(rejoined_marker(plan)) or 0
    return rejoin if applied_revision < rejoin.revision else None


def copies_with_old_definition(context: RunContext, plan: Plan, tables: Iterable[int]) -> dict[int, TableSchema]:
    """Find copies without the columns of the newest definition, because a run has died or is changing them now.

    :param tables: indexes of the tables to check.
    :returns: for each such table, by index, the definition whose columns the copy has, or the one that it rejoins with.
    """
    indexes = list(tables)
    pending = ((index, _pending_definitions(context, plan, index)) for index in indexes)
    outdated = {index: due[0][0] for index, due in pending if due}
    return outdated | {i: step.schema for i in indexes if (step := _pending_rejoin(context, plan, i)) is not None}


@contextmanager
def tolerate_concurrent_ddl(context: RunContext, plan: Plan) -> Iterator[None]:
    """Distinguish a copy that is following a DDL right now from one that something else has altered.

    :raises TransientError: in the first case, in place of the sink's error.
    """
    try:
        yield
    except TerminalError as error:
        if type(error) is TerminalError and context.plans.require().tables != plan.tables:
            raise TransientError("the stream has followed a DDL in the meantime", "Run again") from error
        raise


def _pending_definitions(context: RunContext, plan: Plan, index: int) -> list[tuple[TableSchema, FollowedDdl]]:
    """Return the followed DDLs that the copy of a table lacks, each with the definition before it."""
    amendments = plan.followed_ddls_of(index)
    before = [plan.base_definition_of(index), *(step.schema for step in amendments)]
    pending = [
        (old, step)
        for old, step in zip(before, amendments, strict=False)
        if _sink_columns(old) != _sink_columns(step.schema)
    ]
    target = context.sink.table(plan.tables[index]) if pending else None
    applied_seq = (target.markers().get(definition_marker(plan.pipeline)) or 0) if target is not None else 0
    return [(old, step) for old, step in pending if applied_seq < step.seq]


def _sink_columns(table: TableSchema) -> tuple[object, ...]:
    """Return the part of a definition that determines the columns of the sink table."""
    return table.sink_schema, table.copy.comments, [column.column_type for column in table.sink_columns]


def _read_ddl_transaction(context: RunContext, plan: Plan, applier: Applier, *, yield_ddl: bool) -> Transaction:
    """Return the transaction that begins at the resume point."""
    at = applier.offset.at
    with retry_in_next_epoch(), closing(context.binlog_opener(slots.DDL)(at)) as stream:
        captured = plan.captured_tables(applier.timeline)
        for transaction in read_transactions(stream, captured, stream.collations, yield_ddl=yield_ddl):
            if isinstance(transaction, Transaction):
                return transaction
    raise TransientError(f"the binlog ends at {at}, where there was a DDL", "Run again")


def _alteration_of(
    context: RunContext, plan: Plan, applier: Applier, transaction: Transaction, query: QueryEvent
) -> tuple[int, Alteration]:
    """Return the index of the table that a DDL changes, and the change.

    :raises NotFollowedError: if the change cannot be followed.
    """
    index = _first_altered_table(plan, transaction)
    table = plan.tables[index]
    in_place = _follows_in_place(context, table)
    with closing(connect(context.connect_args)) as connection:
        server = read_server_traits(connection)
        case_sensitive = query_value(connection, "SELECT @@global.lower_case_table_names") == "0"
    try:
        if len({fold_table(name) for name in transaction.altered_tables}) > 1:
            raise DdlNotFollowed("it changes several captured tables")
        if transaction.may_be_temporary:
            raise DdlNotFollowed("its session uses temporary tables and may mean one of this name")
        change = apply_ddl(table, query.sql, query.database, query.session, server, in_place=in_place)
        if fold_table(change.table) != fold_table(table.id):
            raise DdlNotFollowed("it names the table in a way that is not understood")
        if case_sensitive and change.table != table.id:  # a different case means a different table
            if change.table not in transaction.altered_tables:
                return index, Alteration(change.table, table)
            index = [one.id for one in plan.tables].index(change.table)
            table = plan.tables[index]
            in_place = _follows_in_place(context, table)
            change = apply_ddl(table, query.sql, query.database, query.session, server, in_place=in_place)
        change = adapt_alteration(context, table, change)
        _check_definition_known(plan, index, change)
        if table.fingerprint() != change.definition.fingerprint() and not applier.has_passed_snapshot(index):
            raise DdlNotFollowed("the stream had not passed the snapshot of the table")
        if _sink_columns(table) != _sink_columns(change.definition) and Feature.FOLLOW_DDL not in context.sink.supports:
            raise DdlNotFollowed(f"a sink of kind {context.pipeline.sink.kind} does not support {Feature.FOLLOW_DDL}")
        _check_shared_copy(table, change.definition)
        _check_sink_accepts(context, table, change)
    except DdlNotFollowed as error:
        place = f"{transaction.file}:{transaction.start_position}"
        # This is no temporary table of that name: for those, servers log DROP TEMPORARY TABLE, whatever the session
        # wrote. (MySQL also marks every DROP TABLE as coming from a session with temporary tables.)
        dropped = drops_table(table.id, query.sql, query.database, query.session, server, exact=case_sensitive)
        reason = "it drops the table" if dropped else error
        message = f"{_statement_type(query)} on captured table {table.label}, at {place}: {reason}"
        raise NotFollowedError(message, FRESH_SINK_REMEDY, table=table.label, place=place, dropped=dropped) from None
    return index, change


def _first_altered_table(plan: Plan, transaction: Transaction) -> int:
    """Return the index of the first table that a transaction alters. The others follow once that one is suspended."""
    return min(index for index, table in enumerate(plan.tables) if table.id in transaction.altered_tables)


def _follows_in_place(context: RunContext, table: TableSchema) -> bool:
    """Return whether a DDL may change columns in ways that only some sinks can follow without reading rows again.

    Not in a copy that other tables share: a default or a rename would affect their rows, too.

    A renamed column counts as a dropped one and a new one: if either is not taken over, it is none of these.
    """
    policy = context.schema_policy
    takes_all = policy.copies_new_columns and policy.drops_removed_columns and policy.allowed_types == "all"
    return Feature.IN_PLACE in context.sink.supports and takes_all and not table.shared


def _check_sink_accepts(context: RunContext, before: TableSchema, change: Alteration) -> None:
    """Check that the sink can have a table of a definition. Once the definition is stored, it must be applied.

    :param before: the definition before the change.
    :raises DdlNotFollowed: if the sink cannot have it.
    """
    try:
        target = context.sink.table(change.definition)
    except CdcError as error:
        raise DdlNotFollowed(error.message) from None
    reason = None
    if change.definition.shared:
        problem = target.why_not_extendable() if isinstance(target, Extendable) else None
        reason = None if problem is None else problem[0]
    elif isinstance(target, InPlaceAlterable) and _sink_columns(before) != _sink_columns(change.definition):
        reason = target.why_not_in_place(change.columns)
    if reason is not None:
        raise DdlNotFollowed(reason)


def _check_shared_copy(before: TableSchema, after: TableSchema) -> None:
    """Check that a copy that other tables share can get the columns of a definition.

    :raises DdlNotFollowed: if the rows of this table must be written again. A column that is dropped stays in the copy,
        because the others may have it: its values must go.
    """
    if not before.shared:
        return
    for name in before.sink_schema.names:
        if name not in after.sink_schema.names:
            raise DdlNotFollowed(f"it drops column {name}, which the copy keeps for other tables that share it")
    if before.copy.key != after.copy.key:
        raise DdlNotFollowed("it changes the key, and other tables share the copy")


def _check_definition_known(plan: Plan, index: int, change: Alteration) -> None:
    """Check that the rows before a DDL had the definition that the plan has for them.

    A stream that begins in the past was planned with a later definition, which may already include the DDL.

    :raises DdlNotFollowed: if it may.
    """
    if plan.start in (SNAPSHOT, LATEST) or plan.followed_ddls_of(index):
        return
    before = {column.name: column for column in plan.tables[index].columns}
    for column in change.definition.columns:
        old = before.get(column.name)
        if column.name in change.changed and old is not None and column.replace(nullable=old.nullable) == old:
            raise DdlNotFollowed(
                f"the stream began in the past, and column {column.name} may have been different before this: choose "
                "a later stream.start"
            )


def adapt_alteration(context: RunContext, before: TableSchema, change: Alteration) -> Alteration:
    """Limit a change to what the pipeline copies: new columns may be excluded, and dropped columns may stay.

    :raises DdlNotFollowed: if the copy would need a column that it cannot have.
    """
    table, renamed = change.definition, dict(change.columns.renamed)
    left_out = {
        *table.excluded,
        *(name for name in change.added if not context.pipeline.copies_column(table.database, table.name, name)),
    }
    for name, new_name in renamed.items():
        if name in before.excluded or not context.pipeline.copies_column(table.database, table.name, new_name):
            raise DdlNotFollowed(f"it renames column {name} to {new_name}, and one of them is not copied")
    table = table.replace(excluded=tuple(c.name for c in table.columns if c.name in left_out))
    table = _adapt_rules(context, before, table, change)
    table = context.schema_policy.decide_definition(before, table)
    in_place = _follows_in_place(context, before)
    check_reused_names(before, table, (*change.added, *renamed.values()), by_name=not in_place)
    if reason := column_name_problem(table):
        raise DdlNotFollowed(reason[0])
    return replace(change, definition=table, columns=change.columns.in_copy(before, table))


def _adapt_rules(context: RunContext, before: TableSchema, table: TableSchema, change: Alteration) -> TableSchema:
    """Return a changed definition with the policies of its columns.

    :raises DdlNotFollowed: if a policy or the condition does not fit it any more.
    """
    columns, renamed = {column.name: column for column in table.columns}, dict(change.columns.renamed)
    old_names = {new_name: name for name, new_name in renamed.items()}
    for name in before.condition_columns:
        old, new = next(c for c in before.columns if c.name == name), columns.get(name)
        if name in renamed or new is None or new.replace(nullable=old.nullable) != old:
            raise DdlNotFollowed(f"it changes column {name}, which the condition in transforms.where reads")
    policies, old_policies = list[ColumnPolicy](), {policy.column: policy for policy in before.policies}
    for column in table.copied_columns:
        try:
            policy = context.copy_rules.policy_of(table, column)
        except NotReadyError as error:
            raise DdlNotFollowed(error.message) from None
        if column.name not in change.added:
            old_policy = old_policies.get(old_names.get(column.name, column.name))
            old_policy = None if old_policy is None else old_policy.replace(column=column.name)
            if column.name in old_names and old_policy != policy:
                raise DdlNotFollowed(
                    f"it renames column {old_names[column.name]} to {column.name}, and transforms.columns has another "
                    "policy for that"
                )
            policy = old_policy  # if the settings have changed, the next stream reads the table again
        if policy is not None:
            policies.append(policy)
            if policy.action != KEEP and column.name in dict(change.columns.defaults):
                raise DdlNotFollowed(
                    f"new column {column.name} has a default, and transforms.columns changes its values"
                )
    return table.replace(policies=tuple(policies))


def _statement_type(query: QueryEvent) -> str:
    """Return the first words of a statement, because its text may contain secrets."""
    return classify_statement(query.sql, query.database, query.quoting).summary
