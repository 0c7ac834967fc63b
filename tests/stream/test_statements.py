"""Changes by statement, end to end: what stops a pipeline and the data source, and what does not."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_provider_cdc.data_source.changes_planner import ChangesPlanner
from airflow_provider_cdc.data_source.table_changes import TableChanges
from airflow_provider_cdc.model.errors import TerminalError
from tests.support.cli import Cli
from tests.support.mariadb import MariaDBServer
from tests.support.oracle import compare_database
from tests.support.servers import MySQLServer


@pytest.fixture
def database(server: MySQLServer) -> Iterator[str]:
    server.execute("DROP DATABASE IF EXISTS d")
    server.execute("CREATE DATABASE d")
    server.session(
        "d",
        "CREATE TABLE t (a INT PRIMARY KEY, b INT)",
        "INSERT INTO t VALUES (1, 1)",
        "CREATE TABLE other (a INT)",
        "CREATE VIEW v AS SELECT * FROM t",
        "CREATE VIEW mine AS SELECT * FROM other",
    )
    yield "d"
    server.execute("DROP DATABASE d")


def test_through_a_view(server: MySQLServer, database: str, tmp_path: Path) -> None:
    cli = Cli(tmp_path, server, r"d\.t")
    cli.snapshot()
    server.session(
        "d",
        "SET SESSION binlog_format = STATEMENT",
        "INSERT INTO mine VALUES (5)",
        "INSERT INTO other SELECT a FROM v",
        "SET SESSION binlog_format = ROW",
        "UPDATE v SET b = 2",
    )
    cli.catch_up()
    assert compare_database(server, "d", cli.sink, ["t"]) == []
    server.session("d", "SET SESSION binlog_format = STATEMENT", "UPDATE v SET b = 3")
    with pytest.raises(TerminalError, match=r"UPDATE logged by statement may change .* through d\.v .*binlog\."):
        cli.catch_up()


def test_the_data_source(server: MySQLServer, database: str) -> None:
    log = TableChanges.look_up(server.connect_args, "d", "t", "error", range_bytes=1 << 20)
    with contextlib.closing(ChangesPlanner(log)) as planner:
        start = planner.find_offset("latest")
        server.session("d", "SET SESSION binlog_format = STATEMENT", "INSERT INTO mine VALUES (5)")
        planner.check_readable(start)
        server.session("d", "SET SESSION binlog_format = STATEMENT", "UPDATE v SET b = 3")
        with pytest.raises(TerminalError, match=r"through d\.v"):
            planner.check_readable(start)


@pytest.mark.parametrize("kind", [MySQLServer, MariaDBServer])
def test_names_in_lower_case(kind: type[MySQLServer], tmp_path: Path) -> None:
    """What the server writes in lower case is found however it was written."""
    with kind({"lower_case_table_names": 1}) as server:
        server.execute("DROP DATABASE IF EXISTS d")
        server.execute("CREATE DATABASE d")
        server.session("d", "CREATE TABLE `ΟΔΟΣ` (a INT PRIMARY KEY)", "CREATE TABLE `İx` (a INT PRIMARY KEY)")
        for n, name in enumerate(("ΟΔΟΣ", "İx")):
            cli = Cli(tmp_path / str(n), server, r"d\..*", name=f"p{n}")
            cli.snapshot()
            server.session("d", f"TRUNCATE `{name}`")
            with pytest.raises(TerminalError, match=r"TRUNCATE TABLE on captured table d\.(οδοσ|ix)"):
                cli.catch_up()
