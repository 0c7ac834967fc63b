"""Drivers as applications of a real YARN cluster."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyspark
import pytest
from airflow.providers.common.compat.sdk import AirflowFailException

from airflow_provider_cdc.model.errors import TransientError, UnexpectedError
from airflow_provider_cdc.preflight.check_result import run_check
from airflow_provider_cdc.preflight.cluster import check_cluster
from airflow_provider_cdc.verify.run import verify_tables
from tests.support.cli import Cli
from tests.support.cluster_tasks import (
    ROWS,
    Canary,
    die_at,
    follow,
    make_table,
    read,
    snapshot_operator,
    stream_operator,
    task_context,
    wait_for_running_group,
)
from tests.support.postgres import Postgres
from tests.support.processes import wait_for
from tests.support.servers import MySQLServer
from tests.support.yarn import Yarn

pytestmark = [pytest.mark.spark]


@pytest.fixture
def cli(
    mysql_server: MySQLServer,
    cdc_user: dict[str, str],
    database: str,
    tmp_path: Path,
    yarn: Yarn,
    state_server: Postgres,
    monkeypatch: pytest.MonkeyPatch,
) -> Cli:
    """A pipeline whose drivers run in the cluster."""
    make_table(mysql_server, database)
    state_server.execute("DROP OWNED BY CURRENT_USER", database="bookkeeping")
    cli = Cli(
        tmp_path,
        mysql_server,
        f"{database}.t",
        user=cdc_user,
        snapshot={"chunk_rows": 10, "group_rows": 30},
        state={"conn_id": "books"},
        spark={"conn_id": "spark_yarn", "conf": yarn.settings},
    )
    cli.env |= {"AIRFLOW_CONN_BOOKS": state_server.uri("bookkeeping"), "AIRFLOW_CONN_SPARK_YARN": yarn.connection()}
    for name, value in cli.env.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("HADOOP_CONF_DIR", str(yarn.conf))
    monkeypatch.delenv("SPARK_SUBMIT_OPTS", raising=False)
    return cli


def test_a_snapshot(
    cli: Cli,
    yarn: Yarn,
    cdc_user: dict[str, str],
    state_server: Postgres,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It is read by an application in the cluster, and is equal. The password of the source is nowhere to be seen."""
    before, canary = len(yarn.applications()), Canary(cdc_user["password"])
    # The test's own process has it in its environment, as a task of Airflow has; what it starts must not.
    with canary:
        result = read(cli.file)
    assert result["rows"] == ROWS and [group["outcome"] for group in result["groups"]] == ["published"] * 2
    (app,) = yarn.applications()[before:]
    assert app["applicationTags"].startswith("airflow-cdc-") and app["applicationType"] == "SPARK"
    with cli.opened() as (_, store):
        assert store.live_drivers("p") == []
    assert all(verdict.is_equal for verdict in verify_tables(cli.context))
    assert not canary.found
    assert not canary.files(yarn.folder, cli.sink / "_cdc"), "the password is in a file"
    said = "".join(capsys.readouterr())
    assert cdc_user["password"] not in said and state_server.passwords["bookkeeping"] not in said
    # The state database's password travels in the application's credentials, and nowhere else.
    others = Canary(state_server.passwords["bookkeeping"]).files(yarn.folder)
    assert others and all(re.fullmatch(r"container_tokens|container_\w+\.tokens", name) for name in others)
    assert app["id"] in said and f"Spark UI at {yarn.address}/proxy/{app['id']}/" in said
    assert "the end of the driver's log" in said and "group 1 published" in said


def test_what_a_driver_needs_is_checked(cli: Cli, yarn: Yarn) -> None:
    found = [*map(str, run_check(lambda: check_cluster(cli.context)))]
    assert any("drivers run in YARN (Hadoop 3" in line and yarn.address in line for line in found), found
    found = [line for line in found if "do not reach" not in line]  # the servers of the tests are on loopback
    assert any("seems to be on a disk of this host" in line for line in found) and len(found) == 2


