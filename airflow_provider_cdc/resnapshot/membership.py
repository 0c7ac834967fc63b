"""Which tables a pipeline copies: some are added to the plan, some leave it, as its patterns and the source say now.

A table that was added is one that is suspended and was never read: the stream reads it, and takes it in. One that has
left is suspended where the stream stands, and its copy stays.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from contextlib import closing, suppress

from sqlalchemy.exc import SQLAlchemyError

from airflow_provider_cdc.model.errors import CdcError, NotReadyError, TransientError
from airflow_provider_cdc.model.plan import Plan
from airflow_provider_cdc.model.plan_history import Suspension
from airflow_provider_cdc.model.schema import TableSchema
from airflow_provider_cdc.model.suspension_kinds import ADDED, REMOVED
from airflow_provider_cdc.mysql.client.catalog import find_tables, read_schema
from airflow_provider_cdc.mysql.client.session import connect
from airflow_provider_cdc.resnapshot.suspension import make_suspension
from airflow_provider_cdc.runtime.run_context import RunContext
from airflow_provider_cdc.sinks.protocol import Adoptable, Feature
from airflow_provider_cdc.sinks.storage.storage import write_json_once
from airflow_provider_cdc.state import StateDatabase
from airflow_provider_cdc.system.failpoints import failpoint

#: Names that tools for online schema changes give to tables beside a table: gh-ost (``--timestamp-old-table``,
#: ``--revert``), pt-online-schema-change, and spirit (which adds a time to the one that it leaves).
_MIGRATION_TABLE_NAME = re.compile(
    r"_+(.+?)_(?:\d{14}_)?(?:rev_)?(?:gho|ghc|ghk|del|new|old(?:_\d\w*)?|chkpnt|sentinel)"
)
#: Characters of a name, at most. Those tools cut the table's own name so that theirs fits.
_MAX_NAME_LENGTH = 64


def find_new_tables(context: RunContext, plan: Plan) -> Iterator[TableSchema | NotReadyError]:
    """Tables of the source that the pipeline captures and the plan does not have; or why one is not copied. Those
    are left out with which another one is altered online, by their names.
    """
    known = {table.id for table in plan.tables}
    with closing(connect(context.connect_args)) as connection:
        listed = find_tables(connection, context.pipeline.captures)
        existing = {(database, name) for database, name, _ in listed}
        for database, name, engine in listed:
            if (database, name) in known:
                continue
            try:
                _check_not_migration_table(context, database, name, existing)
                schema = read_schema(connection, database, name, engine, context.pipeline.copies_column)
                _check_addable(context, [*known, schema.id], schema)
            except NotReadyError as error:
                error.table = f"{database}.{name}"
                yield error
                continue
            known.add(schema.id)
            yield schema


def _check_not_migration_table(
    context: RunContext, database: str, name: str, existing: Collection[tuple[str, str]]
) -> None:
    """Refuse a table that looks like one with which another is altered online, unless it is asked for by its name.

    :raises NotReadyError: naming the other one.
    """
    match, label = _MIGRATION_TABLE_NAME.fullmatch(name), f"{database}.{name}"
    if match is None or {label, re.escape(label)} & {*context.pipeline.source.tables}:
        return
    for other_database, other in existing:
        if other_database == database and (
            other == match[1] or (len(name) == _MAX_NAME_LENGTH and other.startswith(match[1]))
        ):
            raise NotReadyError(
                f"its name is that of a table with which {database}.{other} is altered online",
                f"If it is not, name it in source.tables: {re.escape(label)}",
            )


def _check_addable(context: RunContext, ids: list[tuple[str, str]], table: TableSchema) -> None:
    """Refuse what could not be taken in.

    :raises NotReadyError: if the sink cannot have the table, or has one that the pipeline did not make.
    """
    label, sink = table.label, context.pipeline.sink
    for feature in (Feature.RESNAPSHOT, Feature.FOLLOW_DDL, *(() if table.key else (Feature.KEYLESS,))):
        context.require_feature(feature, f"table {label} is to be added")
    sink.table_paths.check_distinct(ids)
    sink.delete_policy.mode_of(table)
    target = context.sink.table(table)
    if target.exists() and not (isinstance(target, Adoptable) and target.will_adopt(context.pipeline.name)):
        raise NotReadyError(
            f"there is a {target.name}, which this pipeline has not made",
            "Remove it, or exclude the table in source.exclude",
        )


def add_new_tables(context: RunContext, store: StateDatabase, plan: Plan) -> Plan:
    """The plan with the tables that have come. They are written down, and read when the stream runs. Nobody else may
    be at it: the stream's driver calls it.

    :raises TransientError: if somebody is.
    """
    for table in list_addable_tables(context, store, plan):
        plan = add_table(context, store, plan, table)
    return plan


def list_addable_tables(context: RunContext, store: StateDatabase, plan: Plan) -> list[TableSchema]:
    """The newcomers that can be copied; of the others it is said why they cannot."""
    tables = []
    for table in find_new_tables(context, plan):
        if isinstance(table, TableSchema):
            tables.append(table)
            continue
        message = f"table {table.table} cannot be added: {table.message}"
        context.reporter.line(f"{message}. {table.remedy}")
        _record_event(store, plan, "table_refused", message, table.table, table.remedy)
    return tables


def add_table(context: RunContext, store: StateDatabase, plan: Plan, table: TableSchema) -> Plan:
    """The plan with one table more; it is written down. Only the stream's driver calls it."""
    index = len(plan.definitions)
    addition = make_suspension(
        context, plan, index, ADDED, "it was added to the pipeline, and was not read yet", schema=table
    )
    failpoint("add.before_write")
    if not write_json_once(context.storage, context.layout.addition(plan.generation, index), addition.to_json()):
        raise TransientError(f"another process adds tables to {plan.pipeline}", "Run again")
    failpoint("add.after_write")
    message = f"table {table.label} was added: it is read, and then part of the stream"
    context.reporter.line(message)
    _record_event(store, plan, "table_added", message, table.label)
    return plan.with_amendments([addition.to_json()])


def plan_removals(context: RunContext, plan: Plan) -> list[Suspension]:
    """What suspends the tables that the pipeline captures no more. Nothing is written down yet."""
    removed = [index for index in plan.active_tables if not context.pipeline.captures(*plan.tables[index].id)]
    return [make_suspension(context, plan, index, REMOVED, "it was removed from the pipeline") for index in removed]


def _record_event(
    store: StateDatabase, plan: Plan, kind: str, text: str, table: str | None, remedy: str | None = None
) -> None:
    with suppress(CdcError, SQLAlchemyError):  # this is for people
        store.add_event(plan.pipeline, kind, text, table=table, remedy=remedy)
