"""The same pipeline wherever Spark is: a part of it is killed in a phase, the task is tried again, the copy is equal.

Pods have tests of their own (tests/driver/test_kubernetes.py).
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_cdc.model.errors import TransientError
from airflow_provider_cdc.state.control_requests import RESNAPSHOT
from airflow_provider_cdc.verify.run import verify_tables
from tests.support.cli import Cli
from tests.support.cluster_tasks import ROWS, follow, make_table, read
from tests.support.oracle import open_copy
from tests.support.postgres import Postgres
from tests.support.processes import wait_for
from tests.support.servers import MySQLServer
from tests.support.spark_cluster import SparkCluster
from tests.support.spark_connect import ConnectServerProcess
from tests.support.yarn import Yarn

pytestmark = [pytest.mark.spark, pytest.mark.long]

#: Seconds for anything that Spark is to do.
_LONG = 300


@dataclass
class Place:
    """Where Spark is: what the pipeline says of it, and how its parts are killed."""

    spark: dict[str, Any]
    env: dict[str, str]
    kill: dict[str, Callable[[], None]]
    #: Parts that have to come back before anything can run there.
    restart: dict[str, Callable[[], None]] = field(default_factory=dict)


def processes(*words: str, parent: int | None = None) -> list[int]:
    """Return the processes whose command lines contain words, and that descend from another one."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                if all(word in command for word in words) and (parent is None or parent in ancestors(int(entry.name))):
                    found.append(int(entry.name))
    return found


def ancestors(pid: int) -> list[int]:
    found: list[int] = []
    with suppress(OSError, ValueError):
        while pid > 1:
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
            found.append(pid)
    return found


def kill(find: Callable[[], list[int]]) -> None:
    """Send SIGKILL to all processes that there are, as soon as there are some."""
    wait_for("processes to kill", find, _LONG)
    kill_all(find())


def kill_all(found: list[int]) -> None:
    for pid in found:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


_DRIVER = "airflow_provider_cdc.driver.main"


def drivers() -> list[int]:
    return processes(_DRIVER, parent=os.getpid())


def of_drivers(*words: str) -> list[int]:
    return [pid for driver in drivers() for pid in processes(*words, parent=driver)]


_ON_THIS_HOST: dict[str, Callable[[], None]] = {
    "driver": lambda: kill(drivers),
    "Java": lambda: kill(lambda: of_drivers("bin/java")),
}


def local() -> Place:
    workers = {"Python workers": lambda: kill(lambda: of_drivers("python", "-m", "worker_daemon"))}
    return Place({"master": "local[2]"}, {}, {**_ON_THIS_HOST, **workers})


def standalone(stack: ExitStack) -> Place:
    cluster = stack.enter_context(SparkCluster(2, memory="1g"))
    return Place(
        {"master": cluster.uri, "conf": {"spark.executor.memory": "512m"}},
        {},
        {
            **_ON_THIS_HOST,
            "executors": lambda: kill(cluster.executors),
            "Spark worker": lambda: cluster.kill_worker(0),
        },
        {"Spark worker": lambda: cluster.start_worker(0)},
    )


def in_yarn(yarn: Yarn, state_server: Postgres) -> Place:
    state_server.execute("DROP OWNED BY CURRENT_USER", database="bookkeeping")
    return Place(
        {"conn_id": "spark_yarn", "conf": yarn.settings},
        {
            "AIRFLOW_CONN_SPARK_YARN": yarn.connection(),
            "AIRFLOW_CONN_BOOKS": state_server.uri("bookkeeping"),
            "HADOOP_CONF_DIR": str(yarn.conf),
        },
        {
            "driver": yarn.kill_driver,
            "Java": lambda: yarn.kill_driver("/bin/java"),
            "executors": lambda: kill(lambda: yarn.container_processes("CoarseGrainedExecutorBackend")),
        },
    )


def on_a_server(stack: ExitStack) -> Place:
    server = stack.enter_context(ConnectServerProcess())
    return Place(
        {"conn_id": "connect", "master": "local[2]"},
        {"AIRFLOW_CONN_CONNECT": server.uri},
        {**_ON_THIS_HOST, "server": server.kill},
        {"server": server.serve},
    )


#: The parts of each place. With a Connect server, the stream runs in local mode.
PARTS = {
    "local": ("driver", "Java", "Python workers"),
    "standalone": ("driver", "Java", "executors", "Spark worker"),
    "YARN": ("driver", "Java", "executors"),
    "Connect": ("driver", "server"),
}


@pytest.fixture
def place(where: str, request: pytest.FixtureRequest) -> Iterator[Place]:
    with ExitStack() as stack:
        if where == "local":
            yield local()
        elif where == "standalone":
            yield standalone(stack)
        elif where == "YARN":
            yield in_yarn(request.getfixturevalue("yarn"), request.getfixturevalue("state_server"))
        else:
            yield on_a_server(stack)
        kill_all(drivers())  # a stream outlives its task


