"""What would lose or double rows without a word if it were let through."""

from __future__ import annotations

import re
from contextlib import closing
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from airflow_provider_cdc.model.errors import NotReadyError, TerminalError
from airflow_provider_cdc.mysql.binlog.events.binlog_stream import BinlogStream
from airflow_provider_cdc.mysql.client.session import connect, query_rows
from airflow_provider_cdc.mysql.positions.watermarks import take_low_watermark
from airflow_provider_cdc.preflight import run as preflight
from airflow_provider_cdc.preflight.check_result import CheckResult
from airflow_provider_cdc.preflight.server import check_server
from tests.support.cli import Cli, tree
from tests.support.servers import MySQLServer


@pytest.fixture
def table(mysql_server: MySQLServer, database: str) -> str:
    """A table with three rows."""
    mysql_server.execute(f"CREATE TABLE {database}.t (id INT PRIMARY KEY, v VARCHAR(20))")
    mysql_server.execute(f"INSERT INTO {database}.t VALUES (1, 'a'), (2, 'b'), (3, 'c')")
    return f"{database}.t"


@pytest.mark.parametrize("command", ["snapshot", "stream", "verify"])
def test_a_lost_plan_does_not_double_the_rows(
    mysql_server: MySQLServer, table: str, tmp_path: Path, command: str
) -> None:
    cli = Cli(tmp_path, mysql_server, table)
    cli.snapshot()
    (cli.sink / "_cdc" / "p" / "plan.json").unlink()
    before = tree(cli.sink / table.partition(".")[0])
    found = cli.call(command)
    assert found.code == NotReadyError.exit_code, found
    assert re.search(r"no plan at .*Restore the plan, or start with a fresh sink\.path", found.problem), found
    assert tree(cli.sink / table.partition(".")[0]) == before


