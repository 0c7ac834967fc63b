"""The phases' own code in processes that a test may kill at any moment, without a JVM.

``python -m tests.support.harness pipeline.yaml`` runs snapshot and catch-up of a pipeline once: the same code as
``airflow-cdc run --catch-up``, with the snapshot's workers as threads and the stream's batches driven in the process.
Connections come from ``AIRFLOW_CONN_<ID>``, a failpoint from ``CDC_FAILPOINT``.

Without an argument it is the nursery of :class:`Nursery`: it imports everything once (seconds of CPU time) and then
forks a child for each line of JSON that it reads. Every child leads a session of its own, as the command line does. A
child may also be a command of ``airflow-cdc``, from its arguments to its exit code, with only Spark left out.
"""

from __future__ import annotations

import ctypes
import faulthandler
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

# What Arrow, SQLAlchemy and the workers import when they first need it: better once, before the first fork.
import pandas  # noqa: F401
import pyarrow.pandas_compat  # noqa: F401
import pytest
import sqlalchemy.dialects.sqlite  # noqa: F401
from deltalake import DeltaTable

from airflow_provider_cdc import cli
from airflow_provider_cdc.chunk_groups import spark_job as snapshot_job
from airflow_provider_cdc.chunk_groups.task import run_in_threads
from airflow_provider_cdc.config import Pipeline
from airflow_provider_cdc.maintenance import table_maintenance
from airflow_provider_cdc.model.errors import CdcError
from airflow_provider_cdc.mysql.resultset import reader  # noqa: F401
from airflow_provider_cdc.observe.observer import snapshot_observer
from airflow_provider_cdc.preflight import run as preflight
from airflow_provider_cdc.resnapshot import worker as rereading
from airflow_provider_cdc.runtime.run_context import RunContext
from airflow_provider_cdc.sinks.iceberg.log.table_markers import parse_markers
from airflow_provider_cdc.sinks.lake import compaction
from airflow_provider_cdc.snapshot.run import run_group, run_snapshot
from airflow_provider_cdc.spark import session
from airflow_provider_cdc.stream import epoch
from airflow_provider_cdc.stream import run as stream
from airflow_provider_cdc.system import failpoints
from airflow_provider_cdc.system.failpoints import ENV_VARIABLE
from tests import ROOT
from tests.support.cli import asked_by
from tests.support.epochs import run_epoch_in_process
from tests.support.iceberg_place import find_in_catalog
from tests.support.processes import members

#: Exit code of a child that a failpoint (or a test) has killed.
KILLED = -signal.SIGKILL
#: Seconds after which a child hangs: it says where, and ends. One that asks a store for much on a busy machine takes
#: longer than 300 s.
_HANGS_SECONDS = 900


