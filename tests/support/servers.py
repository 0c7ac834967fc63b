"""Real MySQL servers for the tests, the demo and the benchmarks.

Where a server comes from, the first that is usable:

1. ``CDC_TEST_MYSQL_URL`` (``mysql://user:password@host:port``): a server that already runs and is yours to fill.
   It cannot be killed or configured from here: tests that need that are skipped.
2. A working Docker daemon: a container of the image ``mysql:9``.
3. Debian's (or Ubuntu's) newest packages, unpacked into the user's cache folder and run from there. They are not
   installed: the system is not changed, and no rights are needed.

``python -m tests.support.servers prefetch`` brings in what 2 or 3 need, so that tests start at once.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import secrets
import shutil
import signal
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self
from urllib.parse import quote, unquote, urlsplit

import pymysql

from tests.support.packages import IMAGE, NotOurs, ServerUnavailable, find_mariadb, find_mysql, locked
from tests.support.processes import free_port

__all__ = ["DEFAULTS", "MySQLServer", "ServerUnavailable", "find_mysql"]

#: What every server runs with; ``variables=`` of :class:`MySQLServer` goes on top.
DEFAULTS: dict[str, str] = {
    "server_id": "1",
    "log_bin": "binlog",
    "gtid_mode": "ON",
    "enforce_gtid_consistency": "ON",
    "binlog_row_metadata": "FULL",
    "sync_binlog": "1",
    "innodb_flush_log_at_trx_commit": "1",
    "innodb_buffer_pool_size": "512M",
    "max_connections": "200",
    "mysqlx": "OFF",
    "skip_name_resolve": "ON",
}

#: Variables that are fixed when a data folder is made: a server with one of these gets a folder of its own.
_INIT_TIME = {"lower_case_table_names", "innodb_page_size", "innodb_data_file_path", "innodb_undo_directory"}

# Children are started from one thread that lives as long as this process: the kernel sends the parent-death signal
# when the *thread* that made the child ends. The C library is loaded before any fork.
_starter = ThreadPoolExecutor(max_workers=1, thread_name_prefix="mysql-starter")
_libc = ctypes.CDLL(None, use_errno=True)
_PR_SET_PDEATHSIG = 1


# ---------------------------------------------------------------- one server


class _Connection(pymysql.connections.Connection):
    """The driver loads the authorities of the system for each connection, of which tests have thousands."""

    def _create_ssl_ctx(self, sslp: Any) -> ssl.SSLContext:
        return _any_server() if sslp == {} else super()._create_ssl_ctx(sslp)  # type: ignore[misc]


@cache
def _any_server() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


class MySQLServer:
    """A MySQL server of one's own, with GTIDs and full row metadata, on a free loopback port.

    A context manager. The data folder lives until :meth:`stop`; the process does not outlive this one.

    :param variables: server variables on top of :data:`DEFAULTS`.
    :param args: further server options, as they stand on a command line.
    :param port: a port to use instead of a free one.
    """

    title = "MySQL"
    url_variable = "CDC_TEST_MYSQL_URL"
    image = IMAGE
    defaults: ClassVar[Mapping[str, str]] = DEFAULTS

    def __init__(
        self, variables: Mapping[str, object] | None = None, args: Sequence[str] = (), port: int | None = None
    ) -> None:
        self._own_variables = {name: str(value) for name, value in (variables or {}).items()}
        self.variables = {**self.defaults, **self._own_variables}
        self.args = list(args)
        self.host = "127.0.0.1"
        self.port = port or free_port()
        self.user = "root"
        self.password = secrets.token_hex(16)
        self._place: str | Path | None = None
        self._folder: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._container = ""
        self._found = False

    # -- life

    def start(self) -> Self:
        """Start the server and wait until it answers (about 2 s; the first time on a machine about 20 s).

        :raise ServerUnavailable: when there is none, or it did not start; then with the end of its log.
        :raise NotOurs: (the test is skipped) when one taken by URL was to have variables of its own.
        """
        if not self._found:
            self._place, self._found = self.find(), True
            atexit.register(self.stop)
        if isinstance(self._place, str):
            if self.args or self._own_variables:
                raise NotOurs(f"The server named by {self.url_variable} cannot be configured from here")
            url = urlsplit(self._place)
            self.host, self.port = url.hostname or self.host, url.port or 3306
            self.user, self.password = unquote(url.username or "root"), unquote(url.password or "")
        elif self._place is None:
            self._start_container()
        else:
            self._start_process(self._place)
        self._wait_until_ready()
        return self

    def stop(self) -> None:
        """Stop the server and remove its data. Doing so twice is allowed."""
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(60)
            except subprocess.TimeoutExpired:
                self._process.kill()
        if self._process is not None:
            self._process.wait()
        if self._container:
            subprocess.run(["docker", "rm", "-f", "-v", self._container], capture_output=True)
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
        self._process, self._container, self._folder, self._found = None, "", None, False
        atexit.unregister(self.stop)

    def kill(self) -> None:
        """End the server by SIGKILL, as a crash does. :meth:`start` brings it back with its data and port."""
        self._own()
        if self._container:
            subprocess.run(["docker", "kill", self._container], check=True, capture_output=True)
        elif self._process is not None:
            self._process.kill()
            self._process.wait()

    def restart(self) -> Self:
        """Shut the server down in good order and start it on the same data and port."""
        self._own()
        if self._container:
            subprocess.run(["docker", "stop", "-t", "60", self._container], check=True, capture_output=True)
        elif self._process is not None:
            self._process.terminate()
            self._process.wait(60)
        return self.start()

    def _own(self) -> None:
        if isinstance(self._place, str):
            raise NotOurs(f"The server named by {self.url_variable} cannot be killed or restarted from here")

    @property
    def controllable(self) -> bool:
        """Whether this server can be killed, restarted and given variables (not so for one taken by URL)."""
        return not isinstance(self._place, str)

    @property
    def data_folder(self) -> Path:
        """The data of a server that runs from the unpacked packages.

        :raise NotOurs: for any other one.
        """
        if self._folder is None:
            raise NotOurs("The data of this server is not at hand: it runs in a container, or elsewhere")
        return self._folder / "data"

    @property
    def pid(self) -> int | None:
        """The server's process id; None for a container, a server taken by URL, or while it is down."""
        return self._process.pid if self._process is not None and self._process.poll() is None else None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.stop()

    # -- use

    def connect_args(self, user: str | None = None, password: str | None = None) -> dict[str, Any]:
        """Return keyword arguments for ``pymysql.connect``: those of the administrator, or of the user given."""
        who = (user, password or "") if user is not None else (self.user, self.password)
        return {"host": self.host, "port": self.port, "user": who[0], "password": who[1]}

    def uri(self, user: str | None = None, password: str | None = None) -> str:
        """Return the same as an Airflow connection URI, for ``AIRFLOW_CONN_<ID>``."""
        who = self.connect_args(user, password)
        return f"mysql://{quote(who['user'], safe='')}:{quote(who['password'], safe='')}@{self.host}:{self.port}/"

    def connect(self, **kw: Any) -> pymysql.Connection[Any]:
        """Open a connection as administrator, in autocommit; keywords as in ``pymysql.connect``."""
        return _Connection(**{**self.connect_args(), "autocommit": True, "charset": "utf8mb4", **kw})

    def execute(self, sql: str, args: Sequence[object] | None = None) -> tuple[tuple[Any, ...], ...]:
        """Run one statement as administrator and return its rows."""
        with contextlib.closing(self.connect()) as connection, connection.cursor() as cursor:
            cursor.execute(sql, args)
            return tuple(cursor.fetchall())

    def authority(self) -> bytes:
        """The certificate of the authority that the server has made itself."""
        self._own()
        if self._folder is not None:
            return (self._folder / "data/ca.pem").read_bytes()
        command = ["docker", "exec", self._container, "cat", "/var/lib/mysql/ca.pem"]
        return subprocess.run(command, check=True, capture_output=True).stdout

    def purge(self, flush: bool = True) -> None:
        """Remove all binlog files but the newest one.

        :param flush: begin a new one first.
        """
        if flush:
            self.execute("FLUSH BINARY LOGS")
        newest, end = self.execute("SHOW BINARY LOGS")[-1][0], time.monotonic() + 60
        while self.execute("SHOW BINARY LOGS")[0][0] != newest:
            assert time.monotonic() < end
            # Of a reader that is gone the server learns only when it has something to send, and keeps its file.
            for number, _, _, _, command, *_ in self.execute("SHOW PROCESSLIST"):
                if command.startswith("Binlog Dump"):
                    with contextlib.suppress(pymysql.MySQLError):
                        self.execute(f"KILL {number}")
            self.execute(f"PURGE BINARY LOGS TO '{newest}'")
            time.sleep(0.05)

    @contextlib.contextmanager
    def fresh_database(self, name: str = "", options: str = "") -> Iterator[str]:
        """An empty database, under a name that nothing else has if none is given; it goes at the end."""
        if name:
            self.execute(f"DROP DATABASE IF EXISTS `{name}`")
        name = name or f"t_{secrets.token_hex(6)}"
        self.execute(f"CREATE DATABASE `{name}` {options}")
        yield name
        self.execute(f"DROP DATABASE IF EXISTS `{name}`")

    def roll_back_prepared(self) -> None:
        """Roll back all XA transactions that are prepared."""
        for kind, size, _, data in self.execute("XA RECOVER"):
            name = data if isinstance(data, bytes) else data.encode()
            with contextlib.suppress(pymysql.MySQLError):
                self.execute(f"XA ROLLBACK X'{name[:size].hex()}', X'{name[size:].hex()}', {kind}")

    def session(self, database: str, *statements: str) -> None:
        """Run statements as administrator in one session, which then ends."""
        with contextlib.closing(self.connect(database=database)) as connection, connection.cursor() as cursor:
            for sql in statements:
                cursor.execute(sql)

    def create_cdc_user(
        self, name: str = "cdc", password: str | None = None, databases: Sequence[str] | str = "*", xa: bool = True
    ) -> dict[str, str]:
        """Create a user with exactly the grants that the project asks for.

        :param databases: the databases it may read, or ``"*"``.
        :param xa: also grant XA_RECOVER_ADMIN, with which open XA transactions are seen.
        :return: ``{"user": ..., "password": ...}``
        """
        password = password or secrets.token_urlsafe(16)
        self.execute("CREATE USER IF NOT EXISTS %s@'%%'", (name,))
        self.execute("ALTER USER %s@'%%' IDENTIFIED BY %s", (name, password))
        server_wide = "REPLICATION SLAVE, REPLICATION CLIENT" + (", XA_RECOVER_ADMIN" if xa else "")
        self.execute(f"GRANT {server_wide} ON *.* TO %s@'%%'", (name,))
        for database in [databases] if isinstance(databases, str) else databases:
            # In GRANT a database is a pattern: a bare underscore would stand for any character.
            escaped = database.replace("`", "``").replace("_", r"\_").replace("%", r"\%%")
            scope = "*" if database == "*" else f"`{escaped}`"
            self.execute(f"GRANT SELECT ON {scope}.* TO %s@'%%'", (name,))
        return {"user": name, "password": password}

    # -- the unpacked packages; a server of another kind overrides these

    @staticmethod
    def find() -> str | Path | None:
        """The first usable way to a server: a URL, None for Docker, or a folder of packages."""
        return find_mysql()

    def make_data(self, root: Path, data: Path) -> None:
        """Make the data folder of a new server."""
        if _INIT_TIME & {name.replace("-", "_") for name in self.variables}:
            _initialise(root, data, self.variables)
        else:
            shutil.copytree(_template(root), data, symlinks=True)

    def command(self, root: Path, data: Path) -> list[str]:
        """The command that starts the server, without its variables."""
        return _mysqld(root, data)

    def _start_process(self, root: Path) -> None:
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="cdc-mysql-"))
            self.make_data(root, self._folder / "data")
        # The password goes in by a file that only this user can read, never on the command line, and stays out of the
        # binlog. The account made by the initialisation has no password: it is locked.
        init = self._folder / "init.sql"
        init.touch(mode=0o600)
        init.write_text(
            "SET SESSION sql_log_bin = 0;\n"
            f"CREATE USER IF NOT EXISTS {self.user}@'%';\n"
            f"ALTER USER {self.user}@'%' IDENTIFIED BY '{self.password}';\n"
            f"GRANT ALL ON *.* TO {self.user}@'%' WITH GRANT OPTION;\n"
            "ALTER USER IF EXISTS root@localhost ACCOUNT LOCK;\n"
        )
        # Of its own: a MariaDB that starts deletes what another one has put into the same folder.
        temporary = self._folder / "tmp"
        temporary.mkdir(exist_ok=True)
        command = [*self.command(root, self._folder / "data"), *_options(self.variables), *self.args]
        command += [
            f"--tmpdir={temporary}",
            f"--port={self.port}",
            f"--bind-address={self.host}",
            f"--socket={self._folder}/mysql.sock",
            f"--pid-file={self._folder}/mysqld.pid",
            f"--log-error={self._folder}/error.log",
            f"--init-file={init}",
        ]
        self._process = _starter.submit(_spawn, command).result()

    # -- a container

    def _start_container(self) -> None:
        if self._container:
            subprocess.run(["docker", "start", self._container], check=True, capture_output=True)
            return
        command = ["docker", "run", "-d", "-p", f"{self.host}:{self.port}:3306"]
        command += [
            "-e",
            "MYSQL_ROOT_PASSWORD",
            "-e",
            "MYSQL_ROOT_HOST=%",
            self.image,
            *_options(self.variables),
            *self.args,
        ]
        env = {**os.environ, "MYSQL_ROOT_PASSWORD": self.password}
        run = subprocess.run(command, capture_output=True, text=True, env=env)
        if run.returncode:
            raise ServerUnavailable(f"The container did not start: {run.stderr.strip()}")
        self._container = run.stdout.strip()

    # -- both

    def _wait_until_ready(self, seconds: float = 120) -> None:
        deadline = time.monotonic() + seconds
        while True:
            try:
                self.connect(connect_timeout=5).close()
                return
            except pymysql.err.OperationalError as error:
                ended = self._process is not None and self._process.poll() is not None
                if ended or time.monotonic() > deadline or isinstance(self._place, str):
                    reason = (
                        f"{self.title} on {self.host}:{self.port} did not answer ({error.args[-1]})\n{self._log_tail()}"
                    )
                    if self.controllable:
                        self.stop()
                    raise ServerUnavailable(reason) from None
            time.sleep(0.1)

    def _log_tail(self) -> str:
        """Return the end of the server's log."""
        if self._container:
            run = subprocess.run(["docker", "logs", "--tail", "20", self._container], capture_output=True, text=True)
            return run.stdout + run.stderr
        log = self._folder / "error.log" if self._folder else None
        return "\n".join(log.read_text(errors="replace").splitlines()[-20:]) if log and log.exists() else ""


