"""Low watermarks on servers without GTIDs: a commit that stands between binlog and engine for seconds is never lost.

A semi-synchronous source that waits for a replica which never answers holds a commit in that very place.
"""

from __future__ import annotations

import contextlib
import random
import re
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from airflow_provider_cdc.model.errors import NotReadyError, TransientError
from airflow_provider_cdc.model.offset import Position
from airflow_provider_cdc.mysql.client.identity import binlog_end, is_mariadb, open_xa_transactions
from airflow_provider_cdc.mysql.client.session import connect, query_rows
from airflow_provider_cdc.mysql.positions import watermarks
from airflow_provider_cdc.mysql.positions.watermarks import make_watermarks, take_low_watermark
from tests.support.binlog.reading import capture, transactions
from tests.support.binlog.row_decoder import decode_rows
from tests.support.mariadb import MariaDBServer, NewestMariaDBServer
from tests.support.servers import MySQLServer

#: Seconds for which a commit is held.
HELD = 1.5
#: Servers, and on MySQL the grant that opens a way to a low watermark.
KINDS = ("OFF/BACKUP_ADMIN", "OFF/RELOAD", "ON_PERMISSIVE/BACKUP_ADMIN", "ON_PERMISSIVE/RELOAD", "MariaDB")
#: What is held in its commit: a plain transaction, the second phase of an XA transaction, one in one phase.
COMMITS = ("plain", "XA", "XA ONE PHASE")

Kind = tuple[MySQLServer, dict[str, Any]]


def _semi_sync(server: MySQLServer, name: str, value: object) -> None:
    word = "master" if isinstance(server, MariaDBServer) else "source"
    server.execute(f"SET GLOBAL rpl_semi_sync_{word}_{name} = {value}")


@pytest.fixture(scope="module")
def servers() -> Iterator[dict[str, MySQLServer]]:
    with contextlib.ExitStack() as stack:
        found: dict[str, MySQLServer] = {}
        for mode in ("OFF", "ON_PERMISSIVE"):
            found[mode] = stack.enter_context(MySQLServer(variables={"gtid_mode": mode}))
            found[mode].execute("INSTALL PLUGIN rpl_semi_sync_source SONAME 'semisync_source.so'")
        found["MariaDB"] = stack.enter_context(MariaDBServer())
        for server in found.values():
            _semi_sync(server, "wait_point", "'AFTER_SYNC'")
            _semi_sync(server, "timeout", int(HELD * 1000))
            server.execute("CREATE DATABASE d")
            server.execute("CREATE TABLE d.t (id INT AUTO_INCREMENT PRIMARY KEY, w INT)")
        yield found


@pytest.fixture(params=KINDS)
def kind(servers: dict[str, MySQLServer], request: pytest.FixtureRequest) -> Kind:
    """A server, and how a user with no more than the needed grants connects to it."""
    name, _, grant = request.param.partition("/")
    server = servers[name]
    user = server.create_cdc_user(f"cdc_{grant.lower()}")
    if grant:
        server.execute(f"GRANT {grant} ON *.* TO %s@'%%'", (user["user"],))
        if grant == "BACKUP_ADMIN":
            server.execute("GRANT SELECT ON performance_schema.log_status TO %s@'%%'", (user["user"],))
    return server, server.connect_args(**user)


@contextlib.contextmanager
def held(server: MySQLServer, commit: str, flush: bool = False) -> Iterator[int]:
    """While the block runs (at most :data:`HELD` seconds) a commit stands in the binlog, not in the engine: its id.

    :param flush: whether a new binlog file is begun right before it.
    """
    with (
        contextlib.closing(server.connect(database="d")) as connection,
        connection.cursor() as cursor,
        contextlib.closing(connect(server.connect_args())) as other,
    ):
        sql = "COMMIT"
        cursor.execute("BEGIN" if commit == "plain" else "XA START 'held'")
        cursor.execute("INSERT INTO t (w) VALUES (0)")
        number = cursor.lastrowid
        if commit != "plain":
            cursor.execute("XA END 'held'")
            sql = "XA COMMIT 'held' ONE PHASE"
        if commit == "XA":
            cursor.execute("XA PREPARE 'held'")
            sql = "XA COMMIT 'held'"
        _semi_sync(server, "enabled", "ON")
        if flush:  # and at once the commit: the event that says that the file before is done comes behind it
            query_rows(other, "FLUSH BINARY LOGS")
        before = binlog_end(other)
        thread = threading.Thread(target=cursor.execute, args=(sql,))
        thread.start()
        try:
            end = time.monotonic() + 5
            while binlog_end(other) == before:
                assert time.monotonic() < end, "the commit was not held"
            assert thread.is_alive()
            yield number
        finally:
            thread.join()
            _semi_sync(server, "enabled", "OFF")


