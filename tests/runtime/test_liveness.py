"""Whether a stream is going on is told by its heartbeat on the watcher's own clock: the clocks of hosts differ."""

from __future__ import annotations

import contextlib
import logging
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import text, update

from airflow_provider_cdc.model.errors import NotReadyError, TransientError
from airflow_provider_cdc.model.offset import Offset
from airflow_provider_cdc.model.supervision import LOST_AFTER_SECONDS, RestartHistory
from airflow_provider_cdc.observe.status import read_status
from airflow_provider_cdc.runtime import liveness
from airflow_provider_cdc.runtime.run_context import RunContext
from airflow_provider_cdc.state import EpochRow, StateDatabase
from airflow_provider_cdc.stream import resume as resuming
from airflow_provider_cdc.stream.run import begin_epoch
from airflow_provider_cdc.system.processes import pid_scope_id
from tests.support.cli import Cli, read_only
from tests.support.servers import MySQLServer

#: How far the clock of the stream's host is ahead of the watcher's.
AHEAD = [timedelta(), timedelta(seconds=-20), timedelta(hours=1), timedelta(days=-1)]


@pytest.fixture
def opened(tmp_path: Path, mysql_server: MySQLServer, database: str) -> Iterator[tuple[RunContext, StateDatabase]]:
    mysql_server.execute(f"CREATE TABLE {database}.t (id INT PRIMARY KEY)")
    cli = Cli(tmp_path, mysql_server, f"{database}.t")
    cli.snapshot()
    with cli.opened() as found:
        yield found


def stream_elsewhere(store: StateDatabase, ahead: timedelta) -> int:
    """A stream on another host, whose clock is so far ahead."""
    number = store.begin_epoch("p", 0, "elsewhere", 1, 1.0)
    beat(store, number, ahead)
    return number


def beat(store: StateDatabase, epoch: int, ahead: timedelta) -> None:
    with store._write_session() as session:
        session.execute(update(EpochRow).where(EpochRow.epoch == epoch).values(heartbeat_at=datetime.now(UTC) + ahead))


@contextlib.contextmanager
def beating(store: StateDatabase, epoch: int, ahead: timedelta) -> Iterator[None]:
    over = threading.Event()

    def run() -> None:
        while not over.wait(0.2):
            beat(store, epoch, ahead)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@pytest.mark.parametrize("ahead", AHEAD, ids=str)
def test_a_stream_that_lives_is_left_alone(opened: tuple[RunContext, StateDatabase], ahead: timedelta) -> None:
    context, store = opened
    number = stream_elsewhere(store, ahead)
    with beating(store, number, ahead):
        with pytest.raises(NotReadyError, match=f"a stream of p is running .epoch {number}"):
            begin_epoch(context, store, catch_up=True)
        found = read_status(context)
    assert (found["phase"], found["stream"]["state"]) == ("streaming", "running")
    row = store.newest_epoch("p")
    assert row is not None and (row.epoch, row.state, row.desired_state) == (number, "running", "run")


@pytest.mark.parametrize("ahead", AHEAD[1:3], ids=str)
def test_a_stream_that_is_dead_stops_nobody(
    opened: tuple[RunContext, StateDatabase], ahead: timedelta, monkeypatch: pytest.MonkeyPatch
) -> None:
    context, store = opened
    monkeypatch.setattr(context, "liveness", impatient(monkeypatch))
    number = stream_elsewhere(store, ahead)
    began = time.monotonic()
    found = read_status(context)
    assert (found["phase"], found["stream"]["state"]) == ("stopped", "lost")
    epoch = begin_epoch(context, store, catch_up=True)  # looks as well, but does not begin to count anew
    assert epoch.number == number + 1
    assert 3 < time.monotonic() - began < 5


def impatient(monkeypatch: pytest.MonkeyPatch) -> liveness.LivenessMonitor:
    monkeypatch.setattr(liveness, "LOST_AFTER_SECONDS", 3.0)
    return liveness.LivenessMonitor()


