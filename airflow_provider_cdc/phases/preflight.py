"""The preflight: everything that can be known to go wrong, before anything is written."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pymysql.connections import Connection

from airflow_provider_cdc.core.schema import TableSchema
from airflow_provider_cdc.exceptions import CdcError, NotReadyError, TransientError
from airflow_provider_cdc.mysql.catalog import find_tables, read_schema
from airflow_provider_cdc.mysql.keys import table_name
from airflow_provider_cdc.mysql.session import connect, rows, value, where
from airflow_provider_cdc.mysql.watermark import status
from airflow_provider_cdc.phases.context import Context


@dataclass(frozen=True)
class Finding:
    """One result of the preflight.

    :param level: ``ok``, ``warning`` or ``error``.
    :param what: what was looked at and found.
    :param remedy: what to do about it.
    :param transient: whether it may go away by itself.
    """

    level: str
    what: str
    remedy: str = ""
    transient: bool = False

    @classmethod
    def of(cls, error: CdcError) -> Finding:
        """An error as a finding; :meth:`error` turns it back."""
        return cls("error", error.message, error.remedy, isinstance(error, TransientError))

    def error(self) -> CdcError:
        """The finding as an error."""
        return (TransientError if self.transient else NotReadyError)(self.what, self.remedy)

    def to_json(self) -> dict[str, str]:
        """Plain JSON value."""
        return {"level": self.level, "what": self.what, "remedy": self.remedy}


def preflight(context: Context, *, spark: bool = True) -> list[Finding]:
    """Look at server, grants, tables, sink and runtime. Nothing is written, not even a folder.

    :param spark: also look at pyspark and Java.
    """
    found: list[Finding] = []
    found += _one(lambda: _sink(Path(context.pipeline.sink.path)))
    if spark:
        found += _one(_runtime)
    try:
        connection = connect(context.connect_args)
    except CdcError as error:
        return [*found, Finding.of(error)]
    with closing(connection):
        found += _one(lambda: _server(context, connection))
        found += _one(lambda: _server_ids(context, connection))
        found += _tables(context, connection)
    return found


def require(context: Context, *, spark: bool = True) -> list[Finding]:
    """Stop unless the preflight finds no error.

    :returns: the warnings.
    :raises NotReadyError: with the first error found.
    :raises TransientError: if that may go away by itself: the server cannot be reached.
    """
    found = preflight(context, spark=spark)
    for finding in found:
        if finding.level == "error":
            raise finding.error()
    return [f for f in found if f.level == "warning"]


def _one(look: Callable[[], Iterator[Finding]]) -> list[Finding]:
    found: list[Finding] = []
    try:
        for finding in look():
            found.append(finding)
    except CdcError as error:
        found.append(Finding.of(error))
    return found


def _sink(path: Path) -> Iterator[Finding]:
    existing = path
    while not os.path.exists(existing) and existing != existing.parent:  # not Path.exists: it may be denied to look
        existing = existing.parent
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        yield Finding(
            "error",
            f"sink.path {path} cannot be written: {existing} is not a writable folder",
            "Give the user that runs this write access to it, or choose another sink.path",
        )
        return
    free = shutil.disk_usage(existing).free
    yield Finding("ok", f"sink {path} is writable, {free / 1e9:.1f} GB free")


def _runtime() -> Iterator[Finding]:
    from airflow_provider_cdc.spark.install_check import check_spark_install
    from airflow_provider_cdc.spark.java import ensure_java_home

    version = check_spark_install()
    yield Finding("ok", f"pyspark and pyspark-client are of version {version}; Java at {ensure_java_home()}")


def _server(context: Context, connection: Connection[Any]) -> Iterator[Finding]:
    version, log_bin, form, image, options, gtid, expire = rows(
        connection,
        "SELECT @@version, @@log_bin, @@global.binlog_format, @@global.binlog_row_image, "
        "@@global.binlog_row_value_options, @@global.gtid_mode, @@global.binlog_expire_logs_seconds",
    )[0]
    place = where(context.connect_args)
    numbers = [int(n) for n in str(version).split("-")[0].split(".")[:2]]
    if "mariadb" in str(version).lower() or numbers < [8, 4]:
        yield Finding("error", f"server {place} is version {version}", "This version reads MySQL 8.4 and 9.x")
        return
    yield Finding("ok", f"server {place} is MySQL {version}")
    checks = (
        ("log_bin", log_bin, "1", "Start the server with --log-bin"),
        ("binlog_format", form, "ROW", "SET PERSIST binlog_format = 'ROW'"),
        ("binlog_row_image", image, "FULL", "SET PERSIST binlog_row_image = 'FULL', then reconnect the writers"),
        ("binlog_row_value_options", options, "", "SET PERSIST binlog_row_value_options = ''"),
        ("gtid_mode", gtid, "ON", "Set gtid_mode=ON and enforce_gtid_consistency=ON on the server"),
    )
    for name, is_value, wanted, remedy in checks:
        if is_value != wanted:
            yield Finding("error", f"{name} is {is_value!r}, {wanted!r} is needed", remedy)
    if log_bin != "1":
        return
    if 0 < int(expire or 0) < 86_400:
        yield Finding(
            "warning",
            f"binlogs are kept for {int(expire or 0) / 3600:.1f} h only",
            "Raise binlog_expire_logs_seconds: a stream that stands still longer loses its position",
        )
    at, _ = _granted(lambda: status(connection), "REPLICATION CLIENT")
    yield Finding("ok", f"binary log at {at}, gtid_mode {gtid}")
    if value(connection, "SELECT @@log_replica_updates") != "1" and rows(connection, "SHOW REPLICA STATUS"):
        yield Finding(
            "error",
            "the server is a replica that leaves out of its binary log what it replicates",
            "Start it with --log-replica-updates, or read its source",
        )
    do, ignore = rows(connection, "SHOW BINARY LOG STATUS")[0][2:4]
    if do or ignore:
        yield Finding(
            "error",
            f"the server leaves databases out of its binary log (binlog-do-db={do}, binlog-ignore-db={ignore})",
            "Remove these options: changes that are not in the binary log cannot be copied",
        )


def _granted(read: Callable[[], Any], grant: str, scope: str = "*.*") -> Any:
    try:
        return read()
    except NotReadyError as error:
        if "denied" not in error.message:
            raise
        raise NotReadyError(
            f"the user lacks the grant {grant} on {scope}", f"GRANT {grant} ON {scope} TO the user of the connection"
        ) from None


def _server_ids(context: Context, connection: Connection[Any]) -> Iterator[Finding]:
    pipeline = context.pipeline
    slots = range(pipeline.snapshot.parallelism + 1)
    mine = {pipeline.server_id(s): pipeline.replica_uuid(s) for s in slots}
    taken = {
        int(str(row[0])): str(row[-1])
        for row in _granted(lambda: rows(connection, "SHOW REPLICAS"), "REPLICATION SLAVE")
    }
    own = int(value(connection, "SELECT @@server_id") or 0)
    for number, uuid in mine.items():
        # The same uuid is this pipeline itself: a connection that the server has not noticed to be dead.
        if number == own or (number in taken and taken[number] != uuid):
            yield Finding(
                "error",
                f"replication server id {number} is in use",
                f"Set source.server_id to the first of {len(mine)} free ids (SHOW REPLICAS lists those in use)",
            )
            return
    yield Finding("ok", f"replication server ids {min(mine)} to {max(mine)} are free")


def _tables(context: Context, connection: Connection[Any]) -> list[Finding]:
    found: list[Finding] = []
    try:
        matched = find_tables(connection, context.pipeline.captures)
    except CdcError as error:
        return [Finding.of(error)]
    if not matched:
        patterns = ", ".join(context.pipeline.source.tables)
        return [
            Finding(
                "error",
                f"no table matches source.tables ({patterns})",
                "Check the patterns (anchored, database.table) and that the user has SELECT on the tables",
            )
        ]
    found += _one(lambda: _cascades(connection, matched))
    found += _one(lambda: _created_since(context, matched))
    for database, table, engine in matched:
        found += _one(lambda d=database, t=table, e=engine: _table(connection, d, t, e))  # type: ignore[misc]
    return found


def _cascades(connection: Connection[Any], matched: list[tuple[str, str, str]]) -> Iterator[Finding]:
    """Before 9.6, changes that a foreign key makes in a child table are not in the binary log at all."""
    if rows(connection, "SHOW GLOBAL VARIABLES LIKE 'innodb_native_foreign_keys'") == [
        ("innodb_native_foreign_keys", "OFF")
    ]:
        return
    captured = {(database, table) for database, table, _ in matched}
    for database, table, name, on_delete, on_update in rows(
        connection,
        "SELECT constraint_schema, table_name, constraint_name, delete_rule, update_rule "
        "FROM information_schema.referential_constraints "
        "WHERE delete_rule IN ('CASCADE', 'SET NULL') OR update_rule IN ('CASCADE', 'SET NULL')",
    ):
        if (database, table) in captured:
            yield Finding(
                "warning",
                f"table {database}.{table}: what foreign key {name} (ON DELETE {on_delete}, ON UPDATE {on_update}) "
                "changes is not in this server's binary log",
                "Let `airflow-cdc verify` run on a schedule, or change the rows by statements of your own",
            )


def _created_since(context: Context, matched: list[tuple[str, str, str]]) -> Iterator[Finding]:
    try:
        plan = context.load_plan()
    except OSError:
        return  # a sink that cannot be looked into is a finding of its own
    if plan is None:
        return
    planned = {t.id for t in plan.tables}
    for database, table, _ in matched:
        if (database, table) not in planned:
            yield Finding(
                "warning",
                f"table {database}.{table} was created after the snapshot and is not copied",
                "Adding tables is not built yet: start with a fresh sink.path, or exclude it there",
            )


def _table(connection: Connection[Any], database: str, table: str, engine: str) -> Iterator[Finding]:
    schema: TableSchema = read_schema(connection, database, table, engine)
    # Every column: with a right on some of them the others would not even be listed.
    _granted(lambda: rows(connection, f"SELECT * FROM {table_name(schema)} LIMIT 0"), "SELECT", table_name(schema))
    yield Finding("ok", f"table {schema.label}: {len(schema.columns)} columns, key ({', '.join(schema.key)})")
