"""A table that cannot go on is suspended where it stands, and the others go on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from airflow_provider_cdc.chunk_groups.task import run_in_threads
from airflow_provider_cdc.model.errors import NotReadyError, TableSuspendedError
from airflow_provider_cdc.model.plan_history import Suspension
from airflow_provider_cdc.mysql.chunks import keyless, planner
from airflow_provider_cdc.mysql.client import session
from airflow_provider_cdc.resnapshot import read as resnapshot
from airflow_provider_cdc.resnapshot import worker as rereading
from airflow_provider_cdc.resnapshot.suspension import suspension_remedy
from airflow_provider_cdc.stream.run import begin_epoch
from airflow_provider_cdc.verify.run import verify_tables
from tests.support.cli import Cli
from tests.support.epochs import run_epoch_in_process
from tests.support.oracle import compare_database
from tests.support.servers import MySQLServer
from tests.support.three_tables import TABLES, run, suspending_copy, three_tables, three_tables_database

pytestmark = pytest.mark.one_of("server")
database = three_tables_database


def equal(server: MySQLServer, cli: Cli, *tables: str) -> None:
    assert compare_database(server, "d", cli.sink, tables) == []
    compared = [v for v in verify_tables(cli.context) if v.table.removeprefix("d.") in tables]
    assert [v for v in compared if not v.is_equal] == []


def test_the_others_go_on(server: MySQLServer, database: str, tmp_path: Path) -> None:
    cli = suspending_copy(server, tmp_path)
    run(
        server,
        "UPDATE keyed SET v = 'last' WHERE id = 3",
        "ALTER TABLE keyed DROP COLUMN v, ORDER BY id",
        "INSERT INTO keyed VALUES (901)",
        "UPDATE quiet SET v = 'behind' WHERE id = 2",
        "DELETE FROM plain WHERE n = 7",
    )
    with pytest.raises(TableSuspendedError, match=r"d\.keyed.*ORDER is not followed") as stopped:
        cli.catch_up()
    assert (stopped.value.table, stopped.value.suspended) == ("d.keyed", 1)
    equal(server, cli, "plain", "quiet")
    held = {row["id"]: row["v"] for row in cli.rows("d", "keyed").to_pylist()}
    assert len(held) == 30 and held[2] == "before" and held[3] == "last"
    findings = json.loads(cli.call("check", "--json").out)
    assert [f["what"] for f in findings if (f["level"] == "ok") != (not f["remedy"])] == []

    # And so does the next run, whatever happens to the table.
    run(server, "DROP TABLE keyed", "CREATE TABLE keyed (a DATE)", "INSERT INTO quiet VALUES (77, 'x')")
    with pytest.raises(TableSuspendedError):
        cli.catch_up()
    equal(server, cli, "plain", "quiet")
    (found,) = [v for v in verify_tables(cli.context) if v.table == "d.keyed"]
    assert found.verdict == "not_comparable" and "suspended" in str(found)


#: What happens to a table that cannot be followed, and what the writers do with it then.
ALTERED: dict[str, tuple[str, ...]] = {
    "a column goes": ("ALTER TABLE keyed DROP COLUMN v, ORDER BY id", "INSERT INTO keyed VALUES (901)"),
    "a default that rows get": (
        "ALTER TABLE keyed ADD COLUMN w INT NOT NULL DEFAULT 7",
        "INSERT INTO keyed VALUES (901, 'x', 8)",
    ),
    "another name": ("ALTER TABLE keyed RENAME COLUMN v TO w", "UPDATE keyed SET w = 'renamed' WHERE id < 9"),
    "another type": ("ALTER TABLE keyed MODIFY v VARBINARY(40)", "UPDATE keyed SET v = x'ff00' WHERE id = 4"),
    "a wider key": ("ALTER TABLE keyed MODIFY id BIGINT", "INSERT INTO keyed VALUES (9000000000, 'far')"),
    "another key": (
        "ALTER TABLE keyed MODIFY v VARCHAR(40) NOT NULL, DROP PRIMARY KEY, ADD PRIMARY KEY (v, id)",
        "INSERT INTO keyed VALUES (3, 'again')",
    ),
    "no key": ("ALTER TABLE keyed DROP PRIMARY KEY", "INSERT INTO keyed VALUES (3, 'twice'), (3, 'twice')"),
    "another table": (
        "DROP TABLE keyed",
        "CREATE TABLE keyed (a DATE PRIMARY KEY, b BIT(3))",
        "INSERT INTO keyed VALUES ('2020-02-29', 5)",
    ),
    "an empty one": ("DROP TABLE keyed", "CREATE TABLE keyed (a INT PRIMARY KEY)"),
}


@pytest.mark.parametrize("kind", ALTERED)
def test_read_again(server: MySQLServer, database: str, kind: str, tmp_path: Path) -> None:
    cli = suspending_copy(server, tmp_path)
    run(server, *ALTERED[kind], "UPDATE quiet SET v = 'behind' WHERE id = 2")
    with pytest.raises(TableSuspendedError):
        cli.catch_up()
    # What the stream has not read when the table is: it brings the rows through the window behind the low watermark.
    run(server, "UPDATE quiet SET v = 'not seen yet' WHERE id = 4")
    assert cli.resnapshot("d.keyed") == "staged"
    run(server, "UPDATE quiet SET v = 'later' WHERE id = 3", *CHANGES[kind])
    cli.catch_up()
    equal(server, cli, *TABLES)
    run(server, *MORE[kind], "DELETE FROM quiet WHERE id = 5")
    cli.catch_up()
    equal(server, cli, *TABLES)
    # A group that is read again has nothing of it any more; what happens to the table next is followed as ever.
    run(server, "ALTER TABLE keyed ADD COLUMN another INT", "UPDATE keyed SET another = 1")
    cli.catch_up()
    equal(server, cli, *TABLES)
    assert cli.resnapshot("d.keyed") == "staged"
    cli.catch_up()
    equal(server, cli, *TABLES)


#: What happens between the reading and the stream that takes the table in, and behind that.
CHANGES: dict[str, tuple[str, ...]] = dict.fromkeys(
    ALTERED, ("DELETE FROM keyed WHERE id = 11", "INSERT INTO keyed (id) VALUES (-5), (905)")
)
MORE: dict[str, tuple[str, ...]] = dict.fromkeys(
    ALTERED, ("DELETE FROM keyed WHERE id IN (12, 905)", "INSERT INTO keyed (id) VALUES (33)")
)
CHANGES["another key"] = ("DELETE FROM keyed WHERE id = 11", "INSERT INTO keyed VALUES (-5, 'a'), (905, 'zz')")
MORE["another key"] = ("DELETE FROM keyed WHERE id IN (12, 905)", "UPDATE keyed SET v = 'moved' WHERE v = 'again'")
CHANGES["another table"] = ("UPDATE keyed SET b = 1", "INSERT INTO keyed VALUES ('1000-01-01', 0), ('9999-12-31', 7)")
MORE["another table"] = ("DELETE FROM keyed WHERE b = 0", "INSERT INTO keyed VALUES ('2000-01-01', 0)")
CHANGES["an empty one"] = ("INSERT INTO keyed VALUES (1), (2)",)
MORE["an empty one"] = ("DELETE FROM keyed WHERE a = 1", "INSERT INTO keyed VALUES (3)")


def test_read_again_while_the_stream_runs(server: MySQLServer, database: str, tmp_path: Path) -> None:
    """Batch by batch: rows are exchanged when the stream has passed what was read, and not before."""
    cli = suspending_copy(server, tmp_path)
    run(server, "UPDATE keyed SET v = CONCAT(v, '!')", "DELETE FROM keyed WHERE id = 4")
    assert cli.resnapshot("d.keyed") == "staged"
    assert cli.resnapshot("d.plain") == "staged"
    run(server, "UPDATE keyed SET v = 'late' WHERE id = 9", "TRUNCATE TABLE plain", "INSERT INTO plain VALUES (1, 'n')")
    cli.catch_up()
    equal(server, cli, *TABLES)
    plan = cli.context.plans.require()
    assert [plan.revision_of(i) for i in range(3)] == [1, 1, 0]
    assert {plan.tables[chunk.table].name for chunk in plan.chunks} == {"quiet"}


def test_read_ahead_of_the_stream(server: MySQLServer, database: str, tmp_path: Path) -> None:
    """Rows without a key hold nothing that would tell a change that comes once more."""
    cli = suspending_copy(server, tmp_path)
    run(server, "UPDATE plain SET v = 'early' WHERE n = 8", "DELETE FROM plain WHERE n = 9")
    assert cli.resnapshot("d.plain") == "staged"
    cli.catch_up()
    equal(server, cli, *TABLES)


def test_altered_while_it_is_planned(
    server: MySQLServer, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between a look at its definition and one at its keys: it is planned once more, or said to be gone."""
    cli = suspending_copy(server, tmp_path)
    real, ddl = planner.plan_table, ["ALTER TABLE keyed DROP PRIMARY KEY"]

    def plan_table(*args: Any) -> Any:
        if ddl:
            run(server, ddl.pop())
        return real(*args)

    monkeypatch.setattr(resnapshot, "plan_table", plan_table)
    assert cli.resnapshot("d.keyed") == "staged"
    ddl.append("DROP TABLE quiet")
    with pytest.raises(NotReadyError, match=r"d\.quiet no longer exists"):
        cli.resnapshot("d.quiet")


