"""The barrier: a transaction that is in the binlog but not yet visible is waited for."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from bisect import bisect_right
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest
from pymysql.connections import Connection

from airflow_provider_cdc.model.errors import NotReadyError, TerminalError, TransientError
from airflow_provider_cdc.model.gtid import GtidSet
from airflow_provider_cdc.model.offset import Position
from airflow_provider_cdc.mysql.client.identity import binlog_end
from airflow_provider_cdc.mysql.client.session import connect, query_rows, query_value
from airflow_provider_cdc.mysql.positions import watermarks
from airflow_provider_cdc.mysql.positions.watermarks import make_watermarks, take_low_watermark
from tests.support.binlog.reading import capture, transactions
from tests.support.binlog.row_decoder import decode_rows
from tests.support.servers import MySQLServer

#: Seconds for which the semi-synchronous source holds a commit between binlog and engine.
HELD = 2.0


@pytest.fixture
def connection(mysql_server: MySQLServer, cdc_user: dict[str, str]) -> Iterator[Connection[Any]]:
    with contextlib.closing(connect(mysql_server.connect_args(**cdc_user))) as opened:
        yield opened


@contextlib.contextmanager
def held_commit(server: MySQLServer, sql: str) -> Iterator[None]:
    """While the block runs (at most :data:`HELD` seconds), a commit stands in the binlog and not in the engine.

    A semi-synchronous source that waits for a replica which never answers does exactly that, in the very place where a
    slow disk or a busy server does it for microseconds.
    """
    server.execute("SET GLOBAL rpl_semi_sync_source_enabled = ON")
    thread = threading.Thread(target=server.execute, args=(sql,))
    thread.start()
    try:
        end = time.monotonic() + 5
        while not server.execute("SELECT @@global.gtid_owned")[0][0]:
            assert time.monotonic() < end, "the commit was not held"
        time.sleep(0.1)
        yield
    finally:
        thread.join()
        server.execute("SET GLOBAL rpl_semi_sync_source_enabled = OFF")


@pytest.fixture(scope="module")
def slow() -> Iterator[MySQLServer]:
    """A server whose commits can be held."""
    with MySQLServer() as server:
        server.execute("INSTALL PLUGIN rpl_semi_sync_source SONAME 'semisync_source.so'")
        server.execute("SET GLOBAL rpl_semi_sync_source_wait_point = 'AFTER_SYNC'")
        server.execute("SET GLOBAL rpl_semi_sync_source_timeout = %s", (int(HELD * 1000),))
        server.execute("CREATE DATABASE d")
        server.execute("CREATE TABLE d.t (id INT PRIMARY KEY)")
        yield server


def test_a_commit_between_binlog_and_engine_is_waited_for(slow: MySQLServer) -> None:
    with contextlib.closing(connect(slow.connect_args())) as connection:
        before = binlog_end(connection)
        with held_commit(slow, "INSERT INTO d.t VALUES (1)"):
            at = binlog_end(connection)
            assert before < at  # the transaction lies at or before this position ...
            assert (
                query_rows(connection, "SELECT id FROM d.t WHERE id = 1") == []
            )  # ... and is invisible: this is no low watermark
            low = take_low_watermark(connection)
            assert at <= low.at
            assert query_rows(connection, "SELECT id FROM d.t WHERE id = 1") == [("1",)]
        executed = GtidSet.parse(query_value(connection, "SELECT @@global.gtid_executed") or "")
        assert GtidSet.parse(low.gtid_set) == executed  # and the GTID set has the one that was waited for


def test_a_barrier_that_times_out_gives_no_watermark(slow: MySQLServer) -> None:
    with contextlib.closing(connect(slow.connect_args(**slow.create_cdc_user()))) as connection:
        with held_commit(slow, "INSERT INTO d.t VALUES (2)"):
            with pytest.raises(TransientError, match=r"stood between binlog and engine for 0\.3 s"):
                take_low_watermark(connection, timeout=0.3)


def test_a_session_that_holds_a_gtid_for_hours_is_named(slow: MySQLServer) -> None:
    """It has not written anything and never will; the barrier cannot know."""
    gtid = f"{uuid4()}:7"
    user = slow.create_cdc_user()
    with contextlib.closing(slow.connect()) as other, contextlib.closing(connect(slow.connect_args(**user))) as reader:
        with other.cursor() as cursor:
            cursor.execute("SET SESSION gtid_next = %s", (gtid,))
            with pytest.raises(TransientError, match=rf"{gtid} \(connection {other.thread_id()}\) stood between"):
                take_low_watermark(reader, timeout=0.3)
            with contextlib.closing(connect(slow.connect_args())) as granted:  # with more grants it does not matter
                marks = make_watermarks(granted)
                at = marks.low(timeout=0.3)
                assert at == binlog_end(granted)
                started = time.monotonic()
                marks.low(timeout=30)  # and is not waited for again
                assert time.monotonic() - started < 10
            cursor.execute("ROLLBACK")
            cursor.execute("SET SESSION gtid_next = 'AUTOMATIC'")


def test_with_grants_a_commit_that_outlasts_the_barrier_is_waited_for_by_the_server(slow: MySQLServer) -> None:
    with contextlib.closing(connect(slow.connect_args())) as connection:
        with held_commit(slow, "INSERT INTO d.t VALUES (4)"):
            at = binlog_end(connection)
            assert at <= take_low_watermark(connection, timeout=0.1).at
            assert query_rows(connection, "SELECT id FROM d.t WHERE id = 4") == [("4",)]


def test_a_high_watermark_waits_for_nothing(slow: MySQLServer) -> None:
    """What is not visible yet was not read either: replaying it too does no harm."""
    with contextlib.closing(connect(slow.connect_args())) as connection:
        with held_commit(slow, "INSERT INTO d.t VALUES (3)"):
            started = time.monotonic()
            high, clock = make_watermarks(connection).high()
            assert time.monotonic() - started < HELD / 2
        assert high == binlog_end(connection)
        assert abs(clock / 1e6 - time.time()) < 60


def test_the_end_of_a_read_is_where_the_next_one_begins(slow: MySQLServer) -> None:
    """What was on its way then is waited for, too; and it is used once."""
    with contextlib.closing(connect(slow.connect_args())) as connection:
        marks = make_watermarks(connection)
        with held_commit(slow, "INSERT INTO d.t VALUES (5)"):
            high, _ = marks.high()
            assert query_rows(connection, "SELECT id FROM d.t WHERE id = 5") == []
            assert marks.low() == high
            assert query_rows(connection, "SELECT id FROM d.t WHERE id = 5") == [("5",)]
        slow.execute("INSERT INTO d.t VALUES (6)")
        assert high < marks.low() == binlog_end(connection)


def test_a_commit_after_the_look_at_the_owners_is_behind_the_position(
    slow: MySQLServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Were the position read after the owners, it would have a commit that nobody waits for."""
    with contextlib.closing(connect(slow.connect_args())) as connection, contextlib.ExitStack() as stack:
        before = binlog_end(connection)

        def look(*arguments: Any) -> Any:
            found = query_rows(*arguments)
            if "gtid_owned" in arguments[1] and binlog_end(connection) == before:
                stack.enter_context(held_commit(slow, "INSERT INTO d.t VALUES (7)"))
            return found

        monkeypatch.setattr(watermarks, "query_rows", look)
        low = make_watermarks(connection).low()
        assert query_rows(connection, "SELECT id FROM d.t WHERE id = 7") == []
        assert low == before < binlog_end(connection)


