"""A mapped group is cleared of which nothing is left to read, since its tables were read again as a whole."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG

from airflow_provider_cdc import CdcPlanChunksOperator, CdcSnapshotOperator
from airflow_provider_cdc.chunk_groups.chunk_group import TaskRequest
from airflow_provider_cdc.model.errors import NotReadyError
from airflow_provider_cdc.observe.status import read_status
from airflow_provider_cdc.snapshot.run import adopt_published_groups, run_group
from airflow_provider_cdc.verify.run import verify_tables
from tests.support.cli import Cli
from tests.support.servers import MySQLServer


@pytest.fixture
def cli(mysql_server: MySQLServer, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """Two groups of the first table, one of both, and two of the second one."""
    for table in ("one", "two"):
        mysql_server.execute(f"CREATE TABLE {database}.{table} (id INT PRIMARY KEY, v INT)")
        mysql_server.execute(
            f"INSERT INTO {database}.{table} VALUES {', '.join(f'({number}, 0)' for number in range(25))}"
        )
    settings = {"chunk_rows": 5, "group_rows": 10}
    cli = Cli(tmp_path, mysql_server, rf"{database}\..*", snapshot=settings)
    for name, value in cli.env.items():
        monkeypatch.setenv(name, value)
    return cli


def instance(index: int, clears: int = 0) -> dict[str, Any]:
    ti = SimpleNamespace(dag_id="d", run_id="r", task_id="t", map_index=index, max_tries=clears, try_number=1 + clears)
    ti.get_ti_count = lambda *_, **__: 1
    return {"ti": ti}


def read(cli: Cli, group: int, clears: int = 0) -> dict[str, Any]:
    context: Any = instance(group, clears)
    result: dict[str, Any] = CdcSnapshotOperator(task_id="t", pipeline=str(cli.file), groups=group).execute(context)
    (outcome,) = result["groups"]
    return dict(outcome)


def here(cli: Cli, group: int) -> str:
    """The same in this process; how it ended."""
    with cli.opened() as (context, store):
        plan = context.plans.ensure(store)
        return run_group(context, store, plan, group, never, holder="t", requested_by=TaskRequest("t", 1)).outcome


def never(job: Any) -> Any:
    raise AssertionError("nothing is to be read")


def planned(cli: Cli) -> list[dict[str, Any]]:
    """What the planner says in a run that has mapped tasks, when it is cleared with them."""
    with DAG("d", schedule=None):
        operator = CdcPlanChunksOperator(task_id="plan", pipeline=str(cli.file))
        CdcSnapshotOperator.partial(task_id="t", pipeline=str(cli.file)).expand(groups=operator.output)
    return operator.execute(instance(-1))  # type: ignore[arg-type]


def states(cli: Cli) -> dict[int, str]:
    with cli.opened() as (_, store):
        return {row.group_no: row.state for row in store.groups("p", 1)}


def test_a_group_of_which_nothing_is_left_is_cleared(cli: Cli, mysql_server: MySQLServer, database: str) -> None:
    cli.snapshot()
    groups = planned(cli)
    assert [one["tables"] for one in groups] == [[f"{database}.{name}"] for name in ("one", "one")] + [
        [f"{database}.one", f"{database}.two"],
        *[[f"{database}.two"]] * 2,
    ]
    mysql_server.execute(f"UPDATE {database}.one SET v = 1")
    cli.catch_up()
    assert cli.resnapshot(f"{database}.one") == "staged"
    mysql_server.execute(f"UPDATE {database}.one SET v = 2 WHERE id = 3")
    cli.catch_up()
    assert states(cli) == {0: "taken_over", 1: "taken_over", 2: "done", 3: "done", 4: "done"}, "the page shows it"

    found = read(cli, 0, clears=1)
    assert (found["outcome"], found["rows"], found["chunks"]) == ("taken_over", 0, 0)
    assert found["tables"] == [f"{database}.one"] and found["min_lw"] is None
    again = planned(cli)
    assert [one["groups"] for one in again] == [one["groups"] for one in groups], "each mapped task keeps its group"
    operator = CdcSnapshotOperator(task_id="t", pipeline=str(cli.file), groups=0)
    assert operator.table_indexes(cli.context.plans.require()) == {0}, "what OpenLineage hears"
    assert read_status(cli.context)["snapshot"]["complete"]
    with cli.opened() as (context, store):
        assert adopt_published_groups(context, store, context.plans.require())
        assert store.snapshot("p").state == "done"  # type: ignore[union-attr]
    with pytest.raises(NotReadyError, match="no chunk group 5: the snapshot was planned again"):
        here(cli, 5)

    # And where nothing of any group is left, and the bookkeeping was lost.
    assert cli.resnapshot(f"{database}.two") == "staged"
    cli.catch_up()
    shutil.rmtree(cli.sink / "_cdc" / "p" / "checkpoint", ignore_errors=True)
    for file in (cli.sink / "_cdc" / "p").glob("bookkeeping.db*"):
        file.unlink()
    assert here(cli, 2) == "taken_over"
    assert [one["groups"] for one in planned(cli)] == [[0], [1], [2], [3], [4]]
    assert all(one.is_equal for one in verify_tables(cli.context))


def test_a_group_whose_table_is_suspended_is_cleared(cli: Cli, mysql_server: MySQLServer, database: str) -> None:
    """Its copy stands at an exact place: a stream that waits for the task goes on without it, as before."""
    cli.value["stream"].update(on_table_error="suspend", reread="ask", fail_on_suspended=False)
    cli.write()
    cli.snapshot()
    mysql_server.execute(f"ALTER TABLE {database}.one DROP COLUMN v, ORDER BY id")
    cli.catch_up()
    assert here(cli, 0) == "taken_over" and states(cli)[0] == "taken_over"
