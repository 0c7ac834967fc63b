"""A real Airflow for the tests and the demo: api-server, scheduler, dag-processor and triggerer as processes.

All of it lives in a temporary folder, on free loopback ports, and is gone afterwards. Nothing of the developer's own
Airflow is used: its ``AIRFLOW*`` variables are not passed on.
"""

from __future__ import annotations

import base64
import fcntl
import hashlib
import json
import os
import secrets
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import distributions
from pathlib import Path

from tests import ROOT
from tests.support.airflow_client import PATIENCE, Client
from tests.support.packages import cache_folder
from tests.support.processes import Session, StartedProcesses, free_port, remove_folder, tail, temporary_folder

__all__ = ["Airflow", "AirflowError", "Component"]

Config = Mapping[str, Mapping[str, object]]

#: Quick to notice what changes, small in what it takes; ``config=`` of :class:`Airflow` goes on top.
CONFIG: Config = {
    "core": {
        "executor": "LocalExecutor",
        "parallelism": 4,
        "load_examples": False,
        "simple_auth_manager_all_admins": True,
        "test_connection": "Enabled",
        "hostname_callable": "socket.gethostname",
        "min_serialized_dag_update_interval": 1,
    },
    "database": {"sql_alchemy_pool_size": 3},
    "api": {"host": "127.0.0.1", "workers": 1},
    "scheduler": {
        "scheduler_heartbeat_sec": 2,
        "job_heartbeat_sec": 2,
        "scheduler_idle_sleep_time": 0.8,
        "trigger_timeout_check_interval": 3,
        "task_instance_heartbeat_timeout_detection_interval": 3,
        "enable_health_check": False,
    },
    # A file that changes is read again at once, whatever the second interval; the others need not be.
    "dag_processor": {
        "refresh_interval": 5,
        "bundle_refresh_check_interval": 3,
        "min_file_process_interval": 600,
        "parsing_processes": 1,
    },
    "triggerer": {"job_heartbeat_sec": 2},
    # A task fails whose requests are not answered in time, and the machine is busy with other tests.
    "workers": {"execution_api_timeout": 60},
    "logging": {"colored_console_log": False},
}

#: Command and name of its rows in Airflow's table of jobs. The api-server has none.
_COMMANDS = {
    "api-server": (["api-server"], ""),
    "scheduler": (["scheduler", "--skip-serve-logs"], "SchedulerJob"),
    "dag-processor": (["dag-processor"], "DagProcessorJob"),
    "triggerer": (["triggerer", "--skip-serve-logs"], "TriggererJob"),
}


class AirflowError(Exception):
    """Airflow did not start, or one of its processes ended by itself; with the end of its log."""


class Component:
    """One of Airflow's processes, in a session of its own with all that it starts (a scheduler's tasks, for one).

    :param name: its kind, such as ``triggerer``, with a number behind a second one: ``triggerer-2``.
    """

    def __init__(self, name: str, env: Mapping[str, str], home: Path) -> None:
        self.name = name
        self.log = home / f"{name}.log"
        command, self.job_type = _COMMANDS[name.rstrip("-0123456789")]
        self._command = [sys.executable, "-m", "airflow", *command]
        self._env, self._home = env, home
        self._sessions: list[Session] = []
        self.started = datetime.now(UTC)

    def start(self) -> None:
        """Start it; :meth:`Airflow.wait_ready` waits until it works."""
        self.started = datetime.now(UTC)
        self._sessions.append(Session(self._command, self.log, env=self._env, cwd=self._home))

    @property
    def session(self) -> Session:
        """The session that was started last."""
        return self._sessions[-1]

    @property
    def pid(self) -> int:
        """Process id of the main process."""
        return self.session.pid

    @property
    def alive(self) -> bool:
        """Whether the main process runs."""
        return bool(self._sessions) and self.session.alive

    def kill(self) -> None:
        """SIGKILL to the main process alone (``kill -9``). Tasks that a scheduler had started may go on."""
        self.session.kill()

    def kill_all(self) -> None:
        """SIGKILL to it and all that it has started, as when its host or pod is lost."""
        self.session.kill_all()

    def stop(self) -> None:
        """SIGSTOP to it and all that it has started: it stands still until :meth:`cont`."""
        self.session.stop()

    def cont(self) -> None:
        """SIGCONT: end of :meth:`stop`."""
        self.session.cont()

    def restart(self) -> None:
        """Start it again; one that still runs is ended in good order first, with all that it has started."""
        if self.alive:
            self.session.end()
        self.start()

    def terminate(self) -> None:
        """SIGTERM to the main process, without waiting."""
        self.session.terminate()

    def close(self, grace: float = 10) -> None:
        """End it and all that earlier starts have left behind."""
        for session in self._sessions:
            session.end(grace)


