"""Tables are added to a pipeline and leave it, without a new copy of the others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from airflow_provider_cdc.apply import follow_ddl as schema_changes
from airflow_provider_cdc.model.errors import NotReadyError, TableSuspendedError
from airflow_provider_cdc.observe.status import read_status
from airflow_provider_cdc.resnapshot import membership, publish
from airflow_provider_cdc.resnapshot import worker as rereading
from airflow_provider_cdc.sinks.storage.storage import write_json
from airflow_provider_cdc.verify.run import verify_tables
from tests.resnapshot.test_suspension import equal
from tests.support import failpoints
from tests.support.chance import killed_at
from tests.support.cli import Cli
from tests.support.processes import wait_for
from tests.support.servers import MySQLServer
from tests.support.three_tables import TABLES, run, streamed_copy, three_tables, three_tables_database

pytestmark = pytest.mark.one_of("server")
database = three_tables_database

ALL = r"d\..*"


def copied(server: MySQLServer, folder: Path, *patterns: str, **settings: Any) -> Cli:
    """A pipeline whose stream has passed its snapshot, and suspends tables that it cannot follow."""
    settings["stream"] = {"on_table_error": "suspend", **settings.get("stream", {})}
    return streamed_copy(server, folder, "UPDATE keyed SET v = 'on' WHERE id = 1", tables=patterns, **settings)


def captures(cli: Cli, *patterns: str, exclude: tuple[str, ...] = ()) -> None:
    cli.value["source"] |= {"tables": list(patterns), "exclude": list(exclude)}
    cli.write()


def events(cli: Cli) -> list[str]:
    with cli.opened() as (_, store):
        return [event.kind for event in store.last_events("p", 100)]


def change(server: MySQLServer, tables: tuple[str, ...] = TABLES) -> None:
    for table in tables:
        key = "n" if table == "plain" else "id"
        run(
            server,
            f"REPLACE INTO {table} VALUES (900, 'new')",
            f"UPDATE {table} SET v = CONCAT(v, '!') WHERE {key} % 3 = 0",
            f"DELETE FROM {table} WHERE {key} = 8",
        )


def test_added(server: MySQLServer, database: str, tmp_path: Path) -> None:
    """By other patterns: it is read as a whole, beside the stream, and then is part of it."""
    cli = copied(server, tmp_path, r"d\.keyed")
    change(server)
    captures(cli, ALL)
    cli.catch_up()
    equal(server, cli, *TABLES)
    change(server, ("plain", "quiet"))
    run(server, "TRUNCATE TABLE quiet", "INSERT INTO quiet VALUES (1, 'anew')")
    cli.catch_up()
    equal(server, cli, *TABLES)
    assert events(cli).count("table_added") == 2 and events(cli).count("table_rejoined") == 2
    plan = cli.context.plans.require()
    assert [table.name for table in plan.tables] == [*TABLES] and not plan.suspensions
    assert plan.rejoin_of(0) is None  # nothing has happened to the one that was there


def test_created(server: MySQLServer, database: str, tmp_path: Path) -> None:
    """Tables of which the source says something new each time, while nobody looked."""
    cli = copied(server, tmp_path, ALL)
    run(server, "CREATE TABLE one (id INT PRIMARY KEY, v VARCHAR(9))", "INSERT INTO one VALUES (1, 'x')")
    run(server, "CREATE TABLE two (n BIGINT)", "INSERT INTO two VALUES (NULL), (9007199254740993), (NULL)")
    run(server, "CREATE TABLE three (a INT, b INT, PRIMARY KEY (b, a))")
    cli.catch_up()
    equal(server, cli, *TABLES, "one", "two", "three")
    run(server, "ALTER TABLE one ADD w INT", "INSERT INTO one VALUES (2, 'y', 5)", "DELETE FROM two LIMIT 2")
    run(server, "INSERT INTO three VALUES (1, 2), (3, 4)", "UPDATE three SET a = 7 WHERE b = 2")
    cli.catch_up()
    equal(server, cli, *TABLES, "one", "two", "three")


def test_removed_and_added_again(server: MySQLServer, database: str, tmp_path: Path) -> None:
    """The copy stays as it was; nobody is told off for it."""
    cli = copied(server, tmp_path, ALL)
    captures(cli, ALL, exclude=(r"d\.keyed",))
    change(server)
    run(server, "ALTER TABLE keyed DROP COLUMN v, ORDER BY id")
    cli.catch_up()
    equal(server, cli, "plain", "quiet")
    held = {row["id"]: row["v"] for row in cli.rows("d", "keyed").to_pylist()}
    assert len(held) == 30 and held[1] == "on" and held[9] == "keyed 9"
    assert {v.table for v in verify_tables(cli.context)} == {"d.plain", "d.quiet"}
    with pytest.raises(NotReadyError, match=r"copies no table d\.keyed"):
        cli.resnapshot("d.keyed")
    cli.catch_up()
    assert events(cli).count("table_removed") == 1
    captures(cli, ALL)
    run(server, "INSERT INTO keyed VALUES (77)")
    cli.catch_up()
    equal(server, cli, *TABLES)


def test_removed_while_suspended(server: MySQLServer, database: str, tmp_path: Path) -> None:
    """What was wrong with it is of no concern any more."""
    cli = copied(server, tmp_path, ALL, stream={"reread": "ask"})
    run(server, "ALTER TABLE keyed DROP COLUMN v, ORDER BY id")
    with pytest.raises(TableSuspendedError):
        cli.catch_up()
    captures(cli, ALL, exclude=(r"d\.keyed",))
    change(server, ("plain", "quiet"))
    cli.catch_up()
    equal(server, cli, "plain", "quiet")
    captures(cli, ALL)
    with pytest.raises(TableSuspendedError):
        cli.catch_up()


def test_removed_while_suspended_on_request(server: MySQLServer, database: str, tmp_path: Path) -> None:
    """The status does not show it any more, and it is suspended still when the pipeline captures it again."""
    cli = copied(server, tmp_path, ALL)
    with cli.opened() as (_, store):
        store.add_request("p", "suspend", "d.keyed", "ann")
    cli.catch_up()
    assert [one["table"] for one in read_status(cli.context)["suspended"]] == ["d.keyed"]
    captures(cli, ALL, exclude=(r"d\.keyed",))
    cli.catch_up()
    assert read_status(cli.context)["suspended"] == []
    captures(cli, ALL)
    cli.catch_up()
    assert [one["table"] for one in read_status(cli.context)["suspended"]] == ["d.keyed"]


def test_all_removed(server: MySQLServer, database: str, tmp_path: Path) -> None:
    cli = copied(server, tmp_path, ALL)
    captures(cli, r"d\.keyd")
    with pytest.raises(NotReadyError, match="copies no table any more"):
        cli.catch_up()
    captures(cli, ALL)
    change(server)
    cli.catch_up()
    equal(server, cli, *TABLES)


def test_what_cannot_be_copied(server: MySQLServer, database: str, tmp_path: Path) -> None:
    """Or not to there: that is said, and the others go on."""
    cli = copied(server, tmp_path, r"d\.keyed", r"d\.plain", r"d\.my", r"d\.gone")
    theirs = pa.schema([pa.field("id", pa.int32(), nullable=False), pa.field("v", pa.string())])
    write_deltalake(str(cli.sink / "d" / "quiet"), pa.table({"id": [1], "v": ["theirs"]}, schema=theirs))
    captures(cli, ALL)
    run(server, "CREATE TABLE my (id INT PRIMARY KEY) ENGINE=MyISAM")
    change(server)
    cli.catch_up()
    equal(server, cli, "keyed", "plain")
    assert events(cli).count("table_refused") == 2
    assert DeltaTable(str(cli.sink / "d" / "quiet")).to_pyarrow_table()["v"].to_pylist() == ["theirs"]
    cli.value["sink"]["adopt"] = True
    cli.write()
    run(server, "ALTER TABLE my ENGINE=InnoDB", "INSERT INTO my VALUES (3)")
    cli.catch_up()
    equal(server, cli, *TABLES, "my")


def test_gone_before_it_was_read(server: MySQLServer, database: str, tmp_path: Path) -> None:
    cli = copied(server, tmp_path, r"d\.keyed")
    captures(cli, ALL)
    with cli.opened() as (context, store):
        plan = membership.add_new_tables(context, store, context.plans.require())
    assert [plan.tables[step.table].name for step in plan.suspensions] == ["plain", "quiet"]
    run(server, "DROP TABLE plain")
    cli.catch_up()
    equal(server, cli, "keyed", "quiet")
    run(server, "CREATE TABLE plain (x INT PRIMARY KEY)", "INSERT INTO plain VALUES (5)")
    cli.catch_up()
    equal(server, cli, *TABLES)


def test_its_place_is_taken_meanwhile(server: MySQLServer, database: str, tmp_path: Path) -> None:
    """Somebody else's table is left alone."""
    cli = copied(server, tmp_path, r"d\.keyed")
    captures(cli, ALL, exclude=(r"d\.quiet",))
    with cli.opened() as (context, store):
        membership.add_new_tables(context, store, context.plans.require())
    write_deltalake(str(cli.sink / "d" / "plain"), pa.table({"theirs": [1]}))
    change(server)
    with pytest.raises(TableSuspendedError, match=r"d\.plain"):
        cli.catch_up()
    equal(server, cli, "keyed")
    assert DeltaTable(str(cli.sink / "d" / "plain")).to_pyarrow_table().column_names == ["theirs"]


