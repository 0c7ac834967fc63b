"""A driver of a stream ends with its task, however that ends, until the task has let go of it."""

from __future__ import annotations

import contextlib
import logging
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from airflow_provider_cdc import Pipeline, Sink, Source
from airflow_provider_cdc.airflow.operators.stream_driver import request_stop
from airflow_provider_cdc.config.connections import ResolvedConnection
from airflow_provider_cdc.driver.launchers.local import detach_driver, new_log_file, result_file, start_detached
from airflow_provider_cdc.driver.request import DriverRequest
from airflow_provider_cdc.state import StateDatabase
from airflow_provider_cdc.system.processes import kill_session, pid_scope_id, process_start_time, session_members
from tests.support.processes import wait_for


@pytest.fixture
def silent() -> Iterator[socket.socket]:
    """A server that takes connections and says nothing: a driver waits there for a while."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(200)
        yield listener


def start(tmp_path: Path, silent: socket.socket) -> tuple[subprocess.Popen[bytes], Path, socket.socket]:
    """Start a driver; it has begun to look for its source."""
    pipeline = Pipeline(name="p", source=Source("cdc_source", ("a.b",)), sink=Sink(str(tmp_path / "lake")))
    conn = {"conn_id": "cdc_source", "conn_type": "mysql", "host": "127.0.0.1", "port": silent.getsockname()[1]}
    known = {
        "cdc_source": ResolvedConnection.from_json(
            {**conn, "login": "u", "password": "p", "schema": None, "extra": None}
        )
    }
    log = new_log_file(tmp_path / "logs")
    request = DriverRequest(pipeline.to_dict(), {key: value.to_json() for key, value in known.items()})
    request = DriverRequest(request.pipeline, request.connections, result=str(result_file(log)), log=str(log))
    process = start_detached(request, log)
    return process, result_file(log), silent.accept()[0]


def test_it_ends_when_its_task_is_gone(tmp_path: Path, silent: socket.socket) -> None:
    process, result, there = start(tmp_path, silent)
    with there:
        try:
            assert process.stdin is not None
            process.stdin.close()
            assert process.wait(200) < 0 and not result.exists(), "by a signal, without a word about the source"
            wait_for("the end of the session", lambda: not session_members(process.pid))
        finally:
            kill_session(process.pid)


def test_it_goes_on_when_it_was_let_go(tmp_path: Path, silent: socket.socket) -> None:
    process, result, there = start(tmp_path, silent)
    with there:
        try:
            detach_driver(process)
            there.close()  # the source is away: the driver ends by itself and says so
            assert process.wait(200) == 3 and result.exists()
        finally:
            kill_session(process.pid)


def test_asked_to_stop_when_the_task_is_killed(tmp_path: Path, silent: socket.socket) -> None:
    """Through the bookkeeping; where that does not answer, by SIGTERM to a driver on this host."""
    log = logging.getLogger("task")
    with contextlib.closing(StateDatabase.open(f"sqlite:///{tmp_path}/books.db", migrate=True)) as store:
        store.register_pipeline("p", "server")
        sleeper = subprocess.Popen(["sleep", "100"], start_new_session=True)
        try:
            details = {"machine": pid_scope_id()}
            store.begin_epoch(
                "p", 0, socket.gethostname(), sleeper.pid, process_start_time(sleeper.pid), details=details
            )
            run = store.newest_epoch("p")
            assert run is not None
            answers = SimpleNamespace(
                open_state_database=lambda: StateDatabase.open(f"sqlite:///{tmp_path}/books.db", migrate=False)
            )
            request_stop(answers, run, "a task, try 1", log)  # type: ignore[arg-type]
            now = store.newest_epoch("p")
            assert now is not None and (now.desired_state, now.stop_by) == ("stop", "a task, try 1")
            assert sleeper.poll() is None
            url = f"postgresql+psycopg://u:p@127.0.0.1:{silent.getsockname()[1]}/d"
            silence = SimpleNamespace(open_state_database=lambda: StateDatabase.open(url, migrate=False))
            request_stop(silence, run, "a task, try 1", log)  # type: ignore[arg-type]
            assert sleeper.wait(60) == -signal.SIGTERM
        finally:
            sleeper.kill()
            sleeper.wait()