def test_one_that_wakes_up_is_not_taken_over(
    opened: tuple[RunContext, StateDatabase], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It beats again after it was found dead, and before the next has an epoch."""
    store = opened[1]
    watcher = impatient(monkeypatch)
    number = stream_elsewhere(store, timedelta())
    assert watcher.wait_until_known(store, "p")[1] is False
    watcher.refuse_if_running(store, "p")
    beat(store, number, timedelta())
    with pytest.raises(NotReadyError, match="a stream of p is running"):
        store.begin_epoch("p", 0, "here", 1, 1.0, refuse_if_alive=watcher.confirm_not_running)
    # So does one that somebody else has begun meanwhile.
    assert watcher.wait_until_known(store, "p")[1] is True
    store.end_epoch("p", number, "stopped")
    watcher.refuse_if_running(store, "p")
    stream_elsewhere(store, timedelta())
    with pytest.raises(NotReadyError, match="a stream of p is running"):
        store.begin_epoch("p", 0, "here", 1, 1.0, refuse_if_alive=watcher.confirm_not_running)


def test_a_heart_that_cannot_be_written_is_not_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bookkeeping answers and takes no writes, on a full disk for one."""
    watcher = impatient(monkeypatch)
    with contextlib.closing(StateDatabase.open(f"sqlite:///{tmp_path}/books.db", migrate=True)) as store:
        store.register_pipeline("p", "server")
        number = stream_elsewhere(store, timedelta())
        assert watcher.check_once(store, "p")[1] is None
        with read_only(store):
            began = time.monotonic()
            while time.monotonic() < began + 4:
                with pytest.raises(TransientError, match="readonly database. Try again when .* writable"):
                    watcher.wait_until_known(store, "p")
                time.sleep(0.2)
        assert watcher.check_once(store, "p")[1] is None
        beat(store, number, timedelta())
        assert watcher.wait_until_known(store, "p")[1] is True


def test_it_is_alive_while_it_begins(opened: tuple[RunContext, StateDatabase], monkeypatch: pytest.MonkeyPatch) -> None:
    """A failover may take minutes before the first batch."""
    context, store = opened
    beats: list[datetime] = []

    def slow(_connection: object, at: Offset, _open_at: object) -> Offset:
        for _times in range(3):
            row = store.newest_epoch("p")
            assert row is not None
            beats.append(row.heartbeat_at)
            time.sleep(1.2)
        return at

    monkeypatch.setattr(resuming, "check_resume_offset", slow)
    begin_epoch(context, store, catch_up=True)
    assert beats == sorted(set(beats)) and len(beats) == 3


def test_drivers_that_are_lost_are_counted_by_their_own_clocks(tmp_path: Path) -> None:
    """Each try of the task may be on a host with another clock, so the driver's own time is what counts."""
    from airflow_provider_cdc.airflow.operators.stream_epoch import RestartNeeded, count_failure, decide_after_epoch

    log = logging.getLogger()
    run_context: Any = SimpleNamespace(pipeline=SimpleNamespace(name="p"), cluster=None)
    with contextlib.closing(StateDatabase.open(f"sqlite:///{tmp_path}/books.db", migrate=True)) as store:
        store.register_pipeline("p", "server")

        def lost(lived: float, restarts: RestartHistory) -> RestartHistory:
            number = store.begin_epoch("p", 0, "elsewhere", 1, 1.0)
            row = store.newest_epoch("p")
            assert row is not None
            beat(store, number, row.started_at - datetime.now(UTC) + timedelta(seconds=lived))
            event = {"epoch": number, "found": False, "verdict": "lost"}
            with pytest.raises(RestartNeeded) as found:
                decide_after_epoch(run_context, store, event, log)
            assert not found.value.made_progress
            return count_failure(restarts, found.value, timedelta(days=1), log)

        restarts = RestartHistory()
        for lived in (9, 9, 9, 600, 1, 1, 1, 1):
            restarts = lost(lived, restarts)
        with pytest.raises(
            TransientError, match="was lost 5 times within 10 minutes of running.* host or pod was shut down"
        ):
            lost(1, restarts)


def test_one_that_died_here_is_followed_at_once(opened: tuple[RunContext, StateDatabase]) -> None:
    context, store = opened
    store.begin_epoch("p", 0, socket.gethostname(), 1 << 30, 1.0, details={"machine": pid_scope_id()})
    began = time.monotonic()
    begin_epoch(context, store, catch_up=True)
    assert time.monotonic() - began < LOST_AFTER_SECONDS / 2


def test_a_container_with_the_same_name_is_another_host(opened: tuple[RunContext, StateDatabase]) -> None:
    """Its process ids mean something else: the one that is looked for is not here, and not dead for that."""
    context, store = opened
    script = "from airflow_provider_cdc.system import processes; import airflow_provider_cdc.runtime.liveness as of; "
    script += "print(*of.process_identity(), processes.pid_scope_id())"
    unshare = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc", sys.executable, "-c", script]
    found = subprocess.run(unshare, capture_output=True, text=True, check=False)
    if found.stderr.startswith("unshare:"):
        pytest.skip(f"no PID namespace of its own can be made here: {found.stderr}")
    assert found.returncode == 0, found.stderr
    host, pid, started, where = found.stdout.split()
    assert (host, pid) == (socket.gethostname(), "1") and where != pid_scope_id()
    number = store.begin_epoch("p", 0, host, int(pid), float(started), details={"machine": where})
    assert liveness.LivenessMonitor().is_alive(store.newest_epoch("p")) is None, "it takes more looks to tell"
    with beating(store, number, timedelta()), pytest.raises(NotReadyError, match="a stream of p is running"):
        begin_epoch(context, store, catch_up=True)


def test_a_lease(tmp_path: Path) -> None:
    """A stream that nobody looks after ends itself; while somebody does, or the bookkeeping is away, it goes on."""
    with contextlib.closing(StateDatabase.open(f"sqlite:///{tmp_path}/books.db", migrate=True)) as store:
        store.register_pipeline("p", "server")
        number, stop = store.begin_epoch("p", 0, "here", 1, 1.0), threading.Event()
        with liveness.Heartbeat(store, "p", number, {}, stop, lambda: False, lease_seconds=3.0):
            for _ in range(5):
                store.record_supervision("p", number, "a task, try 1")
                assert not stop.wait(1)
            with store._write_session() as session:  # nobody else gets to write for a while
                session.execute(text("SELECT 1"))
                assert not stop.wait(5)
            assert not stop.wait(1)
            assert stop.wait(20)
        row = store.newest_epoch("p")
        assert row is not None and row.desired_state == "stop" and (row.stop_by or "").startswith("its lease")
