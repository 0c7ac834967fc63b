"""Preflight checks of the server: version, settings, binlog, and replication server ids."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pymysql.connections import Connection

from airflow_provider_cdc.model import server_id_slots as slots
from airflow_provider_cdc.model.errors import NotReadyError
from airflow_provider_cdc.mysql.client.identity import DURABILITY_VARIABLES, binlog_status, is_mariadb, product_of
from airflow_provider_cdc.mysql.client.product import Product, managed_service_of
from airflow_provider_cdc.mysql.client.session import query_pairs, query_rows, query_value
from airflow_provider_cdc.mysql.client.verified_connection import describe_address
from airflow_provider_cdc.mysql.positions.watermarks import take_low_watermark
from airflow_provider_cdc.preflight.check_result import CheckResult, missing_grant, require_grant
from airflow_provider_cdc.runtime.run_context import RunContext


def check_server(context: RunContext, connection: Connection[Any]) -> Iterator[CheckResult]:
    """Check version and settings of the server, and that its binlog has everything that is needed."""
    version = str(query_value(connection, "SELECT @@version"))
    product, address = Product.parse(version), describe_address(context.connect_args)
    mariadb = product.is_mariadb
    if not product.is_supported:
        yield CheckResult(
            "error",
            f"server {address} is {product.name} {version}",
            "Supported are MySQL 8.0.22, MariaDB 10.6, and newer",
        )
        return
    variables = query_pairs(connection, "SHOW GLOBAL VARIABLES")
    service = managed_service_of(variables)
    at_service = f" of {service.name}" if service else ""
    if product.is_tested and service is None:
        yield CheckResult("ok", f"server {address} is {product.name} {version}")
    else:
        yield CheckResult(
            "warning",
            f"server {address} is {product.name} {version}{at_service}: not tested with this version",
            "It is read as its documentation says. `airflow-cdc verify` proves the copy",
        )

    def change(setting: str) -> str:
        return (
            service.setting_hint.format(setting) if service else f"SET {'GLOBAL' if mariadb else 'PERSIST'} {setting}"
        )

    checks = (
        ("log_bin", "ON", service.enable_binlog_hint if service else "Start the server with --log-bin"),
        ("binlog_format", "ROW", change("binlog_format = 'ROW'")),
        ("binlog_row_image", "FULL", change("binlog_row_image = 'FULL'") + ", then reconnect the writers"),
        ("binlog_row_value_options", "", change("binlog_row_value_options = ''")),
    )
    for name, wanted, remedy in checks:
        if variables.get(name, wanted) != wanted:
            yield CheckResult("error", f"{name} is {variables[name]!r}, but must be {wanted!r}", remedy)
    if variables["log_bin"] != "ON":
        return
    if not_durable := [f"{name} is {variables[name]}" for name in DURABILITY_VARIABLES if variables[name] != "1"]:
        yield CheckResult(
            "warning",
            f"{' and '.join(not_durable)}: a server that crashes may lose commits that the copy already has",
            f"{change(', '.join(f'{name} = 1' for name in DURABILITY_VARIABLES))}; or run `airflow-cdc verify` after "
            "a crash",
        )
    expire = int(variables.get("binlog_expire_logs_seconds", "0"))
    if service and service.retention_hint:
        yield CheckResult(
            "warning",
            f"{service.name} removes binlogs as soon as it can unless configured otherwise, and ignores "
            "binlog_expire_logs_seconds: the hours that `status` and `plan` show do not apply",
            f"{service.retention_hint} keeps them for a week; CALL mysql.rds_show_configuration shows what is set",
        )
    elif 0 < expire < 86_400:
        yield CheckResult(
            "warning",
            f"binlogs are kept for only {expire / 3600:.1f} h",
            "Raise binlog_expire_logs_seconds: a stream that is stopped for longer loses its position",
        )
    if (metadata := variables.get("binlog_row_metadata")) != "FULL":
        missing_facts = "names, members of ENUM and SET columns and primary keys"
        missing_facts = (
            missing_facts if metadata == "MINIMAL" else f"signs, character sets, types of geometry, {missing_facts}"
        )
        yield CheckResult(
            "warning",
            f"binlog_row_metadata is {metadata!r}: the binary log does not contain the {missing_facts} of tables, so "
            "a change of these that is not logged (sql_log_bin=0) would not be noticed",
            change("binlog_row_metadata = 'FULL'"),
        )
    at, do, ignore = require_grant(lambda: binlog_status(connection), "REPLICATION CLIENT")
    gtids = "gtid_strict_mode" if mariadb else "gtid_mode"
    yield CheckResult("ok", f"binary log at {at}, {gtids} {variables[gtids]}")
    if not mariadb and variables["gtid_mode"] != "ON":
        # Without GTIDs watermarks need grants; the error names them.
        take_low_watermark(connection)
        yield CheckResult("ok", "low watermarks can be taken without GTIDs")
    yield from _check_replica_updates(connection, variables, mariadb)
    if do or ignore:
        yield CheckResult(
            "error",
            f"the server leaves databases out of its binary log (binlog-do-db={do}, binlog-ignore-db={ignore})",
            "Remove these options: changes that are not in the binary log cannot be copied",
        )


def _check_replica_updates(
    connection: Connection[Any], variables: dict[str, str], mariadb: bool
) -> Iterator[CheckResult]:
    if variables.get("log_replica_updates", variables.get("log_slave_updates")) == "ON":
        return
    try:
        if not query_rows(connection, product_of(connection).replica_status_sql):
            return
    except NotReadyError:  # MariaDB asks for a grant that nothing else needs
        yield CheckResult(
            "warning",
            "log_slave_updates is OFF, and the user may not see whether the server is a replica",
            "If it is one, start it with --log-slave-updates; GRANT REPLICA MONITOR ON *.* allows this check",
        )
        return
    yield CheckResult(
        "error",
        "the server is a replica that does not write replicated changes to its binary log",
        "Start it with --log-replica-updates (MariaDB: --log-slave-updates), or read its source",
    )


def check_server_ids(context: RunContext, connection: Connection[Any]) -> Iterator[CheckResult]:
    """Check that the replication server ids of the pipeline are free."""
    pipeline = context.pipeline
    pipeline_ids = {pipeline.server_id(slot): pipeline.replica_uuid(slot) for slot in range(slots.LAST_SLOT + 1)}
    try:
        listed = query_rows(connection, product_of(connection).replicas_sql)
    except NotReadyError:
        if not is_mariadb(connection):
            raise NotReadyError(*missing_grant("REPLICATION SLAVE")) from None
        yield CheckResult(
            "warning",
            f"whether the replication server ids {min(pipeline_ids)} to {max(pipeline_ids)} are free cannot be checked",
            "GRANT REPLICATION MASTER ADMIN ON *.* TO the user of the connection allows this check",
        )
        return
    ids_in_use = {int(str(row[0])): str(row[-1]) for row in listed}
    own_server_id = int(query_value(connection, "SELECT @@server_id") or 0)
    for number, uuid in pipeline_ids.items():
        # The same uuid is this pipeline itself: a dead connection that the server has not noticed yet.
        if number == own_server_id or (number in ids_in_use and ids_in_use[number] != uuid):
            yield CheckResult(
                "error",
                f"replication server id {number} is in use",
                f"Set source.server_id to the first of {len(pipeline_ids)} free ids (SHOW REPLICAS lists those in use)",
            )
            return
    yield CheckResult("ok", f"replication server ids {min(pipeline_ids)} to {max(pipeline_ids)} are free")
