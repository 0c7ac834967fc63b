"""The services of docker/compose.yaml as processes: Airflow and the bookkeeping in PostgreSQL, Spark on a cluster.

One run from an empty lake to the end of the stream, with live writers; then everything is looked at.
"""

from __future__ import annotations

import contextlib
import json
import re
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from airflow_provider_cdc.config.spark_conf import is_loopback_master
from airflow_provider_cdc.system.processes import kill_session
from tests.support.airflow_client import Client
from tests.support.compose import DOCKER, Stack, load, make_env
from tests.support.iceberg_place import CatalogPlace
from tests.support.oracle import Place, check_ledger, compare_database
from tests.support.postgres import Postgres
from tests.support.processes import wait_for
from tests.support.servers import MySQLServer
from tests.support.workload import Writers
from tests.support.workload_tables import make_shop
from tests.system.test_secrets import leaks

# The example DAGs, once more, with everything that the compose file has.
pytestmark = [pytest.mark.airflow, pytest.mark.spark, pytest.mark.long]

DAG, STREAM = "shop", "shop.stream"
TABLES = {"customer", "customer_address", "ledger", "orders"}


def own_address() -> str:
    """An address of this machine that others can reach, or that of loopback where there is none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing
            address = str(probe.getsockname()[0])
            with socket.socket() as listener:
                listener.bind((address, 0))
        except OSError:
            return "127.0.0.1"
    return address


class Watch:
    """Reads the command lines of all processes, and the environments of those that run Spark, for some time."""

    def __init__(self, secrets: dict[str, str]) -> None:
        self._secrets = secrets
        self.found: set[str] = set()
        self.seen: set[str] = set()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._loop)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _loop(self) -> None:
        while not self._over.wait(0.3):
            for entry in Path("/proc").iterdir():
                if entry.name.isdigit():
                    with contextlib.suppress(OSError):
                        self._look(entry)

    def _look(self, process: Path) -> None:
        command = (process / "cmdline").read_bytes()
        text = command.replace(b"\0", b" ").decode(errors="replace")
        self._note(command, f"the command line of {text[:200]}", self._secrets)
        for kind in (
            "airflow_provider_cdc.driver.main",
            "SparkSubmit",
            "CoarseGrained",
            "worker_daemon",
            "deploy.worker",
        ):
            if kind in text:
                self.seen.add(kind)
                # The worker hands the executor its secret this way, which that inherits to its Python.
                allowed = {"SPARK_SECRET"} if kind in ("CoarseGrained", "worker_daemon") else set()
                rest = {name: secret for name, secret in self._secrets.items() if name not in allowed}
                self._note((process / "environ").read_bytes(), f"the environment of {text[:200]}", rest)

    def _note(self, data: bytes, where: str, secrets: dict[str, str]) -> None:
        self.found |= {f"{name} in {where}" for name, secret in secrets.items() if secret.encode() in data}


@dataclass
class Site:
    """What is left of the run, to be looked at."""

    stack: Stack
    server: MySQLServer
    postgres: Postgres
    client: Client
    secrets: dict[str, str]
    watch: Watch
    tables: Place
    run: str = ""
    pages: dict[str, str] = field(default_factory=dict)
    executors: list[dict[str, Any]] = field(default_factory=list)

    @property
    def lake(self) -> Path:
        return self.stack.volume("lake")

    def books(self, query: str) -> list[tuple[Any, ...]]:
        return self.postgres.execute(query, database="bookkeeping")

    def dump(self, database: str, table: str) -> bytes:
        """All rows of a table, as text."""
        rows = self.postgres.execute(f"SELECT {table}::text FROM {table}", database=database)
        return "\n".join(row[0] for row in rows).encode()

    def applied(self) -> tuple[str, int] | None:
        """Up to where the stream has taken the binlog."""
        rows = self.books("SELECT end_offset FROM batches ORDER BY epoch DESC, batch_id DESC LIMIT 1")
        offset = json.loads(rows[0][0]) if rows else None
        return (offset["file"], offset["position"]) if offset else None

    def page(self, url: str) -> str:
        answer = httpx.get(url, timeout=30, trust_env=False, follow_redirects=True)
        self.pages[url] = answer.raise_for_status().text
        return self.pages[url]

    def look_at_spark(self) -> None:
        """Read the pages of the driver, the master and the workers."""
        (ui,) = {row[0] for row in self.books("SELECT ui FROM streams WHERE state = 'running'")}
        (app,) = json.loads(self.page(f"{ui}/api/v1/applications"))
        api = f"{ui}/api/v1/applications/{app['id']}"
        self.executors = [e for e in json.loads(self.page(f"{api}/allexecutors")) if e["id"] != "driver"]
        for path in ("environment", "executors", "jobs/", "StreamingQuery/", "SQL/"):
            self.page(f"{ui}/{path}")
        for path in ("environment", "jobs", "stages?details=true", "sql?details=true"):
            self.page(f"{api}/{path}")
        self.page(f"http://{self.stack.address('spark-master', 8080)}/")
        self.page(f"http://{self.stack.address('spark-master', 8080)}/app/?appId={app['id']}")
        for worker in ("spark-worker-1", "spark-worker-2"):
            self.page(f"http://{self.stack.address(worker, 8081)}/")


def start_mysql(env: dict[str, str]) -> MySQLServer:
    """The server as the file and its image make it: its options, the user, and what mysql.sql does."""
    spec = load(env)["services"]["mysql"]
    server = MySQLServer(args=spec["command"])
    server.password = env["MYSQL_ROOT_PASSWORD"]
    server.start()
    server.execute("CREATE USER %s@'%%' IDENTIFIED BY %s", list(map(spec["environment"].get, _MYSQL_USER)))
    text = re.sub(r"^--.*\n", "", (DOCKER / "mysql.sql").read_text(), flags=re.M)
    with contextlib.closing(server.connect()) as connection, connection.cursor() as cursor:
        for statement in filter(str.strip, text.split(";\n")):
            cursor.execute(statement)
    return server


_MYSQL_USER = ("MYSQL_USER", "MYSQL_PASSWORD")


@pytest.fixture(scope="module", params=["", "compose.iceberg.yaml"], ids=["Delta", "Iceberg"])
def site(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """The whole of it: started, run to its end, and still there."""
    overlays = [request.param] if request.param else []
    env = make_env(tmp_path_factory.mktemp("env"))
    secrets = {name: value for name, value in env.items() if not name.endswith("_PORT")}
    with contextlib.ExitStack() as exits:
        server = start_mysql(env)
        exits.callback(server.stop)
        postgres = exits.enter_context(Postgres(databases=()))
        postgres.run_file(DOCKER / "postgres.sql", env)
        postgres.passwords = {"airflow": env["AIRFLOW_DB_PASSWORD"], "bookkeeping": env["BOOKKEEPING_DB_PASSWORD"]}
        watch = exits.enter_context(Watch(secrets))
        given = {"mysql": (server.host, server.port), "postgres": (postgres.host, postgres.port)}
        files = {"mysql-data/ca.pem": server.authority()}
        stack = exits.enter_context(Stack(env, given, own_address(), files, overlays))
        login = ("admin", env["ADMIN_PASSWORD"])
        client = Client(f"http://{stack.address('api-server', 8080)}", login=login)
        exits.callback(client.close)
        login_of_catalog = f"bookkeeping:{env['BOOKKEEPING_DB_PASSWORD']}"
        catalog = f"postgresql+psycopg://{login_of_catalog}@{postgres.host}:{postgres.port}/bookkeeping"
        tables = CatalogPlace(catalog, kind="sql") if overlays else stack.volume("lake")
        found = Site(stack, server, postgres, client, secrets, watch, tables)
        exits.callback(end_streams, found)
        try:
            run_to_the_end(found)
        except AssertionError:
            print(stack.story())
            raise
        yield found


def end_streams(site: Site) -> None:
    """Streams outlive the processes that started them."""
    with contextlib.suppress(Exception):
        for (pid,) in site.books("SELECT pid FROM streams WHERE state = 'running'"):
            kill_session(pid)


def run_to_the_end(site: Site) -> None:
    assert site.server.execute("SELECT COUNT(*) FROM shop.customer")[0][0] == 20_000, "the shop of mysql.sql"
    with contextlib.closing(site.server.connect()) as connection:
        make_shop(connection, customers=20_000, addresses=2_000, orders=10_000)
    with Writers(site.server.connect_args(), rate=20):
        site.run = site.client.trigger(DAG)
        site.client.wait_state(DAG, site.run, STREAM, "deferred")
        wait_for("three batches", lambda: site.books("SELECT 1 FROM batches WHERE changes > 0 LIMIT 3")[2:], 300, 0.5)
    file, position, *_ = site.server.execute("SHOW BINARY LOG STATUS")[0]
    wait_for("the stream has taken everything", lambda: site.applied() == (file, position), 300, 0.5)
    site.look_at_spark()
    stop = site.stack.services["scheduler"].run("airflow-cdc", "stop", "-f", "dags/shop.yaml")
    assert stop.returncode == 0, stop.stderr
    site.client.wait_run(DAG, site.run)


def test_every_row_is_there(site: Site) -> None:
    assert [str(d) for d in compare_database(site.server, "shop", site.tables, TABLES)] == []
    assert check_ledger(site.tables) == []
    changes = site.books("SELECT SUM(changes) FROM batches")[0][0]
    assert changes > 0 and site.client.xcom(DAG, site.run, STREAM)["changes"] == changes


def test_both_workers_read_the_snapshot(site: Site) -> None:
    """Each group is an application of its own with one executor on each worker, and both workers have tasks."""
    groups = site.client.task_instances(DAG, site.run, "shop.snapshot")
    page = f"http://{site.stack.address('spark-master', 8080)}/json/"
    wait_for("the master knows of the stream's end", lambda: not json.loads(site.page(page))["activeapps"])
    ended = [app["id"] for app in json.loads(site.page(page))["completedapps"]]
    assert len(ended) == len(groups) + 1 >= 2
    for number in (1, 2):
        work = site.stack.services[f"spark-worker-{number}"].root / "opt/spark/work"
        logs = [[log.read_text() for log in work.glob(f"{app}/*/stderr")] for app in sorted(ended)[: len(groups)]]
        assert [len(of_app) for of_app in logs] == [1] * len(groups)
        assert any("Finished task" in of_app[0] for of_app in logs), (number, logs)  # a small group is one task
    assert len(site.executors) == 2 and {e["totalCores"] for e in site.executors} == {1}


def test_nothing_went_between_hosts_in_the_clear(site: Site) -> None:
    """The product's own rule for masters elsewhere was the one in force, with the secret out of SPARK_CONF_DIR."""
    if site.stack.spark_host == "127.0.0.1":
        pytest.skip("this machine has no address but that of loopback")
    master = f"spark://{site.stack.address('spark-master', 7077)}"
    assert not is_loopback_master(master)
    (page,) = (text for url, text in site.pages.items() if url.endswith("/environment") and "/api/" in url)
    settings = dict(json.loads(page)["sparkProperties"])
    assert settings["spark.master"] == master and settings["spark.driver.host"] == site.stack.spark_host
    assert settings["spark.authenticate"] == settings["spark.network.crypto.enabled"] == "true"
    assert "redacted" in settings["spark.authenticate.secret"]


