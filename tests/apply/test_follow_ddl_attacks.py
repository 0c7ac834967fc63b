"""DDL that lures the stream into a wrong definition, or into a state that it cannot leave."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_cdc.apply import follow_ddl as schema_changes
from airflow_provider_cdc.maintenance.table_maintenance import maintain_tables
from airflow_provider_cdc.model.errors import DdlError, TransientError
from airflow_provider_cdc.resnapshot.purged_binlog import replan_if_purged
from airflow_provider_cdc.verify.run import verify_tables
from tests.apply.test_follow_ddl import copied, is_copy
from tests.support.chance import killed_at
from tests.support.cli import Cli
from tests.support.mariadb import MariaDBServer
from tests.support.oracle import compare_database
from tests.support.servers import MySQLServer
from tests.support.three_tables import TABLES, run, three_tables_database

# The servers have their turn: each test with each of them would be a product.
pytestmark = pytest.mark.one_of("server")
database = three_tables_database


# ---------------------------------------------------------------- names


@pytest.mark.parametrize("captured", ["both", "one"])
def test_a_name_that_differs_in_case_is_another_table(
    server: MySQLServer, database: str, captured: str, tmp_path: Path
) -> None:
    if server.execute("SELECT @@lower_case_table_names") != ((0,),):
        pytest.skip("here it is the same table")
    run(server, "CREATE TABLE Keyed LIKE keyed", "INSERT INTO Keyed VALUES (1, 'twin')")
    exclude = {} if captured == "both" else {"source": {"exclude": [r"d\.Keyed"]}}
    cli = copied(server, tmp_path, **exclude)
    tables = [*TABLES, *(["Keyed"] if captured == "both" else [])]
    for statements in (
        ("ALTER TABLE Keyed ADD w INT", "UPDATE Keyed SET w = 1", "UPDATE keyed SET v = 'a' WHERE id < 5"),
        ("ALTER TABLE keyed ADD x INT FIRST", "UPDATE keyed SET x = 1 WHERE id < 5", "UPDATE Keyed SET v = 'b'"),
        ("TRUNCATE TABLE keyed", "INSERT INTO keyed VALUES (7, 1, 'new')", "UPDATE Keyed SET v = 'c'"),
    ):
        run(server, *statements)
        cli.catch_up()
        assert [str(d) for d in compare_database(server, "d", cli.sink, tables)] == []
    is_copy(server, cli)


def test_another_statement_is_called_by_its_name(server: MySQLServer, database: str, tmp_path: Path) -> None:
    if server.execute("SELECT @@lower_case_table_names") != ((0,),):
        pytest.skip("here the table is there")
    cli = copied(server, tmp_path)
    run(server, "CREATE TABLE KEYED (id INT PRIMARY KEY)")
    cli.value["source"]["exclude"] = [r"d\.KEYED"]  # else it is added
    cli.write()
    with pytest.raises(DdlError, match="CREATE TABLE .* neither an ALTER TABLE nor a change of an index"):
        cli.catch_up()


# ---------------------------------------------------------------- what the stream has begun


def test_a_definition_is_known_and_the_copy_has_other_columns(
    server: MySQLServer, database: str, tmp_path: Path
) -> None:
    """`airflow-cdc run` begins with the snapshot: where that stops, the stream that would go on never begins."""
    cli = copied(server, tmp_path)
    run(server, "ALTER TABLE keyed ADD w INT AFTER id", "UPDATE keyed SET w = 1 WHERE id < 9")
    with killed_at("definition.after_write", schema_changes):
        cli.catch_up()
    assert cli.call("status").code == 0
    assert [
        t["table"] for t in maintain_tables(cli.context, lambda work: [c.run() for c in work], purge=True)["tables"]
    ]
    (found,) = [v for v in verify_tables(cli.context) if not v.is_equal]
    assert found.table == "d.keyed" and found.refusal is not None
    assert "begun to follow a DDL" in found.refusal.reason and found.refusal.retry
    cli.snapshot()
    cli.catch_up()
    is_copy(server, cli)


def test_a_process_that_knows_the_definition_before(server: MySQLServer, database: str, tmp_path: Path) -> None:
    """It says that it came too late, and not that somebody else has altered the copy."""
    cli = copied(server, tmp_path)
    context = cli.context
    before = context.plans.require()
    run(server, "ALTER TABLE keyed ADD w INT AFTER id", "UPDATE keyed SET w = 1 WHERE id < 9")
    cli.catch_up()
    with (
        pytest.raises(TransientError, match="in the meantime"),
        schema_changes.tolerate_concurrent_ddl(context, before),
    ):
        context.sink.table(before.tables[0]).create("p")
    is_copy(server, cli)


def test_a_name_that_the_sink_cannot_have_stops_before_anything_is_written_down(
    server: MySQLServer, database: str, tmp_path: Path
) -> None:
    run(server, "CREATE TABLE dated (id INT PRIMARY KEY, at DATETIME)", "INSERT INTO dated VALUES (1, '2024-01-05')")
    cli = copied(server, tmp_path, sink={"partition_by": {r"d\.dated": [{"month": "at"}]}})
    run(server, "ALTER TABLE dated ADD at_month INT")
    for _ in range(2):
        with pytest.raises(DdlError, match="at_month"):
            cli.catch_up()
    assert not list((cli.sink / "_cdc" / "p").rglob("*-at-*.json"))
    cli.snapshot()  # nor is the rest of the pipeline held up


# ---------------------------------------------------------------- where the definition comes from


def test_a_stream_that_begins_before_a_change_that_its_definition_has_already(
    server: MySQLServer, database: str, tmp_path: Path
) -> None:
    """The rows before it would be read by the definition of today: the binlog does not always tell members."""
    maria = isinstance(server, MariaDBServer)
    run(server, "CREATE TABLE members (id INT PRIMARY KEY, e ENUM('b', 'a'))")
    file, position = server.execute("SHOW MASTER STATUS" if maria else "SHOW BINARY LOG STATUS")[0][:2]
    level = server.execute("SELECT @@global.binlog_row_metadata")[0][0]
    server.execute(f"SET GLOBAL binlog_row_metadata = {'NO_LOG' if maria else 'MINIMAL'}")
    try:
        run(server, "INSERT INTO members VALUES (1, 'b')", "ALTER TABLE members MODIFY e ENUM('a', 'b')")
        cli = Cli(tmp_path, server, r"d\.members", stream={"start": {"file": file, "position": position}})
        cli.snapshot()
        with pytest.raises(DdlError, match="the stream began in the past, and column e"):
            cli.catch_up()
    finally:
        server.execute(f"SET GLOBAL binlog_row_metadata = {level}")


def test_a_table_that_is_altered_while_it_is_read_for_the_second_snapshot(
    database: str, tmp_path: Path, server: MySQLServer
) -> None:
    """Streams of the first snapshot have been there; the one that could follow begins only behind the second."""
    with type(server)() as own:
        own.execute("CREATE DATABASE d")
        run(
            own,
            "CREATE TABLE keyed (id INT PRIMARY KEY, v VARCHAR(40))",
            "CREATE TABLE plain (n INT, v VARCHAR(40))",
            "CREATE TABLE quiet LIKE keyed",
            *(f"INSERT INTO {t} VALUES " + ", ".join(f"({n}, '{t} {n}')" for n in range(1, 31)) for t in TABLES),
        )
        cli = copied(own, tmp_path, stream={"on_purged": "reread"})
        run(own, "ALTER TABLE keyed ADD w INT AFTER id", "UPDATE keyed SET w = 1 WHERE id < 3")
        cli.catch_up()
        run(own, "UPDATE keyed SET v = 'gone' WHERE id = 3")
        own.purge()
        with cli.opened() as (context, store):
            assert replan_if_purged(context, store).generation == 2
        run(own, "ALTER TABLE keyed ADD x INT FIRST", "UPDATE keyed SET x = 1 WHERE id < 3")
        cli.snapshot()
        cli.catch_up()
        is_copy(own, cli)
        run(own, "ALTER TABLE keyed ADD y INT", "UPDATE keyed SET y = 2 WHERE id > 1")
        cli.catch_up()
        is_copy(own, cli)


def test_a_table_of_several_groups_that_is_altered_before_it_is_read(
    server: MySQLServer, database: str, tmp_path: Path
) -> None:
    """The first group plans it again, and gives the copy other columns than the next ones know of."""
    cli = Cli(tmp_path, server, r"d\..*", snapshot={"chunk_rows": 5, "group_rows": 10})
    with cli.opened() as (context, store):
        assert len(replan_if_purged(context, store).groups_of(0)) > 2
    run(server, "ALTER TABLE keyed ADD w INT AFTER id", "UPDATE keyed SET w = 1 WHERE id < 9")
    cli.snapshot()
    cli.catch_up()
    is_copy(server, cli)