def run(pipeline: str | Path, batch_bytes: int | None = None, only: str | None = None) -> None:
    """Snapshot, then the stream up to where the server stands at its beginning.

    :param batch_bytes: bytes of binlog in one batch, less than a pipeline allows: a short test has many batches then.
    :param only: ``snapshot`` or ``stream``, to run that alone.
    """
    context = RunContext.for_pipeline(Pipeline.load(pipeline))
    store = context.open_state_database()
    try:
        if only != "stream":
            run_snapshot(context, store, context.plans.ensure(store), run_in_threads, snapshot_observer)
        if only == "snapshot":
            return
        epoch = stream.begin_epoch(context, store, catch_up=True)
        if batch_bytes:
            epoch.job = replace(epoch.job, max_batch_bytes=batch_bytes, min_range_bytes=max(1, batch_bytes // 3))
        run_epoch_in_process(epoch)
    finally:
        store.close()


def read_group(pipeline: str, group: int, task: str) -> None:
    """Read a chunk group, as a scheduler's task that somebody has cleared; print the outcome.

    :param task: the task and the number of its request, see :func:`tests.support.cli.asked_by`.
    """
    context = RunContext.for_pipeline(Pipeline.load(pipeline))
    with closing(context.open_state_database()) as store:
        plan = context.plans.ensure(store)
        asked = asked_by(task)
        found = run_group(
            context, store, plan, group, run_in_threads, holder=task, requested_by=asked, observe=snapshot_observer
        )
        print(f"group {group}: {found.outcome}", flush=True)


def hold(place: Path, seconds: float) -> None:
    """Wait at a failpoint until a test lets the process continue.

    :param place: it says in a file ``<place>.reached`` that it waits, and waits for a file ``<place>.continue``.
    :param seconds: it continues after so many seconds in any case.
    """
    place.with_suffix(".reached").touch()
    end = time.monotonic() + seconds
    while time.monotonic() < end and not place.with_suffix(".continue").exists():
        time.sleep(0.02)


def call(command: str, *arguments: str) -> int:
    """A command of ``airflow-cdc``, where tasks of Spark are threads; its exit code."""
    session.start_session = lambda *_, **__: _NoSpark()  # type: ignore[assignment]
    snapshot_job.spark_runner = lambda *_: run_in_threads
    stream.run_epoch_on_spark = lambda epoch, spark: run_epoch_in_process(epoch)
    sys.argv = ["airflow-cdc", command, *arguments]
    try:
        cli.main()
    except SystemExit as end:
        return int(end.code or 0)
    return 0


class _NoSpark:
    def stop(self) -> None:
        """There is nothing to stop."""


@dataclass
class Child:
    """A running child: ``pid`` is its process, its group and its session."""

    pid: int
    _ask: Callable[[Mapping[str, Any]], Any]

    def wait(self) -> int:
        """Wait for its end: 0, the exit code of an error, or :data:`KILLED`."""
        return int(self._ask({"wait": self.pid}))

    def kill(self) -> None:
        """Kill it and everything in its group, if it has not ended by itself."""
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            return


class Nursery:
    """Starts children. A context manager; its children do not outlive it."""

    def __enter__(self) -> Self:
        # Errors come in order, and threads of numeric libraries do not survive a fork.
        environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.harness"],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait(60)

    def start(
        self,
        pipeline: Path,
        connections: Mapping[str, str],
        failpoint: str = "",
        *,
        batch_bytes: int | None = None,
        only: str | None = None,
        command: Sequence[str] = (),
        group: tuple[int, str] | None = None,
        hold: tuple[Path, float] | None = None,
        constants: Mapping[str, Any] | None = None,
        checked: bool = True,
        log: Path | None = None,
    ) -> Child:
        """Fork a child that runs a pipeline; parameters as :func:`run`.

        :param connections: (``AIRFLOW_CONN_...`` -> address); they travel by a pipe only.
        :param failpoint: where it shall kill itself, as ``name:n``.
        :param command: a command of ``airflow-cdc`` and its arguments, which is run instead.
        :param group: number of a chunk group and task, see :func:`read_group`, which is run instead.
        :param hold: it waits at the failpoint, rather than die: parameters of :func:`hold`.
        :param constants: ``module.NAME`` below ``airflow_provider_cdc`` to the value that it has in this child.
        :param checked: whether a command checks server, tables and machine first, which takes half of its time.
        :param log: file that gets its output and its error.
        """
        environment = {**connections, ENV_VARIABLE: failpoint}
        what = {"pipeline": str(pipeline), "batch_bytes": batch_bytes, "only": only}
        asked = [command[0], "-f", str(pipeline), *command[1:]] if command else []
        order: dict[str, Any] = {"run": what, "command": asked, "environment": environment}
        order["log"] = str(log or os.devnull)
        order |= {"group": group, "hold": hold and (str(hold[0]), hold[1]), "constants": dict(constants or {})}
        order["checked"] = checked
        return Child(int(self._ask(order)), self._ask)

    def _ask(self, order: Mapping[str, Any]) -> Any:
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())


class Deaths(Counter[str]):
    """How often runs have died at each failpoint."""

    def check(
        self, request: pytest.FixtureRequest, names: Sequence[str], chains: int, least: int | None = None
    ) -> None:
        """A schedule counts only if it died where it was to die. Each chain has every so-many-th failpoint.

        :param request: of a test beside the chains, whose ids are ``chain-<number>``.
        :param chains: how many there are; ``least`` of them must have been selected, by default all.
        """
        here = [item.name for item in request.session.items if item.path == request.path]
        ran = [n for n in range(chains) if any(f"[chain-{n}]" in name for name in here)]
        if len(ran) < (least or chains):
            pytest.skip("only some of the schedules were selected")
        print(", ".join(f"{name} {self[name]}" for name in names))
        assert not [name for n in ran for name in names[n::chains] if not self[name]]


def kill_session(session: int, seconds: float = 30) -> None:
    """SIGKILL to every process of a session until none is left, as when a machine or a container dies."""
    end = time.monotonic() + seconds
    while alive := members(session):
        if time.monotonic() > end:
            raise AssertionError(f"session {session} still has the processes {alive}")
        for pid in alive:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.02)


