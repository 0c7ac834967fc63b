"""All jobs but the stream on a real Spark Connect server, from processes that have no Java."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_cdc import __version__
from airflow_provider_cdc.config import Pipeline
from airflow_provider_cdc.config.connections import ResolvedConnection, resolve_connection
from airflow_provider_cdc.config.selection import TableSelection
from airflow_provider_cdc.config.spark_conf import parse_connect_server
from airflow_provider_cdc.driver.launchers.local import start_attached
from airflow_provider_cdc.driver.request import DriverRequest
from airflow_provider_cdc.model.errors import CdcError, NotReadyError, TerminalError
from airflow_provider_cdc.preflight.run import run_preflight
from airflow_provider_cdc.runtime.run_context import RunContext
from tests import ROOT
from tests.support.cli import Cli
from tests.support.oracle import compare
from tests.support.rogue import certify
from tests.support.servers import MySQLServer
from tests.support.spark_connect import ConnectServerProcess
from tests.support.tls_proxy import TlsProxy

pytestmark = [pytest.mark.spark]

TOKEN = "a-token-of-the-server"
PASSWORD = "pass-word-of-the-source"


@pytest.fixture(scope="module")
def connect() -> Iterator[ConnectServerProcess]:
    with ConnectServerProcess(token=TOKEN) as server:
        yield server


@pytest.fixture
def cli(mysql_server: MySQLServer, database: str, tmp_path: Path, connect: ConnectServerProcess) -> Iterator[Cli]:
    mysql_server.session(
        database,
        "CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(20))",
        "INSERT INTO t SELECT n, CONCAT('row ', n) FROM (SELECT ROW_NUMBER() OVER () AS n FROM "
        "information_schema.columns LIMIT 400) AS numbers",
    )
    mysql_server.execute(f"CREATE USER 'connect_user'@'%' IDENTIFIED BY '{PASSWORD}'")
    mysql_server.execute("GRANT SELECT, REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO 'connect_user'@'%'")
    try:
        user = {"user": "connect_user", "password": PASSWORD}
        made = Cli(
            tmp_path,
            mysql_server,
            rf"{database}\.t",
            user=user,
            snapshot={"chunk_rows": 50},
            spark={"conn_id": "cdc_connect"},
        )
        made.env["AIRFLOW_CONN_CDC_CONNECT"] = connect.uri
        yield made
    finally:
        mysql_server.execute("DROP USER 'connect_user'@'%'")


def run_driver(cli: Cli, *, java: bool = False, **what: Any) -> tuple[dict[str, Any], list[str], float]:
    """Run a driver, by default in an environment without Java: its outcome, what it wrote, and its CPU seconds."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in cli.env.items():
            patch.setenv(name, value)
        if not java:
            patch.setenv("JAVA_HOME", "/nowhere")
            patch.setenv("PATH", str(cli.folder))
        connections = {c: resolve_connection(c).to_json() for c in cli.context.pipeline.connection_ids}
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        with start_attached(DriverRequest(cli.context.pipeline.to_dict(), connections, **what)) as driver:
            lines = list(driver.output_lines())
            outcome = driver.wait_for_outcome()
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return outcome, lines, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def is_equal(cli: Cli, server: MySQLServer, database: str) -> bool:
    with contextlib.closing(server.connect(database=database)) as connection:
        return compare(connection, database, "t", cli.sink / database / "t") is None


def test_every_job(cli: Cli, mysql_server: MySQLServer, database: str, connect: ConnectServerProcess) -> None:
    """Groups, a comparison, a repair, maintenance and a re-snapshot; the stream runs elsewhere."""
    cli.value["snapshot"]["group_rows"] = 50
    cli.write()
    with cli.opened() as (context, store):
        groups = list(context.plans.ensure(store).groups())
    _, _, first = run_driver(cli, groups=groups[:1], holder="test")
    outcome, lines, rest = run_driver(cli, groups=groups[1:], holder="test")
    assert outcome["groups"] and any("session of Spark" in line for line in lines), lines
    print(f"CPU seconds of a process for one group: {first:.1f}, for {len(groups) - 1} groups: {rest:.1f}")
    cli.catch_up()
    assert is_equal(cli, mysql_server, database)
    mysql_server.session(database, "SET sql_log_bin = 0", "UPDATE t SET v = 'damaged' WHERE id = 7")
    what = {**asdict(TableSelection()), "show_values": False}
    with pytest.raises(TerminalError, match="1 of 1 tables differ"):
        run_driver(cli, verify=what)
    for n in range(6):
        mysql_server.session(database, f"UPDATE t SET v = 'change {n}' WHERE id % 3 = {n % 3}")
        cli.catch_up()
    outcome, _, _ = run_driver(cli, maintain=True, purge=True)
    outcome, _, _ = run_driver(cli, reread=f"{database}.t")
    assert outcome["outcome"] == "staged"
    cli.catch_up()
    assert is_equal(cli, mysql_server, database)
    seen = b"".join(path.read_bytes() for path in connect.folder.rglob("*") if path.is_file())
    assert seen and PASSWORD.encode() not in seen and TOKEN.encode() not in seen


