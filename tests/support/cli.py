"""One pipeline of a test's own: its file, the real command line on it, and its phases without Spark."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import yaml
from sqlalchemy import Connection, event

from airflow_provider_cdc import cli as command_line
from airflow_provider_cdc.chunk_groups.chunk_group import TaskRequest
from airflow_provider_cdc.chunk_groups.task import run_in_threads
from airflow_provider_cdc.cli import base
from airflow_provider_cdc.config import Pipeline
from airflow_provider_cdc.observe.observer import snapshot_observer
from airflow_provider_cdc.resnapshot.purged_binlog import replan_if_purged
from airflow_provider_cdc.resnapshot.read import run_resnapshot
from airflow_provider_cdc.runtime.run_context import RunContext
from airflow_provider_cdc.snapshot.run import run_snapshot
from airflow_provider_cdc.state import StateDatabase
from airflow_provider_cdc.stream.epoch import Epoch
from airflow_provider_cdc.stream.run import begin_epoch
from tests import ROOT
from tests.support.delta import delta_table
from tests.support.epochs import run_epoch_in_process
from tests.support.servers import MySQLServer

#: The environment is the process's: a thread that leaves would take the connections of one that has just entered.
_one_environment = threading.RLock()


def asked_by(task: str) -> TaskRequest | None:
    """What a scheduler's task asks for: a new request each time, or that of ``task#number``; none without a name."""
    name, _, number = task.partition("#")
    return TaskRequest(name, int(number or time.monotonic_ns())) if name else None


_STARTING = re.compile(r"^[0-9:]+ (starting Java|Java runs after|Spark runs after)")


@dataclass(frozen=True)
class Result:
    """How a command ended: exit code, standard output, standard error."""

    code: int
    out: str
    err: str

    @property
    def problem(self) -> str:
        """The one line on standard error; fails if there is anything but that, and what a slow start waits for."""
        lines = [line for line in self.err.splitlines() if not _STARTING.search(line)]
        assert len(lines) == 1 and lines[0].startswith("error: "), self.err
        return lines[0]

    @property
    def found(self) -> list[str]:
        """Findings of ``check`` that are errors."""
        return [line for line in self.out.splitlines() if line.startswith("error")]


