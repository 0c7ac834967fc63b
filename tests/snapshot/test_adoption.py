"""A whole pipeline into tables that something else has made."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from airflow_provider_cdc.model.errors import NotReadyError
from airflow_provider_cdc.verify.run import verify_tables
from tests.support.cli import Cli
from tests.support.servers import MySQLServer


@pytest.fixture
def cli(mysql_server: MySQLServer, database: str, tmp_path: Path) -> Iterator[Cli]:
    mysql_server.session(
        database,
        "CREATE TABLE a (id INT PRIMARY KEY, v INT)",
        "INSERT INTO a VALUES (1, 1), (2, 2)",
        "CREATE TABLE bare (id INT PRIMARY KEY)",
        "CREATE TABLE fresh (id INT PRIMARY KEY)",
    )
    cli = Cli(tmp_path, mysql_server, rf"{database}\..*", name=database, sink={"adopt": True})
    rows = pa.table({"v": pa.array([9, 9], pa.int32()), "id": pa.array([1, 7], pa.int32())})
    write_deltalake(str(cli.sink / database / "a"), rows)
    write_deltalake(str(cli.sink / database / "bare"), rows.select(["id"]))
    yield cli


def test_the_copy_equals_the_source(cli: Cli, mysql_server: MySQLServer, database: str) -> None:
    found = cli.call("check")
    assert not found.found and found.out.count("was created by something else, and is adopted") == 2
    cli.snapshot()
    assert [c.rows for c in verify_tables(cli.context) if c.is_equal] == [2, 0, 0]
    mysql_server.session(database, "UPDATE a SET v = 5 WHERE id = 2", "INSERT INTO bare VALUES (7)")
    cli.catch_up()
    assert [c.rows for c in verify_tables(cli.context) if c.is_equal] == [2, 1, 0]
    cli.snapshot()
    assert not cli.call("check").found and "adopted" not in cli.call("check").out


def test_a_table_that_does_not_fit(cli: Cli, database: str) -> None:
    write_deltalake(
        str(cli.sink / database / "fresh"), pa.table({"id": pa.array([1], pa.int64()), "x": pa.array(["a"])})
    )
    why = "cannot be adopted: column id is long, and not integer; it has column x, which the source does not have"
    assert any(why in line for line in cli.call("check").found)
    with pytest.raises(NotReadyError, match="cannot be adopted"):
        cli.snapshot()
    assert not list(cli.sink.rglob("plan.json"))


def test_not_unless_asked(cli: Cli, database: str) -> None:
    cli.value["sink"]["adopt"] = False
    cli.write()
    with pytest.raises(NotReadyError, match=r"but no plan at .* taken over with sink.adopt: true"):
        cli.snapshot()


def test_a_lost_plan_is_no_adoption(cli: Cli) -> None:
    """Its own tables hold rows that no plan accounts for."""
    cli.snapshot()
    next(cli.sink.rglob("plan.json")).unlink()
    with pytest.raises(NotReadyError, match="but no plan at"):
        cli.snapshot()


def test_a_stream_alone_fills_no_adopted_table(cli: Cli) -> None:
    cli.value["stream"] = {"start": "latest"}
    cli.write()
    assert "sink.adopt is true, and stream.start is not snapshot" in cli.call("check").problem