def test_an_owner_that_rolls_back_is_not_in_the_set(
    connection: Connection[Any], mysql_server: MySQLServer, database: str
) -> None:
    """It never reaches gtid_executed: waiting for that instead of for the owner would never end."""
    mysql_server.execute(f"CREATE TABLE `{database}`.t (id INT PRIMARY KEY)")
    gtid = f"{uuid4()}:7"
    with contextlib.closing(mysql_server.connect()) as other, other.cursor() as cursor:
        cursor.execute("SET SESSION gtid_next = %s", (gtid,))
        cursor.execute("BEGIN")
        cursor.execute(f"INSERT INTO `{database}`.t VALUES (1)")
        timer = threading.Timer(0.5, cursor.execute, ("ROLLBACK",))
        timer.start()
        started = time.monotonic()
        low = take_low_watermark(connection)
        waited = time.monotonic() - started
        timer.join()
        assert waited > 0.4
        assert gtid not in GtidSet.parse(low.gtid_set)


def test_only_while_gtid_mode_is_on(connection: Connection[Any], mysql_server: MySQLServer) -> None:
    mysql_server.execute("SET GLOBAL gtid_mode = ON_PERMISSIVE")
    try:
        with pytest.raises(NotReadyError, match="gtid_mode is ON_PERMISSIVE, and the user has no grant") as caught:
            take_low_watermark(connection)
        assert "BACKUP_ADMIN" in str(caught.value) and "RELOAD" in str(caught.value)
    finally:
        mysql_server.execute("SET GLOBAL gtid_mode = ON")


