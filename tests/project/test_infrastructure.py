"""What other tests stand on: real Airflow processes, PostgreSQL and a Spark cluster, and that nothing of them stays."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests import ROOT
from tests.support.airflow_client import ApiError
from tests.support.airflow_processes import Airflow, AirflowError
from tests.support.packages import POSTGRES, package_source
from tests.support.postgres import Postgres, ServerUnavailable
from tests.support.processes import Session, members, remove_folder, temporary_folder, wait_for
from tests.support.spark_cluster import SparkCluster

DAGS = '''
import os
from datetime import datetime, timedelta

from airflow.providers.standard.triggers.temporal import TimeDeltaTrigger
from airflow.sdk import DAG, BaseHook, BaseOperator, BaseOperatorLink, get_current_context, task


class Home(BaseOperatorLink):
    name = "Home"

    def get_link(self, operator, *, ti_key):
        return f"https://example.org/{ti_key.run_id}"


class Wait(BaseOperator):
    """Sleeps in the triggerer."""

    template_fields = ("seconds",)
    operator_extra_links = (Home(),)

    def __init__(self, *, seconds, **kwargs):
        super().__init__(**kwargs)
        self.seconds = seconds

    def execute(self, context):
        moment = TimeDeltaTrigger(timedelta(seconds=float(self.seconds)))
        self.defer(trigger=moment, method_name="resumed")

    def resumed(self, context, event=None):
        return "resumed"


with DAG("tiny", schedule=None):

    @task
    def numbers():
        return [10, 20, 30]

    @task(map_index_template="{{ label }}")
    def double(n):
        context = get_current_context()
        context["label"] = f"n={n}"
        print("the connection's host is", BaseHook.get_connection("given").host)
        return 2 * n * context["dag_run"].conf.get("factor", 1)

    double.expand(n=numbers()) >> Wait(task_id="wait", seconds="{{ dag_run.conf.get('seconds', 1) }}")

with DAG("environment", schedule=None):

    @task
    def environment():
        return {name: value for name, value in os.environ.items() if name.startswith(("AIRFLOW", "CDC_TEST_"))}

    environment()

with DAG("fails", schedule=None):

    @task
    def broken():
        raise ValueError("the reason why")

    broken()

with DAG("daily", schedule="@daily", start_date=datetime(2024, 1, 1), catchup=False):

    @task
    def day():
        return str(get_current_context()["logical_date"].date())

    day()
'''


def gone(pid: int) -> bool:
    """Whether no such process runs."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


# ---------------------------------------------------------------- sessions and the guard

# Two sleepers: one in the session, one that opens a session of its own and writes down who it is.
SLEEPERS = 'sleep 300 & setsid sh -c \'echo $$ > "$0.part"; mv "$0.part" "$0"; exec sleep 300\' "$1" & wait'


@pytest.mark.parametrize("way", ["end", "kill_all"])
def test_the_end_of_a_session_is_the_end_of_all_in_it_but_not_of_what_has_left_it(tmp_path: Path, way: str) -> None:
    session = Session(["sh", "-c", SLEEPERS, "sh", tmp_path / "left"], tmp_path / "log")
    wait_for("both sleepers", lambda: (tmp_path / "left").exists() and len(session.members()) == 2)
    left = int((tmp_path / "left").read_text())
    inside = session.members()
    try:
        session.stop()
        getattr(session, way)()
        assert all(map(gone, inside))
        assert not session.alive
        assert not gone(left)
    finally:
        os.kill(left, signal.SIGKILL)


@pytest.mark.parametrize("sig", [signal.SIGKILL, signal.SIGINT])
@pytest.mark.parametrize("stopped", [False, True])
def test_a_test_run_that_is_killed_leaves_no_session_and_no_folder(
    tmp_path: Path, sig: signal.Signals, stopped: bool
) -> None:
    program = (
        "import signal, sys, time; from pathlib import Path; from tests.support.processes import *\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a shell's background job ignores it
        "folder = temporary_folder('cdc-test-')\n"
        "session = Session(['sh', '-c', sys.argv[1], 'sh', sys.argv[2]], folder / 'log')\n"
        "wait_for('both sleepers', lambda: Path(sys.argv[2]).exists() and len(session.members()) == 2)\n"
        f"{stopped} and session.stop()\n"
        "print(folder, *session.members(), flush=True)\n"
        "time.sleep(300)\n"
    )
    command = [sys.executable, "-c", program, SLEEPERS, str(tmp_path / "left")]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as run:
        assert run.stdout is not None
        folder, *pids = run.stdout.readline().split()
        left = int((tmp_path / "left").read_text())
        try:
            run.send_signal(sig)
            wait_for("all processes have ended", lambda: all(gone(int(pid)) for pid in pids), 60)
            wait_for("the folder is gone", lambda: not Path(folder).exists(), 60)
            assert not gone(left)
        finally:
            run.kill()
            os.kill(left, signal.SIGKILL)