def test_lists_of_columns(server: MySQLServer, database: str, tmp_path: Path) -> None:
    """They may change: tables that are copied already are read again."""
    cli = copied(server, tmp_path, r"d\.keyed")
    captures(cli, ALL)
    cli.value["source"]["exclude_columns"] = [r"d\.quiet\.v"]
    cli.write()
    cli.catch_up()
    equal(server, cli, "keyed", "plain")
    assert cli.rows("d", "quiet").column_names[:2] == ["id", "_cdc_seq"]
    cli.value["source"]["exclude_columns"] = [r"d\..*\.v"]
    cli.write()
    cli.catch_up()
    assert cli.rows("d", "keyed").column_names[:2] == cli.rows("d", "quiet").column_names[:2] == ["id", "_cdc_seq"]
    assert cli.rows("d", "plain").column_names[:2] == ["n", "_cdc_seq"]
    assert all(found.is_equal for found in verify_tables(cli.context))


def test_in_a_snapshot_that_is_not_complete(server: MySQLServer, database: str, tmp_path: Path) -> None:
    """The snapshot goes on as it was planned; the stream adds what has come since."""
    cli = Cli(tmp_path, server, r"d\.keyed", stream={"on_table_error": "suspend"})
    with cli.opened() as (context, store):
        context.plans.ensure(store)
    captures(cli, ALL)
    cli.snapshot()
    change(server)
    cli.catch_up()
    equal(server, cli, *TABLES)


