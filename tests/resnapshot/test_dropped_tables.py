"""A table is dropped in the source, and the rows of its copy go: when that is certain, and never those of another."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from airflow_provider_cdc.maintenance.table_maintenance import maintain_tables
from airflow_provider_cdc.maintenance.task import run_compactions_in_threads as compact_in_threads
from airflow_provider_cdc.model.errors import FencedError, NotReadyError, TableSuspendedError
from airflow_provider_cdc.observe.status import read_status
from airflow_provider_cdc.resnapshot import dropped_tables as dropping
from airflow_provider_cdc.resnapshot import suspension
from airflow_provider_cdc.resnapshot import worker as rereading
from airflow_provider_cdc.sinks.delta import maintenance
from airflow_provider_cdc.stream.run import begin_epoch
from airflow_provider_cdc.verify.run import verify_tables
from tests.resnapshot import test_membership
from tests.resnapshot.test_membership import ALL, captures, change, events
from tests.resnapshot.test_suspension import equal
from tests.support import failpoints
from tests.support.chance import killed_at
from tests.support.cli import Cli, tree
from tests.support.epochs import run_epoch_in_process
from tests.support.harness import KILLED, Nursery
from tests.support.processes import wait_for
from tests.support.servers import MySQLServer
from tests.support.three_tables import TABLES, run, three_tables

pytestmark = pytest.mark.one_of("server")


@pytest.fixture
def database(server: MySQLServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(rereading, "_MISSING_SECONDS", 0.5)
    with three_tables(server) as name:
        yield name


def copied(server: MySQLServer, folder: Path, on_dropped: Any = "drop", **settings: Any) -> Cli:
    return test_membership.copied(server, folder, ALL, sink={"on_dropped": on_dropped}, **settings)


def held(cli: Cli, table: str) -> int:
    return int(cli.rows("d", table).num_rows)


def versions(cli: Cli, table: str) -> int:
    return DeltaTable(str(cli.sink / "d" / table)).version()


def test_dropped(server: MySQLServer, database: str, tmp_path: Path) -> None:
    """The copy is empty, and stays so; what is made again under the name has its own rows and columns."""
    cli = copied(server, tmp_path)
    run(server, "UPDATE keyed SET v = 'last'", "DROP TABLE keyed", "DROP TABLE plain")
    change(server, ("quiet",))
    cli.catch_up()
    equal(server, cli, "quiet")
    assert held(cli, "keyed") == held(cli, "plain") == 0
    assert events(cli).count("table_emptied") == 2
    assert {v.table for v in verify_tables(cli.context)} == {"d.quiet"}
    states = {table["table"]: (table["state"], table["emptied"]) for table in read_status(cli.context)["tables"]}
    assert states == {"d.keyed": ("dropped", True), "d.plain": ("dropped", True), "d.quiet": ("stopped", False)}
    assert read_status(cli.context)["suspended"] == []
    assert "d.keyed: dropped" in cli.call("status").out and "its copy was emptied" in cli.call("status").out
    before = versions(cli, "keyed")
    change(server, ("quiet",))
    cli.catch_up()
    assert versions(cli, "keyed") == before and events(cli).count("table_emptied") == 2, "it is done once"

    run(server, "CREATE TABLE keyed (a DATE PRIMARY KEY, b BIT(3))", "INSERT INTO keyed VALUES ('2026-01-31', 5)")
    run(server, "CREATE TABLE plain (n INT, v VARCHAR(40))", "INSERT INTO plain VALUES (1, 'x'), (1, 'x')")
    cli.catch_up()
    equal(server, cli, *TABLES)
    run(server, "INSERT INTO keyed VALUES ('2026-02-01', 1)", "DELETE FROM plain LIMIT 1")
    cli.catch_up()
    equal(server, cli, *TABLES)
    run(server, "DROP TABLE keyed")
    cli.catch_up()
    assert held(cli, "keyed") == 0 and cli.rows("d", "keyed").column_names[:2] == ["a", "b"], "and once more"
    equal(server, cli, "plain", "quiet")


def test_a_drop_that_leaves_the_copy_is_an_event_without_a_remedy(
    server: MySQLServer, database: str, tmp_path: Path
) -> None:
    """Nobody can do anything about it, so it asks for no attention."""
    cli = copied(server, tmp_path, "keep")
    run(server, "DROP TABLE keyed")
    change(server, ("quiet",))
    cli.catch_up()
    assert held(cli, "keyed") == 30
    with cli.opened() as (_, store):
        event = next(event for event in store.last_events("p", 100) if event.table == "d.keyed")
    assert (event.kind, event.level, event.needs_attention, event.remedy) == ("table_dropped", "warning", False, None)
    assert event.detail.startswith("table d.keyed was dropped in the source: its copy stays as it was at ")


def test_with_its_database(server: MySQLServer, database: str, tmp_path: Path) -> None:
    """All tables of the pipeline are gone, and it says so; made again, they are copied."""
    cli = copied(server, tmp_path)
    server.execute("DROP DATABASE d")
    with pytest.raises(NotReadyError, match="copies no table any more"):
        cli.catch_up()
    assert [held(cli, table) for table in TABLES] == [0, 0, 0]
    server.execute("CREATE DATABASE d")
    run(server, "CREATE TABLE quiet (a INT PRIMARY KEY)", "INSERT INTO quiet VALUES (3)")
    cli.catch_up()
    equal(server, cli, "quiet")
    assert held(cli, "keyed") == held(cli, "plain") == 0


#: What takes a table away or changes it, and does not empty its copy; and the rows that this has then.
KEPT: dict[str, tuple[tuple[str, ...], int]] = {
    "renamed": (("RENAME TABLE keyed TO moved",), 30),
    "renamed by ALTER": (("ALTER TABLE keyed RENAME TO moved",), 30),
    "renamed, and that is dropped": (("RENAME TABLE keyed TO moved", "DROP TABLE moved"), 30),
    "altered, and then dropped": (("ALTER TABLE keyed ORDER BY id", "DROP TABLE keyed"), 30),
    "another one of that name": (("CREATE DATABASE e", "CREATE TABLE e.keyed (a INT)", "DROP DATABASE e"), 30),
    "made again": (("DROP TABLE keyed", "CREATE TABLE keyed (a INT PRIMARY KEY)", "INSERT INTO keyed VALUES (1)"), 1),
    "altered by gh-ost": (
        (
            "CREATE TABLE _keyed_gho LIKE keyed",
            "ALTER TABLE _keyed_gho ADD COLUMN w INT NOT NULL DEFAULT 7",
            "INSERT INTO _keyed_gho (id, v) SELECT id, v FROM keyed",
            "CREATE TABLE _keyed_del (id INT PRIMARY KEY) COMMENT='ghost-cut-over-sentry'",
            "DROP TABLE _keyed_del",
            "RENAME TABLE keyed TO _keyed_del, _keyed_gho TO keyed",
            "DROP TABLE _keyed_del",
        ),
        30,
    ),
    "altered by pt-osc": (
        (
            "CREATE TABLE _keyed_new LIKE keyed",
            "INSERT INTO _keyed_new SELECT * FROM keyed",
            "RENAME TABLE keyed TO _keyed_old, _keyed_new TO keyed",
            "DROP TABLE IF EXISTS _keyed_old",
        ),
        30,
    ),
}


@pytest.mark.parametrize("what", KEPT)
def test_not_dropped(server: MySQLServer, database: str, what: str, tmp_path: Path) -> None:
    statements, rows = KEPT[what]
    cli = copied(server, tmp_path)
    captures(cli, ALL, exclude=(r"d\.(moved|_.*)",))
    run(server, *statements)
    change(server, ("plain", "quiet"))
    cli.catch_up()
    there = server.execute("SELECT 1 FROM information_schema.tables WHERE table_schema = 'd' AND table_name = 'keyed'")
    equal(server, cli, "plain", "quiet", *(["keyed"] if there else []))
    assert held(cli, "keyed") == rows and "table_emptied" not in events(cli)
    assert not any(map(_empties, (cli.sink / "d" / "keyed" / "_delta_log").glob("*.json")))


@pytest.mark.parametrize("by", ["ROW", "STATEMENT"])
def test_a_temporary_table_is_dropped(server: MySQLServer, database: str, by: str, tmp_path: Path) -> None:
    """The server says so, whatever the session has said. The table of that name was renamed: its copy stays."""
    cli = copied(server, tmp_path)
    captures(cli, ALL, exclude=(r"d\.moved",))
    server.session("d", f"SET SESSION binlog_format = {by}", "CREATE TEMPORARY TABLE keyed (a INT)", "DROP TABLE keyed")
    server.session("d", f"SET SESSION binlog_format = {by}", "CREATE TEMPORARY TABLE quiet (a INT)", "DROP TABLE quiet")
    change(server)
    run(server, "RENAME TABLE keyed TO moved")
    cli.catch_up()
    equal(server, cli, "plain", "quiet")
    assert held(cli, "keyed") == 30 and "table_emptied" not in events(cli)


def test_dropped_and_another_takes_its_name(
    server: MySQLServer, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As pt-online-schema-change with ``drop_swap``: in between there is no table for a moment."""
    cli = copied(server, tmp_path)
    captures(cli, ALL, exclude=(r"d\._.*",))
    run(server, "CREATE TABLE _keyed_new LIKE keyed", "INSERT INTO _keyed_new SELECT * FROM keyed WHERE id < 20")
    looks: list[set[int]] = []

    def look(context: Any, plan: Any) -> set[int]:
        found = suspension.tables_missing_in_source(context, plan)
        looks.append(found)
        if found:
            run(server, "RENAME TABLE _keyed_new TO keyed")
        return found

    monkeypatch.setattr(rereading, "tables_missing_in_source", look)
    run(server, "DROP TABLE keyed")
    cli.catch_up()
    assert looks[0] and "table_emptied" not in events(cli)
    equal(server, cli, *TABLES)


