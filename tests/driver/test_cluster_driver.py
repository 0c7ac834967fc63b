"""What a launcher makes of the rows of drivers and the answers of a cluster, without a cluster."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_cdc import CdcResnapshotOperator, CdcSnapshotOperator, CdcVerifyOperator
from airflow_provider_cdc.airflow.operators.base import make_driver_request
from airflow_provider_cdc.driver.cluster_driver import DriverHeartbeat, LastLine
from airflow_provider_cdc.driver.launchers import cluster, launcher
from airflow_provider_cdc.driver.launchers.cluster import ClusterDriver
from airflow_provider_cdc.driver.launchers.sealed_request import DriverSecret
from airflow_provider_cdc.driver.request import DriverRequest
from airflow_provider_cdc.model.errors import CdcError, NotReadyError, TransientError
from airflow_provider_cdc.model.supervision import LOST_AFTER_SECONDS
from airflow_provider_cdc.observe.log_lines import LOGGER_NAME
from airflow_provider_cdc.state import StateDatabase, utc_now
from airflow_provider_cdc.state.models import DriverRow
from tests.support.cli import Cli
from tests.support.cluster_tasks import task_context
from tests.support.servers import MySQLServer


@dataclass
class Job:
    """A job as a cluster describes it."""

    id: str = "job"
    log: str | None = "log"
    link: str | None = None
    is_over: bool = False
    is_active: bool = True

    def __str__(self) -> str:
        return "job is RUNNING"


@dataclass
class Manager:
    """A manager that answers what a test says."""

    job: Job | None = None
    killed: list[str] = field(default_factory=list)
    name: str = "Cluster"
    unknown_seconds: float = 60.0

    error: CdcError | None = None

    def find_job(self, driver: str) -> Job | None:
        if self.error is not None:
            raise self.error
        return self.job

    def kill(self, job: str) -> None:
        self.killed.append(job)

    def clean_up(self, job: str) -> None: ...

    def clean_up_by_log(self, log: str | None) -> None: ...

    def tail_log(self, log: str | None, lines: int) -> list[str]:
        return []

    def kill_by_log(self, log: str | None) -> bool:
        self.killed.append(f"log {log}")
        return True

    def describe_by_log(self, log: str | None) -> str:
        return "its node is gone"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[StateDatabase]:
    with closing(StateDatabase.open(f"sqlite:///{tmp_path}/state.db", migrate=True)) as store:
        yield store


@pytest.fixture
def cli(mysql_server: MySQLServer, database: str, tmp_path: Path) -> Cli:
    mysql_server.session(database, "CREATE TABLE t (id INT PRIMARY KEY)")
    return Cli(tmp_path, mysql_server, rf"{database}\.t")


def running_driver(store: StateDatabase, what: str = "stream 0") -> str:
    store.create_driver("d", "p", what=what, requester="t", sealed="s")
    store.record_submission("d", "job", None, "log")
    assert store.take_driver("d", "log") == "s"
    return "d"


def test_a_cleared_task_does_not_continue_with_what_began_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of whatever kind: the user may have mended something that a driver from before has read already (trap S8)."""
    requests: list[DriverRequest] = []

    class Launcher:
        def run(self, request: DriverRequest, requester: str, is_killed: Callable[[], bool]) -> Any:
            requests.append(request)
            raise TransientError("no cluster", "")

    monkeypatch.setattr("airflow_provider_cdc.driver.launchers.launcher.make_launcher", lambda _: Launcher())
    monkeypatch.setattr(CdcSnapshotOperator, "_adopt_groups", lambda *_: [])
    monkeypatch.setenv("AIRFLOW_CONN_SHOP", "mysql://u:p@127.0.0.1:1/d")
    pipeline = {"name": "p", "source": {"conn_id": "shop", "tables": ["d.t"]}, "sink": {"path": str(tmp_path / "lake")}}
    made = {
        "re-snapshot": CdcResnapshotOperator(task_id="t", pipeline=pipeline, table="d.t"),
        "verification": CdcVerifyOperator(task_id="t", pipeline=pipeline),
        "chunk groups": CdcSnapshotOperator(task_id="t", pipeline=pipeline, groups=[1]),
    }
    for kind, operator in made.items():
        requests.clear()
        for max_tries, try_number in ((2, 1), (2, 2), (4, 3)):
            context = task_context("t", try_number)
            context["ti"].max_tries = max_tries
            context["dag_run"] = type("Run", (), {"logical_date": utc_now(), "run_after": utc_now()})
            with pytest.raises(TransientError, match="no cluster"):
                operator.execute(context)
        first, retry, cleared = (request.description for request in requests)
        assert first.startswith(f"{kind} ") and first == retry != cleared


