"""A copy that somebody removes, replaces or damages is its own table's trouble: the others go on."""

from __future__ import annotations

import shutil
from contextlib import AbstractContextManager
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from airflow_provider_cdc.apply import follow_ddl as schema_changes
from airflow_provider_cdc.model.errors import TableSuspendedError, TerminalError
from airflow_provider_cdc.resnapshot import publish
from airflow_provider_cdc.stream.run import begin_epoch
from tests.support.chance import Killed, killed_at
from tests.support.cli import Cli
from tests.support.epochs import run_epoch_in_process
from tests.support.oracle import compare_database
from tests.support.servers import MySQLServer
from tests.support.three_tables import SUSPENDS, TABLES, run, streamed_copy, three_tables_database

pytestmark = pytest.mark.one_of("server")
database = three_tables_database


@pytest.fixture
def cli(server: MySQLServer, database: str, tmp_path: Path) -> Cli:
    """A pipeline whose stream has passed its snapshot."""
    return streamed_copy(
        server, tmp_path, *(f"INSERT INTO {table} VALUES (40, 'on')" for table in TABLES), stream=SUSPENDS
    )


def equal(server: MySQLServer, cli: Cli, *tables: str) -> None:
    assert compare_database(server, "d", cli.sink, tables) == []


def suspended(cli: Cli) -> dict[str, str]:
    """Why, by table."""
    plan = cli.context.plans.require()
    return {plan.tables[step.table].label: step.message for step in plan.suspensions}


def copy_of(cli: Cli, table: str) -> Path:
    return cli.sink / "d" / table


def test_gone_or_another_table(server: MySQLServer, cli: Cli) -> None:
    """They are suspended where the stream begins, and stay so; nothing comes back empty."""
    shutil.rmtree(copy_of(cli, "keyed"))
    shutil.rmtree(copy_of(cli, "plain"))
    write_deltalake(copy_of(cli, "plain"), pa.table({"n": [1]}))
    run(server, "UPDATE quiet SET v = 'on and on' WHERE id = 2", "INSERT INTO keyed VALUES (99, 'lost')")
    for _ in range(2):
        with pytest.raises(TableSuspendedError, match="and 1 more"):
            cli.catch_up()
        equal(server, cli, "quiet")
        found = suspended(cli)
        assert set(found) == {"d.keyed", "d.plain"}
        assert found["d.keyed"].endswith("is missing")
        assert "belongs to no pipeline" in found["d.plain"]
        assert not copy_of(cli, "keyed").exists()
        run(server, "UPDATE quiet SET v = 'later' WHERE id = 3", "DELETE FROM plain WHERE n = 3")


@pytest.mark.parametrize("dies", ["", "rejoin.before_write", "rejoin.after_write", "rejoin.after_exchange"])
def test_gone_and_read_again(server: MySQLServer, cli: Cli, dies: str) -> None:
    """What was removed comes back whole, also after a run that dies on the way."""
    for table in ("keyed", "plain"):
        shutil.rmtree(copy_of(cli, table))
    with pytest.raises(TableSuspendedError):
        cli.catch_up()
    for table in ("keyed", "plain"):
        assert cli.resnapshot(f"d.{table}") == "staged"
    run(server, *(f"DELETE FROM {table} WHERE v LIKE '%7'" for table in TABLES))
    if dies:
        with killed_at(dies, publish, schema_changes):
            cli.catch_up()
    cli.catch_up()
    assert not suspended(cli)
    equal(server, cli, *TABLES)
    with cli.opened() as (context, store):
        events = store.last_events(context.pipeline.name, 100, ("table_rejoined", "reread_dropped"))
    told = [(event.kind, event.table) for event in events]
    assert sorted(told) == [("table_rejoined", "d.keyed"), ("table_rejoined", "d.plain")], "what is true, and once"


def test_all_gone(server: MySQLServer, cli: Cli) -> None:
    """That is a disk or a folder that is gone, and no table's own trouble: nothing is written down."""
    shutil.rmtree(cli.sink / "d")
    with pytest.raises(TerminalError, match="is missing") as stopped:
        cli.catch_up()
    assert not isinstance(stopped.value, TableSuspendedError)
    assert not suspended(cli)


def test_stopped_if_the_pipeline_says_so(server: MySQLServer, cli: Cli) -> None:
    cli.value["stream"]["on_table_error"] = "stop"
    cli.write()
    shutil.rmtree(copy_of(cli, "keyed"))
    with pytest.raises(TerminalError, match="is missing") as stopped:
        cli.catch_up()
    assert stopped.value.table == "d.keyed"
    assert not suspended(cli)


def test_removed_while_the_stream_runs(server: MySQLServer, cli: Cli) -> None:
    run(server, "UPDATE keyed SET v = 'lost' WHERE id < 9", "UPDATE quiet SET v = 'three' WHERE id = 3")
    with cli.opened() as (context, store):
        epoch = begin_epoch(context, store, catch_up=True)
        shutil.rmtree(copy_of(cli, "keyed"))
        with pytest.raises(TableSuspendedError, match=r"d\.keyed"):
            run_epoch_in_process(epoch)
    assert set(suspended(cli)) == {"d.keyed"}
    equal(server, cli, "quiet", "plain")


@pytest.mark.parametrize("was", ["suspended", "in step"])
@pytest.mark.parametrize("when", ["at once", "by the next run"])
def test_an_exchange_that_is_refused(
    server: MySQLServer, cli: Cli, was: str, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is written down that a table rejoins, and somebody removes what was read: it is suspended, and read again."""
    if was == "suspended":
        run(server, "ALTER TABLE keyed DROP COLUMN v, ORDER BY id")
        with pytest.raises(TableSuspendedError):
            cli.catch_up()
    assert cli.resnapshot("d.keyed") == "staged"

    def remove() -> None:
        step = cli.context.plans.require().rejoin_of(0)
        assert step is not None and step.slices
        for file in step.slices:
            (copy_of(cli, "keyed") / file["path"]).unlink()

    def fail(name: str) -> None:
        if name == "rejoin.before_exchange":
            remove()
            if when == "by the next run":
                raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(schema_changes, "failpoint", fail)
        with pytest.raises(Killed) if when == "by the next run" else refused():
            cli.catch_up()
    run(server, "UPDATE quiet SET v = 'on' WHERE id = 5", "DELETE FROM keyed WHERE id = 6")
    with refused():
        cli.catch_up()
    equal(server, cli, "quiet", "plain")
    assert cli.resnapshot("d.keyed") == "staged"
    cli.catch_up()
    assert not suspended(cli)
    equal(server, cli, *TABLES)


def refused() -> AbstractContextManager[object]:
    return pytest.raises(TableSuspendedError, match="is missing or incomplete")