@pytest.fixture
def cli(
    mysql_server: MySQLServer,
    cdc_user: dict[str, str],
    database: str,
    tmp_path: Path,
    place: Place,
    monkeypatch: pytest.MonkeyPatch,
) -> Cli:
    make_table(mysql_server, database)
    settings: dict[str, Any] = {"state": {"conn_id": "books"}} if "AIRFLOW_CONN_BOOKS" in place.env else {}
    cli = Cli(
        tmp_path,
        mysql_server,
        f"{database}.t",
        user=cdc_user,
        snapshot={"chunk_rows": 10, "group_rows": 30, "max_rows_per_second": 4},
        spark=place.spark,
        **settings,
    )
    cli.env |= place.env
    for name, value in cli.env.items():
        monkeypatch.setenv(name, value)
    return cli


@pytest.mark.parametrize(("where", "part"), [(where, part) for where, parts in PARTS.items() for part in parts])
def test_a_part_is_killed(cli: Cli, place: Place, mysql_server: MySQLServer, database: str, part: str) -> None:
    """While a chunk group is read, again while a stream runs, and again while it re-snapshots the table."""
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(read, cli.file)
        wait_until_reading(cli, reading)
        place.kill[part]()
        place.restart.get(part, lambda: None)()
        error = reading.exception(_LONG)  # there is none if Spark itself has begun the part again
        assert error is None or isinstance(error, TransientError), error
    if error is not None:
        read(cli.file, 2)
    copied = Copy(cli, mysql_server, database)
    epoch = follow(cli).epoch
    epoch = copied.change_until_applied(1, epoch)
    place.kill[part]()
    place.restart.get(part, lambda: None)()
    for value in (2, 3):
        epoch = copied.change_until_applied(value, epoch)
    again = copied.ask_to_resnapshot()
    place.kill[part]()
    place.restart.get(part, lambda: None)()
    epoch = copied.change_until_applied(4, epoch)
    copied.supervise("the re-snapshot", lambda: copied.request_state(again) == "done", epoch)
    copied.stop()
    assert all(verdict.is_equal for verdict in verify_tables(cli.context))
    assert not drivers()


def wait_until_reading(cli: Cli, reading: Future[Any]) -> None:
    """Wait until the first chunk group is published: Spark runs then, and the second one is about to be read."""
    first = cli.sink / "_cdc" / "p" / "groups" / "1" / "0"
    wait_for("a chunk group", lambda: any(first.glob("attempt-*.json")) or reading.done(), _LONG)
    assert not reading.done(), reading.exception()
    time.sleep(1)


class Copy:
    """A stream, and the task that supervises it."""

    def __init__(self, cli: Cli, server: MySQLServer, database: str) -> None:
        self.cli, self.server, self.database = cli, server, database

    def change_until_applied(self, value: int, epoch: int) -> int:
        """Change a row, and wait until the copy has it.

        :returns: as :meth:`supervise`.
        """
        self.server.execute(f"INSERT INTO {self.database}.t VALUES ({1000 + value}, 'later')")
        return self.supervise(f"change {value}", lambda: self.count() >= ROWS + value, epoch)

    def supervise(self, what: str, condition: Callable[[], bool], epoch: int) -> int:
        """Wait for something that the stream does; if it is lost meanwhile, its task starts the next.

        :returns: number of the last epoch.
        """
        deadline = time.monotonic() + _LONG
        with self.cli.opened() as (context, store):
            while not condition():
                assert time.monotonic() < deadline, f"there is no end of {what}"
                run = store.newest_epoch("p")
                assert run is not None and run.epoch == epoch
                if run.state != "running" or context.liveness.is_alive(run) is False:
                    verdict = "lost" if run.state == "running" else run.state
                    epoch = follow(self.cli, {"epoch": epoch, "found": False, "verdict": verdict}).epoch
                time.sleep(0.5)
        return epoch

    def ask_to_resnapshot(self) -> int:
        """Ask the stream to re-snapshot the table, and wait until it has begun.

        :returns: number of the request.
        """
        with self.cli.opened() as (_, store):
            request = store.add_request("p", RESNAPSHOT, f"{self.database}.t", "the test")
        wait_for("the re-snapshot begins", lambda: self.request_state(request) == "taken", _LONG)
        time.sleep(2)  # it reads for a quarter of a minute
        return request

    def request_state(self, number: int) -> str:
        with self.cli.opened() as (_, store):
            request = store.request("p", number)
            assert request is not None
            return request.state

    def count(self) -> int:
        copy = open_copy(self.cli.sink / self.database / "t")
        assert copy is not None
        return int(copy.read(["id"]).num_rows)

    def stop(self) -> None:
        with self.cli.opened() as (_, store):
            store.request_stop("p")
            wait_for("the stream ends", lambda: store.newest_epoch("p").state == "stopped", _LONG)  # type: ignore[union-attr]
        wait_for("its driver ends", lambda: not drivers(), 60)