def test_not_there_for_a_moment(
    server: MySQLServer, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dropped and made again while it is read: that the server does not find it is no reason to stop."""
    cli, real = suspending_copy(server, tmp_path), session.query_rows
    ddl = ["DROP TABLE plain", "CREATE TABLE plain (n INT, v VARCHAR(40))"]

    def rows(*args: Any) -> Any:
        if not ddl:
            return real(*args)
        run(server, ddl.pop(0))
        try:
            return real(*args)
        finally:
            run(server, ddl.pop(0))

    monkeypatch.setattr(keyless, "query_rows", rows)
    assert cli.resnapshot("d.plain") == "staged"


def test_altered_since_it_was_read(server: MySQLServer, database: str, tmp_path: Path) -> None:
    """What was read by an older definition is not taken in."""
    cli = suspending_copy(server, tmp_path)
    run(server, "ALTER TABLE keyed DROP COLUMN v, ORDER BY id")
    with pytest.raises(TableSuspendedError):
        cli.catch_up()
    run(server, "UPDATE quiet SET v = 'not seen yet' WHERE id = 4")
    assert cli.resnapshot("d.keyed") == "staged"
    run(server, "ALTER TABLE keyed ADD COLUMN w INT DEFAULT 5", "UPDATE quiet SET v = 'on' WHERE id = 8")
    with pytest.raises(TableSuspendedError):
        cli.catch_up()
    equal(server, cli, "plain", "quiet")
    assert cli.resnapshot("d.keyed") == "staged"
    cli.catch_up()
    equal(server, cli, *TABLES)


SWAPS: dict[str, tuple[str, ...]] = {
    "gh-ost": (
        "CREATE TABLE _keyed_gho LIKE keyed",
        "ALTER TABLE _keyed_gho ADD COLUMN w INT NOT NULL DEFAULT 3",
        "INSERT IGNORE INTO _keyed_gho (id, v) SELECT id, v FROM keyed LOCK IN SHARE MODE",
        "CREATE TABLE _keyed_del (id INT) COMMENT 'ghost-cut-over-sentry'",
        "DROP TABLE _keyed_del",
        "RENAME TABLE keyed TO _keyed_del, _keyed_gho TO keyed",
        "DROP TABLE _keyed_del",
    ),
    "pt-online-schema-change": (
        "CREATE TABLE _keyed_new LIKE keyed",
        "ALTER TABLE _keyed_new MODIFY v VARBINARY(50)",
        "CREATE TRIGGER pt_ins AFTER INSERT ON keyed FOR EACH ROW REPLACE INTO _keyed_new VALUES (NEW.id, NEW.v)",
        "INSERT LOW_PRIORITY IGNORE INTO _keyed_new (id, v) SELECT id, v FROM keyed LOCK IN SHARE MODE",
        "INSERT INTO keyed VALUES (801, 'by trigger')",
        "RENAME TABLE keyed TO _keyed_old, _keyed_new TO keyed",
        "DROP TABLE IF EXISTS _keyed_old",
        "DROP TRIGGER IF EXISTS pt_ins",
    ),
    "a swap of two copied tables": ("RENAME TABLE keyed TO tmp, quiet TO keyed, tmp TO quiet",),
    "altered three times": (
        "ALTER TABLE keyed DROP COLUMN v, ORDER BY id",
        "INSERT INTO keyed VALUES (811)",
        "ALTER TABLE keyed ADD COLUMN v INT NOT NULL DEFAULT 9",
        "UPDATE keyed SET v = id WHERE id < 9",
        "ALTER TABLE keyed ADD COLUMN x DATETIME(6)",
        "UPDATE quiet SET v = 'x'",
    ),
    "converted": ("ALTER TABLE keyed CONVERT TO CHARACTER SET latin1", "UPDATE keyed SET v = '\u00fc' WHERE id = 6"),
}


@pytest.mark.parametrize("kind", [*ALTERED, *SWAPS])
def test_the_stream_reads_it_again_by_itself(server: MySQLServer, database: str, kind: str, tmp_path: Path) -> None:
    cli = suspending_copy(server, tmp_path, stream={"reread": "auto"})
    run(server, *{**ALTERED, **SWAPS}[kind], "INSERT INTO plain VALUES (5, 'behind')")
    cli.catch_up()
    equal(server, cli, *TABLES)
    run(server, "DELETE FROM plain WHERE n < 4")
    cli.catch_up()
    equal(server, cli, *TABLES)


@pytest.mark.parametrize("mode", ["in one statement", "of two tables"])
def test_made_of_a_select(mariadb_server: MySQLServer, tmp_path: Path, mode: str) -> None:
    """MariaDB logs the statement and the rows as one transaction. Here the table was there before."""
    with three_tables(mariadb_server):
        cli = suspending_copy(mariadb_server, tmp_path, stream={"reread": "auto"})
        statements = ["CREATE OR REPLACE TABLE keyed (id INT PRIMARY KEY) AS SELECT n AS id, v FROM plain WHERE n < 9"]
        if mode == "of two tables":
            statements += ["CREATE OR REPLACE TABLE plain AS SELECT id AS n, v FROM keyed"]
        run(mariadb_server, *statements, "UPDATE quiet SET v = 'on' WHERE id = 8")
        run(mariadb_server, "DELETE FROM keyed WHERE id = 2", "UPDATE plain SET v = 'x' LIMIT 1")
        cli.catch_up()
        equal(mariadb_server, cli, *TABLES)


def test_what_the_stream_does_not_read_again(server: MySQLServer, database: str, tmp_path: Path) -> None:
    """A table that is gone, and one that is larger than it may be: the others go on."""
    cli = suspending_copy(server, tmp_path, stream={"reread": "auto", "reread_max_bytes": 0})
    run(
        server,
        "ALTER TABLE keyed DROP COLUMN v, ORDER BY id",
        "DROP TABLE plain",
        "UPDATE quiet SET v = 'on' WHERE id = 8",
    )
    with pytest.raises(TableSuspendedError, match=r"without table d\.keyed,"):
        cli.catch_up()
    equal(server, cli, "quiet")
    cli.value["stream"]["reread_max_bytes"] = 1 << 30
    cli.write()
    cli.catch_up()
    equal(server, cli, "quiet", "keyed")


@pytest.mark.parametrize("small", [True, False])
def test_who_reads_it_again(
    server: MySQLServer, database: str, small: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A small table is read by the driver itself, any other by tasks."""
    monkeypatch.setattr(rereading, "_SMALL_BYTES", 1 << 30 if small else -1)
    cli = suspending_copy(server, tmp_path, stream={"reread": "auto"})
    run(server, "ALTER TABLE keyed ORDER BY id")
    by_tasks: list[Any] = []
    with cli.opened() as (context, store):
        epoch = begin_epoch(context, store, catch_up=True)
        epoch.resnapshot_worker.runner = lambda job: by_tasks.append(job) or run_in_threads(job)  # type: ignore[func-returns-value]
        run_epoch_in_process(epoch)
    equal(server, cli, *TABLES)
    assert len(by_tasks) == (not small)


def test_remedies_work_wherever_the_driver_runs(server: MySQLServer, database: str, tmp_path: Path) -> None:
    """The stream can do it, unless a setting has to be changed first: it has those that it began with."""
    cli = suspending_copy(server, tmp_path)
    with cli.opened() as (context, store):
        plan = context.plans.ensure(store)
    index = next(i for i, table in enumerate(plan.tables) if table.name == "keyed")
    plain = Suspension(index, 0, 1, "binlog.000001:4", "", "TerminalError", "it broke", "")
    assert suspension_remedy(plan, plain) == "Re-snapshot it: airflow-cdc resume --table d.keyed"
    changed = suspension_remedy(plan, structs.replace(plain, first="Set source.zero_dates: null"))
    assert changed.startswith("Set source.zero_dates: null, then re-snapshot it: ")
    assert "airflow-cdc resnapshot --table d.keyed" in changed and "CdcResnapshotOperator" in changed