def _end(server: MySQLServer) -> Position:
    with contextlib.closing(connect(server.connect_args())) as connection:
        return binlog_end(connection)


@pytest.mark.parametrize("commit", COMMITS)
@pytest.mark.parametrize("in_order", ["ON", "OFF"])
def test_a_commit_between_binlog_and_engine_is_not_lost(kind: Kind, commit: str, in_order: str) -> None:
    """Whatever is at or below the watermark is seen by the SELECT that follows."""
    server, args = kind
    if not isinstance(server, MariaDBServer):
        server.execute(f"SET GLOBAL binlog_order_commits = {in_order}")
    elif in_order == "OFF":
        pytest.skip("MariaDB always commits in order")
    with contextlib.closing(connect(args)) as connection:
        marks = make_watermarks(connection)
        with held(server, commit) as number:
            at = binlog_end(connection)
            assert query_rows(connection, f"SELECT id FROM d.t WHERE id = {number}") == []
            low = marks.low()
            seen = query_rows(connection, f"SELECT id FROM d.t WHERE id = {number}")
            high, _ = marks.high()
        assert low <= high
        if at <= low:
            assert seen == [(str(number),)]
        else:
            # The position lies before the transaction: it is seen only if it is replayed too.
            assert not seen or at <= high


@pytest.mark.parametrize("flush", ["before the commit", "in the middle"])
def test_a_new_file_beside_a_commit_that_is_held(servers: dict[str, MySQLServer], flush: str) -> None:
    """MariaDB: neither the head of a new file nor the end of the event behind it is the position of a view.

    Views are opened all the time from the FLUSH on: the last one also sees what the end of the commit makes of it.
    """
    server = servers["MariaDB"]
    with contextlib.closing(connect(server.connect_args(**server.create_cdc_user()))) as connection:
        known = make_watermarks(connection)
        known.low()
        known.high()
        with held(server, "plain", flush == "before the commit") as number:
            at = binlog_end(connection)
            flushing = threading.Thread(target=server.execute, args=("FLUSH BINARY LOGS",))
            if flush == "in the middle":
                flushing.start()
                while binlog_end(connection).file == at.file:
                    time.sleep(0.001)
            end = time.monotonic() + HELD + 0.5
            while time.monotonic() < end:
                for marks in (known, make_watermarks(connection)):
                    low = marks.low()
                    seen = query_rows(connection, f"SELECT id FROM d.t WHERE id = {number}")
                    high, _ = marks.high()
                    assert low <= high
                    assert seen == [(str(number),)] if at <= low else not seen or at <= high
        if flush == "in the middle":
            flushing.join()


def test_a_file_in_which_nothing_follows(servers: dict[str, MySQLServer]) -> None:
    """MariaDB tells no exact position until the next transaction, maybe for hours; a user who may begins a new file."""
    server = servers["MariaDB"]
    plain, grantee = server.create_cdc_user("cdc_plain"), server.create_cdc_user("cdc_reload")
    server.execute("GRANT RELOAD ON *.* TO cdc_reload@'%'")
    for _ in range(20):
        with held(server, "plain", flush=True):
            pass
        last = server.execute(f"SHOW BINLOG EVENTS IN '{_end(server).file}'")[-1]
        if last[2] == "Binlog_checkpoint":
            break  # else the event came before the commit: a race that the commit loses now and then
    else:
        raise AssertionError("in no file the event came behind the commit")
    with contextlib.closing(connect(server.connect_args(**plain))) as connection:
        marks = make_watermarks(connection)
        for _ in range(2):
            low = marks.low(force_new=True)
            assert low < marks.high()[0] and re.search(r"exact position .* GRANT RELOAD", marks.imprecision)
    with contextlib.closing(connect(server.connect_args(**grantee))) as connection:
        marks = make_watermarks(connection)
        low = marks.low()
        assert low < marks.high()[0], "for a chunk no file is begun"
        low = marks.low(force_new=True)
        assert low == marks.high()[0] and not marks.imprecision


