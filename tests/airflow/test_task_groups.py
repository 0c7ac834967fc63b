"""One task with several chunk groups: which of them it reads when it is tried again or cleared, and what it tells."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException
from airflow.sdk import DAG

from airflow_provider_cdc import CdcPlanChunksOperator, CdcSnapshotOperator
from airflow_provider_cdc.chunk_groups.task import SnapshotJob, run_in_threads
from airflow_provider_cdc.driver.launchers import local as launch
from airflow_provider_cdc.model.errors import (
    GroupsFailedError,
    GroupsUnfinishedError,
    NotReadyError,
    OtherServerError,
    TransientError,
    UnexpectedError,
)
from airflow_provider_cdc.snapshot.run_groups import run_groups
from airflow_provider_cdc.verify.run import verify_tables
from tests.support import driver_without_spark
from tests.support.cli import Cli
from tests.support.proxy import Proxy
from tests.support.servers import MySQLServer

#: A date that cannot be copied.
BAD = "2020-00-10"


@pytest.fixture
def cli(mysql_server: MySQLServer, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """Three groups of ten rows; drivers run without Spark."""
    rows = ", ".join(f"({number}, NULL)" for number in range(30))
    mysql_server.session(
        database,
        "CREATE TABLE t (id INT PRIMARY KEY, d DATE)",
        f"INSERT INTO t VALUES {rows}",
    )
    cli = Cli(tmp_path, mysql_server, f"{database}.t", snapshot={"chunk_rows": 5, "group_rows": 10})
    for name, value in cli.env.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(launch, "_COMMAND", [sys.executable, "-P", "-m", driver_without_spark.__name__])
    return cli


@pytest.fixture
def set_date(mysql_server: MySQLServer, database: str) -> Callable[[int, str], None]:
    """Changes the date of a row; the binlog does not tell of it, as the stream could not copy it either."""

    def set_date(key: int, date: str) -> None:
        update = f"UPDATE t SET d = '{date}' WHERE id = {key}"
        mysql_server.session(database, "SET sql_log_bin = 0, sql_mode = ''", update)

    return set_date


def read(cli: Cli, clears: int = 0, task: str = "t") -> dict[int, tuple[str, int]]:
    """Run the task; outcome and attempt of each of its groups.

    :param clears: how often it was cleared before.
    """
    ti = SimpleNamespace(dag_id="d", run_id="r", task_id=task, map_index=0, max_tries=clears, try_number=1 + clears)
    operator = CdcSnapshotOperator(task_id=task, pipeline=str(cli.file), groups=[0, 1, 2])
    context: Any = {"ti": ti}
    result = operator.execute(context)
    assert result["rows"] == sum(group["rows"] for group in result["groups"])
    return {group["group"]: (group["outcome"], group["attempt"]) for group in result["groups"]}


def states(cli: Cli) -> list[str]:
    with cli.opened() as (_, store):
        return [row.state for row in store.groups("p", 1)]


def test_a_driver_dies_in_the_second_of_three_groups(
    cli: Cli, mysql_server: MySQLServer, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its retry adopts the first one, and reads the other two."""
    with monkeypatch.context() as patch:
        patch.setenv("CDC_FAILPOINT", "group.before_commit:2")
        with pytest.raises(UnexpectedError, match="ended by signal 9"):
            read(cli)
    assert states(cli) == ["done", "running", "pending"]
    mysql_server.execute(f"DELETE FROM {database}.t WHERE id IN (3, 13, 23)")
    assert read(cli) == {0: ("adopted", 1), 1: ("published", 2), 2: ("published", 1)}
    assert states(cli) == ["done"] * 3
    cli.catch_up()
    assert all(verdict.is_equal for verdict in verify_tables(cli.context))


