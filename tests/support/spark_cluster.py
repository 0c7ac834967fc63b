"""A real Spark standalone cluster for the tests and the demo: a master and workers, from the pyspark package."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx

from airflow_provider_cdc.spark.java import ensure_java_home
from tests import ROOT
from tests.support.packages import cache_folder
from tests.support.processes import Session, StartedProcesses, free_port, remove_folder, tail, temporary_folder

__all__ = ["Application", "SparkCluster", "SparkClusterError"]


class SparkClusterError(Exception):
    """The cluster did not come up; with the end of the logs."""


@dataclass(frozen=True)
class Application:
    """An application as its master sees it; `state` is WAITING, RUNNING, FINISHED, FAILED or KILLED."""

    id: str
    name: str
    state: str
    cores: int


class SparkCluster(StartedProcesses):
    """A master and workers on loopback, with their folders in a temporary one; a context manager.

    :param workers: how many.
    :param cores: of each worker.
    :param memory: of each worker, for its executors, as Spark writes it.
    :param hosts: names of this machine by which the workers are known, in turn.
    :param apart: each worker has temporary folders of its own, as on a host of its own.
    """

    def __init__(
        self,
        workers: int = 2,
        cores: int = 1,
        memory: str = "1g",
        hosts: Sequence[str] = ("127.0.0.1",),
        *,
        apart: bool = False,
    ) -> None:
        self._apart = apart
        self._workers: list[Session | None] = [None] * workers
        self._hosts = hosts
        self._cores, self._memory = cores, memory
        self._master: Session | None = None
        self._folder = Path()
        self._env: dict[str, str] = {}
        self.port, self.ui_port = free_port(), free_port()

    # -- life

    def _begin(self) -> None:
        """Start the master and the workers and wait until all are ready (about 5 s).

        :raise SparkClusterError: when they are not.
        """
        self._folder = temporary_folder("cdc-spark-")
        self._env = self._environment()
        address = ["--host", "127.0.0.1", "--port", str(self.port), "--webui-port", str(self.ui_port)]
        self._master = self._launch("master", "master.Master", address)
        self.wait_ready()  # a worker that finds no master tries again only after seconds
        for worker in range(len(self._workers)):
            self.start_worker(worker)
        self.wait_ready()

    def close(self) -> None:
        """End everything and remove the folder. Doing so twice is allowed."""
        sessions = [session for session in [*self._workers, self._master] if session is not None]
        for session in sessions:
            session.terminate()
        for session in sessions:
            session.end()
        self._workers, self._master = [None] * len(self._workers), None
        if self._folder != Path():
            remove_folder(self._folder)
            self._folder = Path()

    # -- use

    @property
    def uri(self) -> str:
        """Address of the master: for ``SparkSession.builder.master`` and as URI of a Spark connection."""
        return f"spark://127.0.0.1:{self.port}"

    def state(self) -> dict[str, Any]:
        """Return what the master's JSON page says."""
        answer = httpx.get(f"http://127.0.0.1:{self.ui_port}/json/", timeout=10, trust_env=False)
        state: dict[str, Any] = answer.raise_for_status().json()
        return state

    def applications(self) -> list[Application]:
        """Return the applications that run and those that have ended, the oldest first."""
        state = self.state()
        apps = [*state["completedapps"], *state["activeapps"]]
        found = [Application(app["id"], app["name"], app["state"], app["cores"]) for app in apps]
        return sorted(found, key=lambda app: app.id)

    def executors(self, worker: int | None = None) -> list[int]:
        """Return the process ids of the executors, of one worker or of all."""
        sessions = self._workers if worker is None else [self._workers[worker]]
        members = [pid for session in sessions if session is not None for pid in session.members()]
        return [pid for pid in members if _is_executor(pid)]

    # -- faults

    def kill_executor(self, worker: int = 0) -> None:
        """SIGKILL to the executors of one worker: Spark starts others."""
        for pid in self.executors(worker):
            os.kill(pid, signal.SIGKILL)

    def kill_worker(self, worker: int = 0) -> None:
        """SIGKILL to a worker and its executors, as when its host is lost."""
        if (session := self._workers[worker]) is not None:
            session.kill_all()
            self._workers[worker] = None

    def start_worker(self, worker: int = 0) -> None:
        """Start a worker (again); :meth:`wait_ready` waits until it has registered."""
        work = self._folder / f"worker-{worker}"
        host = self._hosts[worker % len(self._hosts)]
        words = ["--host", host, "--port", "0", "--webui-port", "0", "--work-dir", str(work)]
        words += ["--cores", str(self._cores), "--memory", self._memory, self.uri]
        own = {}
        if self._apart:
            (work / "tmp").mkdir(parents=True, exist_ok=True)
            own = {"TMPDIR": str(work / "tmp"), "SPARK_LOCAL_DIRS": str(work / "local"), "HOME": str(work)}
            # What is compiled may be shared: it comes with an image, or is made anew.
            own["XDG_CACHE_HOME"] = str(cache_folder().parent)
        self._workers[worker] = self._launch(f"worker-{worker}", "worker.Worker", words, own)

    def wait_ready(self, seconds: float = 90) -> None:
        """Wait until every worker that runs has registered with the master.

        :raise SparkClusterError: when one ended by itself, or after `seconds`.
        """
        deadline = time.monotonic() + seconds
        sessions = [session for session in [self._master, *self._workers] if session is not None]
        while (alive := self._alive_workers()) is None or alive < len(sessions) - 1:
            if time.monotonic() > deadline or not all(session.alive for session in sessions):
                logs = "\n".join(f"--- {session.log.name}\n{tail(session.log)}" for session in sessions)
                raise SparkClusterError(f"The Spark cluster is not ready:\n{logs}")
            time.sleep(0.1)

    def _alive_workers(self) -> int | None:
        """Return how many have registered and not been lost; None while the master does not answer."""
        try:
            return sum(1 for worker in self.state()["workers"] if worker["state"] == "ALIVE")
        except (httpx.HTTPError, ValueError):  # its pages come one after the other
            return None

    # -- how

    def _launch(self, name: str, main_class: str, words: list[str], own: Mapping[str, str] | None = None) -> Session:
        command = [f"{self._env['SPARK_HOME']}/bin/spark-class", f"org.apache.spark.deploy.{main_class}", *words]
        return Session(command, self._folder / f"{name}.log", env={**self._env, **(own or {})}, cwd=self._folder)

    def _environment(self) -> dict[str, str]:
        spec = find_spec("pyspark")
        assert spec is not None and spec.origin is not None
        bash = shutil.which("bash")
        assert bash is not None, "Spark's scripts need bash"
        env = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))}
        env |= {
            "JAVA_HOME": ensure_java_home(),
            "SPARK_HOME": str(Path(spec.origin).parent),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_LOCAL_DIRS": str(self._folder / "local"),
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",  # they start sooner, and do little
            # Executors import the project from where it lies.
            "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]),
        }
        return env


def _is_executor(pid: int) -> bool:
    try:
        return b"CoarseGrainedExecutorBackend" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