def test_groups_that_an_adopted_driver_was_not_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    operator = CdcSnapshotOperator(task_id="t", pipeline="", groups=[1, 2])
    result = {"group": 1, "rows": 1, "chunks": 1, "corrected": 0, "seconds": 1.0}
    monkeypatch.setattr("airflow_provider_cdc.airflow.operators.cdc.make_run_context", lambda *_: None)
    monkeypatch.setattr(operator, "_adopt_groups", lambda *_: [])
    monkeypatch.setattr(operator, "_run_driver", lambda *_: {"groups": [result]})
    with pytest.raises(TransientError, match="not asked for group 2"):
        operator.execute(task_context("t"))


def test_an_outage_of_the_state_database_is_reported(store: StateDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = ClusterDriver(store, Manager(Job()), running_driver(store))
    monkeypatch.setattr(cluster, "_POLL_SECONDS", 0.01)
    lines, answers = driver.output_lines(), store.driver
    assert next(lines) == "Cluster: job, driver d: running, log: log"

    asked = iter(range(100))

    def refuse(_: str) -> DriverRow | None:
        next(asked)  # so that this ends if nothing is reported
        raise TransientError("connection refused", "")

    monkeypatch.setattr(store, "driver", refuse)
    assert next(lines) == "Cluster: job, driver d: waiting for the state database. connection refused"
    monkeypatch.setattr(store, "driver", answers)
    assert next(lines) == "Cluster: job, driver d: running, log: log"


def test_what_a_driver_last_wrote_is_passed_on(store: StateDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may wait for something for hours, which only its log would say."""
    log, last_line = logging.getLogger(LOGGER_NAME), LastLine()
    rows, asked = store.driver, iter(range(500))  # so that this ends if nothing is passed on
    monkeypatch.setattr(store, "driver", lambda driver: (next(asked), rows(driver))[1])
    monkeypatch.setattr(cluster, "_POLL_SECONDS", 0.01)
    monkeypatch.setattr(log, "handlers", [last_line])
    heartbeat = DriverHeartbeat(store, running_driver(store), last_line, None, needs_row=True)
    lines = ClusterDriver(store, Manager(Job()), "d").output_lines()
    assert next(lines) == "Cluster: job, driver d: running, log: log"
    for said in ("reading group 1", "the stream is paused"):
        log.warning("%s", said)
        heartbeat._step()
        assert next(lines) == said
    store.end_driver("d", {"outcome": {}})
    assert list(lines) == []


def test_a_driver_that_is_silent_while_its_job_runs(store: StateDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = ClusterDriver(store, Manager(Job()), running_driver(store))
    clock = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    driver.look()
    assert driver.description.endswith("running, log: log")
    clock[0] += LOST_AFTER_SECONDS + 1
    driver.look()
    said = f"running, log: log. No sign of life for {LOST_AFTER_SECONDS:g} s. job is RUNNING"
    assert driver.description.endswith(said)
    store.record_driver_heartbeat("d")
    driver.look()
    assert driver.description.endswith("running, log: log")


@pytest.mark.parametrize("answers", [True, False])
def test_a_job_is_killed_whether_the_state_database_answers_or_not(
    store: StateDatabase, monkeypatch: pytest.MonkeyPatch, answers: bool
) -> None:
    manager, waits = Manager(Job()), threading.Event()
    driver = ClusterDriver(store, manager, running_driver(store))
    if not answers:
        monkeypatch.setattr(store, "end_driver", lambda *_, **__: waits.wait(60))
    driver.terminate()
    waits.set()
    assert manager.killed == ["job"]
    row = store.driver("d")
    assert row is not None and row.state == ("ended" if answers else "running")


def test_a_driver_is_ended_only_by_the_try_that_it_works_for(store: StateDatabase) -> None:
    """A try whose host was frozen may wake up when the next one has taken over its driver."""
    manager, first = Manager(Job()), running_driver(store)
    earlier, later = (ClusterDriver(store, manager, first) for _ in range(2))
    earlier.take_over("try 1")
    later.take_over("try 2")
    earlier.terminate()
    row = store.driver(first)
    assert row is not None and row.state == "running" and manager.killed == []
    later.terminate()
    row = store.driver(first)
    assert row is not None and row.state == "ended" and manager.killed == ["job"]


@pytest.mark.parametrize(
    ("state", "error", "seconds"),
    [
        ("running", TransientError("no answer", ""), 62),
        ("submitted", NotReadyError("forbidden", ""), 62),
        ("submitted", TransientError("no answer", ""), 3602),
    ],
)
def test_a_manager_that_does_not_answer(
    store: StateDatabase, monkeypatch: pytest.MonkeyPatch, state: str, error: CdcError, seconds: int
) -> None:
    """A driver that waits for its turn keeps its place while the manager is upgraded."""
    manager, clock = Manager(Job()), [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    if state == "running":
        running_driver(store)
    else:
        store.create_driver("d", "p", what="stream 0", requester="t", sealed="s")
    driver = ClusterDriver(store, manager, "d")
    driver.look()
    manager.error = error
    for later, is_over in ((seconds - 4, False), (seconds + LOST_AFTER_SECONDS, True)):
        clock[0] = 1000.0 + later
        for _ in range(2):  # the first look is the one that finds it silent
            row = driver.look()
            clock[0] += 6 * is_over
        assert row is not None and (row.state == "ended") is is_over, later
    assert row is not None and row.outcome is not None and error.message in row.outcome["error"]["message"]


def test_a_task_that_is_ended_while_its_driver_is_submitted(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """The submission is not confirmed, and the driver is ended."""
    manager, is_killed = Manager(Job()), [False]

    class Launcher(cluster.ClusterLauncher):
        def _submit(self, store: StateDatabase, secret: DriverSecret, what: str) -> ClusterDriver:
            is_killed[0] = True
            return self._known_driver(store, secret.driver)

        def _open_state(self) -> StateDatabase:
            return self._context.open_state_database()

    cli.value["state"] = {"conn_id": "books"}
    cli.env["AIRFLOW_CONN_BOOKS"] = f"sqlite:///{cli.folder}/books.db"
    cli.write()
    for name, value in cli.env.items():
        monkeypatch.setenv(name, value)
    with cli.opened() as (context, store):
        request = make_driver_request(context.pipeline, groups=[1], holder="a task")
        with (
            pytest.raises(TransientError, match="while it started a Spark driver"),
            Launcher(context, manager).run(request, "t", lambda: is_killed[0]),
        ):
            pass
        assert store.live_drivers("p") == [] and manager.killed == ["job"]


def test_a_task_that_is_ended_before_its_driver_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    operator = CdcVerifyOperator(task_id="t", pipeline="")
    operator.on_kill()
    driver = contextlib.nullcontext(SimpleNamespace(output_lines=lambda: pytest.fail("the driver was left to work")))
    fake = SimpleNamespace(run=lambda *_: driver)
    monkeypatch.setattr("airflow_provider_cdc.driver.launchers.launcher.make_launcher", lambda _: fake)
    monkeypatch.setattr("airflow_provider_cdc.airflow.operators.cdc.make_driver_request", lambda *_, **__: None)
    with pytest.raises(TransientError, match="while it started a Spark driver"):
        operator._run_driver(task_context("t"), SimpleNamespace(pipeline=None), {})  # type: ignore[arg-type]


def test_a_lost_driver_of_a_stream_is_ended(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if another task has started it, which does not run any more."""
    manager = Manager(Job())
    monkeypatch.setattr(launcher, "cluster_manager", lambda _: manager)
    with cli.opened() as (context, store):
        running_driver(store)
        store.create_driver("e", "p", what="stream 1", requester="t", sealed="s")
        assert launcher.end_lost_stream(context, store, "log") == "its node is gone"
        assert manager.killed == ["log log"]
        assert [row.id for row in store.live_drivers("p")] == ["e"]