def pipeline_file(
    file: Path, name: str, database: str, snapshot: Mapping[str, int], sink: Mapping[str, Any], master: str
) -> Path:
    """Write the file of a pipeline that copies all tables of a database."""
    value = {
        "name": name,
        "source": {"conn_id": "cdc_source", "tables": [rf"{database}\..*"]},
        "snapshot": snapshot,
        "stream": {"trigger_seconds": 0.1},
        "sink": sink,
        "spark": {"master": master},
    }
    file.write_text(json.dumps(value))  # JSON is YAML
    return file


@dataclass(frozen=True)
class Lake:
    """The folder that a pipeline fills, as a test looks at it: only at files, never through the project's own code.

    :param path: ``sink.path``.
    :param pipeline: name of the pipeline.
    :param sink: more of the pipeline's section ``sink``. Tables are two folders below ``path``.
    """

    path: Path
    pipeline: str
    sink: Mapping[str, Any] = field(default_factory=dict)

    @property
    def place(self) -> Path:
        """The same, for the oracle."""
        return self.path

    @property
    def connections(self) -> Mapping[str, str]:
        """None is needed for a folder."""
        return {}

    @property
    def private(self) -> Path:
        return self.path / "_cdc" / self.pipeline

    def write_pipeline(self, database: str, master: str = "local[2]", **snapshot: int) -> Path:
        """Write the pipeline's file beside the lake; its connection is ``cdc_source``."""
        file, sink = self.path.with_name(f"{self.path.name}.yaml"), {"path": str(self.path), **self.sink}
        return pipeline_file(file, self.pipeline, database, snapshot, sink, master)

    def lose(self, what: str) -> None:
        """Remove what a run must be able to do without: ``checkpoint``, ``staging`` or ``bookkeeping``."""
        if what == "bookkeeping":
            for file in self.private.glob("bookkeeping.db*"):
                file.unlink()
        else:
            shutil.rmtree(self.private / what, ignore_errors=True)

    def finished_files(self) -> dict[Path, tuple[int, int]]:
        """Snapshot files with a manifest beside them: (inode, time of the last change) of each."""
        files = [path.parents[4] / name for path, manifest in self._sidecars().items() for name in files_of(manifest)]
        return {file: (file.stat().st_ino, file.stat().st_mtime_ns) for file in files}

    def _sidecars(self) -> dict[Path, Any]:
        """Manifests beside the files, without those that a test has damaged."""
        found = {}
        for path in self.path.glob("*/*/snapshot/*/*/*/slice-*.json"):
            with suppress(ValueError):
                found[path] = json.loads(path.read_text())
        return found

    def check_files(self, before: Mapping[Path, tuple[int, int]]) -> None:
        """Finished files were read once: they are as they were, and the ones that the sink's own markers name.

        :param before: what :meth:`finished_files` said, some restarts ago.
        """
        now = self.finished_files()
        assert {file: now.get(file) for file in before} == dict(before), "finished files were written again"
        slices = [(m.parents[1], m.name) for m in self._sidecars()]
        assert len(slices) == len(set(slices)), "a slice was read twice"
        named = {folder / name for folder, _, _, entry in self._published() for name in files_of(entry)}
        assert named == set(now), "the published files are not the finished ones"

    def check_books(self, *, complete: bool) -> None:
        """What the bookkeeping says of each chunk stands in the sink: in a finished file, or in a published one.

        :param complete: whether every chunk must be published.
        """
        held: dict[tuple[str, int, int], Any] = {}
        for sidecar, manifest in self._sidecars().items():
            for chunk in manifest["chunks"]:
                held["read", chunk["no"], int(sidecar.parent.name)] = chunk
        for _, _, attempt, entry in self._published():
            for chunk in entry["chunks"]:
                held["done", chunk["no"], attempt] = chunk
        with closing(sqlite3.connect(self.private / "bookkeeping.db")) as books:
            tables = {name for (name,) in books.execute("SELECT name FROM sqlite_master")}
            if not complete and "chunks" not in tables:
                return  # killed before it was set up
            listed = books.execute(
                "SELECT state, chunk_no, attempt, lw, hw, rows, corrected, bytes FROM chunks"
            ).fetchall()
            groups = books.execute("SELECT group_no, state FROM chunk_groups").fetchall()
        assert not complete or listed
        for state, no, attempt, lw, hw, rows, corrected, size in listed:
            if state == "pending" and not complete:
                assert (attempt, lw, hw, rows) == (0, None, None, None), f"chunk {no} holds what is not there"
                continue
            chunk = held.get((state, no, attempt))
            assert chunk is not None, f"the bookkeeping says that chunk {no} is {state} by attempt {attempt}"
            found = {"lw": json.loads(lw), "hw": json.loads(hw), "rows": rows, "corrected": corrected}
            assert found == {name: chunk[name] for name in found}, f"chunk {no}, attempt {attempt}"
            assert size > 0 or not rows
        if complete:
            assert {state for state, *_ in listed} == {"done"} == {state for _, state in groups}

    def _published(self) -> Iterator[tuple[Path, str, int, Any]]:
        """Published files: folder of the table, number of the group, attempt, entry of the manifest."""
        for folder in {sidecar.parents[4] for sidecar in self._sidecars()}:
            for group in folder.glob("snapshot/*/*"):
                generation, number = group.parent.name, group.name
                attempt = self._marker_in(folder, f"cdc/{self.pipeline}/{generation}/group/{number}")
                if attempt is None:
                    continue
                manifest = self.private / "groups" / generation / number / f"attempt-{attempt}.json"
                for entry in json.loads(manifest.read_text()):
                    if all((folder / name).exists() for name in files_of(entry)):  # else it is another table's
                        yield folder, number, attempt, entry

    def _marker_in(self, folder: Path, name: str) -> int | None:
        if self.sink.get("kind") != "iceberg":
            return DeltaTable(str(folder)).transaction_version(name)
        table = find_in_catalog(folder)
        assert table is not None, folder
        return parse_markers(table.properties).get(name)


