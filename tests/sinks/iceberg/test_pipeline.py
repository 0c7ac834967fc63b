"""A whole pipeline into Iceberg tables: with nothing but another kind of sink in its settings."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_provider_cdc.maintenance.uninstall import delete_pipeline, find_pipeline_data
from airflow_provider_cdc.preflight.run import run_preflight
from airflow_provider_cdc.sinks.iceberg.table import IcebergSinkTable
from airflow_provider_cdc.verify.run import verify_tables
from tests.support.cli import Cli
from tests.support.iceberg import read_with_duckdb, read_with_pyiceberg
from tests.support.iceberg_sink import metadata_file
from tests.support.servers import MySQLServer


@pytest.fixture(params=["deletion_vectors", "copy_on_write"])
def cli(
    mysql_server: MySQLServer, database: str, tmp_path: Path, cdc_user: dict[str, str], request: pytest.FixtureRequest
) -> Iterator[Cli]:
    mysql_server.session(
        database,
        "CREATE TABLE a (id INT PRIMARY KEY, v VARCHAR(20), d DECIMAL(5,2), t TIMESTAMP(6) NULL)",
        "INSERT INTO a VALUES " + ",".join(f"({n}, 'v{n}', {n}.5, '2026-01-01 00:00:00.000001')" for n in range(100)),
        "CREATE TABLE b (k VARCHAR(20) PRIMARY KEY, v DOUBLE, j JSON)",
        "INSERT INTO b VALUES ('a', -0.0, '[1]'), ('B', 1.5, NULL), ('é', NULL, '{}')",
        "CREATE TABLE log (v INT, w INT)",
        "INSERT INTO log VALUES (1, 1), (1, 1), (NULL, 2)",
        "CREATE TABLE none_yet (id INT PRIMARY KEY)",
    )
    sink = {"kind": "iceberg", "merge": request.param, "partition_by": {r".*\.a": [{"month": "t"}]}}
    snapshot = {"chunk_rows": 10, "group_rows": 40}
    yield Cli(tmp_path, mysql_server, rf"{database}\..*", name=database, user=cdc_user, snapshot=snapshot, sink=sink)


def equal(cli: Cli, tables: int = 4) -> None:
    found = verify_tables(cli.context, show_values=True)
    assert [str(table) for table in found if not table.is_equal] == [] and len(found) == tables


def sink_table(cli: Cli, name: str) -> IcebergSinkTable:
    context = cli.context
    (schema,) = [table for table in context.plans.require().tables if table.name == name]
    target = context.sink.table(schema)
    assert isinstance(target, IcebergSinkTable)
    return target


def test_a_whole_pipeline(cli: Cli, mysql_server: MySQLServer, database: str) -> None:
    """Check, snapshot, stream, DDL, another read of a table, verify, and forget: nothing is left in the catalog."""
    assert not [finding for finding in run_preflight(cli.context, spark=False) if finding.level == "error"]
    cli.snapshot()
    equal(cli)
    mysql_server.session(
        database,
        "UPDATE a SET v = 'new', t = '2026-05-05' WHERE id < 5",
        "DELETE FROM a WHERE id = 50",
        "UPDATE a SET id = 1000 WHERE id = 7",
        "UPDATE b SET v = 7 WHERE k = 'B'",
        "DELETE FROM log WHERE v = 1 LIMIT 1",
        "INSERT INTO log VALUES (NULL, 2), (3, 3)",
        "INSERT INTO none_yet VALUES (1), (2)",
    )
    cli.catch_up()
    equal(cli)
    mysql_server.session(
        database,
        "ALTER TABLE a ADD COLUMN n INT, DROP COLUMN d",
        "UPDATE a SET n = id WHERE id > 90",
        "TRUNCATE TABLE b",
        "INSERT INTO b VALUES ('z', 1, NULL)",
        "UPDATE log SET w = 9",
    )
    cli.catch_up()
    equal(cli)
    target = sink_table(cli, "a")
    for read in (read_with_pyiceberg, read_with_duckdb):
        rows = read(metadata_file(target)).to_pylist()
        assert len(rows) == 99 and sum(row["n"] or 0 for row in rows) == sum(range(91, 100)) + 1000
        assert "d" not in rows[0]
    cli.resnapshot(f"{database}.b")
    cli.catch_up()
    equal(cli)
    with cli.opened() as (context, store):
        data = find_pipeline_data(context, store)
        assert len(data.table_folders) == 4
        tables = [context.sink.table(table) for table in context.plans.require().tables]
        delete_pipeline(context, store, data, delete_tables=True)
        assert not any(table.exists() for table in tables) and not context.sink.resume_point().exists()
    assert not [*cli.sink.rglob("*.parquet"), *cli.sink.rglob("*.avro")]