def test_the_guard_ends_when_there_is_nothing_left_to_guard() -> None:
    def children() -> set[str]:
        return set(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())

    before = children()
    folder = temporary_folder("cdc-test-")
    remove_folder(folder)
    assert children() <= before


# ---------------------------------------------------------------- PostgreSQL


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    with Postgres() as server:
        yield server


def test_each_user_has_a_database_and_data_outlive_every_outage(postgres: Postgres) -> None:
    postgres.execute("CREATE TABLE kept (n int)", database="bookkeeping")
    outages = [postgres.stop, postgres.kill]
    for n, outage in enumerate(outages):
        postgres.execute("INSERT INTO kept VALUES (%s)", (n,), database="bookkeeping")
        outage()
        assert not postgres.running
        with pytest.raises(psycopg.OperationalError):
            postgres.execute("SELECT 1")
        postgres.start()
    assert postgres.execute("SELECT n FROM kept ORDER BY n", database="bookkeeping") == [(0,), (1,)]
    with pytest.raises(psycopg.errors.UndefinedTable):
        postgres.execute("SELECT n FROM kept", database="airflow")
    address = f"bookkeeping:{postgres.passwords['bookkeeping']}@127.0.0.1:{postgres.port}/bookkeeping"
    assert postgres.uri("bookkeeping") == f"postgres://{address}"
    assert postgres.sqlalchemy_url("bookkeeping") == f"postgresql+psycopg://{address}"


def test_a_paused_server_does_not_answer_until_it_is_resumed(postgres: Postgres) -> None:
    with psycopg.connect(postgres.uri("bookkeeping"), autocommit=True) as connection:
        backend = connection.info.backend_pid
        postgres.pause()
        try:
            stat = Path(f"/proc/{backend}/stat")
            # Not only the postmaster stands still.
            wait_for("it stands still", lambda: stat.read_text().rpartition(")")[2].split()[0] == "T")
            with pytest.raises(psycopg.OperationalError):
                psycopg.connect(postgres.uri("bookkeeping"), connect_timeout=2)
        finally:
            postgres.resume()
        assert connection.execute("SELECT 1").fetchone() == (1,)


@pytest.mark.parametrize("how", ["close", "kill", "pause"])
def test_nothing_of_a_server_stays(how: str) -> None:
    segments = Path("/proc/sysvipc/shm").read_text().splitlines()
    with Postgres(["one"]) as server:
        assert server._session is not None and server._folder is not None
        folder, pids = server._folder, server._session.members()
        assert len(pids) > 3
        getattr(server, how)()
    assert not folder.exists()
    assert all(map(gone, pids))
    now = Path("/proc/sysvipc/shm").read_text().splitlines()
    mine = [line.split()[1] for line in now if line.split()[4] in map(str, pids)]
    assert not mine and len(now) <= len(segments) + 5  # others may come and go


def test_its_packages_are_taken_from_the_system_s_own_suite(tmp_path: Path) -> None:
    (tmp_path / "os-release").write_text("ID=debian\nVERSION_CODENAME=trixie\n")
    (tmp_path / "apt").mkdir()
    (tmp_path / "apt/sources.list").write_text("deb http://mirror.example/debian trixie main\n")
    assert package_source(POSTGRES, tmp_path).endswith("http://mirror.example/debian trixie main\n")
    (tmp_path / "apt/sources.list").unlink()
    with pytest.raises(ServerUnavailable, match=r"No PostgreSQL server: .* trixie(.|\n)*apt-get install postgresql"):
        package_source(POSTGRES, tmp_path)


# ---------------------------------------------------------------- Airflow


@pytest.fixture(scope="module")
def airflow(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Airflow]:
    """One Airflow for the whole module, on each of the databases."""
    dags = tmp_path_factory.mktemp("dags")
    (dags / "dags.py").write_text(DAGS)
    url = request.getfixturevalue("postgres").sqlalchemy_url() if request.param == "postgres" else None
    with pytest.MonkeyPatch.context() as developer:
        developer.setenv("AIRFLOW_CONN_STRAY", "http://stray")
        developer.setenv("AIRFLOW__CORE__DAGS_FOLDER", "/nowhere")
        with Airflow(
            dags,
            database_url=url,
            connections={"given": "http://host-of-given"},
            env={"CDC_TEST_EXTRA": "extra"},
            config={"triggerer": {"triggerer_health_check_threshold": 6}},
        ) as started:
            started.env["CDC_TEST_DAGS"] = str(dags)
            yield started