@pytest.mark.parametrize("at", [*failpoints.ADDED_TABLE, *failpoints.SUSPENSION[2:]])
def test_killed(server: MySQLServer, database: str, at: str, tmp_path: Path) -> None:
    cli = copied(server, tmp_path, r"d\.keyed")
    captures(cli, ALL)
    change(server)
    with killed_at(at, membership, publish, schema_changes):
        cli.catch_up()
    run(server, "UPDATE plain SET v = 'once more' WHERE n < 5", "DELETE FROM quiet WHERE id = 11")
    cli.catch_up()
    equal(server, cli, *TABLES)
    assert [table.name for table in cli.context.plans.require().tables] == [*TABLES]


def test_created_while_the_stream_runs(
    server: MySQLServer, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is gone at once is not added, nor one with which another is altered online."""
    monkeypatch.setattr(rereading, "_CATALOG_SECONDS", 0.5)
    cli = copied(server, tmp_path, ALL)

    def write(n: int, *tables: str) -> None:
        run(server, *(f"INSERT INTO {table} VALUES ({n}, 'late')" for table in (*tables, *TABLES)))

    with cli.streaming() as epoch:
        for n in range(2):
            name, kind = f"new{n}", ("(id INT PRIMARY KEY, v VARCHAR(9))", "(id INT, v VARCHAR(9))")[n]
            run(server, f"CREATE TABLE {name} {kind}", f"INSERT INTO {name} VALUES (1, 'x'), (2, 'y')")
            run(server, "CREATE TABLE _keyed_gho LIKE keyed", "INSERT INTO _keyed_gho SELECT * FROM keyed")
            write(1000 + n, name)
            wait_for("the table", lambda n=n: len(epoch.context.plans.require().active_tables) == 4 + n, 120)  # type: ignore[misc]
            write(2000 + n, name)
            run(server, "DROP TABLE _keyed_gho")
    cli.catch_up()
    equal(server, cli, *TABLES, "new0", "new1")
    assert [table.name for table in cli.context.plans.require().tables] == [*TABLES, "new0", "new1"]


def test_names_beside_another_table(mysql_server: MySQLServer, tmp_path: Path) -> None:
    """What looks like a table with which another is altered online is left out, and this is said; a table that is
    asked for by its name is not.
    """
    long = "l" * 62
    beside = ["_keyed_gho", "_keyed_20260102030405_del", "_keyed_rev_del", "__keyed_new", "_keyed_old_20260102_0304"]
    beside.append(f"_{long[:59]}_gho")
    own = ["_keyed_gone", "keyed_new", "_other_new", "_keyed_2_del", "_plain_new"]
    with three_tables(mysql_server):
        cli = copied(mysql_server, tmp_path, ALL, r"d\._plain_new")
        run(mysql_server, *(f"CREATE TABLE {name} LIKE quiet" for name in (long, *beside, *own)))
        cli.catch_up()
        equal(mysql_server, cli, *TABLES, long, *own)
        assert {table.name for table in cli.context.plans.require().tables} == {*TABLES, long, *own}
        with cli.opened() as (_, store):
            said = [event.detail for event in store.last_events("p", 100) if event.kind == "table_refused"]
        assert len(said) == len(beside)
        assert all(any(f"table d.{name} cannot be added: its name" in str(text) for text in said) for name in beside)


def test_dropped(server: MySQLServer, database: str, tmp_path: Path) -> None:
    """The copy stays as it was, and nobody is told off for it: not for one that was renamed, either. Made again under
    its name, the table is what it is then.
    """
    cli = copied(server, tmp_path, ALL)
    captures(cli, ALL, exclude=(r"d\.moved",))
    run(server, "DELETE FROM keyed WHERE id > 3", "DROP TABLE keyed", "RENAME TABLE quiet TO moved")
    change(server, ("plain",))
    cli.catch_up()
    equal(server, cli, "plain")
    assert {row["id"] for row in cli.rows("d", "keyed").to_pylist()} == {1, 2, 3}
    assert {v.table for v in verify_tables(cli.context)} == {"d.plain"}
    states = {table["table"]: table["state"] for table in read_status(cli.context)["tables"]}
    assert states == {"d.keyed": "dropped", "d.plain": "stopped", "d.quiet": "dropped"}
    assert read_status(cli.context)["suspended"] == []
    run(server, "CREATE TABLE keyed (a DATE PRIMARY KEY)", "INSERT INTO keyed VALUES ('2026-01-31')")
    run(server, "RENAME TABLE moved TO quiet")
    cli.catch_up()
    equal(server, cli, *TABLES)


def test_what_cannot_be_seen_was_not_dropped(server: MySQLServer, database: str, tmp_path: Path) -> None:
    """A table that is suspended for another reason than a DDL may only be hidden: somebody has to look."""
    cli = copied(server, tmp_path, ALL)
    server.session("d", "SET SESSION binlog_format = STATEMENT", "DELETE FROM keyed WHERE id = 5")
    with pytest.raises(TableSuspendedError, match=r"d\.keyed"):
        cli.catch_up()
    run(server, "DROP TABLE keyed")
    with pytest.raises(TableSuspendedError, match=r"d\.keyed"):
        cli.catch_up()


def test_dropped_and_made_again_while_the_stream_runs(
    server: MySQLServer, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rereading, "_CATALOG_SECONDS", 0.5)
    cli = copied(server, tmp_path, ALL)
    with cli.streaming() as epoch:
        run(server, "DROP TABLE keyed")
        wait_for("the worker to miss it", lambda: epoch.resnapshot_worker._missing, 120)
        run(server, "CREATE TABLE keyed (id INT PRIMARY KEY)", "INSERT INTO keyed VALUES (1)")
        change(server, ("plain", "quiet"))
        wait_for("the table", lambda: len(epoch.context.plans.require().active_tables) == 3, 120)
    cli.catch_up()
    equal(server, cli, *TABLES)


def test_reloaded(server: MySQLServer, database: str, tmp_path: Path) -> None:
    """A running stream copies other tables: some are added, one is removed, and it has not been started again."""
    cli = copied(server, tmp_path, r"d\.keyed", r"d\.plain")
    assert "no stream is running" in cli.call("reload").out
    with cli.streaming() as epoch:
        change(server)
        captures(cli, r"d\.nothing")
        refused = cli.call("reload")
        assert refused.code == 2 and "no pattern of source.tables" in refused.problem
        captures(cli, ALL, exclude=(r"d\.keyed",))
        said = cli.call("reload")
        assert said.out == "added: d.quiet; removed: d.keyed\n", said
        change(server)
        wait_for("the table", lambda: len(epoch.context.plans.require().active_tables) == 2, 120)
    assert epoch.number == 2
    held = cli.rows("d", "keyed").to_pylist()
    cli.catch_up()
    equal(server, cli, "plain", "quiet")
    assert cli.rows("d", "keyed").to_pylist() == held
    captures(cli, ALL)
    cli.catch_up()
    equal(server, cli, *TABLES)


def test_a_request_to_reload_is_for_one_epoch(server: MySQLServer, database: str, tmp_path: Path) -> None:
    """The next one has the tables of its own pipeline."""
    cli = copied(server, tmp_path, ALL)
    context = cli.context
    name = context.layout.reload_request(context.plans.require().generation)
    write_json(context.storage, name, {"tables": [r"d\.keyed"], "exclude": []})
    change(server)
    cli.catch_up()
    equal(server, cli, *TABLES)
    assert context.storage.size(name) is None


def test_names_that_differ_in_case(server: MySQLServer, database: str, tmp_path: Path) -> None:
    """What happens to a table before it was read is no change of it, whatever another one is called."""
    if server.execute("SELECT @@lower_case_table_names") != ((0,),):
        pytest.skip("here they are one table")
    cli = copied(server, tmp_path, ALL)
    run(server, "CREATE TABLE KEYED LIKE keyed", "INSERT INTO KEYED VALUES (1, 'x')", "TRUNCATE TABLE KEYED")
    run(server, "INSERT INTO KEYED VALUES (2, 'y')")
    change(server)
    cli.catch_up()
    equal(server, cli, *TABLES, "KEYED")
    plan = cli.context.plans.require()
    assert {plan.tables[step.table].name for step in plan.amendments} == {"KEYED"}, "the other one is not read again"
