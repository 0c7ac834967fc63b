"""Tables in folders that ``sink.table_path`` names: everything that looks for a table finds it there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from deltalake import DeltaTable

from airflow_provider_cdc.chunk_groups.task import run_in_threads
from airflow_provider_cdc.maintenance.table_maintenance import maintain_tables
from airflow_provider_cdc.model.errors import NotReadyError
from airflow_provider_cdc.snapshot.run import run_group
from airflow_provider_cdc.verify.run import verify_tables
from tests.support.cli import Cli, asked_by
from tests.support.servers import MySQLServer


@pytest.fixture
def cli(mysql_server: MySQLServer, database: str, tmp_path: Path, cdc_user: dict[str, str]) -> Iterator[Cli]:
    mysql_server.session(
        database, "CREATE TABLE Orders (id INT PRIMARY KEY, v INT)", "INSERT INTO Orders VALUES (1, 1), (2, 2)"
    )
    yield Cli(
        tmp_path,
        mysql_server,
        rf"{database}\..*",
        name=database,
        user=cdc_user,
        sink={"table_path": "bronze/{database}__{table}", "lower_case": True},
    )


def test_a_whole_pipeline(cli: Cli, mysql_server: MySQLServer, database: str) -> None:
    assert not cli.call("check").found
    cli.snapshot()
    mysql_server.session(database, "UPDATE Orders SET v = 3 WHERE id = 1", "INSERT INTO Orders VALUES (7, 7)")
    cli.catch_up()
    with cli.opened() as (context, store):
        plan = context.plans.require()
        run_group(context, store, plan, 0, run_in_threads, holder="x", requested_by=asked_by("t"))
        run_group(context, store, plan, 0, run_in_threads, holder="x", requested_by=asked_by("t"))
        maintain_tables(context, lambda work: [w.run() for w in work])
    cli.catch_up()
    found = cli.reported_status()
    assert [row["table"] for row in found["sink"]] == [f"{database}.Orders"]
    assert all(found.is_equal for found in verify_tables(cli.context))
    assert sorted(p.name for p in cli.sink.iterdir()) == ["_cdc", "_cdc_progress", "bronze"]
    assert [p.name for p in (cli.sink / "bronze").iterdir()] == [f"{database}__orders"]
    assert DeltaTable(str(cli.sink / "bronze" / f"{database}__orders")).version() > 2


@pytest.mark.parametrize(("key", "value"), [("table_path", "{database}/{table}"), ("lower_case", False)])
def test_it_stays(cli: Cli, database: str, key: str, value: object) -> None:
    cli.snapshot()
    before, cli.value["sink"][key] = cli.value["sink"][key], value
    cli.write()
    why = f"sink.{key} of {database} changed since its snapshot (it was {before})"
    assert any(why in line for line in cli.call("check").found)
    assert why in cli.call("status").problem
    with pytest.raises(NotReadyError, match="changed since its snapshot"):
        cli.catch_up()


def test_two_tables_in_one_folder_are_refused(cli: Cli, mysql_server: MySQLServer, database: str) -> None:
    mysql_server.session(database, "CREATE TABLE ORDERS (id INT PRIMARY KEY, v INT)")
    found = cli.call("check").found
    assert len(found) == 1 and f"would both be copied to bronze/{database}__orders" in found[0]
    with pytest.raises(NotReadyError, match="would both be copied to bronze"):
        cli.snapshot()
    assert not list(cli.folder.rglob("plan.json"))