def _options(variables: Mapping[str, str]) -> list[str]:
    return [f"--{name.replace('_', '-')}={value}" for name, value in variables.items()]


def _mysqld(root: Path, data: Path) -> list[str]:
    """Return the command of the unpacked server, with its own loader and libraries: it is newer than the system."""
    loader = next(root.glob("usr/lib/*-linux-gnu*/ld-linux-*"))
    libraries = [loader.parent, loader.parent / "mysql", root / "usr/lib/mysql/private"]
    command: list[str | Path] = [loader, "--library-path", ":".join(map(str, libraries)), root / "usr/sbin/mysqld"]
    command += [
        "--no-defaults",
        f"--basedir={root}/usr",
        f"--datadir={data}",
        f"--plugin-dir={root}/usr/lib/mysql/plugin",
    ]
    command += [f"--lc-messages-dir={root}/usr/share/mysql", "--secure-file-priv=NULL"]
    # As root it stays root, by name: another user could not enter root's cache folder, and a change of user would undo
    # the parent-death signal. No file access by SQL, loopback only, a random password.
    return [*map(str, command), *(["--user=root"] if os.geteuid() == 0 else [])]


def _spawn(command: list[str]) -> subprocess.Popen[bytes]:
    """Start a server that the kernel kills when this process ends, however it ends."""
    parent = os.getpid()

    def tie_to_parent() -> None:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it ended before the call
            os._exit(1)

    null = subprocess.DEVNULL
    return subprocess.Popen(
        command, stdin=null, stdout=null, stderr=null, start_new_session=True, preexec_fn=tie_to_parent
    )


