"""A DDL that the stream meets is followed: the table goes on with another definition, its copy with other columns.

Everything before the DDL has been applied, and the resume point says so. First the definition is written down, once:
from then on the DDL is known, and nobody stops at it. Then the copy gets its columns, in one commit with a marker that
says so. A run that dies in between leaves a copy that lacks the marker: the next epoch begins with that commit. The
resume point moves behind the DDL with the next batch. The argument is in docs/correctness.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace

from sqlalchemy.exc import SQLAlchemyError

from airflow_provider_cdc.apply.applier import Applier, stream_marker
from airflow_provider_cdc.apply.task import moved
from airflow_provider_cdc.chunk_groups.groups import generation_fence
from airflow_provider_cdc.ddl.affected_tables import classify
from airflow_provider_cdc.ddl.alter_table import Alteration, NotFollowed, alter
from airflow_provider_cdc.ddl.column_names import misnamed
from airflow_provider_cdc.ddl.drop_statements import drops
from airflow_provider_cdc.ddl.schema_policy import check_names, describe_change
from airflow_provider_cdc.model import server_id_slots as slots
from airflow_provider_cdc.model.errors import (
    CdcError,
    DdlError,
    FencedError,
    NotFollowedError,
    TerminalError,
    TransientError,
)
from airflow_provider_cdc.model.offset import Position
from airflow_provider_cdc.model.plan import Plan
from airflow_provider_cdc.model.plan_history import Followed, Rejoined
from airflow_provider_cdc.model.schema import TableSchema
from airflow_provider_cdc.model.start_mode import LATEST, SNAPSHOT
from airflow_provider_cdc.model.table_names import folded
from airflow_provider_cdc.mysql.binlog.events.query import Query
from airflow_provider_cdc.mysql.binlog.events.transactions import FRESH, Transaction, read_transactions
from airflow_provider_cdc.mysql.client.flavour import flavour
from airflow_provider_cdc.mysql.client.session import connect, value
from airflow_provider_cdc.runtime.run_context import Context
from airflow_provider_cdc.sinks.files.parquet import DataFile
from airflow_provider_cdc.sinks.protocol import Feature, Fence
from airflow_provider_cdc.sinks.storage.storage import write_json_once
from airflow_provider_cdc.sinks.table_errors import of_table
from airflow_provider_cdc.state import Store
from airflow_provider_cdc.system.failpoints import failpoint


def definition_marker(pipeline: str) -> str:
    """Name of the marker of a table that says whose columns it has: the ``_cdc_seq`` of the last DDL."""
    return f"cdc/{pipeline}/definition"


def follow(context: Context, store: Store, plan: Plan, applier: Applier) -> tuple[Plan, int]:
    """Follow the DDL that begins at the resume point.

    :param plan: the plan as it was before.
    :returns: the plan with the DDL, and the index of the table that it has changed.
    :raises NotFollowedError: if it cannot be followed.
    :raises TerminalError: for rows of another layout than the definition says, which no DDL explains.
    :raises FencedError: if a newer epoch has taken over.
    """
    transaction = _read(context, plan, applier, yield_ddl=True)
    if transaction.ddl is None:  # not one by itself: the reader says what it is
        try:
            _read(context, plan, applier, yield_ddl=False)
        except DdlError as error:  # with rows behind it, such as MariaDB's CREATE OR REPLACE TABLE ... SELECT
            label = plan.tables[_first(plan, transaction)].label
            place = f"{transaction.file}:{transaction.start_position}"
            raise NotFollowedError(error.message, error.remedy, table=label, place=place) from None
        raise TransientError(f"the binlog behind {applier.offset.at} has changed", "Run again")
    end = Position(transaction.file, transaction.position)
    applier.check_fence()  # what is written down is not fenced
    index, change = _change(context, plan, applier, transaction, transaction.ddl)
    amendment = Followed(index, plan.revision_of(index), applier.timeline.seq(end), change.definition)
    failpoint("definition.before_write")
    write_json_once(
        context.storage, context.layout.definition(plan.generation, index, amendment.seq), amendment.to_json()
    )
    failpoint("definition.after_write")
    renewed = context.require_plan()
    finish_table(context, renewed, index, applier.fence)
    message = f"{_what(transaction.ddl)} on {plan.tables[index].label}, at {end}: followed"
    message += describe_change(plan.tables[index], change.definition)
    with suppress(CdcError, SQLAlchemyError):  # this is for people
        store.add_event(plan.pipeline, "schema_change", message, table=plan.tables[index].label)
    context.reporter.line(message)
    return renewed, index


def rejoined_marker(plan: Plan) -> str:
    """Name of the marker of a table that says with which revision it has rejoined the last time. Revisions of the next
    snapshot begin anew, and so does the marker.
    """
    return f"cdc/{plan.pipeline}/{plan.generation}/rejoined"


def finish(context: Context, plan: Plan, fence: Fence) -> dict[int, TerminalError]:
    """Bring all copies to the definitions that have been written down, as :func:`finish_table` does.

    :param fence: of the epoch that does it.
    :returns: why not, by index of the table, of those where that is not possible.
    :raises FencedError: if a newer epoch has taken over.
    """
    errors = {}
    for index in plan.active_tables:
        try:
            finish_table(context, plan, index, fence)
        except FencedError:
            raise
        except TerminalError as error:
            errors[index] = error
    return errors


def finish_table(context: Context, plan: Plan, index: int, fence: Fence) -> None:
    """Give a copy the rows with which it rejoins, and the columns of the definitions that have been written down.

    :raises TerminalError: if the sink refuses that; it says which table it is about.
    """
    marker = definition_marker(plan.pipeline)
    with of_table(plan.tables[index]):
        if (rejoin := _awaited(context, plan, index)) is not None:
            files = [DataFile(**file) for file in rejoin.slices]
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
        for old, amendment in _due(context, plan, index):
            failpoint("definition.before_alter")
            context.sink.table(amendment.schema).alter(old, {marker: amendment.seq}, fence)
            failpoint("definition.after_alter")


def _awaited(context: Context, plan: Plan, index: int) -> Rejoined | None:
    """How a table rejoins, if its copy does not have the rows of that yet."""
    rejoin = plan.rejoin_of(index)
    if rejoin is None:
        return None
    applied_revision = context.sink.table(rejoin.schema).markers().get(rejoined_marker(plan)) or 0
    return rejoin if applied_revision < rejoin.revision else None


def lagging(context: Context, plan: Plan, tables: Iterable[int]) -> dict[int, TableSchema]:
    """Copies that have not got the columns of the newest definition yet: a run has died, or is at it.

    :param tables: indexes of the tables that are looked at.
    :returns: index, and the definition whose columns the copy has.
    """
    indexes = list(tables)
    pending = ((index, _due(context, plan, index)) for index in indexes)
    outdated = {index: due[0][0] for index, due in pending if due}
    return outdated | {i: step.schema for i in indexes if (step := _awaited(context, plan, i)) is not None}


@contextmanager
def beside_a_stream(context: Context, plan: Plan) -> Iterator[None]:
    """Tell a copy that follows a DDL at this moment from one that something else has altered.

    :raises TransientError: for the former, in place of the sink's error.
    """
    try:
        yield
    except TerminalError as error:
        if type(error) is TerminalError and context.require_plan().tables != plan.tables:
            raise TransientError("the stream has followed a DDL meanwhile", "Run again") from error
        raise


def _due(context: Context, plan: Plan, index: int) -> list[tuple[TableSchema, Followed]]:
    """Changes that the copy of a table lacks, each with the definition before it."""
    amendments = plan.followed_ddls_of(index)
    before = [plan.base_definition_of(index), *(step.schema for step in amendments)]
    pending = [
        (old, step) for old, step in zip(before, amendments, strict=False) if _columns(old) != _columns(step.schema)
    ]
    target = context.sink.table(plan.tables[index]) if pending else None
    applied_seq = (target.markers().get(definition_marker(plan.pipeline)) or 0) if target is not None else 0
    return [(old, step) for old, step in pending if applied_seq < step.seq]


def _columns(table: TableSchema) -> tuple[object, ...]:
    """What a sink is told of a table's columns."""
    return table.sink_schema, table.comments, [column.column_type for column in table.sink_columns]