def test_through_a_proxy_with_tls(
    cli: Cli, mysql_server: MySQLServer, database: str, connect: ConnectServerProcess, tmp_path: Path
) -> None:
    """The token travels by TLS, and only to a proxy whose certificate is trusted."""
    with cli.opened() as (context, store):
        groups = list(context.plans.ensure(store).groups())
    certificate = certify(tmp_path / "certificates", "127.0.0.1")
    with TlsProxy(certificate, connect.port, "h2") as proxy, pytest.MonkeyPatch.context() as patch:
        extra = {"use_ssl": True}
        cli.env["AIRFLOW_CONN_CDC_CONNECT"] = json.dumps(
            {"conn_type": "spark_connect", "host": "127.0.0.1", "port": proxy.port, "password": TOKEN, "extra": extra}
        )
        with pytest.raises(CdcError, match=r"sc://127\.0\.0\.1:\d+ does not answer"):
            run_driver(cli, groups=groups, holder="test")
        refused = proxy.connections
        assert refused == 0
        patch.setenv("GRPC_DEFAULT_SSL_ROOTS_FILE_PATH", str(certificate.ca))
        run_driver(cli, groups=groups, holder="test")
        assert proxy.connections > refused
    cli.catch_up()
    assert is_equal(cli, mysql_server, database)


def test_an_error_of_a_task_is_told(cli: Cli, mysql_server: MySQLServer, database: str) -> None:
    """By its own name, through the server."""
    mysql_server.session(
        database, "ALTER TABLE t ADD COLUMN d DATE", "SET sql_mode = ''", "UPDATE t SET d = '0000-00-00'"
    )
    with cli.opened() as (context, store):
        groups = list(context.plans.ensure(store).groups())
    with pytest.raises(CdcError, match="0000-00-00") as stopped:
        run_driver(cli, groups=groups, holder="test")
    assert stopped.value.facts.get("column") == "d"


def test_a_stream_is_refused(cli: Cli, mysql_server: MySQLServer, database: str) -> None:
    cli.snapshot()
    with pytest.raises(
        NotReadyError, match="the stream cannot run on a Spark Connect server.*Set spark.master as well"
    ):
        run_driver(cli, catch_up=True)
    warnings = [result for result in run_preflight(cli.context) if result.level == "warning"]
    assert any(result.message.startswith("the stream cannot run on a Spark") for result in warnings), warnings
    result = cli.run("stream", "--catch-up")
    assert result.code == 2 and "the stream cannot run on a Spark Connect server" in result.err


def test_the_command_line(cli: Cli, mysql_server: MySQLServer, database: str) -> None:
    """The snapshot on the server, the stream where spark.master says."""
    cli.value["spark"]["master"] = "local[1]"
    cli.write()
    result = cli.run("check")
    assert result.code == 0 and "runs all jobs but the stream; the stream runs at local[1]" in result.out, result
    result = cli.run("run", "--catch-up")
    assert result.code == 0, result
    assert is_equal(cli, mysql_server, database)


def test_a_stream_does_not_need_the_server(
    cli: Cli, mysql_server: MySQLServer, database: str, connect: ConnectServerProcess
) -> None:
    """It starts where spark.master says, also while the server is away."""
    cli.value["spark"]["master"] = "local[1]"
    cli.write()
    cli.snapshot()
    cli.env["AIRFLOW_CONN_CDC_CONNECT"] = "spark-connect://127.0.0.1:1"
    run_driver(cli, java=True, catch_up=True)
    assert is_equal(cli, mysql_server, database)
    result = cli.run("stream", "--catch-up")
    assert result.code == 0, result


