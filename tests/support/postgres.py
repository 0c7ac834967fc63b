"""A real PostgreSQL server for the tests and the demo: private, on a free loopback port, gone afterwards.

The server's programs are the machine's own, in PATH or where Debian and Ubuntu put them, else the distribution's
packages, unpacked into the user's cache folder (not installed: the system is not changed, no rights are needed).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pwd
import secrets
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psycopg

from tests.support.packages import POSTGRES, ServerUnavailable, unpacked_packages
from tests.support.processes import Session, StartedProcesses, free_port, remove_folder, tail, temporary_folder

__all__ = ["Postgres", "ServerUnavailable", "find_postgres"]

#: Made to be thrown away: a crash of the machine would spoil the data. A kill -9 of the server loses nothing.
SETTINGS = {
    "fsync": "off",
    "full_page_writes": "off",
    "wal_level": "minimal",
    "max_wal_senders": "0",
    "max_connections": "200",
    "shared_buffers": "64MB",
    "dynamic_shared_memory_type": "mmap",  # in the data folder, so that nothing stays behind
    "jit": "off",
    "autovacuum_naptime": "10min",
    "unix_socket_directories": "",
    "listen_addresses": "127.0.0.1",
}

#: As root the server runs as this user: PostgreSQL refuses to be root.
USER = "nobody"
_libc = ctypes.CDLL(None, use_errno=True)
_LIBRARIES = ("usr/lib/*-linux-gnu*", "lib/*-linux-gnu*")


class Postgres(StartedProcesses):
    """A PostgreSQL server of one's own, with databases ``airflow`` and ``bookkeeping``, each with a user of that name.

    A context manager. The data lives until :meth:`close`; :meth:`stop`, :meth:`kill` and :meth:`pause` make outages.

    :param databases: names of the databases, and of the users that own them.
    """

    def __init__(self, databases: Sequence[str] = ("airflow", "bookkeeping")) -> None:
        self.host = "127.0.0.1"
        self.port = free_port()
        self.passwords = {name: secrets.token_hex(16) for name in databases}
        self._admin = secrets.token_hex(16)
        self._folder: Path | None = None
        self._bin = Path()
        self._env = dict(os.environ)
        self._session: Session | None = None

    # -- life

    def _begin(self) -> None:
        """Start the server, with its data if there are any, and wait until it answers (about 2 s the first time).

        :raise ServerUnavailable: when there is none, or it did not start; then with the end of its log.
        """
        first = self._folder is None
        if first:
            self._initialise()
        assert self._folder is not None
        settings = [word for name, value in SETTINGS.items() for word in ("-c", f"{name}={value}")]
        command = [self._bin / "postgres", "-D", self._folder / "data", "-p", str(self.port), *settings]
        self._session = self._run(command)
        self._wait_until_ready()
        if first:
            self._create()

    def stop(self) -> None:
        """Shut the server down in good order; clients lose their connections. :meth:`start` brings it back."""
        if self._session is not None:
            self._session.end(sig=signal.SIGINT)
            self._session = None

    def kill(self) -> None:
        """SIGKILL to all its processes, as a crash does. :meth:`start` brings it back with its data and port."""
        if self._session is not None:
            self._session.kill_all()
            self._session = None

    def pause(self) -> None:
        """SIGSTOP to all its processes: it takes connections and answers none, until :meth:`resume`."""
        assert self._session is not None
        self._session.stop()

    def resume(self) -> None:
        """End of :meth:`pause`."""
        assert self._session is not None
        self._session.cont()

    def close(self) -> None:
        """Stop the server and remove its data. Doing so twice is allowed."""
        self.stop()
        if self._folder is not None:
            self._forget_shared_memory(self._folder / "data/postmaster.pid")
            remove_folder(self._folder)
            self._folder = None

    @property
    def running(self) -> bool:
        """Whether the server's process runs; a paused one does."""
        return self._session is not None and self._session.alive

    # -- use

    def uri(self, database: str = "bookkeeping") -> str:
        """Return an Airflow connection URI, for ``AIRFLOW_CONN_<ID>``."""
        return f"postgres://{self._address(database)}"

    def sqlalchemy_url(self, database: str = "airflow") -> str:
        """Return a SQLAlchemy URL with the driver ``psycopg``, which serves synchronous and asynchronous engines."""
        return f"postgresql+psycopg://{self._address(database)}"

    def _address(self, database: str) -> str:
        return f"{database}:{self.passwords[database]}@{self.host}:{self.port}/{database}"

    def execute(self, sql: str, args: Sequence[object] | None = None, *, database: str = "") -> list[tuple[Any, ...]]:
        """Run one statement and return its rows.

        :param database: one of the databases, as its user; default: as administrator, in ``postgres``.
        """
        who = (database, self.passwords[database]) if database else ("postgres", self._admin)
        with psycopg.connect(
            host=self.host,
            port=self.port,
            dbname=database or "postgres",
            user=who[0],
            password=who[1],
            autocommit=True,
            connect_timeout=5,
        ) as connection:
            cursor = connection.execute(sql.encode(), args)
            return cursor.fetchall() if cursor.description else []

    def run_file(self, path: Path, env: Mapping[str, str]) -> None:
        """Let ``psql`` run a file as administrator, as the image does with those of its folder for initialisation.

        :param env: variables for ``\\getenv``.
        :raise CalledProcessError: when a statement failed.
        """
        command: list[str | Path] = [self._bin / "psql", "-h", self.host, "-p", str(self.port), "-U", "postgres"]
        command += ["-v", "ON_ERROR_STOP=1", "--no-password", "--no-psqlrc", "-q", "-f", path]
        subprocess.run(command, env={**self._env, "PGPASSWORD": self._admin, **env}, check=True)

    # -- how

    def _initialise(self) -> None:
        """Make the folder: the data, the log and, where root's own copy cannot be entered, the programs."""
        self._bin, libraries = find_postgres()
        self._folder = folder = temporary_folder("cdc-postgres-")
        if libraries is not None and os.geteuid() == 0:
            root = shutil.copytree(libraries, folder / "programs", symlinks=True)
            self._bin, libraries = root / self._bin.relative_to(libraries), root
        if libraries is not None:
            found = [str(path) for pattern in _LIBRARIES for path in libraries.glob(pattern)]
            self._env["LD_LIBRARY_PATH"] = ":".join(found)
        (folder / "data").mkdir(mode=0o700)
        password = folder / "password"
        password.touch(mode=0o600)
        password.write_text(self._admin)
        if os.geteuid() == 0:
            for path in (folder, folder / "data", password):
                os.chown(path, *_unprivileged())
        command = [self._bin / "initdb", "-D", folder / "data", "-U", "postgres", "-A", "scram-sha-256"]
        command += [f"--pwfile={password}", "-E", "UTF8", "--locale=C", "--no-sync", "--no-instructions"]
        run = self._run(command)
        try:
            while run.alive:
                time.sleep(0.02)
        finally:
            run.end()
        password.unlink()
        if run.exit_code:
            raise ServerUnavailable(f"PostgreSQL's data folder could not be made:\n{tail(run.log)}\n{_hint(folder)}")

    def _run(self, command: list[Any]) -> Session:
        assert self._folder is not None
        user = _unprivileged() if os.geteuid() == 0 else None
        return Session(command, self._folder / "log", env=self._env, cwd=self._folder, user=user, children=True)

    def _create(self) -> None:
        for name, password in self.passwords.items():  # the names are the test's own, the passwords are hexadecimal
            self.execute(f"CREATE USER \"{name}\" PASSWORD '{password}'")
            self.execute(f'CREATE DATABASE "{name}" OWNER "{name}"')

    def _wait_until_ready(self, seconds: float = 60) -> None:
        assert self._session is not None
        deadline = time.monotonic() + seconds
        while True:
            try:
                self.execute("SELECT 1")
                return
            except psycopg.OperationalError as error:
                if not self._session.alive or time.monotonic() > deadline:
                    log = tail(self._session.log)
                    message = f"PostgreSQL on {self.host}:{self.port} did not answer ({error})\n{log}"
                    raise ServerUnavailable(message) from None
            time.sleep(0.05)

    @staticmethod
    def _forget_shared_memory(pid_file: Path) -> None:
        """Give back the few bytes of shared memory by which a killed server would be recognised."""
        with contextlib.suppress(OSError, IndexError, ValueError):
            segment = int(pid_file.read_text().splitlines()[6].split()[1])
            _libc.shmctl(segment, 0, None)  # 0: IPC_RMID