def _read(context: Context, plan: Plan, applier: Applier, *, yield_ddl: bool) -> Transaction:
    """The transaction that begins at the resume point."""
    at = applier.offset.at
    with moved(), closing(context.binlog_opener(slots.DDL)(at)) as stream:
        captured = plan.captured_tables(applier.timeline)
        for transaction in read_transactions(stream, captured, stream.collations, yield_ddl=yield_ddl):
            if isinstance(transaction, Transaction):
                return transaction
    raise TransientError(f"the binlog ends at {at}, where a DDL was", "Run again")


def _change(
    context: Context, plan: Plan, applier: Applier, transaction: Transaction, query: Query
) -> tuple[int, Alteration]:
    """The table that a DDL changes, and how.

    :raises NotFollowedError: if that cannot be followed.
    """
    index = _first(plan, transaction)
    table = plan.tables[index]
    with closing(connect(context.connect_args)) as connection:
        server_flavour, case_sensitive = (
            flavour(connection),
            value(connection, "SELECT @@global.lower_case_table_names") == "0",
        )
    try:
        if len({folded(name) for name in transaction.altered_tables}) > 1:
            raise NotFollowed("it changes several captured tables")
        if transaction.may_be_temporary:
            raise NotFollowed("its session uses temporary tables, and may mean one of this name")
        change = alter(table, query.sql, query.database, query.session, server_flavour)
        if folded(change.table) != folded(table.id):
            raise NotFollowed("it names the table in a way that is not understood")
        if case_sensitive and change.table != table.id:  # case makes it another table
            if change.table not in transaction.altered_tables:
                return index, Alteration(change.table, table)
            index = [one.id for one in plan.tables].index(change.table)
            table = plan.tables[index]
            change = alter(table, query.sql, query.database, query.session, server_flavour)
        change = as_copied(context, table, change)
        _check_known(plan, index, change)
        if table.fingerprint() != change.definition.fingerprint() and not applier.has_passed_snapshot(index):
            raise NotFollowed("the stream had not passed the snapshot of the table")
        if _columns(table) != _columns(change.definition) and Feature.FOLLOW_DDL not in context.sink.supports:
            raise NotFollowed(f"a sink of kind {context.pipeline.sink.kind} does not support {Feature.FOLLOW_DDL}")
        _check_sink(context, change.definition)
    except NotFollowed as error:
        place = f"{transaction.file}:{transaction.start_position}"
        # A temporary table of its name is none: servers write DROP TEMPORARY TABLE for it, whatever the session has
        # said. (And MySQL marks each DROP TABLE as one of a session that has such.)
        dropped = drops(table.id, query.sql, query.database, query.session, server_flavour, exact=case_sensitive)
        reason = "it drops the table" if dropped else error
        message = f"{_what(query)} on captured table {table.label}, at {place}: {reason}"
        raise NotFollowedError(message, FRESH, table=table.label, place=place, dropped=dropped) from None
    return index, change