def with_airflow(test: Any) -> Any:
    """The tests in tests/in_airflow ask the same of it, many times."""
    return pytest.mark.airflow(pytest.mark.long(test))


on_both = pytest.mark.parametrize("airflow", ["sqlite", "postgres"], indirect=True)
on_postgres = pytest.mark.parametrize("airflow", ["postgres"], indirect=True)


@with_airflow
@on_both
def test_a_run_with_mapped_and_deferred_tasks(airflow: Airflow) -> None:
    client = airflow.client
    run = client.trigger("tiny", {"factor": 2}, run_id="by:hand+1")
    assert run == "by:hand+1"
    client.wait_run("tiny", run)
    assert client.run_state("tiny", run) == "success"
    assert client.xcom("tiny", run, "numbers") == [10, 20, 30]
    tasks = client.task_instances("tiny", run, "double")
    assert [(t.map_index, t.state, t.try_number, t.rendered_map_index) for t in tasks] == [
        (index, "success", 1, f"n={n}") for index, n in enumerate([10, 20, 30])
    ]
    assert [client.xcom("tiny", run, "double", map_index=n) for n in range(3)] == [40, 80, 120]
    assert client.xcom("tiny", run, "wait") == "resumed"
    assert "the connection's host is host-of-given" in client.log("tiny", run, "double", map_index=1)
    assert client.extra_links("tiny", run, "wait") == {"Home": f"https://example.org/{run}"}
    with pytest.raises(ApiError, match="404"):
        client.xcom("tiny", run, "wait", key="none")


@with_airflow
@on_both
def test_clearing_one_index_runs_that_index_only(airflow: Airflow) -> None:
    client = airflow.client
    run = client.trigger("tiny")
    client.wait_run("tiny", run)
    assert client.clear("tiny", run, "double", 1, only_failed=True) == []
    assert [(t.task_id, t.map_index) for t in client.clear("tiny", run, "double", 1)] == [("double", 1)]
    client.wait_state("tiny", run, "double", map_index=1, min_try=2)
    client.wait_run("tiny", run)
    tries = {(t.task_id, t.map_index): t.try_number for t in client.task_instances("tiny", run)}
    assert tries == {("numbers", -1): 1, ("double", 0): 1, ("double", 1): 2, ("double", 2): 1, ("wait", -1): 1}
    assert "host-of-given" in client.log("tiny", run, "double", 1, map_index=1)  # of the first try


@with_airflow
@on_postgres
def test_marks_of_a_deferred_task(airflow: Airflow) -> None:
    client = airflow.client
    for state in ("failed", "success"):
        run = client.trigger("tiny", {"seconds": 600})
        deferred = client.wait_state("tiny", run, "wait", "deferred")
        assert deferred.raw["trigger"]["classpath"].endswith("DateTimeTrigger")
        client.mark("tiny", run, "wait", state)
        client.wait_run("tiny", run, state)
    with pytest.raises(AssertionError, match="is success, not failed"):
        client.wait_run("tiny", run, "failed")


@with_airflow
@on_postgres
def test_waiting_for_a_task_that_fails_shows_the_reason(airflow: Airflow) -> None:
    client = airflow.client
    run = client.trigger("fails")
    with pytest.raises(AssertionError, match=r"is failed in try 1(.|\n)*ValueError: the reason why"):
        client.wait_state("fails", run, "broken")
    with pytest.raises(AssertionError, match=r"is failed, not success(.|\n)*ValueError: the reason why"):
        client.wait_run("fails", run)
    with pytest.raises(AssertionError, match=r"failed in try 1, not success in try 2"):
        client.wait_state("fails", run, "broken", min_try=2, seconds=1)


@with_airflow
@on_postgres
def test_a_file_that_cannot_be_read_is_shown(airflow: Airflow) -> None:
    file = Path(airflow.env["CDC_TEST_DAGS"]) / "unreadable.py"
    file.write_text("from airflow.sdk import DAG\nimport no_such_module\n")
    try:
        wait_for("the import error", airflow.client.import_errors, 30)
        with pytest.raises(AssertionError, match=r"no DAG unreadable(.|\n)*No module named 'no_such_module'"):
            airflow.client.wait_for_dag("unreadable", 0)
    finally:
        file.unlink()
    wait_for("the import error is gone", lambda: not airflow.client.import_errors(), 60)


