"""A pipeline is uninstalled; and a sink is moved to another place."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from deltalake import DeltaTable

from airflow_provider_cdc.chunk_groups.chunk_group import ChunkGroup
from airflow_provider_cdc.model.errors import NotReadyError, TerminalError
from airflow_provider_cdc.sinks.lake.table_checks import OWNER_PROPERTY
from airflow_provider_cdc.snapshot.claims import GroupClaim
from tests.support.cli import Cli, tree
from tests.support.failpoints import FORGET
from tests.support.oracle import compare_database
from tests.support.s3 import S3
from tests.support.servers import MySQLServer
from tests.support.three_tables import TABLES, run, three_tables

pytestmark = pytest.mark.one_of("server")


@pytest.fixture
def database(mysql_server: MySQLServer) -> Iterator[str]:
    with three_tables(mysql_server) as name:
        yield name


@pytest.fixture
def cli(mysql_server: MySQLServer, database: str, tmp_path: Path) -> Cli:
    """A pipeline whose stream has passed its snapshot. Its bookkeeping is shared with another one."""
    cli = Cli(tmp_path, mysql_server, r"d\..*", state={"conn_id": "books"})
    cli.env["AIRFLOW_CONN_BOOKS"] = f"sqlite:///{tmp_path}/books.db"
    filled(mysql_server, cli)
    return cli


def filled(server: MySQLServer, cli: Cli) -> None:
    cli.snapshot()
    run(server, *(f"INSERT INTO {table} VALUES (40, 'on')" for table in TABLES))
    cli.catch_up()


def test_what_would_be_deleted_is_said_first(mysql_server: MySQLServer, cli: Cli) -> None:
    before = tree(cli.sink)
    said = cli.call("forget")
    assert said.code == 2 and said.err == "error: nothing was deleted. Run this again with --yes to delete\n"
    assert said.out.startswith("data of p that would be deleted:\n") and f"{cli.sink}/_cdc/p: " in said.out
    assert f"{cli.sink}/_cdc_progress/p: " in said.out and "1 of pipelines" in said.out and "1 of streams" in said.out
    assert "these tables are kept" in said.out and f"table d.keyed, {cli.sink}/d/keyed" in said.out
    assert tree(cli.sink) == before
    with_tables = cli.call("forget", "--tables").out
    assert "stay as they are" not in with_tables and f"table d.keyed, {cli.sink}/d/keyed: " in with_tables


def test_the_state_goes_and_the_copies_stay(mysql_server: MySQLServer, cli: Cli, tmp_path: Path) -> None:
    other = Cli(tmp_path / "other", mysql_server, r"d\.keyed", name="other", state={"conn_id": "books"})
    other.env.update(cli.env)
    filled_before = [DeltaTable(str(cli.sink / "d" / table)).version() for table in TABLES]
    other.snapshot()
    assert cli.call("forget", "--yes").out.endswith("p was removed\n")
    assert not (cli.sink / "_cdc/p").exists() and not (cli.sink / "_cdc_progress/p").exists()
    assert not compare_database(mysql_server, "d", cli.sink, TABLES)
    assert [DeltaTable(str(cli.sink / "d" / table)).version() for table in TABLES] == filled_before
    with other.opened() as (_, store):
        assert (
            store.pipeline_names() == ["other"]
            and store.count_rows_by_table("p") == {}
            and store.count_rows_by_table("other")["chunks"] == 1
        )
    assert cli.call("forget", "--yes").out == f"nothing is left of p at {cli.sink}\n"

    # Nobody takes these copies for new ones: neither the same pipeline nor another one.
    with pytest.raises(NotReadyError, match=r"d/keyed, but no plan at .*start with a fresh sink.path"):
        cli.snapshot()
    cli.value["sink"]["adopt"] = True
    cli.write()
    with pytest.raises(NotReadyError, match="d/keyed, but no plan at"):
        cli.snapshot()
    cli.value["name"] = "q"
    cli.write()
    with pytest.raises(NotReadyError, match="cannot be adopted: it belongs to airflow-cdc pipeline p; it has a writer"):
        cli.snapshot()


def test_all_of_it_goes_and_can_begin_again(mysql_server: MySQLServer, cli: Cli) -> None:
    kept = cli.sink / "d/quiet/_delta_log"
    actions = [json.loads(line) for commit in sorted(kept.glob("*.json")) for line in commit.read_text().splitlines()]
    metadata = [action["metaData"] for action in actions if "metaData" in action][-1]
    metadata["configuration"][OWNER_PROPERTY] = "somebody"  # as if another pipeline had put its table there
    newest = int(max(kept.glob("*.json")).stem)
    (kept / f"{newest + 1:020}.json").write_text(json.dumps({"metaData": metadata}))
    assert cli.call("forget", "--tables", "--yes").code == 0
    assert not (cli.sink / "d/keyed").exists() and not (cli.sink / "d/plain").exists() and kept.exists()
    shutil.rmtree(cli.sink / "d/quiet")
    run(mysql_server, *(f"DELETE FROM {table} WHERE v = 'on'" for table in TABLES))
    filled(mysql_server, cli)
    assert not compare_database(mysql_server, "d", cli.sink, TABLES)


@pytest.mark.parametrize("point", FORGET)
def test_killed_and_run_again(mysql_server: MySQLServer, cli: Cli, point: str) -> None:
    assert cli.run("forget", "--tables", "--yes", CDC_FAILPOINT=point).code == -9
    assert cli.call("forget", "--tables", "--yes").code == 0
    assert [path for path in cli.sink.rglob("*") if path.is_file()] == []
    with cli.opened() as (_, store):
        assert store.pipeline_names() == []


def test_a_file_of_its_own(mysql_server: MySQLServer, database: str, tmp_path: Path) -> None:
    cli = Cli(tmp_path, mysql_server, r"d\.keyed")
    cli.snapshot()
    assert " 1 of pipelines" in cli.call("forget").out
    assert cli.call("forget", "--yes").code == 0
    assert not (cli.sink / "_cdc/p").exists()
    cli.call("forget")
    assert not (cli.sink / "_cdc/p").exists()  # to look makes nothing


def test_not_while_something_runs(mysql_server: MySQLServer, cli: Cli) -> None:
    before = tree(cli.sink / "_cdc")
    with cli.streaming():
        refused = cli.call("forget", "--yes")
        assert refused.code == 2 and "a stream of p is running (epoch 2" in refused.problem
    with cli.opened() as (context, store):
        group = ChunkGroup(context, context.plans.require(), 0)
        row = store.group("p", 1, 0)
        attempt = store.claim_group(
            "p", 1, 0, expected_attempt=row.attempt, newest_in_sink=1, holder="a task", state="rereading"
        )
        assert attempt is not None
        with GroupClaim(group, store, attempt, row, 1):
            refused = cli.call("forget", "--yes")
        assert refused.code == 2 and "chunk group 0 of p is being read by a task" in refused.problem
    assert {*before} <= {*tree(cli.sink / "_cdc")}


def test_in_an_object_store(
    mysql_server: MySQLServer, database: str, s3: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli = Cli(tmp_path, mysql_server, r"d\..*")
    cli.value["sink"] = {"path": s3.uri(), "conn_id": "lake"}
    cli.write()
    cli.env["AIRFLOW_CONN_LAKE"] = s3.connection()
    monkeypatch.setenv("AIRFLOW_CDC_STATE_DIR", str(tmp_path / "state"))
    filled(mysql_server, cli)
    said = cli.call("forget", "--tables", "--yes")
    assert said.code == 0 and "on this host: " in said.out
    assert [*cli.context.storage.list("")] == [] and not [*(tmp_path / "state").iterdir()]


# ---------------------------------------------------------------- another place


def test_a_sink_is_moved(mysql_server: MySQLServer, cli: Cli, tmp_path: Path) -> None:
    """While nothing runs: the folder is moved, sink.path is changed, and it goes on."""
    elsewhere = tmp_path / "elsewhere" / "lake"
    elsewhere.parent.mkdir()
    shutil.move(cli.sink, elsewhere)
    run(mysql_server, *(f"INSERT INTO {table} VALUES (41, 'moved')" for table in TABLES))
    cli.value["sink"]["path"] = str(elsewhere)
    cli.write()
    assert cli.reported_status()["phase"] == "stopped"
    cli.catch_up()
    assert not compare_database(mysql_server, "d", elsewhere, TABLES) and not cli.sink.exists()
    assert [row["equal"] for row in json.loads(cli.call("verify", "--json").out)] == [True] * 3
    with cli.opened() as (_, store):
        assert store.snapshot("p").generation == 1  # type: ignore[union-attr]  # nothing was read again


def test_a_sink_that_is_not_there(mysql_server: MySQLServer, cli: Cli, tmp_path: Path) -> None:
    """A typo in sink.path, or a folder that was not mounted: nothing goes on without its plan."""
    cli.value["sink"]["path"] = str(tmp_path / "tpyo")
    cli.write()
    refused = cli.call("stream")
    assert refused.code == 2 and f"pipeline p has no snapshot in {tmp_path}/tpyo" in refused.err
    assert '"written": false' in cli.call("plan", "--json").out


def test_a_copy_that_lacks_a_part(mysql_server: MySQLServer, cli: Cli, tmp_path: Path) -> None:
    """What was copied of a table while the stream ran may be older than the resume point: a comparison shows it."""
    for name, first in (("no_rows", 1), ("no_batch", -1)):
        elsewhere = tmp_path / name
        shutil.copytree(tmp_path / "lake", elsewhere)
        for commit in sorted((elsewhere / "d/keyed/_delta_log").glob("*.json"))[first:]:
            commit.unlink()
        cli.value["sink"]["path"] = str(elsewhere)
        cli.write()
        if name == "no_rows":
            with pytest.raises(TerminalError, match="d/keyed is not the one that was written before"):
                cli.catch_up()
        else:
            cli.catch_up()
            found = {row["table"]: row["missing"] for row in json.loads(cli.call("verify", "--json").out)}
            assert found == {"d.keyed": 1, "d.plain": 0, "d.quiet": 0}