def test_a_file_that_begins_with_a_large_transaction() -> None:
    """From MariaDB 11.7 on; a row of it may be larger than what the server lists of its binlog."""
    with NewestMariaDBServer({"binlog_large_commit_threshold": 10 << 20}) as server:
        server.execute("CREATE DATABASE d")
        server.execute("CREATE TABLE d.t (id INT PRIMARY KEY, v LONGBLOB)")
        plain, grantee = server.create_cdc_user("cdc_plain"), server.create_cdc_user("cdc_reload")
        server.execute("GRANT RELOAD ON *.* TO cdc_reload@'%'")
        server.execute("INSERT INTO d.t VALUES (1, REPEAT('a', 9 << 20))")
        file = _end(server).file
        server.execute("UPDATE d.t SET v = REPEAT('b', 9 << 20)")
        assert file < _end(server).file
        with contextlib.closing(connect(server.connect_args(**plain))) as connection:
            with pytest.raises(TransientError, match=r"cannot be listed.* max_allowed_packet.*GRANT RELOAD"):
                make_watermarks(connection).low()
        server.execute("SET GLOBAL max_allowed_packet = 64 << 20")
        with contextlib.closing(connect(server.connect_args(**plain))) as connection:
            assert make_watermarks(connection).low() == Position(_end(server).file, 4)
        server.execute("SET GLOBAL max_allowed_packet = 16 << 20")
        with contextlib.closing(connect(server.connect_args(**grantee))) as connection:
            marks = make_watermarks(connection)
            marks.low()
            assert query_rows(connection, "SELECT LEFT(v, 1) FROM d.t") == [("b",)]
            assert marks.high()[0].file == _end(server).file


def test_groups_that_become_visible_one_by_one_are_refused() -> None:
    with MariaDBServer({"binlog_optimize_thread_scheduling": "OFF"}) as server:
        with contextlib.closing(connect(server.connect_args())) as connection:
            with pytest.raises(NotReadyError, match=r"positions of read views are not exact.*scheduling=ON"):
                make_watermarks(connection).low()


def test_nothing_below_the_watermark_is_invisible_in_small_files(servers: dict[str, MySQLServer]) -> None:
    server = servers["MariaDB"]
    server.execute("SET GLOBAL max_binlog_size = 16384")
    try:
        nothing_is_invisible(server, server.connect_args(**server.create_cdc_user()))
    finally:
        server.execute("SET GLOBAL max_binlog_size = 1073741824")


def test_nothing_below_the_watermark_is_invisible(kind: Kind) -> None:
    nothing_is_invisible(*kind)