def files_of(manifest: Mapping[str, Any]) -> list[str]:
    """Paths of the files that a slice's manifest names: one, or one for each partition."""
    file = manifest["file"]
    return [part["path"] for part in file.get("parts") or (file,)]


def _child(order: dict[str, Any]) -> int:
    os.setsid()
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: the nursery's end is its own
    log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for number in (1, 2):
        os.dup2(log, number)
    os.environ.update(order["environment"])
    faulthandler.enable()  # into the log, which the test shows
    faulthandler.dump_traceback_later(_HANGS_SECONDS, exit=True)
    if order["hold"]:
        place, seconds = order["hold"]
        failpoints.kill_session = lambda _: hold(Path(place), seconds)  # type: ignore[attr-defined,assignment]
    for name, value in order["constants"].items():
        module, _, constant = name.rpartition(".")
        found = sys.modules[f"airflow_provider_cdc.{module}"]
        assert hasattr(found, constant), name
        setattr(found, constant, value)
    if not order["checked"]:
        preflight.require_preflight = lambda *_, **__: []
    try:
        if order["command"]:
            return call(*order["command"])
        if order["group"]:
            read_group(order["run"]["pipeline"], *order["group"])
            return 0
        run(**order["run"])
        return 0
    except CdcError as error:
        traceback.print_exc()
        return error.exit_code
    except BaseException:
        traceback.print_exc()
        return 1


def _nursery() -> None:
    # Short runs compact, too.
    compaction.FANOUT, compaction.MIN_FANOUT, compaction.MAX_DEAD_SHARE, table_maintenance._POLL_SECONDS = (
        4,
        3,
        0.1,
        0.5,
    )
    # And they do not wait for a table that is gone, was created, or is altered just now.
    rereading._MISSING_SECONDS, rereading._CATALOG_SECONDS, rereading._RETRY_SECONDS = 0.5, 0.5, 0.2
    epoch._PUBLISH_CHECK_SECONDS = 0.5
    for line in sys.stdin:
        order = json.loads(line)
        if "wait" in order:
            print(os.waitstatus_to_exitcode(os.waitpid(order["wait"], 0)[1]), flush=True)
            continue
        pid = os.fork()
        if pid == 0:
            code = _child(order)
            sys.stderr.flush()
            os._exit(code)
        print(pid, flush=True)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        run(sys.argv[1])
    else:
        _nursery()
