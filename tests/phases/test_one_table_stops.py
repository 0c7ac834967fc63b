"""What the binlog has of one table and cannot be followed suspends that table alone, and reading it again helps."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_provider_cdc.exceptions import TableSuspendedError
from tests.phases.test_suspension import copied, equal
from tests.support.cli import Cli
from tests.support.servers import MySQLServer
from tests.support.three_tables import TABLES, run, three_tables


@pytest.fixture
def database(server: MySQLServer) -> Iterator[str]:
    with three_tables(server) as name:
        yield name


def suspended(server: MySQLServer, cli: Cli, says: str, table: str = "keyed") -> TableSuspendedError:
    """The next run suspends a table, and the others go on."""
    with pytest.raises(TableSuspendedError, match=says) as stopped:
        cli.catch_up()
    assert (stopped.value.table, stopped.value.suspended) == (f"d.{table}", 1)
    assert "fresh sink" not in str(stopped.value) and f"resnapshot --table d.{table}" in stopped.value.remedy
    equal(server, cli, *(one for one in TABLES if one != table))
    return stopped.value


def read_again(server: MySQLServer, cli: Cli, table: str = "keyed") -> None:
    """Reading it again gets past the event, and the table goes on."""
    assert cli.resnapshot(f"d.{table}") == "staged"
    run(server, f"INSERT INTO {table} VALUES (777, 'behind')")
    cli.catch_up()
    equal(server, cli, *TABLES)


@pytest.mark.parametrize("metadata", ["FULL", "MINIMAL"])
def test_another_character_set(server: MySQLServer, database: str, metadata: str, tmp_path: Path) -> None:
    server.execute(f"SET GLOBAL binlog_row_metadata = {metadata}")
    try:
        run(server, "ALTER TABLE keyed MODIFY v VARCHAR(40) CHARACTER SET latin1")
        cli = copied(server, tmp_path)
        run(
            server,
            "SET SESSION sql_log_bin = 0",
            "ALTER TABLE keyed MODIFY v VARCHAR(10) CHARACTER SET utf8mb4",
            "SET SESSION sql_log_bin = 1",
            "INSERT INTO keyed VALUES (900, 'größer')",
            "UPDATE quiet SET v = 'behind' WHERE id = 2",
        )
        suspended(server, cli, "column v in character set utf8mb4 in the binlog and latin1 in the catalog")
        read_again(server, cli)
    finally:
        server.execute("SET GLOBAL binlog_row_metadata = FULL")