@with_airflow
@on_postgres
def test_connections(airflow: Airflow, tmp_path: Path) -> None:
    client = airflow.client
    assert client.test_connection("fs", extra=json.dumps({"path": str(tmp_path)}))[0]
    well, message = client.test_connection("fs", extra=json.dumps({"path": str(tmp_path / "none")}))
    assert not well and "does not exist" in message.lower()
    client.set_connection("stored", "http", host="first", password="secret")
    client.set_connection("stored", "http", host="second")
    assert client.get("/connections/stored")["host"] == "second"
    client.delete_connection("stored")
    client.delete_connection("stored")
    with pytest.raises(ApiError, match="404"):
        client.get("/connections/stored")


@with_airflow
@on_postgres
def test_a_backfill(airflow: Airflow) -> None:
    client = airflow.client
    client.wait_for_dag("daily")
    client.unpause("daily")
    backfill = client.create_backfill("daily", datetime(2024, 2, 1, tzinfo=UTC), datetime(2024, 2, 2, tzinfo=UTC))
    wait_for("the backfill", lambda: client.backfill_completed(backfill), 60)
    runs = [run for run in client.runs("daily") if run.startswith("backfill")]
    assert [client.xcom("daily", run, "day") for run in runs] == ["2024-02-01", "2024-02-02"]


@with_airflow
@on_postgres
def test_nothing_of_the_developer_s_airflow_reaches_the_processes(airflow: Airflow) -> None:
    run = airflow.client.trigger("environment")
    airflow.client.wait_run("environment", run)
    env = airflow.client.xcom("environment", run, "environment")
    assert env["CDC_TEST_EXTRA"] == "extra" and "AIRFLOW_CONN_GIVEN" in env
    assert "AIRFLOW_CONN_STRAY" not in env and "/nowhere" not in env.values()
    with pytest.raises(AirflowError, match="stray"):
        airflow.command("connections", "get", "stray")


@with_airflow
@on_postgres
@pytest.mark.parametrize("name", ["api-server", "scheduler", "dag-processor", "triggerer"])
def test_each_process_can_be_killed_and_started_again(airflow: Airflow, name: str) -> None:
    client, process = airflow.client, airflow.process(name)
    first = process.pid
    process.kill()
    assert gone(first)
    if name == "api-server":
        assert client.try_get("/monitor/health") is None
    process.restart()
    airflow.wait_ready()
    assert process.alive and process.pid != first
    if name == "dag-processor":  # it reads files again
        file = Path(airflow.env["CDC_TEST_DAGS"]) / "late.py"
        file.write_text("from airflow.sdk import DAG\nlate = DAG('late', schedule=None)\n")
        client.wait_for_dag("late")
    run = client.trigger("tiny")
    client.wait_run("tiny", run)


@with_airflow
@on_postgres
def test_a_second_triggerer_takes_over_from_one_that_stands_still(airflow: Airflow) -> None:
    client, first = airflow.client, airflow.process("triggerer")
    run = client.trigger("tiny", {"seconds": 5})
    wait_for(
        "the first triggerer holds it",
        lambda: (client.wait_state("tiny", run, "wait", "deferred").raw["triggerer_job"] or {}).get("id"),
    )
    first.stop()
    try:
        time.sleep(6)
        assert client.task_instance("tiny", run, "wait").state == "deferred"  # nobody looks after it
        second = airflow.start_triggerer()
        assert second.name == "triggerer-2" and airflow.process("triggerer-2") is second
        airflow.wait_ready()
        client.wait_run("tiny", run)
    finally:
        first.cont()
    second.kill_all()


@with_airflow
@on_postgres
def test_wait_ready_says_which_process_ended_and_why(airflow: Airflow) -> None:
    broken = airflow.process("triggerer")
    broken.session.end()
    good, broken._env = broken._env, {**broken._env, "AIRFLOW__TRIGGERER__CAPACITY": "many"}
    broken.start()
    try:
        with pytest.raises(AirflowError, match=r"triggerer ended(.|\n)*many"):
            airflow.wait_ready()
    finally:
        broken._env = good
        broken.restart()
        airflow.wait_ready()