def test_nothing_is_left_to_read(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then no driver is started, be it that the bookkeeping was lost."""
    assert read(cli) == dict.fromkeys(range(3), ("published", 1))
    monkeypatch.setattr(launch, "_COMMAND", ["/nowhere/a-driver"])
    assert read(cli) == read(cli, task="of_another_run") == dict.fromkeys(range(3), ("adopted", 1))
    for file in (cli.sink / "_cdc" / "p").glob("bookkeeping.db*"):
        file.unlink()
    assert read(cli) == dict.fromkeys(range(3), ("adopted", 1)) and states(cli) == ["done"] * 3
    with cli.opened() as (_, store):
        assert store.snapshot("p").state == "done"  # type: ignore[union-attr]
    with pytest.raises(FileNotFoundError):
        read(cli, clears=2)


def test_a_clear_after_success_means_all_groups_and_after_a_failure_the_rest(
    cli: Cli, set_date: Callable[[int, str], None]
) -> None:
    set_date(12, BAD)
    told = r"1 of 3 chunk groups failed: group 1: .*2020-00-10.*Then clear this task: it reads only the groups"
    with pytest.raises(AirflowFailException, match=told):
        read(cli)
    assert states(cli) == ["done", "running", "done"], "the third one was read nevertheless"
    set_date(12, "2020-01-10")
    assert read(cli, clears=2) == {0: ("adopted", 1), 1: ("published", 2), 2: ("adopted", 1)}

    # It has succeeded now, so a clear means all of its groups. One fails, and the next clear reads that one alone.
    set_date(12, BAD)
    with pytest.raises(AirflowFailException, match=r"1 of 3 chunk groups failed: group 1"):
        read(cli, clears=4)
    set_date(12, "2020-01-11")
    assert read(cli, clears=6) == {0: ("adopted", 2), 1: ("replaced", 4), 2: ("adopted", 2)}
    assert read(cli, clears=6) == {0: ("adopted", 2), 1: ("adopted", 4), 2: ("adopted", 2)}
    cli.catch_up()
    assert all(verdict.is_equal for verdict in verify_tables(cli.context))


def run_here(cli: Cli, fail: Callable[[int], None], proxy: Proxy | None = None, **more: Any) -> Any:
    """The three groups in this process. Before each is read, ``fail`` gets its number."""

    def runner(job: SnapshotJob) -> list[dict[str, Any]]:
        fail(job.group)
        return run_in_threads(job)

    with cli.opened() as (context, store):
        if proxy is not None:
            context = replace(context, connect_args={**context.connect_args, "port": proxy.port})
        return run_groups(context, store, context.plans.ensure(store), [0, 1, 2], runner, holder="a test", **more)


def test_no_group_is_begun_while_the_source_is_away(cli: Cli, mysql_server: MySQLServer) -> None:
    def cut(group: int) -> None:
        if group == 1:
            proxy.down()

    with Proxy(mysql_server.port) as proxy, pytest.raises(GroupsUnfinishedError) as failed:
        run_here(cli, cut, proxy)
    error = failed.value
    assert error.message.startswith("1 of 3 chunk groups failed: group 1: ") and error.groups == "1-2"
    assert error.message.endswith("; not begun, since no group can be read now: 2")
    assert error.remedy.endswith("A retry reads only the groups that are not published")
    assert states(cli) == ["done", "running", "pending"]


def test_no_group_is_begun_without_spark(cli: Cli) -> None:
    """It is asked after a group has failed, and not before."""
    asked: list[int] = []

    def fail(group: int) -> None:
        assert not asked
        if group == 1:
            raise UnexpectedError("Spark failed", "See its log")

    def require_runner() -> None:
        asked.append(1)
        raise TransientError("Spark is gone", "Start it")

    with pytest.raises(GroupsUnfinishedError, match="not begun, since no group can be read now: 2. Start it") as failed:
        run_here(cli, fail, require_runner=require_runner)
    assert failed.value.groups == "1-2" and states(cli) == ["done", "running", "pending"]


@pytest.mark.parametrize(
    ("errors", "raised", "left"),
    [
        ({0: TransientError("a worker was lost", "Run again")}, GroupsUnfinishedError, ["running", "done", "done"]),
        # A retry does not help the first, but the second.
        (
            {0: NotReadyError("no grant", "Grant it"), 2: TransientError("lost", "Run again")},
            GroupsUnfinishedError,
            ["running", "done", "running"],
        ),
        ({1: NotReadyError("no grant", "Grant it")}, GroupsFailedError, ["done", "running", "done"]),
        # What every group would get ends the task.
        ({0: OtherServerError("elsewhere", "Go back")}, GroupsFailedError, ["running", "pending", "pending"]),
    ],
)
def test_what_a_group_that_fails_does_to_the_others(
    cli: Cli, errors: dict[int, Exception], raised: type[GroupsFailedError], left: list[str]
) -> None:
    def fail(group: int) -> None:
        if group in errors:
            raise errors[group]

    with pytest.raises(raised) as failed:
        run_here(cli, fail)
    unpublished = [str(number) for number, state in enumerate(left) if state != "done"]
    groups = "0-2" if len(unpublished) == 3 else ", ".join(unpublished)
    assert states(cli) == left and failed.value.groups == groups


def test_the_planner_divides_the_groups(cli: Cli) -> None:
    def planned(**arguments: Any) -> list[tuple[list[int], str]]:
        with DAG("d", schedule=None):
            operator = CdcPlanChunksOperator(task_id="plan", pipeline=str(cli.file), **arguments)
        context: Any = {"ti": SimpleNamespace(dag_id="d", run_id="r", get_ti_count=lambda *_, **__: 0)}
        return [(task["groups"], task["label"].partition(":")[0]) for task in operator.execute(context)]

    assert planned() == [([0], "0"), ([1], "1"), ([2], "2")]
    assert planned(groups_per_task=2) == [([0, 1], "0-1"), ([2], "2")]
    for wrong in (0, -1, 1.5, True, "2"):
        with pytest.raises(ValueError, match="groups_per_task is .*: give a number of chunk groups, at least 1"):
            planned(groups_per_task=wrong)


@pytest.mark.parametrize("groups", [[], "x", [None], {"groups": []}, {"group": 3}])
def test_groups_that_are_none(cli: Cli, groups: Any) -> None:
    operator = CdcSnapshotOperator(task_id="t", pipeline=str(cli.file), groups=groups)
    with pytest.raises(NotReadyError, match="groups is .*Give the numbers of chunk groups"):
        operator.table_indexes(cli.context.plans.make(1))
