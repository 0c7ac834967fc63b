"""A sink is summed by Spark tasks as it is by threads."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_cdc.spark.session import start_session
from airflow_provider_cdc.verify import task as scans
from airflow_provider_cdc.verify.run import verify_tables
from airflow_provider_cdc.verify.spark_job import spark_scan_runner
from tests.support.cli import Cli
from tests.support.servers import MySQLServer

pytestmark = pytest.mark.spark


def test_tasks_find_what_threads_find(mysql_server: MySQLServer, database: str, tmp_path: Path) -> None:
    mysql_server.execute(f"CREATE TABLE {database}.t (id INT PRIMARY KEY, v VARCHAR(99), d DATETIME(3))")
    listed = ", ".join(f"({n}, 'value {n}', '2026-01-01 00:00:00.{n % 1000:03d}')" for n in range(5000))
    mysql_server.execute(f"INSERT INTO {database}.t VALUES {listed}")
    cli = Cli(tmp_path, mysql_server, f"{database}.t", snapshot={"chunk_rows": 100})
    cli.snapshot()
    mysql_server.execute(f"UPDATE {database}.t SET v = 'newer' WHERE id < 300")
    cli.catch_up()
    spark = start_session("verify", "local[2]")
    try:
        sizes = []

        def run(work: list[scans.SinkScan]) -> list[scans.RowCollector]:
            found = spark_scan_runner(spark, print)(work)
            here = scans.run_scans_in_threads(work)
            assert all(not len(a.sums.differing_buckets(b.sums)) for a, b in zip(found, here, strict=True))
            assert [[t.num_rows for t in a.rows] for a in found] == [[t.num_rows for t in b.rows] for b in here]
            sizes.append(len(work))
            return list(found)

        assert verify_tables(cli.context, runner=run)[0].is_equal and sizes[0] > 1  # type: ignore[arg-type]
        mysql_server.session(database, "SET sql_log_bin = 0", "UPDATE t SET v = 'x' WHERE id IN (7, 4000)")
        (found,) = verify_tables(cli.context, runner=run)  # type: ignore[arg-type]
        assert {d.key for d in found.differences} == {(7,), (4000,)} and len(sizes) == 3
    finally:
        spark.stop()