@pytest.mark.long
def test_a_cluster_without_the_package(cli: Cli, yarn: Yarn, capsys: pytest.CaptureFixture[str]) -> None:
    """The task's log has what the driver said before it had a row, and the error is YARN's."""
    python = cli.folder / "python"
    python.write_text("#!/bin/sh\necho no module named airflow_provider_cdc\nexit 3\n")
    python.chmod(0o755)
    cli.value["spark"]["conf"] = {**yarn.settings, "spark.pyspark.python": str(python)}
    cli.value["spark"]["conf"]["spark.yarn.jars"] = f"local:{Path(pyspark.__file__).parent}/jars/*"
    cli.write()
    with pytest.raises(UnexpectedError, match=r"ended without a result: .* is FAILED: .*exited with 3.*See its log"):
        read(cli.file)
    assert "no module named airflow_provider_cdc" in capsys.readouterr().out


@pytest.mark.long
def test_nodes_without_java(cli: Cli, yarn: Yarn, capsys: pytest.CaptureFixture[str]) -> None:
    """The container's standard output is empty; the task's log has what the shell said."""
    cli.value["spark"]["conf"] = {**yarn.settings, "spark.yarn.appMasterEnv.JAVA_HOME": "/nowhere"}
    cli.write()
    with pytest.raises(UnexpectedError, match=r"ended without a result: .* is FAILED"):
        read(cli.file)
    said = capsys.readouterr().out
    assert "/nowhere/bin/java: No such file" in said and "LogType" not in said


