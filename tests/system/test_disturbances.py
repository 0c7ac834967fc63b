"""What happens to clocks and connections of a server while a stream follows it."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, cast
from uuid import uuid4

import pytest

from airflow_provider_cdc.model.errors import TransientError
from airflow_provider_cdc.model.offset import Position, Timeline
from airflow_provider_cdc.mysql.binlog.events.binlog_stream import BinlogStream
from airflow_provider_cdc.mysql.binlog.walk.binlog_reader import BinlogReader
from airflow_provider_cdc.mysql.client import session
from airflow_provider_cdc.mysql.client.verified_connection import VerifiedConnection
from tests.support.binlog.reading import capture, here, lasting
from tests.support.cli import Cli
from tests.support.mariadb import MariaDBServer
from tests.support.oracle import compare_all, compare_database
from tests.support.proxy import Proxy
from tests.support.servers import MySQLServer

# The servers have their turn: each test with each of them would be a product.
pytestmark = pytest.mark.one_of("own")


def test_clocks_that_step(tmp_path: Path) -> None:
    """Times are only ever told: the order of changes is that of the binlog, whatever a clock says of them.

    MariaDB logs the time that a session was given, so that its clock can go back and forth here.
    """
    with MariaDBServer() as server:
        server.execute("CREATE DATABASE d")
        server.execute("CREATE TABLE d.t (id INT PRIMARY KEY, v INT)")
        server.execute("INSERT INTO d.t VALUES (1, 0), (2, 0), (3, 0)")
        cli = Cli(tmp_path, server, "d.t", snapshot={"chunk_rows": 2})
        cli.snapshot()
        now = int(time.time())
        with closing(server.connect(database="d", autocommit=True)) as connection, connection.cursor() as cursor:
            for number, step in enumerate((0, 86_400, -86_400, 3600, -3600, 0, 7 * 86_400)):
                cursor.execute(f"SET timestamp = {now + step}")
                cursor.execute(f"UPDATE t SET v = {number} WHERE id = 1")
                cursor.execute(f"REPLACE INTO t VALUES ({10 + number % 2}, {number})")
                cursor.execute(f"DELETE FROM t WHERE id = {2 + number % 2}")
                if number == 3:
                    cli.catch_up()
            assert cli.call("status", "--json").code == 0
            cli.catch_up()
            assert compare_all(connection, "d", cli.sink) == []
        with cli.opened() as (_, store):
            batches = [b for b in store.last_batches("p", 100) if b.changes]
            assert batches and all((b.lag_p50_ms or 0) >= 0 and (b.lag_p95_ms or 0) >= 0 for b in batches)
        assert cli.call("verify").code == 0


def test_a_half_open_connection(mysql_server: MySQLServer, database: str) -> None:
    """The other end is gone and nobody has said so: the missing heartbeats tell, and nothing is lost or read twice."""
    mysql_server.execute(f"CREATE TABLE {database}.t (a INT PRIMARY KEY)")
    captured, start = capture(mysql_server, database, "t"), here(mysql_server)
    with Proxy(mysql_server.port) as proxy:
        through = {**mysql_server.connect_args(), "port": proxy.port}

        def open_at(at: Position) -> BinlogStream:
            return BinlogStream(
                through, server_id=77_001, replica_uuid=str(uuid4()), file=at.file, position=at.position, read_timeout=3
            )

        lineage = Timeline("here", start[0])
        with closing(BinlogReader(open_at, lasting(captured), lineage)) as binlog:
            at, seen = Position(*start), list[int]()
            for number in range(6):
                mysql_server.execute(f"INSERT INTO {database}.t VALUES ({number})")
                end = Position(*here(mysql_server))
                for _ in binlog.steps(at, end):
                    pass
                at = end
                seen += [a for _, batch in binlog.take_changes() for a in batch["a"].to_pylist()]
                if number % 2:
                    proxy.silence()
            assert seen == list(range(6)) and proxy.accepted == 3


KINDS: list[type[MySQLServer]] = [MySQLServer, MariaDBServer]


@pytest.fixture(scope="module", params=KINDS, ids=["MySQL", "MariaDB"])
def own(request: pytest.FixtureRequest) -> Iterator[MySQLServer]:
    """A server that may be stopped."""
    with request.param() as server:
        yield server


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What takes half a minute, or ten, takes seconds."""
    monkeypatch.setattr(session, "_LOGIN_SECONDS", 3)
    monkeypatch.setattr(session, "_ANSWER_SECONDS", 3)
    monkeypatch.setitem(cast("dict[str, Any]", BinlogStream.__init__.__kwdefaults__), "read_timeout", 3)


class World:
    """A table with a key and one without, and changes of all sorts."""

    def __init__(self, server: MySQLServer, folder: Path, port: int | None = None) -> None:
        self.server, self.database = server, f"d{random.randrange(1 << 40):x}"
        self._written = 0
        server.execute(f"CREATE DATABASE {self.database}")
        with closing(server.connect(database=self.database)) as connection, connection.cursor() as cursor:
            cursor.execute("CREATE TABLE keyed (id INT PRIMARY KEY, v INT, t TEXT)")
            cursor.execute("CREATE TABLE plain (v INT, t TEXT)")
            for number in range(60):
                cursor.execute(f"INSERT INTO keyed VALUES ({number}, 0, REPEAT('k', {number * 20}))")
                cursor.execute(f"INSERT INTO plain VALUES ({number % 9}, 'p')")
        self.cli = Cli(folder, server, rf"{self.database}\..*", snapshot={"chunk_rows": 15})
        if port is not None:
            uri = self.cli.env["AIRFLOW_CONN_CDC_SOURCE"]
            self.cli.env["AIRFLOW_CONN_CDC_SOURCE"] = uri.replace(f":{server.port}/", f":{port}/")

    def write(self, transactions: int = 12) -> None:
        with closing(self.server.connect(database=self.database)) as connection, connection.cursor() as cursor:
            for _ in range(transactions):
                self._written += 1
                n = self._written
                cursor.execute("BEGIN")
                cursor.execute(f"REPLACE INTO keyed VALUES ({n % 70}, {n}, REPEAT('w', {n * 37 % 3000}))")
                cursor.execute(f"DELETE FROM keyed WHERE id = {n * 7 % 70}")
                cursor.execute(f"INSERT INTO plain VALUES ({n % 9}, REPEAT('q', {n * 53 % 3000})), (1, 'p')")
                cursor.execute(f"DELETE FROM plain WHERE v = {n % 5} LIMIT 1")
                cursor.execute("COMMIT")

    def exact(self) -> None:
        assert compare_database(self.server, self.database, self.cli.sink) == []


