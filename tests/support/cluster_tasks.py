"""Tasks whose drivers run in a cluster: run in this process as Airflow does, or in one of their own that is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.exceptions import TaskDeferred

from airflow_provider_cdc import CdcSnapshotOperator, CdcStreamOperator
from airflow_provider_cdc.state import StateDatabase
from tests import ROOT
from tests.support.cli import Cli
from tests.support.processes import wait_for
from tests.support.servers import MySQLServer

#: Rows of the table that :func:`make_table` makes.
ROWS = 60


def make_table(server: MySQLServer, database: str) -> None:
    """Make the table ``t`` with some rows."""
    rows = ", ".join(f"({number}, 'name {number}')" for number in range(ROWS))
    server.session(database, "CREATE TABLE t (id INT PRIMARY KEY, name VARCHAR(20))", f"INSERT INTO t VALUES {rows}")


def task_context(name: str, try_number: int = 1) -> Any:
    """Return what Airflow gives a try of a task."""
    pushed: dict[str, Any] = {}
    ti = SimpleNamespace(dag_id="d", run_id="r", task_id=name, map_index=0, max_tries=3, try_number=try_number)
    ti.xcom_push = lambda key, value: pushed.update({key: value})
    ti.pushed = pushed
    return {"ti": ti}


def snapshot_operator(file: Path | str) -> CdcSnapshotOperator:
    """Return the operator of a task that reads both chunk groups of a pipeline."""
    return CdcSnapshotOperator(task_id="read", pipeline=str(file), groups=[0, 1])


def read(file: Path | str, try_number: int = 1) -> dict[str, Any]:
    """Run the task that reads both chunk groups."""
    result: dict[str, Any] = snapshot_operator(file).execute(task_context("read", try_number))
    return result


def wait_for_running_group(store: StateDatabase) -> None:
    """Wait until a chunk group of the pipeline ``p`` is being read."""
    wait_for("a chunk group", lambda: any(row.state == "running" for row in store.groups("p", 1)), 300)


_TRY = """
from tests.support.cluster_tasks import read
read({file!r})
"""


def die_at(cli: Cli, failpoint: str) -> None:
    """Run a try of the task that reads, in a separate process that is killed at a failpoint."""
    env = {**os.environ, "CDC_FAILPOINT": failpoint}
    command = [sys.executable, "-c", _TRY.format(file=str(cli.file))]
    run = subprocess.run(command, cwd=ROOT, env=env, start_new_session=True, capture_output=True, text=True)
    assert run.returncode == -signal.SIGKILL, run.stderr


def stream_operator(file: Path | str) -> CdcStreamOperator:
    """Return the operator of the stream's task, which defers."""
    return CdcStreamOperator(task_id="stream", pipeline=str(file), deferrable=True)


def follow(cli: Cli, event: dict[str, Any] | None = None) -> Any:
    """Let the stream's task find or start a stream, until it defers.

    :param event: what its trigger has said, if the task goes on after that.
    :returns: the trigger.
    """
    operator = stream_operator(cli.file)
    with pytest.raises(TaskDeferred) as deferred:
        if event is None:
            operator.execute(task_context("stream"))
        else:
            operator.resume(task_context("stream"), event)
    return deferred.value.trigger


class Canary:
    """Looks for secrets in the command lines and environments of all processes, until the end of the block."""

    def __init__(self, *secrets: str) -> None:
        self._secrets, self._over, self.found = [secret.encode() for secret in secrets], threading.Event(), set[str]()
        self._thread = threading.Thread(target=self._look)

    def __enter__(self) -> Canary:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        own = os.getpid()
        while not self._over.wait(0.1):
            for entry in Path("/proc").iterdir():
                if entry.name.isdigit() and int(entry.name) != own:
                    for name in ("cmdline", "environ"):
                        with suppress(OSError):
                            data = (entry / name).read_bytes()
                            if any(secret in data for secret in self._secrets):
                                self.found.add(f"{name} of {(entry / 'cmdline').read_bytes()[:200]!r}")

    def files(self, *folders: Path) -> set[str]:
        """Return the names of all files that contain a secret."""
        found = set()
        for folder in folders:
            for path in folder.rglob("*"):
                with suppress(OSError):
                    data = path.read_bytes() if path.is_file() else b""
                    if any(secret in data for secret in self._secrets):
                        found.add(path.name)
        return found