class Cli:
    """A pipeline in a folder of its own, which does not have to exist yet.

    :param folder: holds ``pipeline.yaml``; the sink is ``lake`` in it.
    :param server: the source.
    :param user: ``user`` and ``password``; the administrator when missing.
    :param settings: further sections and keys of the pipeline, such as ``snapshot={"chunk_rows": 50}``.
    """

    def __init__(
        self,
        folder: Path,
        server: MySQLServer,
        *tables: str,
        name: str = "p",
        user: Mapping[str, str] | None = None,
        **settings: dict[str, Any],
    ) -> None:
        self.folder, self.file, self.sink = folder, folder / "pipeline.yaml", folder / "lake"
        self.env = {"AIRFLOW_CONN_CDC_SOURCE": server.uri(**(user or {}))}
        self.value: dict[str, Any] = {
            "name": name,
            "source": {"conn_id": "cdc_source", "tables": list(tables)},
            "sink": {"path": str(self.sink)},
        }
        for section, values in settings.items():
            self.value.setdefault(section, {}).update(values)
        # So that a test sees the error itself. What the default makes of it is in tests/resnapshot/test_suspension.py.
        self.value.setdefault("stream", {}).setdefault("on_table_error", "stop")
        folder.mkdir(parents=True, exist_ok=True)
        self.write()

    def write(self) -> None:
        """Write the file anew from ``value``."""
        self.file.write_text(yaml.safe_dump(self.value, allow_unicode=True), encoding="utf-8")

    # -- the command line

    def call(self, command: str, *args: str) -> Result:
        """Run a command in this process: for those that end before Spark would start (an import costs 2 s)."""
        out, err = io.StringIO(), io.StringIO()
        argv = ["airflow-cdc", command, "-f", str(self.file), *args]
        code: Any = 0
        with (
            self._environment(),
            patch.object(sys, "argv", argv),
            patch.object(base, "known_secrets", []),  # those of another test must not be taken out here
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            try:
                command_line.main()
            except SystemExit as end:
                code = end.code
        return Result(int(code or 0), out.getvalue(), err.getvalue())

    def reported_status(self) -> dict[str, Any]:
        """What ``status --json`` says."""
        result = self.call("status", "--json")
        assert result.code == 0, result
        found: dict[str, Any] = json.loads(result.out)
        return found

    def run(self, command: str, *args: str, timeout: float = 300, **env: str) -> Result:
        """Run a command as a process of its own."""
        with self.start(command, *args, **env) as process:
            out, err = process.communicate(timeout=timeout)
        return Result(process.returncode, out, err)

    def start(self, command: str, *args: str, **env: str) -> subprocess.Popen[str]:
        """Start a command as a process and session of its own, so that everything it starts can be found."""
        return subprocess.Popen(
            [sys.executable, "-m", "airflow_provider_cdc", command, "-f", str(self.file), *args],
            cwd=self.folder,
            env={**_clean(), "PYTHONPATH": str(ROOT), **self.env, **env},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    # -- the phases, without a JVM

    @property
    def context(self) -> RunContext:
        with self._environment():
            return RunContext.for_pipeline(Pipeline.load(self.file))

    @contextlib.contextmanager
    def opened(self) -> Iterator[tuple[RunContext, StateDatabase]]:
        context = self.context
        with contextlib.closing(context.open_state_database()) as store:
            yield context, store

    def snapshot(self) -> None:
        """Start or resume the snapshot."""
        with self.opened() as (context, store):
            run_snapshot(context, store, replan_if_purged(context, store), run_in_threads, snapshot_observer)

    def catch_up(self) -> None:
        """Stream to the position that the source has now."""
        with self.opened() as (context, store):
            run_epoch_in_process(begin_epoch(context, store, catch_up=True))

    def resnapshot(self, table: str, where_key: str | None = None) -> str:
        """Read a table again, or some of its rows."""
        with self.opened() as (context, store):
            return run_resnapshot(context, store, table, where_key, run_in_threads)

    @contextlib.contextmanager
    def epoch(self, batch_bytes: int = 1 << 28) -> Iterator[Epoch]:
        """An epoch of the stream that has begun, to be driven by the test."""
        with self.opened() as (context, store):
            store.allow_stream(context.pipeline.name)
            found = begin_epoch(context, store, catch_up=True)
            found.job = replace(found.job, max_batch_bytes=batch_bytes)
            try:
                yield found
            finally:
                store.end_epoch(context.pipeline.name, found.number, "stopped")

    @contextlib.contextmanager
    def streaming(self) -> Iterator[Epoch]:
        """The stream runs meanwhile, in a thread."""
        with self.opened() as (context, store):
            store.allow_stream(context.pipeline.name)
            epoch = begin_epoch(context, store, catch_up=False)
            thread = threading.Thread(target=run_epoch_in_process, args=(epoch,))
            thread.start()
            try:
                yield epoch
            finally:
                epoch.stop.set()
                thread.join(180)  # a table that is read again is waited for
            assert not thread.is_alive()

    def rows(self, database: str, table: str) -> pa.Table:
        """The rows of a sink table, as the project itself reads them."""
        context = self.context
        schema = next(t for t in context.plans.require().tables if t.id == (database, table))
        return delta_table(context, schema).read_with_soft_deleted()

    @contextlib.contextmanager
    def _environment(self) -> Iterator[None]:
        with _one_environment, patch.dict(os.environ, self.env):
            for name in set(os.environ) - set(_clean()) - set(self.env):
                del os.environ[name]
            yield


def _clean() -> dict[str, str]:
    """The environment without connections of the person who runs the tests."""
    return {k: v for k, v in os.environ.items() if not k.startswith(("AIRFLOW_CONN_", "CDC_FAILPOINT"))}


@contextlib.contextmanager
def read_only(store: StateDatabase) -> Iterator[None]:
    """A bookkeeping in SQLite that answers and takes no writes, as on a full disk."""

    def refuse(connection: Connection) -> None:
        connection.exec_driver_sql("PRAGMA query_only = ON")

    event.listen(store._engine, "begin", refuse)
    try:
        yield
    finally:
        event.remove(store._engine, "begin", refuse)
        store.close()  # connections that have obeyed


def session_processes(leader: int) -> list[int]:
    """Ids of the living processes of a session, zombies left out."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                if int(fields[3]) == leader and fields[0] != "Z":
                    found.append(int(entry.name))
    return found


def tree(folder: Path) -> dict[str, bytes | None]:
    """Every file below a folder with its content (``None`` for folders): equal if nothing was written."""
    return {str(p.relative_to(folder)): p.read_bytes() if p.is_file() else None for p in sorted(folder.rglob("*"))}