@with_airflow
def test_nothing_of_an_airflow_stays(tmp_path: Path) -> None:
    pids: list[int] = []
    given = {"given": "http://host-of-given"}
    (tmp_path / "dags.py").write_text(DAGS)
    with pytest.raises(RuntimeError, match="a test that fails"), Airflow(tmp_path, connections=given) as airflow:
        run = airflow.client.trigger("tiny", {"seconds": 600})
        airflow.client.wait_state("tiny", run, "wait", "deferred")
        airflow.process("scheduler").kill()  # its workers live on, and are to be found nevertheless
        airflow.process("triggerer").stop()
        home, parts = airflow.home, list(airflow._components.values())
        pids = [pid for part in parts for pid in members(part.pid)]
        assert len(pids) >= 7
        raise RuntimeError("a test that fails")
    assert all(map(gone, pids))
    assert not home.exists()


# ---------------------------------------------------------------- Spark

JOB = """
import os, sys, time
import pyarrow as pa
from pyspark.sql import SparkSession

def count(batches):
    rows = sum(batch.num_rows for batch in batches)
    time.sleep(1)
    # The parent of a Python worker is the one daemon of its executor.
    yield pa.RecordBatch.from_pydict({"rows": [rows], "executor": [os.getppid()]})

spark = (
    SparkSession.builder.master(sys.argv[1]).appName("count")
    .config("spark.driver.host", "127.0.0.1").config("spark.ui.enabled", False)
    .config("spark.executor.memory", "512m")
    .config("spark.scheduler.minRegisteredResourcesRatio", 1).getOrCreate()
)
found = spark.range(0, 1000, 1, int(sys.argv[2])).mapInArrow(count, "rows long, executor long").collect()
print("result", sum(row.rows for row in found), len({row.executor for row in found}), flush=True)
spark.stop()
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[SparkCluster]:
    with SparkCluster() as started:
        yield started


def start_job(cluster: SparkCluster, tmp_path: Path, partitions: int) -> Session:
    env = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))}
    env |= {"SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable}
    command = [sys.executable, "-c", JOB, cluster.uri, str(partitions)]
    return Session(command, tmp_path / "log", env=env, cwd=ROOT)


def result_of(job: Session) -> list[int]:
    try:
        wait_for("the job's end", lambda: not job.alive, 120)
    finally:
        job.end(0)
    text = job.log.read_text()
    line = next((line for line in text.splitlines() if line.startswith("result ")), "")
    assert line, text[-3000:]
    return [int(word) for word in line.split()[1:]]


@pytest.mark.spark
@pytest.mark.long  # tests/restart/test_spark_copies.py needs both, too
def test_a_job_uses_both_workers(cluster: SparkCluster, tmp_path: Path) -> None:
    before = {app.id for app in cluster.applications()}
    job = start_job(cluster, tmp_path, 4)
    try:
        wait_for("two executors", lambda: len(cluster.executors()) == 2, 60)
        assert len(cluster.executors(0)) == len(cluster.executors(1)) == 1
    finally:
        found = result_of(job)
    assert found == [1000, 2]
    (app,) = (app for app in cluster.applications() if app.id not in before)
    wait_for("it has ended for the master", lambda: app.id in {a["id"] for a in cluster.state()["completedapps"]})
    (app,) = (app for app in cluster.applications() if app.id not in before)
    assert (app.name, app.state) == ("count", "FINISHED")


@pytest.mark.spark
@pytest.mark.long
@pytest.mark.parametrize("fault", ["kill_executor", "kill_worker"])
def test_a_job_outlives_the_loss_of_an_executor_and_of_a_worker(
    cluster: SparkCluster, tmp_path: Path, fault: str
) -> None:
    job = start_job(cluster, tmp_path, 16)
    try:
        wait_for("two executors", lambda: len(cluster.executors()) == 2, 60)
        time.sleep(2)
        lost = cluster.executors(0)
        getattr(cluster, fault)(0)
        wait_for("they are gone", lambda: all(map(gone, lost)))
        if fault == "kill_worker":
            cluster.start_worker(0)
            cluster.wait_ready()
    finally:
        rows, executors = result_of(job)
    assert rows == 1000
    assert executors >= 2


@pytest.mark.spark
def test_nothing_of_a_cluster_stays() -> None:
    with SparkCluster(workers=1) as cluster:
        folder = cluster._folder
        sessions = [session for session in [cluster._master, *cluster._workers] if session is not None]
        pids = [pid for session in sessions for pid in session.members()]
        assert len(pids) == 2
    assert not folder.exists()
    assert all(map(gone, pids))