def test_another_server_is_refused(server: MySQLServer) -> None:
    with contextlib.closing(connect(server.connect_args())) as connection:
        marks = make_watermarks(connection, "elsewhere")
        for look in (marks.low, marks.high):
            with pytest.raises(TerminalError, match="began on elsewhere"):
                look()


@pytest.mark.parametrize("in_order", ["ON", "OFF"])
def test_nothing_below_the_watermark_is_invisible(mysql_server: MySQLServer, database: str, in_order: str) -> None:
    """Four writers, and a look at the table right after each watermark; afterwards the binlog tells what was due.

    The same with a bare position misses rows now and then, how often depends on the machine; the count is printed.
    """
    mysql_server.execute(f"SET GLOBAL binlog_order_commits = {in_order}")
    mysql_server.execute(f"CREATE TABLE `{database}`.t (id BIGINT AUTO_INCREMENT PRIMARY KEY, w INT)")
    captured = capture(mysql_server, database, "t")
    over = threading.Event()

    def write(number: int) -> None:
        with contextlib.closing(mysql_server.connect(database=database)) as other, other.cursor() as cursor:
            while not over.is_set():
                cursor.execute(f"INSERT INTO t (w) VALUES ({number})")

    threads = [threading.Thread(target=write, args=(n,)) for n in range(4)]
    seen: dict[bool, list[tuple[Position, int, set[int]]]] = {True: [], False: []}
    with contextlib.closing(connect(mysql_server.connect_args())) as connection:
        start = binlog_end(connection)
        for thread in threads:
            thread.start()
        enough, too_late = time.monotonic() + 2.5, time.monotonic() + 60
        try:
            while time.monotonic() < (too_late if len(seen[True]) < 30 else enough):
                barrier = random.random() < 0.5
                at = take_low_watermark(connection).at if barrier else binlog_end(connection)
                newest = int(query_value(connection, f"SELECT MAX(id) FROM `{database}`.t") or 0)
                ids = query_rows(connection, f"SELECT id FROM `{database}`.t WHERE id > {newest - 200}")
                seen[barrier].append((at, newest - 200, {int(str(i)) for (i,) in ids}))
        finally:
            over.set()
            for thread in threads:
                thread.join()
            mysql_server.execute("SET GLOBAL binlog_order_commits = ON")
    written: list[tuple[tuple[str, int], int]] = []
    for transaction in transactions(mysql_server, (start.file, start.position), captured):
        for event in transaction.rows:
            for _, after in decode_rows(event):
                assert after is not None
                written.append(((transaction.file, transaction.position), int(after[0])))
    places = [place for place, _ in written]

    def wrong(looks: list[tuple[Position, int, set[int]]]) -> int:
        missed = 0
        for at, floor, ids in looks:
            n = bisect_right(places, (at.file, at.position))
            missed += any(i > floor and i not in ids for _, i in written[max(0, n - 100) : n])
        return missed

    print(f"{len(written)} rows; wrong with a bare position: {wrong(seen[False])} of {len(seen[False])}")
    assert len(seen[True]) >= 30
    assert wrong(seen[True]) == 0
