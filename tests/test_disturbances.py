"""What happens to clocks and connections of a server while a stream follows it."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from contextlib import closing
from pathlib import Path
from uuid import uuid4

from airflow_provider_cdc.core.offset import Lineage, Position
from airflow_provider_cdc.mysql.binlog.stream import BinlogStream
from airflow_provider_cdc.mysql.follow import Follower
from tests.cli import Cli
from tests.mariadb import MariaDBServer
from tests.mysql.binlog.reading import capture, here
from tests.oracle import compare_all
from tests.servers import MySQLServer


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
            batches = [b for b in store.recent_batches("p", 100) if b.changes]
            assert batches and all((b.lag_p50_ms or 0) >= 0 and (b.lag_p95_ms or 0) >= 0 for b in batches)
        assert cli.call("verify").code == 0


class Proxy:
    """Passes bytes on to a server, until it falls silent without closing anything."""

    def __init__(self, port: int) -> None:
        self._to, self._listener = port, socket.create_server(("127.0.0.1", 0))
        self.port, self.accepted = self._listener.getsockname()[1], 0
        self._open: list[socket.socket] = []
        self._silent = threading.Event()
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()
        for one in self._open:
            one.close()

    def silence(self) -> None:
        """Pass nothing on any more for the connections that are open; new ones work."""
        self._silent.set()
        self._silent = threading.Event()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self.accepted += 1
                server = socket.create_connection(("127.0.0.1", self._to))
                self._open += [client, server]
                for source, target in ((client, server), (server, client)):
                    threading.Thread(target=self._pass_on, args=(source, target, self._silent), daemon=True).start()

    @staticmethod
    def _pass_on(source: socket.socket, target: socket.socket, silent: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while (data := source.recv(1 << 16)) and not silent.is_set():
                target.sendall(data)


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

        lineage = Lineage("here", start[0])
        with closing(Follower(open_at, captured, lineage)) as follower:
            at, seen = Position(*start), list[int]()
            for number in range(6):
                mysql_server.execute(f"INSERT INTO {database}.t VALUES ({number})")
                end = Position(*here(mysql_server))
                for _ in follower.steps(at, end):
                    pass
                at = end
                seen += [a for _, batch in follower.take() for a in batch["a"].to_pylist()]
                if number % 2:
                    proxy.silence()
            assert seen == list(range(6)) and proxy.accepted == 3