def test_the_default(server: MySQLServer, database: str, tmp_path: Path) -> None:
    """The copy stays. A pipeline that wants it otherwise later has known all the time that the table was dropped."""
    cli = copied(server, tmp_path, "keep")
    run(server, "DROP TABLE keyed")
    cli.catch_up()
    assert held(cli, "keyed") == 30 and "table_emptied" not in events(cli)
    cli.value["sink"]["on_dropped"] = {"drop": [r"d\.quiet"]}
    cli.write()
    run(server, "DROP TABLE quiet")
    cli.catch_up()
    assert held(cli, "keyed") == 30 and held(cli, "quiet") == 0
    cli.value["sink"]["on_dropped"] = "drop"
    cli.write()
    cli.catch_up()
    assert held(cli, "keyed") == held(cli, "quiet") == 0
    equal(server, cli, "plain")


def test_tables_are_not_to_be_read_again(server: MySQLServer, database: str, tmp_path: Path) -> None:
    """The copy of a dropped one is emptied all the same; one that is there again is left to somebody."""
    cli = copied(server, tmp_path, stream={"reread": "ask"})
    run(server, "DROP TABLE keyed", "DROP TABLE quiet", "CREATE TABLE quiet (a INT PRIMARY KEY)")
    with pytest.raises(TableSuspendedError, match=r"d\.quiet"):
        cli.catch_up()
    assert held(cli, "keyed") == 0 and held(cli, "quiet") == 30
    assert cli.resnapshot("d.quiet") == "staged"
    cli.catch_up()
    equal(server, cli, "plain", "quiet")


