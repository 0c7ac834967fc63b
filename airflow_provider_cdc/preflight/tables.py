"""Preflight checks of the captured tables: keys, columns, grants, and changes that the binlog lacks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import groupby
from typing import Any

from pymysql.connections import Connection

from airflow_provider_cdc.config.sections import SUSPEND
from airflow_provider_cdc.config.table_paths import URL_READERS_REMEDY, url_escaped_characters
from airflow_provider_cdc.ddl.indirect_writes import SYSTEM_DATABASES
from airflow_provider_cdc.model.errors import CdcError, NotReadyError, TerminalError
from airflow_provider_cdc.model.schema import TableSchema
from airflow_provider_cdc.model.start_mode import SNAPSHOT
from airflow_provider_cdc.mysql.client.catalog import find_tables, read_schema, why_no_key
from airflow_provider_cdc.mysql.client.identity import is_mariadb, server_identity
from airflow_provider_cdc.mysql.client.key_sql import table_name, text_literal
from airflow_provider_cdc.mysql.client.replication_filters import excluding_filter, read_filters
from airflow_provider_cdc.mysql.client.session import query_rows, query_value
from airflow_provider_cdc.mysql.client.throttle import replica_lag
from airflow_provider_cdc.preflight.check_result import CheckResult, require_grant, run_check
from airflow_provider_cdc.preflight.transforms import check_rule_patterns, describe_rules
from airflow_provider_cdc.runtime.run_context import RunContext
from airflow_provider_cdc.sinks.protocol import Adoptable, Feature, InFolder, SinkTable
from airflow_provider_cdc.snapshot.retention_guard import forecast_snapshot
from airflow_provider_cdc.transforms.shared_copies import check_shared_copies


def check_tables(context: RunContext, connection: Connection[Any]) -> list[CheckResult]:
    """Return the captured tables, and what prevents an exact copy of them, as check results."""
    results: list[CheckResult] = []
    try:
        matched = find_tables(connection, context.pipeline.captures)
    except CdcError as error:
        return [CheckResult.from_error(error)]
    if not matched:
        patterns = ", ".join(context.pipeline.source.tables)
        return [
            CheckResult(
                "error",
                f"no table matches source.tables ({patterns})",
                "Check the patterns (anchored, database.table) and that the user has SELECT on the tables",
            )
        ]
    results += run_check(lambda: _check_folder_conflicts(context, matched))
    results += run_check(
        lambda: check_rule_patterns(context, connection, {(database, table) for database, table, _ in matched})
    )
    results += run_check(lambda: _check_shared_copies(context, connection, matched))
    results += run_check(lambda: _check_cascades(connection, matched))
    results += run_check(lambda: _check_aria_tables(connection))
    plan_results = run_check(lambda: _check_plan_changes(context, matched))
    results += plan_results
    finds_copies = all(result.level != "error" for result in plan_results)
    results += run_check(lambda: _check_replica(context, connection, matched))
    results += run_check(lambda: _check_retention(context, connection, matched))
    suspended = _suspended_tables(context)
    for database, table, engine in matched:
        table_results = run_check(
            lambda d=database, t=table, e=engine: _check_table(context, connection, d, t, e, finds_copies=finds_copies)  # type: ignore[misc]
        )
        has_error = any(result.level == "error" for result in table_results)
        if has_error and not _is_in_source(connection, database, table):
            table_results = [
                CheckResult(
                    "warning",
                    f"table {database}.{table} was dropped or renamed while it was checked",
                    "Nothing, if that was intended: the stream reads it in the binlog",
                )
            ]
        # A problem with a suspended table must not stop the others.
        if (database, table) in suspended:
            table_results = [replace(f, level="warning") if f.level == "error" else f for f in table_results]
        results += table_results
    return results


def _is_in_source(connection: Connection[Any], database: str, table: str) -> bool:
    """Return whether a table exists, or may exist because the server cannot be asked."""
    try:
        return bool(find_tables(connection, lambda *name: name == (database, table)))
    except CdcError:
        return True


def _suspended_tables(context: RunContext) -> set[tuple[str, str]]:
    with suppress(OSError, CdcError):  # reported by another check
        if (plan := context.plans.load()) is not None:
            return {plan.tables[step.table].id for step in plan.suspensions}
    return set()


def _check_folder_conflicts(context: RunContext, matched: list[tuple[str, str, str]]) -> Iterator[CheckResult]:
    """Yield warnings about tables whose folders conflict on some file systems, and about unusual characters in them."""
    paths, tables_by_folder = context.pipeline.sink.table_paths, dict[str, tuple[str, str]]()
    context.pipeline.sink.check_distinct_tables((database, table) for database, table, _ in matched)
    for database, table, _ in matched:
        if odd_characters := url_escaped_characters(paths.path_of(database, table)):
            yield CheckResult(
                "warning",
                f"table {database}.{table}: its folder has {odd_characters!r} in its name",
                URL_READERS_REMEDY,
            )
        other = tables_by_folder.setdefault(paths.path_of(database, table).casefold(), (database, table))
        if paths.path_of(*other) != paths.path_of(database, table):
            yield CheckResult(
                "warning",
                f"tables {'.'.join(other)} and {database}.{table}: the folders of their copies differ only in case",
                "If sink.path is case-insensitive, the second one is refused: give them different folders with "
                "sink.table_path, or exclude one of them",
            )


def _check_shared_copies(
    context: RunContext, connection: Connection[Any], matched: list[tuple[str, str, str]]
) -> Iterator[CheckResult]:
    """Check that the tables of each route with ``into`` can be copied into one."""
    paths, apply_rules = context.pipeline.sink.table_paths, context.copy_rules.apply
    shared = [
        read_schema(connection, database, table, engine, apply_rules)
        for database, table, engine in matched
        if paths.shared_key_of(database, table)
    ]
    check_shared_copies(context.pipeline.sink, shared)
    for path, tables in groupby(sorted(shared, key=lambda one: paths.path_of(*one.id)), lambda t: paths.path_of(*t.id)):
        labels = [table.label for table in tables]
        shown = ", ".join(labels[:3]) + (f" and {len(labels) - 3} more" if len(labels) > 3 else "")
        yield CheckResult("ok", f"{path} is the copy of {len(labels)} tables: {shown}")


def _check_cascades(connection: Connection[Any], matched: list[tuple[str, str, str]]) -> Iterator[CheckResult]:
    """Yield warnings about foreign keys with actions: before 9.6, their changes are not in the binary log at all."""
    if query_rows(connection, "SHOW GLOBAL VARIABLES LIKE 'innodb_native_foreign_keys'") == [
        ("innodb_native_foreign_keys", "OFF")
    ]:
        return
    captured = {(database, table) for database, table, _ in matched}
    for database, table, name, on_delete, on_update in query_rows(
        connection,
        "SELECT constraint_schema, table_name, constraint_name, delete_rule, update_rule "
        "FROM information_schema.referential_constraints "
        "WHERE delete_rule IN ('CASCADE', 'SET NULL') OR update_rule IN ('CASCADE', 'SET NULL')",
    ):
        if (database, table) in captured:
            yield CheckResult(
                "warning",
                f"table {database}.{table}: changes by foreign key {name} (ON DELETE {on_delete}, ON UPDATE "
                f"{on_update}) are not in this server's binary log",
                "Schedule `airflow-cdc verify`, or change these rows with explicit statements",
            )


def _check_aria_tables(connection: Connection[Any]) -> Iterator[CheckResult]:
    """Yield a warning about transactional Aria tables.

    MariaDB may commit a transaction that also changes one of them in an order that differs from the binlog.
    """
    aria_tables = query_rows(
        connection,
        f"SELECT table_schema, table_name FROM information_schema.tables WHERE table_schema NOT IN {SYSTEM_DATABASES} "
        "AND engine = 'Aria' AND table_type = 'BASE TABLE' AND create_options NOT LIKE '%transactional=0%'",
    )
    if aria_tables:
        yield CheckResult(
            "warning",
            f"there are transactional Aria tables, such as {'.'.join(map(str, aria_tables[0]))} ({len(aria_tables)} "
            "in all): a transaction that changes one of them together with a captured table stops the copy",
            "Unless that never happens, use ALTER TABLE ... TRANSACTIONAL=0, or ENGINE=InnoDB",
        )


def _check_replica(
    context: RunContext, connection: Connection[Any], matched: list[tuple[str, str, str]]
) -> Iterator[CheckResult]:
    """Check a server that is a replica: changes that it filters out, and whether its lag can be read."""
    limit = context.pipeline.snapshot.max_replica_lag_seconds
    try:
        replica = replica_lag(connection)[0]
    except NotReadyError:  # MariaDB asks for a grant that nothing else needs
        replica = True
        if limit is not None:
            yield CheckResult(
                "error",
                "snapshot.max_replica_lag_seconds is set, but the user may not see the lag of the server",
                "GRANT REPLICA MONITOR ON *.* TO the user of the connection, or remove the limit",
            )
    try:
        channels = read_filters(connection)
    except NotReadyError as error:
        yield CheckResult("warning", f"{error.message}: a stream cannot continue on another server", error.remedy)
        return
    if limit is not None and not replica:
        yield CheckResult(
            "warning",
            "snapshot.max_replica_lag_seconds has no effect: the server is not a replica",
            "Remove it: a snapshot writes nothing, so it cannot delay replicas of its source",
        )
    for database, table, _ in matched:
        if filter_names := sorted(
            {name for channel in channels if (name := excluding_filter(channel, database, table))}
        ):
            yield CheckResult(
                "warning",
                f"table {database}.{table}: this server leaves out its changes as a replica "
                f"({', '.join(filter_names)})",
                "Only what this server has is copied. Read from its source instead, or change the filter",
            )


def _check_retention(
    context: RunContext, connection: Connection[Any], matched: list[tuple[str, str, str]]
) -> Iterator[CheckResult]:
    """Check that the binlog outlives the snapshot. Once a stream has begun, this no longer matters."""
    if context.pipeline.stream.start != SNAPSHOT:
        return
    try:
        plan = context.plans.load()
        if context.sink.resume_point().read() is not None:
            return
    except (OSError, NotReadyError):
        return  # a sink that cannot be read, or a plan of other tables, is reported by another check
    if plan is not None and server_identity(connection) != plan.p0.server:
        return
    try:
        snapshot_forecast = forecast_snapshot(
            context, connection, [(database, table) for database, table, _ in matched], plan
        )
    except TerminalError as error:
        if plan is None or context.pipeline.stream.on_purged != "reread":
            raise
        yield CheckResult("warning", error.message, "The snapshot starts over, because stream.on_purged is reread")
        return
    yield CheckResult(
        "ok" if snapshot_forecast.verdict == "fine" else "warning",
        f"a snapshot of {snapshot_forecast}",
        ""
        if snapshot_forecast.verdict == "fine"
        else "Raise binlog_expire_logs_seconds first: a snapshot whose stream could not begin is ended early",
    )


def _check_plan_changes(context: RunContext, matched: list[tuple[str, str, str]]) -> Iterator[CheckResult]:
    try:
        plan = context.plans.load()
    except OSError:
        return  # a sink that cannot be read is reported by another check
    if plan is None:
        return
    planned = {t.id for t in plan.tables}
    for database, table, _ in matched:
        if (database, table) not in planned:
            yield CheckResult(
                "warning",
                f"table {database}.{table} is not part of the plan yet: the next run of the stream adds it",
                "Exclude it in source.exclude if it is not to be copied",
            )
    reaction = "re-snapshots the table" if context.pipeline.stream.on_table_error == SUSPEND else "stops there"
    for reason in context.plans.find_changed_rules(plan).values():
        yield CheckResult(
            "warning",
            f"{reason}: the next run of the stream {reaction}",
            "Undo the change if that is not what you want",
        )


def _check_table(
    context: RunContext,
    connection: Connection[Any],
    database: str,
    table: str,
    engine: str,
    *,
    finds_copies: bool,
) -> Iterator[CheckResult]:
    """Check a table and its copy.

    :param finds_copies: whether the copies are where the settings say. Otherwise, the copy is not looked for.
    """
    schema: TableSchema = read_schema(connection, database, table, engine, context.copy_rules.apply)
    context.pipeline.sink.delete_policy.mode_of(schema)
    if finds_copies:
        with suppress(OSError):  # a sink that cannot be read is reported by another check
            yield from _check_copy(context, context.sink.table(schema))
    # Select every column: with a grant on only some of them, the others would not even be listed.
    require_grant(
        lambda: query_rows(connection, f"SELECT * FROM {table_name(schema)} LIMIT 0"), "SELECT", table_name(schema)
    )
    left_out_count = sum(1 for c in schema.columns if c.name in schema.excluded and not c.is_hidden)
    if generated := _generated_columns(connection, schema):
        yield CheckResult(
            "warning",
            f"table {schema.label}: MariaDB leaves generated columns ({', '.join(generated)}) out of the row images of "
            "updates from 11.8 on, whatever binlog_row_image is: the first update stops the stream",
            "Leave them out with source.exclude_columns; a table without updates can be copied with them",
        )
    if rules := describe_rules(schema):
        yield CheckResult("ok", rules)
    left_out = f" ({left_out_count} more are left out)" if left_out_count else ""
    summary = f"table {schema.label}: {len(schema.copied_columns)} columns{left_out}"
    if schema.key:
        yield CheckResult("ok", f"{summary}, key ({', '.join(schema.key)})")
        return
    context.require_feature(Feature.KEYLESS, f"table {schema.label} has no usable key")
    yield CheckResult(
        "warning",
        f"{summary}, no usable key{why_no_key(connection, schema)}: it is read whole, in a single step that cannot be "
        "resumed and needs a moment without writes to the table, and every delete and update searches its whole copy",
        "Add a primary key (or a NOT NULL unique key) of integers, decimals, strings, binaries or dates",
    )


def _check_copy(context: RunContext, target: SinkTable) -> Iterator[CheckResult]:
    """Check the sink table of a table, or that it can be created."""
    if not target.exists():
        if isinstance(target, InFolder):
            target.check_folder_is_free()
    elif isinstance(target, Adoptable) and target.will_adopt(context.pipeline.name):
        yield CheckResult(
            "warning",
            f"the {target.name} was created by something else, and is adopted: all of its rows are replaced",
            "Its current rows stay readable in an older version for as long as its files are kept. To refuse "
            "the table, remove sink.adopt",
        )
    else:
        if isinstance(target, Adoptable):
            target.check_owner(context.pipeline.name)
        target.markers()  # raises the reason if the table can no longer be written


def _generated_columns(connection: Connection[Any], table: TableSchema) -> list[str]:
    """Return the copied generated columns that the server leaves out of the row images of updates."""
    version = [int(n) for n in str(query_value(connection, "SELECT @@version")).split("-")[0].split(".")[:2]]
    if not is_mariadb(connection) or version < [11, 8]:
        return []
    listed = query_rows(
        connection,
        "SELECT column_name FROM information_schema.columns WHERE is_generated = 'ALWAYS' "
        f"AND table_schema = {text_literal(table.database)} AND table_name = {text_literal(table.name)} "
        "ORDER BY ordinal_position",
    )
    return [str(name) for (name,) in listed if name not in table.excluded]