@contextmanager
def stopped(server: MySQLServer, at: int, seconds: float | None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The server stands still from a statement on.

    :param at: which statement, from 1; 0 for all the time, logins included.
    :param seconds: for how long; ``None`` until the block ends.
    """
    pid, plain, count, held = server.pid, VerifiedConnection.query, [0], threading.Lock()
    if pid is None:
        pytest.skip("only a process can be stopped")
    timers: list[threading.Timer] = []

    def stop() -> None:
        os.kill(pid, signal.SIGSTOP)
        if seconds is not None:
            timers.append(threading.Timer(seconds, os.kill, (pid, signal.SIGCONT)))
            timers[-1].start()

    def query(self: Any, *args: Any, **kw: Any) -> Any:
        with held:
            count[0] += 1
            if count[0] == at:
                stop()
        return plain(self, *args, **kw)

    if not at:
        stop()
    try:
        with monkeypatch.context() as patch:
            patch.setattr(VerifiedConnection, "query", query)
            yield
    finally:
        for timer in timers:
            timer.join()
        os.kill(pid, signal.SIGCONT)


PHASES: dict[str, Callable[[World], None]] = {
    "check": lambda world: succeeds(world, "check"),
    "plan": lambda world: succeeds(world, "plan"),
    "snapshot": lambda world: world.cli.snapshot(),
    "stream": lambda world: world.cli.catch_up(),
    "verify": lambda world: succeeds(world, "verify"),
}


def succeeds(world: World, command: str) -> None:
    found = world.cli.call(command)
    if found.code:
        assert found.code == TransientError.exit_code, found
        raise TransientError(found.err or found.out)


def test_a_server_that_stands_still(
    own: MySQLServer, tmp_path: Path, impatient: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In each phase, at several statements: a transient error in time, and the next try makes the copy exact."""
    world = World(own, tmp_path)
    for number, (name, phase) in enumerate(PHASES.items()):
        world.write()
        for at in (0, (2, 9)[number % 2]):
            began = time.monotonic()
            with stopped(own, at, None, monkeypatch), pytest.raises(TransientError):
                phase(world)
            assert time.monotonic() - began < 120, (name, at)
        with stopped(own, 4, 1.5, monkeypatch):
            phase(world)  # shorter than anybody's patience
        if name == "stream":
            world.exact()
    world.cli.catch_up()
    world.exact()


class Silent(random.Random):
    """Every connection falls silent at its last byte."""

    def random(self) -> float:
        return 1.0

    def choice(self, _: Any) -> Any:
        return "silent"


def test_silence_in_the_tls_handshake(mysql_server: MySQLServer, impatient: None) -> None:
    """Behind the server's greeting: the driver itself sets no time limit for the handshake."""
    at = here(mysql_server)
    with Proxy(mysql_server.port) as proxy:
        proxy.disturb(Silent(), 100)
        through = {**mysql_server.connect_args(), "port": proxy.port}
        with pytest.raises(TransientError):
            session.connect(through)
        with pytest.raises(TransientError):
            BinlogStream(through, server_id=77_004, replica_uuid=str(uuid4()), file=at[0], position=at[1])


def disturbed(world: World, proxy: Proxy, seed: int, rounds: int) -> list[str]:
    """Work through a bad line until all is done, then see whether the copy is exact; what was said on the way."""
    draw, said = random.Random(seed), list[str]()
    for number in range(rounds):
        world.write()
        proxy.disturb(draw, 60_000)
        began = time.monotonic()
        for last in (*[False] * 5, True):
            if last:
                proxy.disturb(None)
            try:
                if not number:
                    world.cli.snapshot()
                world.cli.catch_up()
                break
            except TransientError as error:
                assert not last, error
                said.append(error.message)
        assert time.monotonic() - began < 240
        proxy.disturb(None)
        world.exact()
    return said


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(2, 12))])
def test_a_line_that_breaks(own: MySQLServer, tmp_path: Path, impatient: None, seed: int) -> None:
    """Connections that are cut, reset or fall silent after any number of bytes, with TLS where the server has it."""
    with Proxy(own.port) as proxy:
        world = World(own, tmp_path, proxy.port)
        with closing(session.connect({**own.connect_args(), "port": proxy.port})) as connection:
            ((_, cipher),) = session.query_rows(connection, "SHOW SESSION STATUS LIKE 'Ssl_cipher'")
            ((_, offered),) = session.query_rows(connection, "SHOW GLOBAL VARIABLES LIKE 'have_ssl'") or ((0, "YES"),)
            assert bool(cipher) == (offered == "YES")
        said = disturbed(world, proxy, seed, 2)
        assert proxy.cuts > 2
        print(f"{proxy.cuts} cuts of {proxy.accepted} connections", *said, sep="\n")