def nothing_is_invisible(server: MySQLServer, args: dict[str, Any]) -> None:
    """Writers of plain and XA transactions; what each look saw is compared with what the binlog says afterwards.

    With a bare position plain transactions are missed; with the position of MariaDB's views alone, and with the
    server's locks on MySQL alone, XA transactions are. The count of the former is printed.
    """
    for table in ("plain", "xa"):
        server.execute(f"DROP TABLE IF EXISTS d.{table}")
        server.execute(f"CREATE TABLE d.{table} (k INT PRIMARY KEY)")
    over = threading.Event()

    def write(number: int) -> None:
        with contextlib.closing(server.connect(database="d")) as other, other.cursor() as cursor:
            k = number * 1_000_000
            while not over.is_set():
                k += 1
                name = f"'{k}'"
                begin, end = (f"XA START {name}", f"XA COMMIT {name}") if number else ("BEGIN", "COMMIT")
                cursor.execute(begin)
                cursor.execute(f"INSERT INTO {'xa' if number else 'plain'} VALUES ({k})")
                if number:
                    cursor.execute(f"XA END {name}")
                    cursor.execute(f"XA PREPARE {name}")
                cursor.execute(end)

    threads = [threading.Thread(target=write, args=(n,)) for n in range(4)]
    looks: dict[bool, list[tuple[Position, Position, dict[int, int]]]] = {True: [], False: []}
    newest_keys = " UNION ALL ".join(f"SELECT k DIV 1000000, MAX(k) FROM d.{t} GROUP BY 1" for t in ("plain", "xa"))
    start = _end(server)
    with contextlib.closing(connect(args)) as connection:
        marks = make_watermarks(connection)
        for thread in threads:
            thread.start()
        try:
            end = time.monotonic() + 4
            while time.monotonic() < end:
                ours = random.random() < 0.7
                low = marks.low() if ours else binlog_end(connection)
                newest = query_rows(connection, newest_keys)
                high = marks.high()[0] if ours else binlog_end(connection)
                looks[ours].append((low, high, {int(n or 0): int(k or 0) for n, k in newest}))
        finally:
            over.set()
            for thread in threads:
                thread.join()
    places: dict[int, Position] = {}
    for transaction in transactions(server, (start.file, start.position), capture(server, "d", "plain")):
        at = Position(transaction.file, transaction.position)
        if transaction.xa_finished is not None:
            places[int(bytes.fromhex(transaction.xa_finished.split("'")[1]))] = at
        for event in transaction.rows:
            places |= {int(image[0]): at for _, image in decode_rows(event) if image}

    def wrong(found: list[tuple[Position, Position, dict[int, int]]]) -> tuple[int, int]:
        missed = surplus = 0
        for low, high, newest in found:
            for n in range(4):
                k = newest.get(n, n * 1_000_000)
                missed += k + 1 in places and places[k + 1] <= low
                surplus += k in places and high < places[k]
        return missed, surplus

    print(f"{len(places)} transactions; with a bare position {wrong(looks[False])} of {len(looks[False])} wrong")
    assert len(looks[True]) > 5
    assert wrong(looks[True]) == (0, 0)


def test_an_exact_view_needs_no_replay(servers: dict[str, MySQLServer]) -> None:
    server = servers["MariaDB"]
    with contextlib.closing(connect(server.connect_args(**server.create_cdc_user()))) as connection:
        marks = make_watermarks(connection)
        low = marks.low()
        server.execute("INSERT INTO d.t (w) VALUES (77)")
        assert query_rows(connection, "SELECT id FROM d.t WHERE w = 77") == []
        assert marks.high()[0] == low < binlog_end(connection)
        assert query_rows(connection, "SELECT COUNT(*) FROM d.t WHERE w = 77") == [("1",)]  # the view is over


def commit_xa(server: MySQLServer, name: str) -> None:
    with contextlib.closing(server.connect(database="d")) as other, other.cursor() as cursor:
        for sql in (f"START '{name}'", f"END '{name}'", f"PREPARE '{name}'", f"COMMIT '{name}'"):
            cursor.execute(f"XA {sql}")
            if sql.startswith("START"):
                cursor.execute("INSERT INTO t (w) VALUES (2)")


def test_an_xa_commit_while_a_view_is_opened(servers: dict[str, MySQLServer], monkeypatch: pytest.MonkeyPatch) -> None:
    """Its rows may be missing in the view though its position is below the view's, so the view is not exact."""
    server = servers["MariaDB"]
    with contextlib.closing(connect(server.connect_args(**server.create_cdc_user()))) as connection:
        marks: Any = make_watermarks(connection)
        marks.low()  # the file that is in use is known from now on
        opened: list[Position] = []
        open_view = marks._start_view

        def view() -> Position:
            if not opened:
                commit_xa(server, "v")
            opened.append(open_view())
            return opened[-1]

        monkeypatch.setattr(marks, "_start_view", view)
        low = marks.low()
        assert low == opened[0] and len(opened) == 2
        server.execute("INSERT INTO d.t (w) VALUES (78)")
        assert query_rows(connection, "SELECT id FROM d.t WHERE w = 78") == []
        assert marks.high()[0] == binlog_end(connection)  # all up to here is replayed