class Airflow(StartedProcesses):
    """Airflow's processes on this machine; a context manager.

    :param dags: the folder or folders with DAG files; each is a bundle of its own, named ``dags``, ``dags-2``, ...
    :param database_url: SQLAlchemy URL of an empty database; default: a SQLite file.
    :param connections: URI by connection id, given to all processes as ``AIRFLOW_CONN_<ID>``.
    :param env: further variables for all processes.
    :param config: settings by section on top of :data:`CONFIG`, such as
        ``{"triggerer": {"triggerer_health_check_threshold": 6}}``.
    :param triggerers: how many; the second is called ``triggerer-2``.
    :param login: name and password of the one user, an administrator; default: everybody is one, without a login.
    :param only: which processes are started; all by default.
    """

    def __init__(
        self,
        dags: Path | Sequence[Path],
        *,
        database_url: str | None = None,
        connections: Mapping[str, str] | None = None,
        env: Mapping[str, str] | None = None,
        config: Config | None = None,
        triggerers: int = 1,
        login: tuple[str, str] | None = None,
        only: Sequence[str] = ("api-server", "scheduler", "dag-processor", "triggerer"),
    ) -> None:
        self._only = only
        self._dags = [dags] if isinstance(dags, Path) else list(dags)
        self._database_url = database_url
        self._connections, self._extra_env = dict(connections or {}), dict(env or {})
        self._config = config or {}
        self._triggerers = triggerers
        self._login = login
        self._components: dict[str, Component] = {}
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.home = Path()
        self.env: dict[str, str] = {}
        self.client = Client(self.url, login)

    # -- life

    def _begin(self) -> None:
        """Make the database, start all processes and wait until they work (15 to 25 s on two cores).

        :raise AirflowError: when it did not come up.
        """
        self.home = temporary_folder("cdc-airflow-")
        self.env = self._environment()
        if self._login is not None:  # otherwise Airflow would make a password and print it to a log
            passwords = self.home / "passwords.json"
            passwords.touch(mode=0o600)
            passwords.write_text(json.dumps(dict([self._login])))
        self._migrate()
        for name in [*self._only] + [f"triggerer-{n}" for n in range(2, self._triggerers + 1)]:
            self._start(name)
        self.wait_ready()

    def close(self) -> None:
        """End all processes and remove the folder. Doing so twice is allowed.

        Sessions that tasks have opened for themselves are not touched.
        """
        self.client.close()
        # The api-server last: tasks that are ended report to it.
        parts = sorted(self._components.values(), key=lambda part: part.name == "api-server")
        for part in parts[:-1]:
            part.terminate()
        for part in parts:
            part.close()
        self._components.clear()
        if self.home != Path():
            remove_folder(self.home)
            self.home = Path()

    # -- the processes

    def process(self, name: str) -> Component:
        """Return a process: ``api-server``, ``scheduler``, ``dag-processor``, ``triggerer``, ``triggerer-2``."""
        return self._components[name]

    def start_triggerer(self, env: Mapping[str, str] | None = None) -> Component:
        """Start one more triggerer; :meth:`wait_ready` waits until it works.

        :param env: variables that it alone has, as if it were on another host.
        """
        taken = [name for name in self._components if name.startswith("triggerer")]
        return self._start(f"triggerer-{len(taken) + 1}", env)

    def wait_ready(self, seconds: float = PATIENCE) -> None:
        """Wait until the api-server answers and every running process has signed in after it was last started.

        A process that was killed on purpose, and not restarted, is not waited for.

        :raise AirflowError: when one ended by itself, or after `seconds`.
        """
        expected = [component for component in self._components.values() if component.alive]
        start = time.monotonic()
        while not self._signed_in(expected):
            for component in expected:
                if not component.alive:
                    code = component.session.exit_code
                    raise AirflowError(f"Airflow's {component.name} ended ({code}):\n{tail(component.log)}")
            if time.monotonic() - start > seconds:
                logs = "\n".join(f"--- {part.name}\n{tail(part.log, 15)}" for part in expected)
                raise AirflowError(f"Airflow is not ready after {seconds:.0f} s:\n{logs}")
            time.sleep(0.2)

    def _signed_in(self, expected: list[Component]) -> bool:
        health = self.client.try_get("/monitor/health")
        if health is None or health["metadatabase"]["status"] != "healthy":
            return False
        if not any(component.job_type for component in expected):
            return True
        jobs = (self.client.try_get("/jobs", job_state="running", order_by="-id", limit=100) or {}).get("jobs", [])

        def since(component: Component, what: Sequence[tuple[str, datetime]]) -> int:
            return sum(1 for kind, at in what if kind == component.job_type and at >= component.started)

        signed = [(job["job_type"], datetime.fromisoformat(job["start_date"])) for job in jobs if job["start_date"]]
        started = [(component.job_type, component.started) for component in expected]
        return all(since(part, signed) >= since(part, started) for part in expected if part.job_type)

    def _start(self, name: str, env: Mapping[str, str] | None = None) -> Component:
        component = self._components[name] = Component(name, {**self.env, **(env or {})}, self.home)
        component.start()
        return component

    # -- the command line

    def command(self, *words: str, timeout: float = 120) -> str:
        """Run ``airflow <words>`` in this Airflow and return what it printed to standard output.

        :raise AirflowError: when it failed, with its output.
        """
        run = subprocess.run(
            [sys.executable, "-m", "airflow", *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            env=self.env,
            cwd=self.home,
            timeout=timeout,
        )
        if run.returncode:
            raise AirflowError(f"airflow {' '.join(words)} failed ({run.returncode}):\n{run.stdout}{run.stderr}")
        return run.stdout

    # -- settings

    def _environment(self) -> dict[str, str]:
        """Return the environment of all processes."""
        url = self._database_url or f"sqlite:///{self.home}/airflow.db"
        settings: dict[str, dict[str, object]] = {section: dict(options) for section, options in CONFIG.items()}
        names = ["dags", *(f"dags-{n}" for n in range(2, len(self._dags) + 1))]
        bundles = [
            {
                "name": name,
                "classpath": "airflow.dag_processing.bundles.local.LocalDagBundle",
                "kwargs": {"path": str(path.resolve())},
            }
            for name, path in zip(names, self._dags, strict=True)
        ]
        ours: Config = {
            "core": {
                "execution_api_server_url": f"{self.url}/execution/",
                "fernet_key": base64.urlsafe_b64encode(secrets.token_bytes(32)).decode(),
                "simple_auth_manager_passwords_file": self.home / "passwords.json",
            },
            "api": {"port": self.port, "base_url": self.url, "secret_key": secrets.token_hex(16)},
            "api_auth": {"jwt_secret": secrets.token_hex(32)},
            "database": {"sql_alchemy_conn": url},
            "dag_processor": {"dag_bundle_config_list": json.dumps(bundles)},
        }
        if url.startswith("postgresql+psycopg:"):  # serves both; left alone, Airflow would want asyncpg
            settings["database"]["sql_alchemy_conn_async"] = url
        if self._login is not None:
            user = {"simple_auth_manager_all_admins": False, "simple_auth_manager_users": f"{self._login[0]}:ADMIN"}
            settings["core"].update(user)
        for layer in (ours, self._config):
            for section, options in layer.items():
                settings.setdefault(section, {}).update(options)
        env = {name: value for name, value in os.environ.items() if not name.startswith(("AIRFLOW", "_AIRFLOW"))}
        env["AIRFLOW_HOME"] = str(self.home)
        env["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{env.get('PATH', os.defpath)}"
        env["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [env.get("PYTHONPATH")])])
        env["PYTHONUNBUFFERED"] = "1"
        for section, options in settings.items():
            for option, value in options.items():
                env[f"AIRFLOW__{section.upper()}__{option.upper()}"] = str(value)
        env |= {f"AIRFLOW_CONN_{name.upper()}": uri for name, uri in self._connections.items()}
        return env | self._extra_env

    def _migrate(self) -> None:
        """Make Airflow's tables. Those of SQLite are made once for each set of Airflow's packages, and copied."""
        if self._database_url is not None:
            self.command("db", "migrate")
            return
        installed = sorted(f"{d.name}={d.version}" for d in distributions() if d.name.startswith("apache-airflow"))
        name = hashlib.sha256(" ".join(installed).encode()).hexdigest()[:16]
        template = cache_folder() / "airflow-databases" / f"{name}.db"
        template.parent.mkdir(exist_ok=True)
        with open(template.with_suffix(".lock"), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not template.exists():
                self.command("db", "migrate")
                # Through SQLite itself: part of the database may still be in its write-ahead log.
                part = template.with_suffix(".part")
                part.unlink(missing_ok=True)
                source, target = sqlite3.connect(self.home / "airflow.db"), sqlite3.connect(part)
                with source, target:
                    source.backup(target)
                source.close()
                target.close()
                part.rename(template)
        if not (self.home / "airflow.db").exists():
            shutil.copyfile(template, self.home / "airflow.db")