def _initialise(root: Path, data: Path, variables: Mapping[str, str]) -> None:
    data.mkdir(mode=0o700)
    fixed = {name: value for name, value in variables.items() if name.replace("-", "_") in _INIT_TIME}
    command = [*_mysqld(root, data), "--initialize-insecure", *_options(fixed)]
    run = subprocess.run(command, capture_output=True, text=True, errors="replace")
    if run.returncode:
        raise ServerUnavailable(f"The data folder could not be made:\n{run.stderr[-2000:]}")


def _template(root: Path) -> Path:
    """Return an initialised data folder to copy from: made once (4 s), without the identity of a server."""
    template = root.parent / "template"
    with locked("template"):
        if not template.is_dir():
            with tempfile.TemporaryDirectory(dir=root.parent, prefix="init-") as work:
                _initialise(root, Path(work) / "data", {})
                (Path(work) / "data/auto.cnf").unlink(missing_ok=True)  # server_uuid: each copy makes its own
                (Path(work) / "data").rename(template)
    return template


def main(argv: Sequence[str]) -> int:
    """Bring in what servers need: ``python -m tests.support.servers prefetch``."""
    if list(argv) != ["prefetch"]:
        print("usage: python -m tests.support.servers prefetch", file=sys.stderr)
        return 2
    try:
        place = find_mysql()
        if isinstance(place, Path):
            _template(place)
        find_mariadb()
    except ServerUnavailable as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    names = {str: "the server named by CDC_TEST_MYSQL_URL", type(None): f"Docker, {IMAGE}"}
    print(f"MySQL for tests and demo: {names.get(type(place), place)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