def test_what_waits_for_a_busy_server_says_so(connect: ConnectServerProcess) -> None:
    """The check of the workers ends with an error then; a compaction waits until there is a free core."""
    program = """
import os, sys, threading, time
from airflow_provider_cdc.config.spark_conf import ConnectServer
from airflow_provider_cdc.maintenance.spark_job import spark_compaction_runner
from airflow_provider_cdc.model.errors import TransientError
from airflow_provider_cdc.spark import connect, session

server = ConnectServer("127.0.0.1", int(sys.argv[1]), token=sys.argv[2])

def sleep(batches):
    time.sleep(120)
    yield from batches

busy, spark = connect.open_connect_session(server), connect.open_connect_session(server)
connect.check_workers(spark, server, print)  # the first one takes long
session._WAITING_SECONDS, connect._CHECK_SECONDS = 1, 8
threading.Thread(target=busy.range(0, 2, 1, 2).mapInArrow(sleep, "id long").collect, daemon=True).start()
time.sleep(3)
try:
    connect.check_workers(spark, server, print)
except TransientError as error:
    print(error)
waits = threading.Event()
compact = spark_compaction_runner(spark, lambda line: (print(line), waits.set()))
threading.Thread(target=compact, args=([1],), daemon=True).start()
print(waits.wait(20))
connect.interrupt_sessions()
sys.stdout.flush()
os._exit(0)  # the client waits for threads
"""
    command = [sys.executable, "-c", program, str(connect.port), TOKEN]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert ran.stdout, ran.stderr[-3000:]
    waits, late, *compaction, ended = ran.stdout.splitlines()
    for line in (waits, *compaction):
        assert "has started no task for" in line and "waiting for an executor" in line
    assert ended == "True", ran
    assert late.startswith("the Spark Connect server has not run a task within 8 s. Try again"), ran


def test_a_server_that_is_lost_is_not_asked_for_minutes() -> None:
    """After a chunk group has failed, and at the end. One that was started again does not know the session."""
    program = """
import os, sys, time
from airflow_provider_cdc.config.spark_conf import ConnectServer
from airflow_provider_cdc.model.errors import TransientError
from airflow_provider_cdc.spark.connect import open_connect_session, require_server
from airflow_provider_cdc.spark.session import stop_session

spark = open_connect_session(ConnectServer("127.0.0.1", int(sys.argv[1])))
policies = spark.client.get_retry_policies()
require_server(spark)
assert spark.client.get_retry_policies() == policies
print("open", flush=True)
for _ in range(2):
    sys.stdin.readline()
    try:
        require_server(spark)
    except TransientError as error:
        print(error, flush=True)
stop_session(spark)
print("stopped", flush=True)
os._exit(0)
"""
    with ConnectServerProcess() as server:
        command = [sys.executable, "-c", program, str(server.port)]
        with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            try:
                assert process.stdin is not None and process.stdout is not None
                assert process.stdout.readline() == "open\n"
                server.kill()
                began = time.monotonic()
                process.stdin.write("\n")
                process.stdin.flush()
                away = process.stdout.readline()
                assert time.monotonic() - began < 30
                server.serve()
                said, _ = process.communicate("\n", timeout=30)
            finally:
                process.kill()
    lost, stopped = said.splitlines()
    for line in (away, lost):
        assert line.startswith("the Spark Connect server does not answer, or has lost this session: "), said
    assert stopped == "stopped"


def test_workers_with_another_version(connect: ConnectServerProcess) -> None:
    """Every task compares it first."""
    program = """
import os, sys
import airflow_provider_cdc

airflow_provider_cdc.__version__ = "0.0.1"
from airflow_provider_cdc.chunk_groups.spark_job import spark_runner
from airflow_provider_cdc.config.spark_conf import ConnectServer
from airflow_provider_cdc.model.errors import NotReadyError
from airflow_provider_cdc.spark.connect import open_connect_session
from airflow_provider_cdc.spark.tasks import run_tasks

class Job:
    replica_ids = (1,)
    def read_slices(self, worker, copy):
        return [{"read": worker}]

spark = open_connect_session(ConnectServer("127.0.0.1", int(sys.argv[1]), token=sys.argv[2]))
for run in (lambda: run_tasks(spark, [1], str, 1), lambda: spark_runner(spark, print)(Job())):
    try:
        print(run())
    except NotReadyError as error:
        print(error)
sys.stdout.flush()
os._exit(0)
"""
    command = [sys.executable, "-c", program, str(connect.port), TOKEN]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert ran.stdout.splitlines() == 2 * [
        f"a Spark worker has version {__version__} of airflow-provider-cdc, and this process has 0.0.1. "
        "Install the same version on the Spark workers"
    ], ran


def test_what_check_says(cli: Cli, connect: ConnectServerProcess) -> None:
    """Of a wrong token, and of a server that is not there."""
    cli.env["AIRFLOW_CONN_CDC_CONNECT"] = connect.uri.replace(TOKEN, "wrong")
    result = cli.run("check")
    assert result.code == 2 and any("refuses the token" in line for line in result.found), result
    cli.env["AIRFLOW_CONN_CDC_CONNECT"] = "spark_connect://127.0.0.1:1"
    result = cli.run("check")
    assert any("sc://127.0.0.1:1 does not answer" in line for line in result.found), result
    assert "wrong" not in result.out + result.err