def test_the_books_are_in_postgres(site: Site) -> None:
    def tables(database: str) -> set[str]:
        query = "SELECT tablename FROM pg_tables WHERE schemaname = 'public'"
        return {row[0] for row in site.postgres.execute(query, database=database)}

    assert {"pipelines", "chunks", "streams", "batches"} <= tables("bookkeeping") - tables("airflow")
    assert {"dag_run", "task_instance"} <= tables("airflow") - tables("bookkeeping")
    assert site.books("SELECT DISTINCT state FROM chunks") == [("done",)]
    assert site.books("SELECT state FROM streams") == [("stopped",)]
    assert [path.name for path in site.stack.folder.rglob("bookkeeping.db*")] == []


def test_no_secret_got_out(site: Site) -> None:
    """Not into logs, XComs, rendered fields, pages, files, the books, command lines or the environment of Spark."""
    assert {
        "airflow_provider_cdc.driver.main",
        "SparkSubmit",
        "CoarseGrained",
        "worker_daemon",
    } <= site.watch.seen
    assert site.watch.found == set()
    kept = {site.stack.volume("spark-conf") / "spark-defaults.conf", site.stack.volume("login") / "passwords.json"}
    shown: dict[str, bytes] = {url: text.encode() for url, text in site.pages.items()}
    for task in site.client.task_instances(DAG, site.run):
        shown[f"{task.task_id}[{task.map_index}]"] = json.dumps(task.raw).encode()
    for table in ("xcom", "rendered_task_instance_fields", "log", "trigger", "serialized_dag"):
        shown[f"airflow.{table}"] = site.dump("airflow", table)
    for table in ("pipelines", "snapshots", "tables", "chunk_groups", "chunks", "streams", "batches"):
        shown[f"bookkeeping.{table}"] = site.dump("bookkeeping", table)
    assert [name for name, data in shown.items() if not data] in ([], ["airflow.trigger"])
    for path in site.stack.folder.rglob("*"):
        if path.is_file() and not path.is_symlink() and path not in kept:  # services still run, and tidy up
            with contextlib.suppress(FileNotFoundError):
                shown[str(path.relative_to(site.stack.folder))] = path.read_bytes()
    logs = [name for name in shown if name.endswith(".log")]
    assert [name for name in logs if "dag_id=shop" in name] and [name for name in logs if "stream-" in name]
    assert [name for name in shown if name.endswith("stderr")], "the executors' logs"
    for path in kept:
        assert path.stat().st_mode & 0o077 == 0
    found = (leaks(where, data, secret) for where, data in shown.items() for secret in site.secrets.values())
    assert [leak for leaked in found for leak in leaked] == []


def test_health_checks_can_fail(site: Site) -> None:
    """Those of services that were ended do. The last test: it ends them."""
    for name in ("spark-worker-2", "scheduler"):
        service = site.stack.services[name]
        assert service.healthy()
        service.sessions[-1].end()
        assert not service.healthy()
