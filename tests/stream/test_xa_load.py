"""XA writers run all through a snapshot, its kills and the stream; then the copy is compared with the source.

Each round follows from one number, but for the clock.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pymysql
import pytest

from tests.support.failpoints import SNAPSHOT, STREAM
from tests.support.harness import KILLED, Lake, Nursery
from tests.support.mariadb import MariaDBServer
from tests.support.oracle import compare_database
from tests.support.servers import MySQLServer

#: Kinds of servers, and the longest time for which a transaction stays prepared while there is something to read:
#: without GTIDs nobody can tell whether one is being committed, so each low watermark waits for those that are open.
KINDS = {"MySQL": 3.0, "MySQL without GTIDs": 0.3, "MariaDB": 0.3}
ROUNDS = 6
DATABASE = "xa_load"


@pytest.fixture(scope="module", params=KINDS)
def source(request: pytest.FixtureRequest) -> Iterator[tuple[MySQLServer, float]]:
    without = {"gtid_mode": "OFF"} if "without" in request.param else {}
    with (MariaDBServer if request.param == "MariaDB" else MySQLServer)(variables=without) as found:
        yield found, KINDS[request.param]


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    with Nursery() as found:
        yield found


class XaWriters:
    """Threads that write, mostly by XA: names are used again, and sessions end in between.

    :param longest: seconds for which a transaction may stay prepared.
    """

    def __init__(self, server: MySQLServer, longest: float, seed: int, writers: int = 4) -> None:
        self.server, self.longest, self.seed = server, longest, seed
        self.done: Counter[str] = Counter()
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._write, args=(n,)) for n in range(writers)]
        self._failed: list[BaseException] = []

    def __enter__(self) -> XaWriters:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()
        assert not self._failed, self._failed

    def _write(self, number: int) -> None:
        draw = random.Random(f"{self.seed}/{number}")
        with ExitStack() as stack:
            try:
                while not self._over.is_set():
                    stack.pop_all().close()
                    connection = stack.enter_context(closing(self.server.connect(database=DATABASE)))
                    cursor = connection.cursor()
                    cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
                    cursor.execute("SET SESSION innodb_lock_wait_timeout = 1")
                    for _ in range(draw.randrange(1, 40)):
                        if self._over.wait(draw.choice((0, 0, 0.002, 0.02))):
                            return
                        self._transaction(draw, number, cursor)
            except BaseException as error:
                self._failed.append(error)

    def _transaction(self, draw: random.Random, number: int, cursor: Any) -> None:
        """One transaction, ended in this session or, after a new connection, in another one."""
        tables = draw.choice(
            (["t"], ["k"], ["other"], ["t", "k"], ["t", "other"], ["n"] if draw.random() < 0.3 else [])
        )
        changes = [_statement(draw, table, number) for table in tables for _ in range(draw.choice((1, 1, 3)))]
        if draw.random() < 0.25:
            with contextlib.suppress(pymysql.MySQLError):
                for sql in ("BEGIN", *changes, draw.choice(("COMMIT", "COMMIT", "ROLLBACK"))):
                    cursor.execute(sql)
                self.done["plain"] += 1
                return
            cursor.execute("ROLLBACK")
            return
        xid = draw.choice((f"'{number}'", f"'{number}', 'b', 7", f"'{number}-{draw.randrange(1 << 30)}'"))
        end = draw.choice(("COMMIT", "COMMIT", "COMMIT", "ROLLBACK"))
        try:
            for sql in (f"XA START {xid}", *changes, f"XA END {xid}"):
                cursor.execute(sql)
            if draw.random() < 0.1:
                cursor.execute(f"XA COMMIT {xid} ONE PHASE")
                return
            cursor.execute(f"XA PREPARE {xid}")
        except pymysql.MySQLError:
            for sql in (f"XA END {xid}", f"XA ROLLBACK {xid}"):
                with contextlib.suppress(pymysql.MySQLError):
                    cursor.execute(sql)
            return
        self._over.wait(draw.choice((0, 0.001, 0.005, 0.05, self.longest if draw.random() < 0.2 else 0.01)))
        if draw.random() < 0.5 or not changes:
            cursor.execute(f"XA {end} {xid}")
        else:
            cursor.connection.close()
            cursor.connection.connect()
            for again in range(100):  # the server takes a moment to let it go
                try:
                    cursor.execute(f"XA {end} {xid}")
                    break
                except pymysql.MySQLError as error:
                    if error.args[0] not in (1397, 1399, 1402) or again == 99:
                        raise
                    if error.args[0] == 1402:  # MariaDB: nothing was changed
                        break
                    time.sleep(0.01)
            cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
            cursor.execute("SET SESSION innodb_lock_wait_timeout = 1")
        self.done[end] += 1


def _statement(draw: random.Random, table: str, number: int) -> str:
    row, value = draw.randrange(-5, 125), draw.randrange(1000)
    key = {"t": f"{row}", "k": f"'{draw.choice('kK')}{row}'", "other": f"{row}", "n": f"{row % 9}"}[table]
    if draw.random() < 0.02:
        return f"UPDATE {table} SET v = 'many {number}'" if table != "n" else "DELETE FROM n WHERE id = 0"
    if table == "n":
        return draw.choice((f"INSERT INTO n VALUES ({key}, '{value % 3}')", f"DELETE FROM n WHERE id = {key} LIMIT 1"))
    return draw.choice(
        (
            f"INSERT IGNORE INTO {table} VALUES ({key}, '{value}')",
            f"REPLACE INTO {table} VALUES ({key}, '{value}')",
            f"UPDATE {table} SET v = '{value}' WHERE id = {key}",
            f"UPDATE IGNORE {table} SET id = {key} WHERE id = {draw.randrange(125) if table != 'k' else repr('k1')}",
            f"DELETE FROM {table} WHERE id = {key}",
        )
    )


def _end_all(server: MySQLServer, draw: random.Random) -> None:
    for format_id, size, _, data in server.execute("XA RECOVER"):
        name = data if isinstance(data, bytes) else data.encode()
        server.execute(
            f"XA {draw.choice(('COMMIT', 'ROLLBACK'))} X'{name[:size].hex()}', X'{name[size:].hex()}', {format_id}"
        )


@pytest.mark.parametrize(
    "seed", [pytest.param(n, marks=[pytest.mark.long] * (n > 0), id=f"seed-{n}") for n in range(ROUNDS)]
)
def test_xa_writers_all_through(seed: int, source: tuple[MySQLServer, float], nursery: Nursery, tmp_path: Path) -> None:
    (server, longest), draw = source, random.Random(seed)
    server.execute(f"DROP DATABASE IF EXISTS {DATABASE}")
    server.execute(f"CREATE DATABASE {DATABASE}")
    server.session(
        DATABASE,
        "CREATE TABLE t (id INT PRIMARY KEY, v VARCHAR(20))",
        "CREATE TABLE k (id VARCHAR(9) PRIMARY KEY, v VARCHAR(20))",
        "CREATE TABLE n (id INT, v VARCHAR(20))",
        "CREATE TABLE other (id INT PRIMARY KEY, v VARCHAR(20))",
        f"INSERT INTO t VALUES {', '.join(f'({n}, {n})' for n in range(120))}",
        f"INSERT INTO k VALUES {', '.join(f'({chr(39)}k{n}{chr(39)}, {n})' for n in range(120))}",
        f"INSERT INTO n VALUES {', '.join(f'({n % 9}, {n % 3})' for n in range(40))}",
        "INSERT INTO other SELECT * FROM t",
    )
    lake, log = Lake(tmp_path / "lake", f"xa-{seed}"), tmp_path / "log"
    file = lake.write_pipeline(DATABASE, chunk_rows=30, group_rows=draw.choice((60, 1000)), parallelism=2)
    file.write_text(file.read_text().replace(rf"{DATABASE}\\..*", rf"{DATABASE}\\.[tkn]"))
    connections = {"AIRFLOW_CONN_CDC_SOURCE": server.uri()}

    def run(failpoint: str = "") -> None:
        size = draw.choice((1 << 12, 1 << 16, 1 << 20))
        code = nursery.start(file, connections, failpoint, batch_bytes=size, log=log).wait()
        assert code == 0 or (failpoint and code == KILLED), log.read_text()

    with XaWriters(server, longest, seed) as writers:
        for _ in range(draw.randrange(3)):
            run(f"{draw.choice(SNAPSHOT)}:{draw.randint(1, 6)}")
        run()
        for _ in range(draw.randrange(3)):
            if draw.random() < 0.5:
                server.execute("FLUSH BINARY LOGS")
            run(f"{draw.choice(STREAM)}:{draw.randint(1, 4)}")
        run()
    if draw.random() < 0.5:
        run()
    _end_all(server, draw)
    run()
    print(dict(writers.done))
    assert writers.done["COMMIT"] > 10 and writers.done["ROLLBACK"] > 3
    differences = compare_database(server, DATABASE, lake.path, ["t", "k", "n"])
    assert not differences, "\n".join(map(str, differences))