def waiting_for_lock(server: MySQLServer) -> bool:
    """Whether a SELECT of the pipeline waits."""
    listed = server.execute("SHOW PROCESSLIST")
    return any(row[1] == "connect_user" and "metadata lock" in str(row[6]) for row in listed)


def test_a_task_that_is_killed_ends_on_the_server(cli: Cli, mysql_server: MySQLServer, database: str) -> None:
    """A table lock keeps its SELECT waiting; the server would go on for minutes."""
    with cli.opened() as (context, store):
        groups = list(context.plans.ensure(store).groups())
    with contextlib.closing(mysql_server.connect(database=database)) as connection, connection.cursor() as cursor:
        cursor.execute("LOCK TABLES t WRITE")
        errors: list[BaseException] = []

        def drive() -> None:
            try:
                run_driver(cli, groups=groups, holder="test")
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=drive)
        thread.start()
        deadline = time.monotonic() + 120
        while not waiting_for_lock(mysql_server):
            assert time.monotonic() < deadline and thread.is_alive(), errors
            time.sleep(0.2)
        (driver,) = [
            int(entry.name)
            for entry in Path("/proc").iterdir()
            if entry.name.isdigit() and _is_driver(entry) and _parent(entry) == os.getpid()
        ]
        os.kill(driver, signal.SIGTERM)
        thread.join(60)
        assert errors
        while waiting_for_lock(mysql_server):
            assert time.monotonic() < deadline
            time.sleep(0.2)
    cli.snapshot()
    cli.catch_up()
    assert is_equal(cli, mysql_server, database)


def _is_driver(entry: Path) -> bool:
    with contextlib.suppress(OSError):
        return b"airflow_provider_cdc.driver.main" in (entry / "cmdline").read_bytes()
    return False


def _parent(entry: Path) -> int:
    with contextlib.suppress(OSError):
        return int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    return 0


# ---------------------------------------------------------------- connections


@pytest.mark.parametrize(
    ("parts", "url"),
    [
        (("127.0.0.1", None, None, None, {}), "sc://127.0.0.1:15002/"),
        (("sc://127.0.0.1", 9, "u/x", "a;b", {}), "sc://localhost:9/;user_id=u%2Fx;token=a%3Bb"),
        (("spark.example", 443, None, "t", {"use_ssl": True}), "sc://spark.example:443/;token=t;use_ssl=true"),
    ],
)
def test_connections(parts: tuple[Any, ...], url: str) -> None:
    server = parse_connect_server("c", *parts)
    assert server.url == url and "token" not in server.address and "token=" not in repr(server)


@pytest.mark.parametrize(
    ("parts", "part"),
    [
        (("spark.example", 1, None, None, {}), "would travel to sc://spark.example:1 in clear text"),
        (("spark.example", 1, None, "t", {"use_ssl": "maybe"}), "extra 'use_ssl' is 'maybe'"),
        (("127.0.0.1", 1, None, None, {"queue": "q"}), "extra 'queue' is not known"),
        (("http://x", 1, None, None, {}), "names no host of a Spark Connect server"),
        ((None, None, None, None, {}), "names no host of a Spark Connect server"),
    ],
)
def test_connections_that_are_refused(parts: tuple[Any, ...], part: str) -> None:
    with pytest.raises(NotReadyError) as refused:
        parse_connect_server("c", *parts)
    assert part in refused.value.message


@pytest.mark.parametrize("kind", ["spark_connect", "spark"])
def test_a_connection_and_a_master(kind: str) -> None:
    """Both are needed with a server, and are two masters without one."""
    parts = {"host": "127.0.0.1", "port": 1, "login": None, "password": None, "schema": None, "extra": {}}
    known = {
        "s": ResolvedConnection.from_json({"conn_id": "s", "conn_type": "mysql", **parts}),
        "c": ResolvedConnection.from_json({"conn_id": "c", "conn_type": kind, **parts}),
    }
    pipeline = Pipeline.from_dict(
        {
            "name": "p",
            "source": {"conn_id": "s", "tables": ["a.b"]},
            "sink": {"path": "/nowhere"},
            "spark": {"conn_id": "c", "master": "local[1]"},
        }
    )
    if kind == "spark":
        with pytest.raises(NotReadyError, match="spark.conn_id and spark.master are both set"):
            RunContext.for_pipeline(pipeline, find_connection=known.__getitem__)
        return
    with pytest.raises(NotReadyError, match="spark.conf has no effect.*or set spark.master as well"):
        spark = replace(pipeline.spark, master=None, conf={"spark.executor.memory": "4g"})
        RunContext.for_pipeline(replace(pipeline, spark=spark), find_connection=known.__getitem__)
    context = RunContext.for_pipeline(pipeline, find_connection=known.__getitem__)
    assert context.connect is not None and context.spark_config[0] == "local[1]" and not context.runs_jobs_locally