@pytest.mark.parametrize("merge", ["deletion_vectors", "copy_on_write"])
def test_with_a_feed_and_rows_that_were_kept(server: MySQLServer, database: str, merge: str, tmp_path: Path) -> None:
    """Rows that ``sink.deletes`` has kept go as well."""
    sink = {
        "on_dropped": "drop",
        "merge": merge,
        "deletes": {"soft": [r"d\.keyed"]},
        "table_properties": {"delta.enableChangeDataFeed": True},
    }
    cli = test_membership.copied(server, tmp_path, ALL, sink=sink)
    run(server, "DELETE FROM keyed WHERE id < 4", "UPDATE keyed SET v = 'x' WHERE id = 9", "DROP TABLE keyed")
    cli.catch_up()
    assert held(cli, "keyed") == 0
    run(server, "CREATE TABLE keyed (id INT PRIMARY KEY, v VARCHAR(40))", "INSERT INTO keyed VALUES (1, 'new')")
    cli.catch_up()
    assert cli.rows("d", "keyed").select(["id", "v"]).to_pylist() == [{"id": 1, "v": "new"}]
    equal(server, cli, "plain", "quiet")


@pytest.mark.one_of("server", "again")
@pytest.mark.parametrize("again", [False, True], ids=["gone", "made again"])
@pytest.mark.parametrize("name", ["suspend.before_write", "suspend.after_write", *failpoints.DROPPED_TABLE])
def test_killed(server: MySQLServer, database: str, name: str, again: bool, tmp_path: Path) -> None:
    """The next epoch finishes it, or reads the table that is there by then."""
    cli = copied(server, tmp_path)
    run(server, "UPDATE keyed SET v = 'last'", "DROP TABLE keyed")
    change(server, ("plain",))
    with killed_at(name, dropping, suspension):
        cli.catch_up()
    if again:
        run(server, "CREATE TABLE keyed (a INT PRIMARY KEY)", "INSERT INTO keyed VALUES (4), (5)")
    change(server, ("quiet",))
    cli.catch_up()
    equal(server, cli, *TABLES) if again else equal(server, cli, "plain", "quiet")
    if not again:
        assert held(cli, "keyed") == 0
        commits = [path for path in (cli.sink / "d" / "keyed" / "_delta_log").glob("*.json") if _empties(path)]
        assert len(commits) == 1, "it was emptied once"


