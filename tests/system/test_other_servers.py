"""The whole way on servers other than MySQL with GTIDs: snapshot and stream with writers that go on, then equal."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from airflow_provider_cdc.model.errors import DdlError, TerminalError
from airflow_provider_cdc.mysql.client.identity import binlog_end
from airflow_provider_cdc.mysql.client.session import connect
from airflow_provider_cdc.mysql.positions.resume import check_resume_offset
from tests.support.cli import Cli
from tests.support.harness import run
from tests.support.mariadb import MariaDBServer
from tests.support.oracle import check_ledger, compare_database
from tests.support.servers import MySQLServer
from tests.support.workload import Writers, make_foreign, make_shop

#: Servers and the grants that they ask for beside the usual ones.
GRANTS = {"OFF": "BACKUP_ADMIN", "ON_PERMISSIVE": "RELOAD", "MariaDB": "", "MariaDB compressed": ""}


@pytest.fixture(scope="module", params=GRANTS)
def server(request: pytest.FixtureRequest) -> Iterator[MySQLServer]:
    name = request.param
    with ExitStack() as stack:
        if name.startswith("MariaDB"):
            settings = {"log_bin_compress": "ON", "log_bin_compress_min_len": "10"} if "compressed" in name else {}
            found: MySQLServer = stack.enter_context(MariaDBServer(variables=settings))
        else:
            found = stack.enter_context(MySQLServer(variables={"gtid_mode": name}))
        found.create_cdc_user("cdc", "secret-of-cdc")
        if GRANTS[name]:
            found.execute(f"GRANT {GRANTS[name]} ON *.* TO cdc@'%%'", ())
        if GRANTS[name] == "BACKUP_ADMIN":
            found.execute("GRANT SELECT ON performance_schema.log_status TO cdc@'%%'", ())
        yield found


def pipeline(folder: Path, database: str) -> Path:
    file = folder / "pipeline.yaml"
    file.write_text(
        f"name: p\nsource: {{conn_id: cdc_source, tables: ['{database}\\..*']}}\n"
        f"snapshot: {{chunk_rows: 400, group_rows: 4000}}\nsink: {{path: {folder}/lake}}\n"
    )
    return file


@pytest.mark.parametrize("tables", ["shop", "foreign"])
def test_copied_with_writers_and_equal(
    server: MySQLServer, tables: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_CDC_SOURCE", server.uri("cdc", "secret-of-cdc"))
    with server.connect() as connection:
        if tables == "shop":
            make_shop(connection, tables, 5000, addresses=1500, orders=2000)
        else:
            make_foreign(connection, tables, 0.02)
    file = pipeline(tmp_path, tables)
    with Writers(server.connect_args(), tables, rate=40) as writers:
        time.sleep(0.5)
        run(file, batch_bytes=256 << 10)
        run(file, batch_bytes=256 << 10)  # another epoch, from the resume point
        counters = writers.stop()
    run(file)
    assert counters.rows > 100
    assert compare_database(server, tables, tmp_path / "lake") == []
    if tables == "shop":
        assert check_ledger(tmp_path / "lake", tables) == []


def test_mariadb_with_aria_tables(tmp_path: Path) -> None:
    """Of those that are not transactional nothing is said: they have no part in a transaction."""
    with MariaDBServer() as server:
        server.execute("CREATE DATABASE d")
        server.execute("CREATE TABLE d.t (id INT PRIMARY KEY)")
        server.execute("CREATE TABLE d.plain (id INT) ENGINE=Aria TRANSACTIONAL=0")
        cli = Cli(tmp_path, server, "d.t")
        assert "Aria" not in cli.call("check").out
        server.execute("CREATE TABLE d.a (id INT) ENGINE=Aria")
        said = cli.call("check")
        assert said.code == 0 and "such as d.a (1 in all)" in said.out


def test_mariadb_whose_binlogs_were_reset(tmp_path: Path) -> None:
    """Positions begin anew and soon exist again: the GTIDs up to them tell."""
    with MariaDBServer() as server, closing(connect(server.connect_args())) as connection:
        server.execute("CREATE DATABASE d")
        server.execute("CREATE TABLE d.t (id INT PRIMARY KEY)")
        cli = Cli(tmp_path, server, "d.t")
        cli.snapshot()
        server.execute("INSERT INTO d.t VALUES (1)")
        cli.catch_up()
        context = cli.context
        offset = context.sink.resume_point().read()
        assert offset is not None
        check_resume_offset(connection, offset, context.binlog_opener(0))
        at = offset.at.position
        while time.time() < offset.file_start_time + 1:  # when a file was begun is known to the second
            time.sleep(0.1)
        server.execute("RESET MASTER")
        with pytest.raises(TerminalError, match=r"ends at \d+, and was read up to"):
            check_resume_offset(connection, offset, context.binlog_opener(0))
        number = 10
        while binlog_end(connection).position < at:
            number += 1
            server.execute(f"INSERT INTO d.t VALUES ({number})")
        with pytest.raises(TerminalError, match=r"was created at .* but the file of this name"):
            cli.catch_up()
        with pytest.raises(TerminalError, match=r"on the server corresponds to '.*', but was read as '0-1-"):
            check_resume_offset(connection, offset.replace(file_start_time=0), context.binlog_opener(0))
        server.execute("SET GLOBAL server_id = 7")
        with pytest.raises(TerminalError, match=r"the connection reaches server mariadb:7:.*, but this pipeline began"):
            check_resume_offset(connection, offset, context.binlog_opener(0))


def test_what_check_says_of_a_mariadb(tmp_path: Path) -> None:
    with MariaDBServer(variables={"binlog_row_metadata": "NO_LOG"}) as server:
        server.execute("CREATE DATABASE d")
        server.execute("CREATE TABLE d.t (id INT PRIMARY KEY, note VARCHAR(50))")
        cli = Cli(tmp_path, server, r"d\..*", user=server.create_cdc_user())
        result = cli.call("check")
        assert result.code == 0, result.out + result.err
        assert "is MariaDB" in result.out and "binlog_row_metadata is 'NO_LOG'" in result.out
        assert "replication server ids" in result.out and "cannot be checked" in result.out
        refused = {
            "v": ("(id INT PRIMARY KEY) WITH SYSTEM VERSIONING", "uses engine system versioning"),
        }
        for name, (definition, reason) in refused.items():
            server.execute(f"CREATE TABLE d.{name} {definition}")
            result = cli.call("check")
            assert result.code == 2 and f"d.{name}" in result.out and reason in result.out, result.out
            server.execute(f"DROP TABLE d.{name}")


def test_binlog_events_of_mariadb_that_stop(tmp_path: Path) -> None:
    """DDL behind SET STATEMENT, or that replaces a table, is seen."""
    with MariaDBServer() as server:
        server.execute("CREATE DATABASE d")
        for number, ddl in enumerate(
            (
                "SET STATEMENT lock_wait_timeout=5 FOR ALTER TABLE d.t ADD c INT",
                "CREATE OR REPLACE TABLE d.t (id INT PRIMARY KEY, x INT)",
                "ALTER TABLE d.t WAIT 5 ADD y INT DEFAULT 7",
            )
        ):
            server.execute("CREATE OR REPLACE TABLE d.t (id INT PRIMARY KEY)")
            cli = Cli(tmp_path / str(number), server, "d.t")
            cli.snapshot()
            server.execute("CREATE SEQUENCE IF NOT EXISTS d.s")
            server.execute("ANALYZE TABLE d.t")
            cli.catch_up()
            server.execute(ddl)
            with pytest.raises(DdlError, match=r"captured table d\.t"):
                cli.catch_up()
