"""The preflight: everything that can be known to go wrong, before anything is written."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pymysql.connections import Connection

from airflow_provider_cdc.connections import unsafe
from airflow_provider_cdc.core import slots
from airflow_provider_cdc.core.detours import SYSTEM
from airflow_provider_cdc.core.schema import TableSchema
from airflow_provider_cdc.core.start import SNAPSHOT
from airflow_provider_cdc.exceptions import CdcError, NotReadyError, TerminalError, TransientError
from airflow_provider_cdc.guarded import where
from airflow_provider_cdc.mysql.places.watermark import low_watermark
from airflow_provider_cdc.mysql.server.catalog import find_tables, read_schema, why_no_key
from airflow_provider_cdc.mysql.server.filters import filters, left_out
from airflow_provider_cdc.mysql.server.identity import DURABLE, binlog_status, identity, is_mariadb, product_of
from airflow_provider_cdc.mysql.server.key_sql import table_name, text_literal
from airflow_provider_cdc.mysql.server.product import Product, service_of
from airflow_provider_cdc.mysql.server.session import connect, pairs, rows, value
from airflow_provider_cdc.mysql.server.throttle import replica_lag
from airflow_provider_cdc.phases.context import Context
from airflow_provider_cdc.phases.retention_guard import forecast
from airflow_provider_cdc.sinks.protocol import Feature


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
    found += _one(lambda: _supported(context))
    found += _one(lambda: _safety(context))
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


def _supported(context: Context) -> Iterator[Finding]:
    """What the sink cannot do of what the pipeline asks for; of tables, :func:`_table` says it."""
    if context.pipeline.stream.on_purged == "reread":
        context.need(Feature.REREAD, "stream.on_purged is reread")
    yield from ()


def _safety(context: Context) -> Iterator[Finding]:
    """What the settings of the connections leave open; nothing is connected to."""
    pipeline, url = context.pipeline, context.store_url
    places: dict[str, tuple[Any, Mapping[str, Any]]] = {
        f"source.conn_id {pipeline.source.conn_id}": (context.connect_args, context.connect_args)
    }
    if url is not None:
        places[f"state.conn_id {pipeline.state.conn_id}"] = url, url.query
    for what, (place, settings) in places.items():
        if risk := unsafe(place):
            yield Finding(
                "warning",
                f"{what}: {risk}",
                f"Leave out {'sslmode' if 'sslmode' in settings else 'ssl_mode'} in its extra, and name there the "
                "authority that signed the server's certificate, unless the system knows it",
            )
        key = str(settings.get("ssl_key") or settings.get("sslkey") or "")
        if key and os.path.exists(key) and os.stat(key).st_mode & 0o077:
            yield Finding("warning", f"{what}: the key {key} can be read by others", f"chmod 600 {key}")


def _runtime() -> Iterator[Finding]:
    from airflow_provider_cdc.spark.install_check import check_spark_install
    from airflow_provider_cdc.spark.java import ensure_java_home

    version = check_spark_install()
    yield Finding("ok", f"pyspark is of version {version}; Java at {ensure_java_home()}")


def _server(context: Context, connection: Connection[Any]) -> Iterator[Finding]:
    version = str(value(connection, "SELECT @@version"))
    product, place = Product.of(version), where(context.connect_args)
    mariadb = product.mariadb
    if not product.readable:
        yield Finding(
            "error",
            f"server {place} is {product.name} {version}",
            "MySQL 8.0.22, MariaDB 10.6 and newer are read",
        )
        return
    found = pairs(connection, "SHOW GLOBAL VARIABLES")
    service = service_of(found)
    at_service = f" of {service.name}" if service else ""
    if product.tried and service is None:
        yield Finding("ok", f"server {place} is {product.name} {version}")
    else:
        yield Finding(
            "warning",
            f"server {place} is {product.name} {version}{at_service}: not tried with this version",
            "It is read as its documentation says (docs/versions.md): `airflow-cdc verify` proves the copy",
        )

    def change(setting: str) -> str:
        return service.set.format(setting) if service else f"SET {'GLOBAL' if mariadb else 'PERSIST'} {setting}"

    checks = (
        ("log_bin", "ON", service.no_binlog if service else "Start the server with --log-bin"),
        ("binlog_format", "ROW", change("binlog_format = 'ROW'")),
        ("binlog_row_image", "FULL", change("binlog_row_image = 'FULL'") + ", then reconnect the writers"),
        ("binlog_row_value_options", "", change("binlog_row_value_options = ''")),
    )
    for name, wanted, remedy in checks:
        if found.get(name, wanted) != wanted:
            yield Finding("error", f"{name} is {found[name]!r}, {wanted!r} is needed", remedy)
    if found["log_bin"] != "ON":
        return
    if weak := [f"{name} is {found[name]}" for name in DURABLE if found[name] != "1"]:
        yield Finding(
            "warning",
            f"{' and '.join(weak)}: a server that crashes may lose commits that the copy holds already",
            f"{change(', '.join(f'{name} = 1' for name in DURABLE))}; or run `airflow-cdc verify` after a crash",
        )
    expire = int(found.get("binlog_expire_logs_seconds", "0"))
    if service and service.keeps:
        yield Finding(
            "warning",
            f"{service.name} removes binlogs as soon as it can, unless it is told otherwise, and not by "
            "binlog_expire_logs_seconds: the hours that `status` and `plan` show do not hold there",
            f"{service.keeps} keeps them for a week; CALL mysql.rds_show_configuration shows what is set",
        )
    elif 0 < expire < 86_400:
        yield Finding(
            "warning",
            f"binlogs are kept for {expire / 3600:.1f} h only",
            "Raise binlog_expire_logs_seconds: a stream that stands still for longer loses its position",
        )
    if mariadb and found.get("binlog_row_metadata") != "FULL":
        yield Finding(
            "warning",
            f"binlog_row_metadata is {found.get('binlog_row_metadata')!r}: the binary log contains no names and "
            "signs of columns, so a change of a table that leaves them out would not be noticed",
            change("binlog_row_metadata = 'FULL'"),
        )
    at, do, ignore = _granted(lambda: binlog_status(connection), "REPLICATION CLIENT")
    gtids = "gtid_strict_mode" if mariadb else "gtid_mode"
    yield Finding("ok", f"binary log at {at}, {gtids} {found[gtids]}")
    if not mariadb and found["gtid_mode"] != "ON":
        # Without GTIDs watermarks need grants; the error names them.
        low_watermark(connection)
        yield Finding("ok", "low watermarks can be taken without GTIDs")
    yield from _updates(connection, found, mariadb)
    if do or ignore:
        yield Finding(
            "error",
            f"the server leaves databases out of its binary log (binlog-do-db={do}, binlog-ignore-db={ignore})",
            "Remove these options: changes that are not in the binary log cannot be copied",
        )


def _updates(connection: Connection[Any], found: dict[str, str], mariadb: bool) -> Iterator[Finding]:
    if found.get("log_replica_updates", found.get("log_slave_updates")) == "ON":
        return
    try:
        if not rows(connection, product_of(connection).replica_status):
            return
    except NotReadyError:  # MariaDB asks for a grant that nothing else needs
        yield Finding(
            "warning",
            "log_slave_updates is OFF, and the user may not see whether the server is a replica",
            "If it is one, start it with --log-slave-updates; GRANT REPLICA MONITOR ON *.* allows this check",
        )
        return
    yield Finding(
        "error",
        "the server is a replica that leaves out of its binary log what it replicates",
        "Start it with --log-replica-updates (MariaDB: --log-slave-updates), or read its source",
    )


def _granted(read: Callable[[], Any], grant: str, scope: str = "*.*") -> Any:
    try:
        return read()
    except NotReadyError as error:
        if error.code is None:  # not denied by the server
            raise
        raise NotReadyError(*_lacks(grant, scope)) from None


def _lacks(grant: str, scope: str = "*.*") -> tuple[str, str]:
    return f"the user lacks the grant {grant} on {scope}", f"GRANT {grant} ON {scope} TO the user of the connection"


def _server_ids(context: Context, connection: Connection[Any]) -> Iterator[Finding]:
    pipeline = context.pipeline
    mine = {pipeline.server_id(slot): pipeline.replica_uuid(slot) for slot in range(slots.LAST + 1)}
    try:
        listed = rows(connection, product_of(connection).replicas)
    except NotReadyError:
        if not is_mariadb(connection):
            raise NotReadyError(*_lacks("REPLICATION SLAVE")) from None
        yield Finding(
            "warning",
            f"whether the replication server ids {min(mine)} to {max(mine)} are free cannot be seen",
            "GRANT REPLICATION MASTER ADMIN ON *.* TO the user of the connection allows this check",
        )
        return
    taken = {int(str(row[0])): str(row[-1]) for row in listed}
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
    found += _one(lambda: _out_of_order(connection))
    found += _one(lambda: _created_since(context, matched))
    found += _one(lambda: _replica(context, connection, matched))
    found += _one(lambda: _retention(context, connection, matched))
    for database, table, engine in matched:
        found += _one(lambda d=database, t=table, e=engine: _table(context, connection, d, t, e))  # type: ignore[misc]
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


def _out_of_order(connection: Connection[Any]) -> Iterator[Finding]:
    """MariaDB commits a transaction that also changes such a table in an order of its own."""
    found = rows(
        connection,
        f"SELECT table_schema, table_name FROM information_schema.tables WHERE table_schema NOT IN {SYSTEM} "
        "AND engine = 'Aria' AND table_type = 'BASE TABLE' AND create_options NOT LIKE '%transactional=0%'",
    )
    if found:
        yield Finding(
            "warning",
            f"there are transactional Aria tables, such as {'.'.join(map(str, found[0]))} ({len(found)} in all): a "
            "transaction that changes one of them together with a captured table stops the copy",
            "Unless that never happens: ALTER TABLE ... TRANSACTIONAL=0, or ENGINE=InnoDB",
        )


def _replica(context: Context, connection: Connection[Any], matched: list[tuple[str, str, str]]) -> Iterator[Finding]:
    """What a server that is a replica does not have, and whether its lag can be looked at."""
    limit = context.pipeline.snapshot.max_replica_lag_seconds
    try:
        replica, channels = replica_lag(connection)[0], filters(connection)
    except NotReadyError:  # MariaDB asks for a grant that nothing else needs
        if limit is not None:
            yield Finding(
                "error",
                "snapshot.max_replica_lag_seconds is set, and the user may not see how far the server is behind",
                "GRANT REPLICA MONITOR ON *.* TO the user of the connection, or leave the limit out",
            )
        return
    if limit is not None and not replica:
        yield Finding(
            "warning",
            "snapshot.max_replica_lag_seconds has no effect: the server is not a replica",
            "Leave it out: a snapshot writes nothing, so replicas of its source have nothing more to do",
        )
    for database, table, _ in matched:
        if found := {name for channel in channels if (name := left_out(channel, database, table))}:
            yield Finding(
                "warning",
                f"table {database}.{table}: this server is a replica that leaves out its changes ({', '.join(found)})",
                "What is copied is what this server has: read its source, or change the filter",
            )


def _retention(context: Context, connection: Connection[Any], matched: list[tuple[str, str, str]]) -> Iterator[Finding]:
    """Whether the binlog outlives the snapshot. Once a stream has begun, that is its own concern."""
    if context.pipeline.stream.start != SNAPSHOT:
        return
    try:
        plan = context.load_plan()
        if context.sink.resume_point().read() is not None:
            return
    except (OSError, NotReadyError):
        return  # a sink that cannot be looked into, or a plan of other tables, is a finding of its own
    if plan is not None and identity(connection) != plan.p0.server:
        return
    try:
        found = forecast(context, connection, [(database, table) for database, table, _ in matched], plan)
    except TerminalError as error:
        if plan is None or context.pipeline.stream.on_purged != "reread":
            raise
        yield Finding("warning", error.message, "The snapshot starts over, because stream.on_purged is reread")
        return
    yield Finding(
        "ok" if found.verdict == "fine" else "warning",
        f"a snapshot of {found}",
        ""
        if found.verdict == "fine"
        else "Raise binlog_expire_logs_seconds first: a snapshot whose stream could not begin is ended early",
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


def _table(context: Context, connection: Connection[Any], database: str, table: str, engine: str) -> Iterator[Finding]:
    schema: TableSchema = read_schema(connection, database, table, engine, context.pipeline.keeps)
    # Every column: with a right on some of them the others would not even be listed.
    _granted(lambda: rows(connection, f"SELECT * FROM {table_name(schema)} LIMIT 0"), "SELECT", table_name(schema))
    more = sum(1 for c in schema.columns if c.name in schema.left_out and not c.hidden)
    if generated := _generated(connection, schema):
        yield Finding(
            "warning",
            f"table {schema.label}: MariaDB leaves generated columns ({', '.join(generated)}) out of the row images of "
            "updates from 11.8 on, whatever binlog_row_image is: the first update stops the stream",
            "Leave them out with source.exclude_columns; a table without updates can be copied with them",
        )
    left_out = f" ({more} more are left out)" if more else ""
    said = f"table {schema.label}: {len(schema.copied)} columns{left_out}"
    if schema.key:
        yield Finding("ok", f"{said}, key ({', '.join(schema.key)})")
        return
    context.need(Feature.KEYLESS, f"table {schema.label} has no usable key")
    yield Finding(
        "warning",
        f"{said}, no usable key{why_no_key(connection, schema)}: it is read whole, in one go that cannot be resumed "
        "inside and needs a moment without a write to the table, and every delete and update searches its whole copy",
        "Add a primary key (or a NOT NULL unique key) of integers, decimals, strings, binaries or dates",
    )


def _generated(connection: Connection[Any], table: TableSchema) -> list[str]:
    """Generated columns that are copied, and that the server leaves out of updates."""
    version = [int(n) for n in str(value(connection, "SELECT @@version")).split("-")[0].split(".")[:2]]
    if not is_mariadb(connection) or version < [11, 8]:
        return []
    listed = rows(
        connection,
        "SELECT column_name FROM information_schema.columns WHERE is_generated = 'ALWAYS' "
        f"AND table_schema = {text_literal(table.database)} AND table_name = {text_literal(table.name)} "
        "ORDER BY ordinal_position",
    )
    return [str(name) for (name,) in listed if name not in table.left_out]