def test_a_disk_with_hardly_any_room(
    mysql_server: MySQLServer, table: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli = Cli(tmp_path, mysql_server, table)

    def warned() -> list[CheckResult]:
        return [one for one in preflight.run_preflight(cli.context, spark=False) if " bytes left" in one.message]

    monkeypatch.setattr(preflight, "_MIN_FREE_BYTES", 0)
    assert warned() == []
    monkeypatch.setattr(preflight, "_MIN_FREE_BYTES", 1 << 62)
    (found,) = warned()
    assert found.level == "warning" and found.message.startswith(f"the disk of sink {cli.sink} has only ")
    assert found.message.endswith(f"(at {tmp_path})") and found.remedy.startswith("Make room on that disk")


def test_two_pipelines_do_not_write_to_one_table(mysql_server: MySQLServer, table: str, tmp_path: Path) -> None:
    Cli(tmp_path, mysql_server, table).snapshot()
    with pytest.raises(NotReadyError, match="there is a Delta table"):
        Cli(tmp_path, mysql_server, table, name="other").snapshot()


def test_of_two_plans_the_first_counts(mysql_server: MySQLServer, table: str, tmp_path: Path) -> None:
    cli = Cli(tmp_path, mysql_server, table)
    with cli.opened() as (context, store):
        first = context.plans.ensure(store)
        mysql_server.execute(f"INSERT INTO {table} VALUES (9, 'z')")
        assert context.plans.make(1) != first
        assert context.plans.ensure(store).to_json() == first.to_json()


@pytest.mark.parametrize(("key", "column"), [("exclude_columns", "v"), ("include_columns", "id")])
def test_other_columns_than_planned(
    mysql_server: MySQLServer, table: str, tmp_path: Path, key: str, column: str
) -> None:
    cli = Cli(tmp_path, mysql_server, table)
    cli.snapshot()
    cli.value["source"][key] = [f"{table}.{column}"]
    cli.write()
    for command in ("snapshot", "stream", "run", "verify", "status"):
        result = cli.call(command)
        assert result.code == 2
        assert "leave out v of" in result.problem and "fresh sink.path" in result.problem


def test_a_table_that_was_created_later_is_named(mysql_server: MySQLServer, table: str, tmp_path: Path) -> None:
    database = table.partition(".")[0]
    cli = Cli(tmp_path, mysql_server, rf"{database}\..*")
    cli.snapshot()
    mysql_server.execute(f"CREATE TABLE {database}.later (id INT PRIMARY KEY)")
    result = cli.call("check")
    assert result.code == 0 and f"{database}.later is not part of the plan yet" in result.out


def test_uncommitted_rows_are_never_read(mysql_server: MySQLServer, table: str) -> None:
    default = mysql_server.execute("SELECT @@global.transaction_isolation")[0][0]
    mysql_server.execute("SET GLOBAL transaction_isolation = 'READ-UNCOMMITTED'")
    try:
        with closing(mysql_server.connect()) as writer, closing(connect(mysql_server.connect_args())) as reader:
            writer.begin()
            writer.cursor().execute(f"UPDATE {table} SET v = 'not committed'")
            assert query_rows(reader, f"SELECT v FROM {table} ORDER BY id") == [("a",), ("b",), ("c",)]
            writer.rollback()
    finally:
        mysql_server.execute("SET GLOBAL transaction_isolation = %s", [default])


@pytest.mark.parametrize("begun", ["START TRANSACTION WITH CONSISTENT SNAPSHOT", "SET autocommit = 0"])
def test_a_transaction_that_every_session_begins_with(mysql_server: MySQLServer, table: str, begun: str) -> None:
    """By init_connect: its read view would show rows as they were before all watermarks."""
    user = mysql_server.create_cdc_user()
    mysql_server.execute("SET GLOBAL init_connect = %s", [begun])
    try:
        with closing(connect(mysql_server.connect_args(**user))) as reader:
            for v in ("new", "newer"):
                mysql_server.execute(f"UPDATE {table} SET v = '{v}'")
                assert query_rows(reader, f"SELECT DISTINCT v FROM {table}") == [(v,)]
    finally:
        mysql_server.execute("SET GLOBAL init_connect = ''")


def test_the_binlog_of_another_server_is_not_read(mysql_server: MySQLServer) -> None:
    with closing(connect(mysql_server.connect_args())) as connection:
        low = take_low_watermark(connection)
    options: dict[str, Any] = {
        "server_id": 77_001,
        "replica_uuid": str(uuid4()),
        "file": low.at.file,
        "position": low.at.position,
    }
    with BinlogStream(mysql_server.connect_args(), server=low.server, **options):
        pass
    with pytest.raises(TerminalError, match="Point the connection to the original server"):
        BinlogStream(mysql_server.connect_args(), server=str(uuid4()), **options)


def test_databases_left_out_of_the_binlog(tmp_path: Path) -> None:
    with MySQLServer(args=["--binlog-ignore-db=elsewhere"]) as server:
        server.execute("CREATE DATABASE d")
        server.execute("CREATE TABLE d.t (id INT PRIMARY KEY)")
        cli = Cli(tmp_path, server, "d.t")
        result = cli.call("snapshot")
        assert result.code == 2 and "binlog-ignore-db=elsewhere" in result.problem
        assert not cli.sink.exists()


def test_databases_left_out_of_the_binlog_later(tmp_path: Path) -> None:
    """A server is started anew with such an option, or another one takes over that has it."""
    with MySQLServer() as server:
        server.execute("CREATE DATABASE d")
        server.execute("CREATE TABLE d.t (id INT PRIMARY KEY)")
        cli = Cli(tmp_path, server, "d.t")
        cli.snapshot()
        server.args.append("--binlog-ignore-db=d")
        server.restart()
        with pytest.raises(TerminalError, match="leaves databases out of its binary log .*binlog-ignore-db=d"):
            cli.catch_up()


def test_cascades_that_the_binlog_does_not_show(tmp_path: Path) -> None:
    with MySQLServer(args=["--innodb-native-foreign-keys=ON"]) as server:
        server.execute("CREATE DATABASE d")
        server.execute("CREATE TABLE d.parent (id INT PRIMARY KEY)")
        server.execute(
            "CREATE TABLE d.child (id INT PRIMARY KEY, p INT, "
            "FOREIGN KEY fk (p) REFERENCES d.parent(id) ON DELETE CASCADE)"
        )
        result = Cli(tmp_path, server, "d..*").call("check")
        assert result.code == 0
        assert [line for line in result.out.splitlines() if line.startswith("warning") and "d.child" in line]


@pytest.mark.parametrize("kind", ["MySQL", "MariaDB"])
def test_table_maps_that_say_little(request: pytest.FixtureRequest, tmp_path: Path, kind: str) -> None:
    server: MySQLServer = request.getfixturevalue(f"{kind.lower()}_server")
    cli = Cli(tmp_path, server, "d.t")

    def warned(metadata: str) -> list[str]:
        server.execute(f"SET GLOBAL binlog_row_metadata = {metadata}")
        with closing(connect(server.connect_args())) as connection:
            found = list(check_server(cli.context, connection))
        return [f"{one.message}. {one.remedy}" for one in found if "binlog_row_metadata" in one.message]

    try:
        (minimal,) = warned("MINIMAL")
        assert "does not contain the names, members of ENUM and SET columns and primary keys of tables" in minimal
        assert minimal.endswith("binlog_row_metadata = 'FULL'")
        if kind == "MariaDB":
            (nothing,) = warned("NO_LOG")
            assert "does not contain the signs, character sets, types of geometry, names," in nothing
    finally:
        assert warned("FULL") == []


@pytest.mark.parametrize("metadata", ["FULL", "MINIMAL"])
def test_enum_members_beyond_the_catalog(
    mysql_server: MySQLServer, database: str, tmp_path: Path, metadata: str
) -> None:
    table = f"{database}.t"
    mysql_server.execute(f"SET GLOBAL binlog_row_metadata = '{metadata}'")
    try:
        mysql_server.execute(f"CREATE TABLE {table} (id INT PRIMARY KEY, e ENUM('plain', '🎁 gift'))")
        mysql_server.execute(f"INSERT INTO {table} VALUES (1, '🎁 gift')")
        cli = Cli(tmp_path, mysql_server, table)
        cli.snapshot()
        mysql_server.execute(f"INSERT INTO {table} VALUES (2, '🎁 gift')")
        if metadata == "FULL":
            cli.catch_up()
            assert cli.rows(database, "t")["e"].to_pylist() == ["🎁 gift", "🎁 gift"]
        else:
            with pytest.raises(TerminalError, match="binlog_row_metadata = 'FULL'"):
                cli.catch_up()
    finally:
        mysql_server.execute("SET GLOBAL binlog_row_metadata = 'FULL'")