def _first(plan: Plan, transaction: Transaction) -> int:
    """Index of the first table that a transaction alters; the others have their turn when that one is suspended."""
    return min(index for index, table in enumerate(plan.tables) if table.id in transaction.altered_tables)


def _check_sink(context: Context, definition: TableSchema) -> None:
    """Make sure that the sink can have a table of a definition: when that is written down, nothing else will do.

    :raises NotFollowed: if it cannot.
    """
    try:
        context.sink.table(definition)
    except CdcError as error:
        raise NotFollowed(error.message) from None


def _check_known(plan: Plan, index: int, change: Alteration) -> None:
    """Make sure that the rows before a DDL were of the definition before it.

    A stream that begins in the past was planned with the definition of a later day, to which the DDL may have led.

    :raises NotFollowed: if that may be.
    """
    if plan.start in (SNAPSHOT, LATEST) or plan.followed_ddls_of(index):
        return
    before = {column.name: column for column in plan.tables[index].columns}
    for column in change.definition.columns:
        old = before.get(column.name)
        if column.name in change.changed and old is not None and replace(column, nullable=old.nullable) == old:
            raise NotFollowed(
                f"the stream began in the past, and column {column.name} may have been another one before this: choose "
                "a stream.start behind it"
            )


def as_copied(context: Context, before: TableSchema, change: Alteration) -> Alteration:
    """A change as far as the pipeline takes it over: some of the new columns are left out, some that are gone stay.

    :raises NotFollowed: if the copy would have to have a column that it cannot have.
    """
    table = change.definition
    left_out = {
        *table.excluded,
        *(name for name in change.added if not context.pipeline.copies_column(table.database, table.name, name)),
    }
    table = replace(table, excluded=tuple(c.name for c in table.columns if c.name in left_out))
    table = context.schema_policy.decide_definition(before, table)
    check_names(before, table, change.added)
    if reason := misnamed(table):
        raise NotFollowed(reason[0])
    return replace(change, definition=table)


def _what(query: Query) -> str:
    """A statement's first words; its text may hold secrets."""
    return classify(query.sql, query.database, query.quoting).summary