def _empties(commit: Path) -> bool:
    return any('"cdc/p/1/dropped"' in line for line in commit.read_text().splitlines())


@pytest.mark.parametrize("name", failpoints.DROPPED_TABLE)
def test_a_process_is_killed(mysql_server: MySQLServer, name: str, tmp_path: Path) -> None:
    with three_tables(mysql_server), Nursery() as nursery:
        cli = copied(mysql_server, tmp_path)
        run(mysql_server, "DROP TABLE keyed")
        change(mysql_server, ("plain",))
        child = nursery.start(cli.file, cli.env, name, only="stream", log=tmp_path / "log")
        assert child.wait() == KILLED, (tmp_path / "log").read_text()
        child = nursery.start(cli.file, cli.env, only="stream", log=tmp_path / "log")
        assert child.wait() == 0, (tmp_path / "log").read_text()
        assert held(cli, "keyed") == 0
        equal(mysql_server, cli, "plain", "quiet")


def test_an_epoch_that_was_overtaken(
    server: MySQLServer, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has seen that the table was dropped. Before it empties the copy, the table is made and read again."""
    cli = copied(server, tmp_path)
    run(server, "DROP TABLE keyed")
    left = ["drop.before_commit"]

    def overtake(name: str) -> None:
        if name not in left:
            return
        left.clear()
        run(server, "CREATE TABLE keyed (a INT PRIMARY KEY)", "INSERT INTO keyed VALUES (4), (5)")
        with cli.opened() as (context, store):
            context.liveness.is_alive = lambda epoch_row: False  # type: ignore[method-assign]
            run_epoch_in_process(begin_epoch(context, store, catch_up=True))
        equal(server, cli, *TABLES)

    monkeypatch.setattr(dropping, "failpoint", overtake)
    with pytest.raises(FencedError):
        cli.catch_up()
    equal(server, cli, *TABLES)
    assert "table_emptied" not in events(cli)
    run(server, "INSERT INTO keyed VALUES (6)")
    cli.catch_up()
    equal(server, cli, *TABLES)


def test_while_the_stream_runs(
    server: MySQLServer, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rereading, "_CATALOG_SECONDS", 0.5)
    cli = copied(server, tmp_path)
    with cli.streaming() as epoch:
        for n in range(2):
            run(server, "DROP TABLE keyed")
            change(server, ("plain",))
            wait_for("the copy to be emptied", lambda n=n: events(cli).count("table_emptied") == n + 1, 120)  # type: ignore[misc]
            assert held(cli, "keyed") == 0
            run(server, f"CREATE TABLE keyed (id INT PRIMARY KEY, v{n} INT)", "INSERT INTO keyed VALUES (1, 2)")
            change(server, ("quiet",))
            wait_for("the table", lambda: len(epoch.context.plans.require().active_tables) == 3, 120)
    cli.catch_up()
    equal(server, cli, *TABLES)


@pytest.mark.parametrize("how", ["removed", "another pipeline's"])
def test_what_is_not_the_copy(server: MySQLServer, database: str, how: str, tmp_path: Path) -> None:
    """Somebody has removed it, or put another one in its place: nothing of that is touched, and others go on."""
    cli = copied(server, tmp_path, "keep")
    run(server, "DROP TABLE keyed")
    cli.catch_up()
    folder = cli.sink / "d" / "keyed"
    shutil.rmtree(folder)
    if how != "removed":
        other = Cli(tmp_path / "other", server, r"d\.quiet", name="other")
        other.snapshot()
        shutil.copytree(other.sink / "d" / "quiet", folder)
    before = tree(folder)
    cli.value["sink"]["on_dropped"] = "drop"
    cli.write()
    change(server, ("plain", "quiet"))
    cli.catch_up()
    equal(server, cli, "plain", "quiet")
    assert "table_emptied" not in events(cli)
    assert tree(folder) == before


def test_its_files_go(server: MySQLServer, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the retention: by ``maintain``, and by a stream."""
    cli = copied(server, tmp_path)
    run(server, "DROP TABLE keyed", "DROP TABLE plain")
    cli.catch_up()

    def files(table: str) -> list[Path]:
        return list((cli.sink / "d" / table).rglob("*.parquet"))

    assert files("keyed") and files("plain")
    maintain_tables(cli.context, compact_in_threads)
    assert files("keyed") and files("plain"), "readers of the version before may still be at it"
    monkeypatch.setattr(maintenance.vacuum_files, "__defaults__", (0.0,))
    change(server, ("quiet",))
    cli.catch_up()
    assert not files("keyed") and not files("plain")
    assert {entry["table"] for entry in maintain_tables(cli.context, compact_in_threads)["tables"]} == {
        "d.keyed",
        "d.plain",
        "d.quiet",
    }
    assert held(cli, "keyed") == 0


def test_it_is_written_down_where_the_table_was_suspended(server: MySQLServer, database: str, tmp_path: Path) -> None:
    """Only of what was dropped; files of before say nothing of it."""
    cli = copied(server, tmp_path, "keep", stream={"reread": "ask", "fail_on_suspended": False})
    run(server, "DROP TABLE keyed", "ALTER TABLE quiet ORDER BY id")
    cli.catch_up()
    found = [json.loads(path.read_text()) for path in (cli.sink / "_cdc" / "p" / "amended" / "1").glob("*.json")]
    assert {step["table"]: step.get("dropped") for step in found} == {0: True, 2: None}