def find_postgres() -> tuple[Path, Path | None]:
    """Find the server's programs; downloads what is missing.

    :return: the folder of ``initdb`` and ``postgres``, and, for packages that are only unpacked, their root.
    :raise ServerUnavailable: when there is no way.
    """
    on_path = shutil.which("initdb")
    folders = [Path(on_path).resolve().parent] if on_path else []
    folders += _newest_first(Path("/"))
    for folder in folders:
        if all(os.access(folder / program, os.X_OK) for program in ("initdb", "postgres")):
            return folder, None
    root = unpacked_packages(POSTGRES)
    for folder in _newest_first(root):
        return folder, root
    raise ServerUnavailable(f"The packages in {root} hold no PostgreSQL: remove that folder and try again")


def _newest_first(root: Path) -> list[Path]:
    found = [path for path in root.glob("usr/lib/postgresql/*/bin") if path.parent.name.isdigit()]
    return sorted(found, key=lambda path: int(path.parent.name), reverse=True)


def _unprivileged() -> tuple[int, int]:
    entry = pwd.getpwnam(USER)
    return entry.pw_uid, entry.pw_gid


def _hint(folder: Path) -> str:
    """Say what stands in the way of another user, if that may be it."""
    if os.geteuid() != 0:
        return ""
    as_user: dict[str, Any] = dict(zip(("user", "group"), _unprivileged(), strict=True), extra_groups=[])
    try:
        subprocess.run(["/bin/sh", "-c", "cd /"], cwd=folder, check=True, **as_user)
    except (OSError, subprocess.CalledProcessError):
        return f"As root it runs as {USER}, who cannot enter {folder}: set TMPDIR to a folder that everybody may enter."
    return ""
