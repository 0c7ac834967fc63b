"""A reader of chunks keeps to its limits on a real server, and waits while others have much to do."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pymysql.connections import Connection

from airflow_provider_cdc.config.load_limits import LoadLimits
from airflow_provider_cdc.model.errors import TerminalError
from airflow_provider_cdc.mysql.client.session import connect
from airflow_provider_cdc.mysql.client.throttle import Throttle, replica_lag, threads_running
from tests.support.mariadb import MariaDBServer
from tests.support.servers import MySQLServer

SERVERS: dict[str, type[MySQLServer]] = {"MySQL": MySQLServer, "MariaDB": MariaDBServer}


@contextlib.contextmanager
def busy(server: MySQLServer, sessions: int) -> Iterator[Callable[[], None]]:
    """So many sessions that do nothing but run; calling what is yielded ends them."""
    opened = [server.connect() for _ in range(sessions)]
    ids = [c.thread_id() for c in opened]

    def work(connection: Connection[Any]) -> None:
        with contextlib.suppress(Exception):
            connection.cursor().execute("SELECT SLEEP(600)")

    threads = [threading.Thread(target=work, args=(c,)) for c in opened]
    for thread in threads:
        thread.start()

    def end() -> None:
        for number in ids:
            with contextlib.suppress(Exception):
                server.execute(f"KILL {number}")

    try:
        yield end
    finally:
        end()
        for thread in threads:
            thread.join()


class Waiting:
    """A throttle that waits in a thread of its own; ``told`` is what it says."""

    def __init__(self, connection: Connection[Any], limits: LoadLimits) -> None:
        self.told: list[str | None] = []
        self.throttle = Throttle(connection, limits, self.told.append)
        self.thread = threading.Thread(target=self.throttle.wait_for_turn)
        self.thread.start()

    def until(self, said: Callable[[list[str | None]], bool]) -> None:
        end = time.monotonic() + 60
        while not said(self.told):
            assert time.monotonic() < end, self.told
            time.sleep(0.05)


def test_rates_are_kept(mysql_server: MySQLServer) -> None:
    """The time that is waited is that of the rate, by the reader's own clock; never less."""
    with contextlib.closing(connect(mysql_server.connect_args())) as connection:
        for limits in (LoadLimits(rows_per_second=5000), LoadLimits(bytes_per_second=50_000), LoadLimits(5000, 10**9)):
            throttle, began = Throttle(connection, limits), time.monotonic()
            for _ in range(5):
                throttle.wait_for_turn()
                throttle.record_chunk(time.monotonic(), 500, 5000)
            assert time.monotonic() - began >= 4 * 0.1
        throttle = Throttle(connection, LoadLimits())
        throttle.record_chunk(time.monotonic(), 10**12, 10**12)
        throttle.wait_for_turn()  # without a limit this ends


def test_a_reader_that_waits_for_its_rate_can_be_told_to_stop(mysql_server: MySQLServer) -> None:
    def stop() -> None:
        raise TerminalError("enough")

    with contextlib.closing(connect(mysql_server.connect_args())) as connection:
        throttle = Throttle(connection, LoadLimits(rows_per_second=1))
        throttle.record_chunk(time.monotonic(), 10**6, 0)
        with pytest.raises(TerminalError, match="enough"):
            throttle.wait_for_turn(stop)


@pytest.mark.parametrize("kind", SERVERS)
def test_nothing_is_read_while_the_server_is_busy(kind: str) -> None:
    with SERVERS[kind]() as server, contextlib.closing(connect(server.connect_args())) as connection:
        idle = threads_running(connection)
        limit = idle + 2
        quiet = Waiting(connection, LoadLimits(threads_running=limit))
        quiet.thread.join(60)
        assert quiet.told == [] and not quiet.thread.is_alive()
        with busy(server, 4) as end:
            while threads_running(connection) < idle + 4:
                time.sleep(0.05)
            found = Waiting(connection, LoadLimits(threads_running=limit))
            found.until(lambda told: bool(told))
            assert found.told[0] == f"Threads_running is {idle + 4}, the limit is {limit}"
            assert found.thread.is_alive()
            end()
            found.thread.join(60)
        assert not found.thread.is_alive() and found.told[1:] == [None]


def test_nothing_is_read_while_a_replica_is_late() -> None:
    with MySQLServer() as source, MySQLServer() as replica:
        source.execute("CREATE USER repl IDENTIFIED BY 'r'")
        source.execute("GRANT REPLICATION SLAVE ON *.* TO repl")
        args = source.connect_args()
        with contextlib.closing(connect(replica.connect_args())) as connection:
            assert replica_lag(connection) == (False, None)
            begin(replica, args, delay=3600)
            source.execute("CREATE DATABASE late")
            end = time.monotonic() + 60
            while (found := replica_lag(connection)) == (True, None) or (found[1] or 0) < 2:
                assert time.monotonic() < end, found
                time.sleep(0.2)
            waiting = Waiting(connection, LoadLimits(replica_lag_seconds=1))
            waiting.until(lambda told: bool(told))
            assert waiting.told[0] is not None and "s behind its source, the limit is 1 s" in waiting.told[0]
            assert waiting.thread.is_alive()
            replica.execute("STOP REPLICA SQL_THREAD")
            replica.execute("CHANGE REPLICATION SOURCE TO SOURCE_DELAY = 0")
            replica.execute("START REPLICA SQL_THREAD")
            waiting.thread.join(60)
            assert not waiting.thread.is_alive() and waiting.told[1:] == [None]
            replica.execute("STOP REPLICA")
            assert replica_lag(connection) == (True, None)


def begin(replica: MySQLServer, source: dict[str, Any], delay: int) -> None:
    """Let a server replicate from another one."""
    replica.execute("SET GLOBAL server_id = 99")
    replica.execute(
        f"CHANGE REPLICATION SOURCE TO SOURCE_HOST='{source['host']}', SOURCE_PORT={source['port']}, "
        f"SOURCE_USER='repl', SOURCE_PASSWORD='r', SOURCE_AUTO_POSITION=1, GET_SOURCE_PUBLIC_KEY=1, "
        f"SOURCE_DELAY={delay}"
    )
    replica.execute("START REPLICA")
