"""Add tables to the plan and remove tables from it, as the pipeline's patterns and the source require.

An added table starts as a suspended table that was never read: the stream reads it, and then it joins the stream. A
removed table is suspended at the resume point, and its copy stays.

A running stream reloads its list of tables on request. The requesting process writes the patterns to a file next to the
plan, and waits. The stream's driver applies them between two batches: see
:meth:`~airflow_provider_cdc.stream.epoch.Epoch._reload_tables`.
"""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Iterator
from contextlib import closing
from dataclasses import replace

from airflow_provider_cdc.config import Pipeline
from airflow_provider_cdc.config.fingerprint import RELOADABLE_SETTINGS, settings_fingerprint
from airflow_provider_cdc.model.errors import ADDED, REMOVED, NotReadyError, TerminalError, TransientError
from airflow_provider_cdc.model.plan import Plan
from airflow_provider_cdc.model.plan_history import Suspension
from airflow_provider_cdc.model.schema import TableSchema
from airflow_provider_cdc.mysql.client.catalog import find_tables, read_schema
from airflow_provider_cdc.mysql.client.session import connect
from airflow_provider_cdc.resnapshot.suspension import make_suspension
from airflow_provider_cdc.runtime.run_context import RunContext
from airflow_provider_cdc.sinks.protocol import Adoptable, Feature, InFolder
from airflow_provider_cdc.sinks.storage.storage import read_json, write_json, write_json_once
from airflow_provider_cdc.state import StateDatabase
from airflow_provider_cdc.system.failpoints import failpoint
from airflow_provider_cdc.transforms.shared_copies import check_shared_copies

#: Names that online schema change tools give to their helper tables: gh-ost (``--timestamp-old-table``,
#: ``--revert``), pt-online-schema-change, and spirit (which adds a time to the table that it leaves behind).
_MIGRATION_TABLE_NAME = re.compile(
    r"_+(.+?)_(?:\d{14}_)?(?:rev_)?(?:gho|ghc|ghk|del|new|old(?:_\d\w*)?|chkpnt|sentinel)"
)
#: Maximum length of a name in characters. Those tools truncate the table's own name so that theirs fits.
_MAX_NAME_LENGTH = 64
_POLL_SECONDS = 0.5


def find_new_tables(context: RunContext, plan: Plan) -> Iterator[TableSchema | NotReadyError]:
    """Yield the tables that the pipeline captures but the plan lacks; for a table that cannot be copied, the error.

    A table whose name looks like that of an online schema change tool's helper table counts as one that cannot.
    """
    known, tables = {table.id for table in plan.tables}, [*plan.tables]
    with closing(connect(context.connect_args)) as connection:
        listed = find_tables(connection, context.pipeline.captures)
        existing = {(database, name) for database, name, _ in listed}
        for database, name, engine in listed:
            if (database, name) in known:
                continue
            try:
                _check_not_migration_table(context, database, name, existing)
                schema = read_schema(connection, database, name, engine, context.copy_rules.apply)
                _check_addable(context, [*known, schema.id], schema)
                check_shared_copies(context.pipeline.sink, [*tables, schema])
            except NotReadyError as error:
                error.table = f"{database}.{name}"
                yield error
                continue
            known.add(schema.id)
            tables.append(schema)
            yield schema


def _check_not_migration_table(
    context: RunContext, database: str, name: str, existing: Collection[tuple[str, str]]
) -> None:
    """Refuse a table that looks like a helper table of an online schema change, unless the pipeline names it exactly.

    :raises NotReadyError: if it does; the message names the table that is being altered.
    """
    match, label = _MIGRATION_TABLE_NAME.fullmatch(name), f"{database}.{name}"
    if match is None or {label, re.escape(label)} & {*context.pipeline.source.tables}:
        return
    for other_database, other in existing:
        if other_database == database and (
            other == match[1] or (len(name) == _MAX_NAME_LENGTH and other.startswith(match[1]))
        ):
            raise NotReadyError(
                f"its name looks like that of a helper table for an online schema change of {database}.{other}",
                f"If it is not one, name it in source.tables: {re.escape(label)}",
            )


def _check_addable(context: RunContext, ids: list[tuple[str, str]], table: TableSchema) -> None:
    """Refuse a table that could not join the stream.

    :raises NotReadyError: if the sink cannot have the table, or already has one that this pipeline did not create.
    """
    label, sink = table.label, context.pipeline.sink
    for feature in (Feature.RESNAPSHOT, Feature.FOLLOW_DDL, *(() if table.key else (Feature.KEYLESS,))):
        context.require_feature(feature, f"table {label} is to be added")
    sink.check_distinct_tables(ids)
    sink.delete_policy.mode_of(table)
    target = context.sink.table(table)
    if target.exists() and not (isinstance(target, Adoptable) and target.will_adopt(context.pipeline.name)):
        raise NotReadyError(
            f"there is a {target.name}, which this pipeline did not create",
            "Remove it, or exclude the table in source.exclude",
        )
    if not target.exists() and isinstance(target, InFolder):
        try:
            target.check_folder_is_free()
        except TerminalError as error:
            raise NotReadyError(error.message, error.remedy) from None


