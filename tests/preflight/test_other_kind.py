"""A lake that has tables of another kind, or of another pipeline, is refused before anything is written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from airflow_provider_cdc.model.errors import CdcError, NotReadyError
from airflow_provider_cdc.sinks.protocol import Readable
from tests.support.cli import Cli, tree
from tests.support.servers import MySQLServer

BOTH_WAYS = pytest.mark.parametrize(("first", "second"), [("delta", "iceberg"), ("iceberg", "delta")])
TABLE_OF = {"delta": "a Delta table", "iceberg": "an Iceberg table"}


@pytest.fixture
def cli(mysql_server: MySQLServer, database: str, tmp_path: Path) -> Cli:
    """A pipeline of three tables."""
    for name in "abc":
        mysql_server.session(
            database, f"CREATE TABLE {name} (id INT PRIMARY KEY, v INT)", f"INSERT INTO {name} VALUES (1, 1), (2, 2)"
        )
    return Cli(tmp_path / "cli", mysql_server, rf"{database}\..*", name=database)


def set_kind(cli: Cli, kind: str) -> Cli:
    cli.value["sink"]["kind"] = kind
    cli.write()
    return cli


def assert_refused(cli: Cli, lake: Path, *words: str, lines: int = 1) -> None:
    """By each command, by name, with exit code 2."""
    before, files_before = tree(lake), files(lake)
    for command in ("check", "plan", "snapshot", "run", "stream"):
        result = cli.call(command)
        assert result.code == 2, (command, result)
        errors = result.found if command == "check" else [result.problem]
        assert len(errors) == (lines if command == "check" else 1), (command, errors)
        for error in errors:
            assert all(word in error for word in words), (command, error)
    assert tree(lake) == before
    for phase in (cli.snapshot, cli.catch_up):
        with pytest.raises(CdcError):
            phase()
    assert files(lake) == files_before


def files(lake: Path) -> dict[str, bytes | None]:
    """Without the state database, which each phase opens first."""
    return {n: data for n, data in tree(lake).items() if data is not None and "bookkeeping.db" not in n}


@BOTH_WAYS
def test_a_kind_that_was_changed(cli: Cli, mysql_server: MySQLServer, database: str, first: str, second: str) -> None:
    set_kind(cli, first).snapshot()
    why = f"sink.kind of {database} is {second}, but its tables are of kind {first}"
    assert_refused(set_kind(cli, second), cli.sink, why, "another name and a fresh sink.path")
    assert why in cli.call("status").problem
    with pytest.raises(NotReadyError, match="but its tables are of kind"):
        cli.catch_up()
    set_kind(cli, first)
    assert not cli.call("check").found
    mysql_server.session(database, "UPDATE a SET v = 3 WHERE id = 1")
    cli.catch_up()
    table = next(table for table in cli.context.plans.require().tables if table.name == "a")
    target = cli.context.sink.table(table)
    assert isinstance(target, Readable)
    rows, _ = target.read()
    assert sorted(zip(rows["id"].to_pylist(), rows["v"].to_pylist(), strict=True)) == [(1, 3), (2, 2)]


@BOTH_WAYS
def test_a_plan_that_does_not_tell_its_kind(cli: Cli, database: str, first: str, second: str) -> None:
    """As older ones: the folders of the tables tell it."""
    set_kind(cli, first).snapshot()
    plan = cli.sink / "_cdc" / database / "plan.json"
    older = json.loads(plan.read_text())
    assert older.pop("sink_kind") == first
    plan.write_text(json.dumps(older))
    cli.catch_up()
    assert not cli.call("check").found
    before = files(cli.sink)
    found = set_kind(cli, second).call("check").found
    assert len(found) == 3 and all(f"has {TABLE_OF[first]}" in line for line in found)
    with pytest.raises(CdcError, match=f"has {TABLE_OF[first]}"):
        cli.snapshot()
    assert files(cli.sink) == before


@BOTH_WAYS
def test_another_pipeline_in_the_same_folders(
    cli: Cli, mysql_server: MySQLServer, database: str, tmp_path: Path, first: str, second: str
) -> None:
    """It reads one of the tables, and would take the slices of the first one for its own."""
    set_kind(cli, first).snapshot()
    other = Cli(
        tmp_path / "other", mysql_server, rf"{database}\.c", name="other", sink={"kind": second, "path": str(cli.sink)}
    )
    assert_refused(other, cli.sink, f"/{database}/c of the ", f"has {TABLE_OF[first]}: nothing was written there")


def test_another_catalog_in_the_same_folders(
    cli: Cli, mysql_server: MySQLServer, database: str, tmp_path: Path
) -> None:
    """Another catalog does not know the table, whose folder does."""
    set_kind(cli, "iceberg").snapshot()
    catalog = {"type": "sql", "uri": f"sqlite:///{tmp_path}/other.db"}
    other = Cli(
        tmp_path / "other",
        mysql_server,
        rf"{database}\.c",
        name="other",
        sink={"kind": "iceberg", "path": str(cli.sink), "catalog": catalog},
    )
    assert_refused(other, cli.sink, f"belongs to table {database}.c")


@BOTH_WAYS
def test_a_table_that_is_added_later(
    cli: Cli, mysql_server: MySQLServer, database: str, tmp_path: Path, first: str, second: str
) -> None:
    """Its folder is looked at before anything is read into it."""
    cli.value["source"]["tables"] = [rf"{database}\.a"]
    set_kind(cli, first).snapshot()
    other = Cli(
        tmp_path / "other", mysql_server, rf"{database}\.c", name="other", sink={"kind": second, "path": str(cli.sink)}
    )
    other.snapshot()
    cli.value["source"]["tables"] = [rf"{database}\.[ac]"]
    cli.value["stream"]["on_table_error"] = "suspend"
    cli.write()
    folder = cli.sink / database / "c"
    before = tree(folder)
    assert [line for line in cli.call("check").found if f"has {TABLE_OF[second]}" in line]
    cli.catch_up()
    assert tree(folder) == before