def test_an_xa_commit_after_the_open_ones_were_listed(
    servers: dict[str, MySQLServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is in no list, so it must not be in the first count either: it may still be going on at the view."""
    server = servers["MariaDB"]
    with contextlib.closing(connect(server.connect_args(**server.create_cdc_user()))) as connection:
        marks: Any = make_watermarks(connection)
        marks.low()  # the file that is in use is known from now on
        listed: list[frozenset[str]] = []

        def list_open(*arguments: Any) -> frozenset[str]:
            listed.append(open_xa_transactions(*arguments))
            if len(listed) == 1:
                commit_xa(server, "w")
            return listed[-1]

        monkeypatch.setattr(watermarks, "open_xa_transactions", list_open)
        marks.low()
        assert len(listed) == 2 and not any(listed)
        server.execute("INSERT INTO d.t (w) VALUES (79)")
        assert marks.high()[0] == binlog_end(connection)  # so the view is not taken for exact


def test_an_open_xa_transaction_is_waited_for(kind: Kind) -> None:
    """Without GTIDs one that is about to end cannot be told from one that nobody ends."""
    server, args = kind
    with contextlib.closing(connect(args)) as connection, contextlib.closing(server.connect(database="d")) as other:
        cursor = other.cursor()
        for sql in ("XA START 'left'", "INSERT INTO t (w) VALUES (1)", "XA END 'left'", "XA PREPARE 'left'"):
            cursor.execute(sql)
        marks = make_watermarks(connection)
        with pytest.raises(TransientError, match=r"XA transactions X'6c656674',X'',1 are prepared and do not end"):
            marks.low(timeout=0.2)
        timer = threading.Timer(0.3, cursor.execute, ("XA COMMIT 'left'",))
        timer.start()
        low = marks.low()
        timer.join()
        assert query_rows(connection, "SELECT COUNT(*) > 0 FROM d.t WHERE w = 1") == [("1",)]
        assert low <= marks.high()[0]


def test_no_grant_is_named(servers: dict[str, MySQLServer]) -> None:
    server = servers["OFF"]
    with contextlib.closing(connect(server.connect_args(**server.create_cdc_user("cdc_none")))) as connection:
        with pytest.raises(NotReadyError, match="gtid_mode is OFF") as caught:
            take_low_watermark(connection)
        for grant in ("BACKUP_ADMIN", "performance_schema.log_status", "RELOAD"):
            assert grant in str(caught.value)
    user = server.create_cdc_user("cdc_no_xa", xa=False)
    server.execute("GRANT RELOAD ON *.* TO cdc_no_xa@'%%'", ())
    with contextlib.closing(connect(server.connect_args(**user))) as connection:
        with pytest.raises(NotReadyError, match="XA_RECOVER_ADMIN"):
            take_low_watermark(connection)


def test_a_new_file_only_after_much_was_written(
    servers: dict[str, MySQLServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An older low watermark is as good; a new file for every chunk would flood the server with files."""
    server = servers["OFF"]
    user = server.create_cdc_user("cdc_reload")
    server.execute("GRANT RELOAD ON *.* TO cdc_reload@'%%'", ())
    with contextlib.closing(connect(server.connect_args(**user))) as connection:
        marks = make_watermarks(connection)
        first = marks.low()
        server.execute("INSERT INTO d.t (w) VALUES (5)")
        assert marks.low() == first == Position(binlog_end(connection).file, 4)
        monkeypatch.setattr(watermarks, "FLUSH_BYTES", 100)
        assert first < marks.low()


def test_which_server_it_is(servers: dict[str, MySQLServer]) -> None:
    for name, server in servers.items():
        with contextlib.closing(connect(server.connect_args())) as connection:
            assert is_mariadb(connection) == (name == "MariaDB")