def add_new_tables(context: RunContext, store: StateDatabase, plan: Plan) -> Plan:
    """Add new tables to the stored plan and return the new plan. The tables are read when the stream runs.

    Only the stream's driver calls this: no other process may add tables at the same time.

    :raises TransientError: if another process does.
    """
    for table in list_addable_tables(context, store, plan):
        plan = add_table(context, store, plan, table)
    return plan


def list_addable_tables(context: RunContext, store: StateDatabase, plan: Plan) -> list[TableSchema]:
    """Return the new tables that can be copied, and report why the others cannot."""
    tables = []
    for table in find_new_tables(context, plan):
        if isinstance(table, TableSchema):
            tables.append(table)
            continue
        message = f"table {table.table} cannot be added: {table.message}"
        context.report_event(store, "table_refused", message, table=table.table, remedy=table.remedy)
    return tables


def add_table(context: RunContext, store: StateDatabase, plan: Plan, table: TableSchema) -> Plan:
    """Add a table to the stored plan and return the new plan. Only the stream's driver calls this."""
    index = len(plan.definitions)
    addition = make_suspension(
        context, plan, index, ADDED, "it was added to the pipeline and has not been read yet", schema=table
    )
    failpoint("add.before_write")
    if not write_json_once(context.storage, context.layout.addition(plan.generation, index), addition.to_json()):
        raise TransientError(f"another process is adding tables to {plan.pipeline}", "Run again")
    failpoint("add.after_write")
    message = f"table {table.label} was added: it will join the stream once it has been read"
    context.report_event(store, "table_added", message, table=table.label)
    return plan.with_amendments([addition])


def plan_removals(context: RunContext, plan: Plan) -> list[Suspension]:
    """Return suspensions for the tables that the pipeline no longer captures. Nothing is stored yet."""
    removed = [index for index in plan.active_tables if not context.pipeline.captures(*plan.tables[index].id)]
    return [make_suspension(context, plan, index, REMOVED, "it was removed from the pipeline") for index in removed]


def reload_tables(context: RunContext, store: StateDatabase) -> tuple[list[str], list[str]] | None:
    """Ask the running stream to copy the tables of the pipeline as it is now, and wait until it does.

    :returns: labels of the tables that were added, and of those that were removed; ``None`` if no stream is running:
        the next one copies them.
    :raises NotReadyError: if no pattern matches a table.
    :raises TransientError: if the stream ends in the meantime.
    """
    before = context.plans.require()
    with closing(connect(context.connect_args)) as connection:
        if not find_tables(connection, context.pipeline.captures):
            raise NotReadyError(
                f"pipeline {before.pipeline} would copy no table: no pattern of source.tables matches one",
                "Correct source.tables and source.exclude",
            )
    run, is_running = context.liveness.wait_until_known(store, before.pipeline)
    if run is None or not is_running:
        return None
    source, name = context.pipeline.source, context.layout.reload_request(before.generation)
    write_json(context.storage, name, {"tables": source.tables, "exclude": source.exclude})
    while context.storage.size(name) is not None:
        now, is_running = context.liveness.wait_until_known(store, before.pipeline)
        if not is_running or now is None or now.epoch != run.epoch:
            raise TransientError(
                f"epoch {run.epoch} of the stream ended before it applied the new list of tables", "Run again"
            )
        time.sleep(_POLL_SECONDS)
    digests = settings_fingerprint(context.pipeline)
    store.update_settings(before.pipeline, run.epoch, {key: digests[key] for key in RELOADABLE_SETTINGS})
    after = context.plans.require()
    known = {table.id for table in before.tables}
    added = [table.label for table in after.tables if table.id not in known]
    removed = [
        before.tables[i].label for i in before.active_tables if not context.pipeline.captures(*before.tables[i].id)
    ]
    return added, removed


def apply_reload_request(context: RunContext, plan: Plan) -> Pipeline:
    """Return the pipeline with the patterns of the reload request."""
    requested = read_json(context.storage, context.layout.reload_request(plan.generation))
    source = replace(context.pipeline.source, tables=tuple(requested["tables"]), exclude=tuple(requested["exclude"]))
    return replace(context.pipeline, source=source)
