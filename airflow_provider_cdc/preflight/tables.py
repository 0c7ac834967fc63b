"""What the preflight asks of the captured tables: keys, columns, rights, and what the binlog leaves out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
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
from airflow_provider_cdc.runtime.run_context import RunContext
from airflow_provider_cdc.sinks.protocol import Adoptable, Feature
from airflow_provider_cdc.snapshot.retention_guard import forecast_snapshot


def check_tables(context: RunContext, connection: Connection[Any]) -> list[CheckResult]:
    """Which tables are captured, and what stands in the way of an exact copy of them."""
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
    results += run_check(lambda: _check_cascades(connection, matched))
    results += run_check(lambda: _check_aria_tables(connection))
    results += run_check(lambda: _check_plan_changes(context, matched))
    results += run_check(lambda: _check_replica(context, connection, matched))
    results += run_check(lambda: _check_retention(context, connection, matched))
    suspended = _suspended_tables(context)
    for database, table, engine in matched:
        table_results = run_check(lambda d=database, t=table, e=engine: _check_table(context, connection, d, t, e))  # type: ignore[misc]
        # What stands in the way of a suspended table does not hold up the others.
        if (database, table) in suspended:
            table_results = [replace(f, level="warning") if f.level == "error" else f for f in table_results]
        results += table_results
    return results


def _suspended_tables(context: RunContext) -> set[tuple[str, str]]:
    with suppress(OSError, CdcError):  # a finding of its own
        if (plan := context.load_plan()) is not None:
            return {plan.tables[step.table].id for step in plan.suspensions}
    return set()


def _check_folder_conflicts(context: RunContext, matched: list[tuple[str, str, str]]) -> Iterator[CheckResult]:
    """Tables that would be copied to one place, also where case does not count in the names of folders."""
    paths, tables_by_folder = context.pipeline.sink.table_paths, dict[str, tuple[str, str]]()
    paths.check_distinct((database, table) for database, table, _ in matched)
    for database, table, _ in matched:
        if odd_characters := url_escaped_characters(paths.path_of(database, table)):
            yield CheckResult(
                "warning",
                f"table {database}.{table}: its folder has {odd_characters!r} in its name",
                URL_READERS_REMEDY,
            )
        other = tables_by_folder.setdefault(paths.path_of(database, table).casefold(), (database, table))
        if other != (database, table):
            yield CheckResult(
                "warning",
                f"tables {'.'.join(other)} and {database}.{table}: the folders of their copies differ in case only",
                "Where sink.path does not tell cases apart the second one is refused: tell them apart in "
                "sink.table_path, or exclude one of them",
            )


def _check_cascades(connection: Connection[Any], matched: list[tuple[str, str, str]]) -> Iterator[CheckResult]:
    """Before 9.6, changes that a foreign key makes in a child table are not in the binary log at all."""
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
                f"table {database}.{table}: what foreign key {name} (ON DELETE {on_delete}, ON UPDATE {on_update}) "
                "changes is not in this server's binary log",
                "Let `airflow-cdc verify` run on a schedule, or change the rows by statements of your own",
            )


def _check_aria_tables(connection: Connection[Any]) -> Iterator[CheckResult]:
    """MariaDB commits a transaction that also changes such a table in an order of its own."""
    aria_tables = query_rows(
        connection,
        f"SELECT table_schema, table_name FROM information_schema.tables WHERE table_schema NOT IN {SYSTEM_DATABASES} "
        "AND engine = 'Aria' AND table_type = 'BASE TABLE' AND create_options NOT LIKE '%transactional=0%'",
    )
    if aria_tables:
        yield CheckResult(
            "warning",
            f"there are transactional Aria tables, such as {'.'.join(map(str, aria_tables[0]))} ({len(aria_tables)} "
            "in all): a "
            "transaction that changes one of them together with a captured table stops the copy",
            "Unless that never happens: ALTER TABLE ... TRANSACTIONAL=0, or ENGINE=InnoDB",
        )


def _check_replica(
    context: RunContext, connection: Connection[Any], matched: list[tuple[str, str, str]]
) -> Iterator[CheckResult]:
    """What a server that is a replica does not have, and whether its lag can be looked at."""
    limit = context.pipeline.snapshot.max_replica_lag_seconds
    try:
        replica = replica_lag(connection)[0]
    except NotReadyError:  # MariaDB asks for a grant that nothing else needs
        replica = True
        if limit is not None:
            yield CheckResult(
                "error",
                "snapshot.max_replica_lag_seconds is set, and the user may not see how far the server is behind",
                "GRANT REPLICA MONITOR ON *.* TO the user of the connection, or leave the limit out",
            )
    try:
        channels = read_filters(connection)
    except NotReadyError as error:
        yield CheckResult("warning", f"{error.message}: a stream cannot go on at another server", error.remedy)
        return
    if limit is not None and not replica:
        yield CheckResult(
            "warning",
            "snapshot.max_replica_lag_seconds has no effect: the server is not a replica",
            "Leave it out: a snapshot writes nothing, so replicas of its source have nothing more to do",
        )
    for database, table, _ in matched:
        if filter_names := sorted(
            {name for channel in channels if (name := excluding_filter(channel, database, table))}
        ):
            yield CheckResult(
                "warning",
                f"table {database}.{table}: this server leaves out its changes as a replica "
                f"({', '.join(filter_names)})",
                "What is copied is what this server has: read its source, or change the filter",
            )


def _check_retention(
    context: RunContext, connection: Connection[Any], matched: list[tuple[str, str, str]]
) -> Iterator[CheckResult]:
    """Whether the binlog outlives the snapshot. Once a stream has begun, that is its own concern."""
    if context.pipeline.stream.start != SNAPSHOT:
        return
    try:
        plan = context.load_plan()
        if context.sink.resume_point().read() is not None:
            return
    except (OSError, NotReadyError):
        return  # a sink that cannot be looked into, or a plan of other tables, is a finding of its own
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
        plan = context.load_plan()
    except OSError:
        return  # a sink that cannot be looked into is a finding of its own
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
    reaction = "reads the table again" if context.pipeline.stream.on_table_error == SUSPEND else "stops at that"
    for reason in context.find_changed_columns(plan).values():
        yield CheckResult(
            "warning",
            f"{reason}: the next run of the stream {reaction}",
            "Undo the change if that is not what you want",
        )


def _check_table(
    context: RunContext, connection: Connection[Any], database: str, table: str, engine: str
) -> Iterator[CheckResult]:
    schema: TableSchema = read_schema(connection, database, table, engine, context.pipeline.copies_column)
    context.pipeline.sink.delete_policy.mode_of(schema)
    with suppress(OSError):  # a sink that cannot be looked into is a finding of its own
        if (target := context.sink.table(schema)).exists():
            if isinstance(target, Adoptable) and target.will_adopt(context.pipeline.name):
                yield CheckResult(
                    "warning",
                    f"the {target.name} was made by something else, and is adopted: all of its rows are replaced",
                    "Its rows of now stay readable in its older version for as long as it keeps its files; leave out "
                    "sink.adopt to refuse it",
                )
            else:
                target.markers()  # a table that cannot be written any more says why
    # Every column: with a right on some of them the others would not even be listed.
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
    left_out = f" ({left_out_count} more are left out)" if left_out_count else ""
    summary = f"table {schema.label}: {len(schema.copied_columns)} columns{left_out}"
    if schema.key:
        yield CheckResult("ok", f"{summary}, key ({', '.join(schema.key)})")
        return
    context.require_feature(Feature.KEYLESS, f"table {schema.label} has no usable key")
    yield CheckResult(
        "warning",
        f"{summary}, no usable key{why_no_key(connection, schema)}: it is read whole, in one go that cannot be resumed "
        "inside and needs a moment without a write to the table, and every delete and update searches its whole copy",
        "Add a primary key (or a NOT NULL unique key) of integers, decimals, strings, binaries or dates",
    )


def _generated_columns(connection: Connection[Any], table: TableSchema) -> list[str]:
    """Generated columns that are copied, and that the server leaves out of updates."""
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