@pytest.mark.long
def test_a_queue_without_room(
    cli: Cli, yarn: Yarn, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The driver waits, the task's log says why, and nothing is left when the task is killed."""
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_YARN", yarn.connection(queue="full"))
    operator = snapshot_operator(cli.file)
    said = ""

    def says_why() -> bool:
        nonlocal said
        said += capsys.readouterr().out
        return "is ACCEPTED" in said

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(operator.execute, task_context("read"))
        wait_for("the reason", says_why, 120)
        operator.on_kill()
        assert isinstance(running.exception(120), TransientError)
    assert re.search("waiting. application .* is ACCEPTED: .*resource", said, re.I), said
    wait_for("it is killed", lambda: yarn.applications()[-1]["state"] == "KILLED", 60)


@pytest.mark.parametrize(
    ("queue", "words"), [("nowhere", "queue nowhere.*unknown queue"), ("stopped", r"queue stopped.*STOPPED")]
)
def test_a_queue_that_takes_nothing(
    cli: Cli, yarn: Yarn, monkeypatch: pytest.MonkeyPatch, queue: str, words: str
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_YARN", yarn.connection(queue=queue))
    with pytest.raises(AirflowFailException, match=words) as error:
        read(cli.file)
    assert "\n" not in str(error.value) and "Check the queue of the Spark connection" in str(error.value)
    with cli.opened() as (_, store):
        assert store.live_drivers("p") == []


def test_no_driver_is_created_before_its_row(cli: Cli, yarn: Yarn, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the row cannot be written, nothing is submitted."""
    from airflow_provider_cdc.state.drivers import DriverRecords

    def fail(*_: object, **__: object) -> None:
        raise TransientError("no state database")

    before = len(yarn.applications())
    with monkeypatch.context() as patch:
        patch.setattr(DriverRecords, "create_driver", fail)
        with pytest.raises(TransientError, match="no state database"):
            read(cli.file)
    assert len(yarn.applications()) == before


def test_a_retry_adopts_what_a_dead_try_has_submitted(cli: Cli, yarn: Yarn) -> None:
    before = len(yarn.applications())
    die_at(cli, "driver.submitted")
    with cli.opened() as (_, store):
        (left,) = store.live_drivers("p")
        assert left.state == "wanted"
        result = read(cli.file, try_number=2)
        now = store.driver(left.id)
    assert result["rows"] == ROWS and now is not None and now.state == "ended"
    (app,) = yarn.applications()[before:]
    assert app["applicationTags"] == f"airflow-cdc-{left.id}"


@pytest.mark.long
def test_a_retry_after_a_try_that_died_before_it_submitted(cli: Cli, yarn: Yarn) -> None:
    before = len(yarn.applications())
    die_at(cli, "driver.row_written")
    with cli.opened() as (_, store):
        (left,) = store.live_drivers("p")
        assert read(cli.file, try_number=2)["rows"] == ROWS
        now = store.driver(left.id)
        assert now is not None and now.outcome is not None and "error" in now.outcome
    (app,) = yarn.applications()[before:]
    assert app["applicationTags"] != f"airflow-cdc-{left.id}"


@pytest.mark.long
@pytest.mark.parametrize("how", ["the container", "its Java", "YARN", "the task"])
def test_a_driver_that_is_killed(cli: Cli, yarn: Yarn, how: str) -> None:
    """A retry reads what is missing, and the copy is equal."""
    cli.value["snapshot"]["max_rows_per_second"] = 2
    cli.write()
    operator = snapshot_operator(cli.file)
    with cli.opened() as (_, store), ThreadPoolExecutor(1) as pool:
        running = pool.submit(operator.execute, task_context("read"))
        wait_for_running_group(store)
        if how == "the container":
            yarn.kill_driver()
        elif how == "its Java":  # the Python process must not go on alone
            yarn.kill_driver("/bin/java")
        elif how == "YARN":
            wait_for("its log", lambda: store.live_drivers("p")[0].log, 60)
            assert yarn.manager.kill_by_log(store.live_drivers("p")[0].log)
        else:
            operator.on_kill()
        error = running.exception(300)
        assert isinstance(error, TransientError)
        words = {"YARN": "is KILLED.*killed by user", "the task": "ended with its task"}
        assert re.search(words.get(how, "is FAILED"), str(error)), error
        wait_for("the application ends", lambda: yarn.applications()[-1]["state"] in ("FAILED", "KILLED"), 120)
        assert store.live_drivers("p") == []
        wait_for("its processes end", lambda: not yarn.container_processes(), 120)
    cli.value["snapshot"]["max_rows_per_second"] = None
    cli.write()
    assert read(cli.file, try_number=2)["rows"] <= ROWS
    assert all(verdict.is_equal for verdict in verify_tables(cli.context))


@pytest.mark.long
def test_a_stream(
    cli: Cli,
    yarn: Yarn,
    mysql_server: MySQLServer,
    database: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Its task defers, another finds it, it survives the kill of its container, and ends when it is asked to."""
    monkeypatch.setenv("AIRFLOW_IS_K8S_EXECUTOR_POD", "True")  # it outlives the pods of its tasks
    cli.snapshot()
    before = len(yarn.applications())
    first = follow(cli)
    assert first.epoch == 1 and not first.found

    def wait_until_applied(epoch: int) -> None:
        with cli.opened() as (_, store):
            wait_for("a change", lambda: (run := store.epoch_row("p", epoch)) is not None and run.changes == 1, 120)

    mysql_server.execute(f"INSERT INTO {database}.t VALUES (1000, 'a')")
    wait_until_applied(1)
    again = follow(cli)
    assert again.found and again.epoch == 1 and len(yarn.applications()) == before + 1
    yarn.kill_driver()
    mysql_server.execute(f"INSERT INTO {database}.t VALUES (1001, 'b')")
    with cli.opened() as (context, store):
        assert context.liveness.wait_until_known(store, "p")[1] is False
        second = follow(cli, {"epoch": 1, "found": False, "verdict": "lost"})
        assert second.epoch == 2 and not second.found
        assert re.search("epoch 1 on .* was lost.*application_.* is FAILED", capsys.readouterr().out)
        wait_until_applied(2)
        store.request_stop("p")
        wait_for("the stream ends", lambda: store.newest_epoch("p").state == "stopped", 120)  # type: ignore[union-attr]
        operator = stream_operator(cli.file)
        result = operator.resume(task_context("stream"), {"epoch": 2, "found": False, "verdict": "stopped"})
        assert result["state"] == "stopped"
        wait_for("its driver has ended", lambda: not store.live_drivers("p")[1:], 60)
    assert all(verdict.is_equal for verdict in verify_tables(cli.context))
